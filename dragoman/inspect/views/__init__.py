"""Measurements inside a model: attention, alignments, calibration, probes, speed and memory."""
