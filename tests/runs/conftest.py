"""The tiny configurations of the training tests."""

from tests.training.conftest import cache, configure, one_thread, pairs

__all__ = ["cache", "configure", "one_thread", "pairs"]
