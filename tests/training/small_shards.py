"""A plug-in for tests in processes of their own: small corpora are cut into small shards."""

from functools import partial

from dragoman.data import crew
from dragoman.data.shards import cut_shards

SIZE = 700  # bytes
crew.LARGE = 0
crew.cut_shards = partial(cut_shards, size=SIZE)
