"""Prediction of any amount of text: a file is cut into shards, which any number of workers predict."""
