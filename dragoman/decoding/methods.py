"""The table of decoding methods other than greedy and beam search.

From an entry follow the settings of the command line (`method=NAME method.x=…`), their help and errors, the JSON schema
of the server and the table in docs/reference/decoding.md.
"""

from __future__ import annotations

from dragoman.config.table import Table
from dragoman.decoding.method import MethodEntry


def _sampling() -> MethodEntry:
    from dragoman.decoding.sampling import Sampling

    return MethodEntry(Sampling, "draw every token at random from the model's distribution")


def _mbr() -> MethodEntry:
    from dragoman.decoding.mbr import MinimumBayesRisk

    return MethodEntry(MinimumBayesRisk, "draw samples and output the one most like the others under a metric")


def _exhaustive() -> MethodEntry:
    from dragoman.decoding.exhaustive import Exhaustive

    return MethodEntry(Exhaustive, "score every output up to a length: exact, for small vocabularies")


def _draft() -> MethodEntry:
    from dragoman.decoding.speculative import Draft

    return MethodEntry(Draft, "greedy search in which a small run proposes tokens and the run checks them")


def _shortlist() -> MethodEntry:
    from dragoman.decoding.shortlist import ShortlistFile

    return MethodEntry(ShortlistFile, "beam search among the target tokens that are likely for the source")


def _ctc() -> MethodEntry:
    from dragoman.decoding.joint_ctc import CTCDecoding

    return MethodEntry(CTCDecoding, "how a transcriber decodes: CTC, attention or both, and a language model")


METHODS: Table[str, MethodEntry] = Table(
    "decoding method",
    lambda entry: [entry.config.kind],
    late={
        "sampling": _sampling, "mbr": _mbr, "exhaustive": _exhaustive, "draft": _draft, "shortlist": _shortlist,
        "ctc": _ctc,
    },
)  # fmt: skip
