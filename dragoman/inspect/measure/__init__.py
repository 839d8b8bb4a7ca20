"""Measurements: comparisons, probes, test suites, calibration, speed and cost, tables of scores."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
