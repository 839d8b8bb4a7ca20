"""Metrics of texts and labels, edit distance, confidence intervals and significance tests."""
