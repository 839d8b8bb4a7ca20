"""Budgeted model search: train a portfolio of configurations in stages, keep the best."""
