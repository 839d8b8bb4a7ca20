"""The table of decoding methods other than greedy and beam search.

From an entry follow the settings of the command line (`method=NAME method.x=…`), their help and errors, the JSON schema
of the server and the table in docs/reference/decoding.md.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.base.config import Table, imported
from dragoman.decoding.method import MethodEntry


def late(address: str, about: str) -> Callable[[], MethodEntry]:
    return imported(MethodEntry, f"dragoman.decoding.{address}", about)


METHODS: Table[str, MethodEntry] = Table(
    "decoding method",
    lambda entry: [entry.config.kind],
    late={
        "sampling": late("sampling:Sampling", "draw every token at random from the model's distribution"),
        "mbr": late("mbr:MinimumBayesRisk", "draw samples and output the one most like the others under a metric"),
        "exhaustive": late("exhaustive:Exhaustive", "score every output up to a length: exact, for small vocabularies"),
        "draft": late(
            "speculative:Draft", "greedy search in which a small run proposes tokens and the run checks them"
        ),
        "shortlist": late(
            "shortlist:ShortlistFile", "beam search among the target tokens that are likely for the source"
        ),
        "ctc": late("joint_ctc:CTCDecoding", "how a transcriber decodes: CTC, attention or both, and a language model"),
    },
)
