"""The table of decoding methods other than greedy and beam search.

From an entry follow the settings of the command line (`method=NAME method.x=…`), their help and errors, the JSON schema
of the server and the table in docs/explanation/decoding.md.
"""

from __future__ import annotations

from dragoman.config.table import Table
from dragoman.decoding.exhaustive import Exhaustive
from dragoman.decoding.joint_ctc import CTCDecoding
from dragoman.decoding.mbr import MinimumBayesRisk
from dragoman.decoding.method import MethodEntry
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.shortlist import ShortlistFile
from dragoman.decoding.speculative import Draft

BUILT_IN = (
    MethodEntry(Sampling, "draw every token at random from the model's distribution"),
    MethodEntry(MinimumBayesRisk, "draw samples and output the one most like the others under a metric"),
    MethodEntry(Exhaustive, "score every output up to a length: exact, for small vocabularies"),
    MethodEntry(Draft, "greedy search in which a small run proposes tokens and the run checks them"),
    MethodEntry(ShortlistFile, "beam search among the target tokens that are likely for the source"),
    MethodEntry(CTCDecoding, "how a transcriber decodes: CTC, attention or both, and a language model"),
)
METHODS = Table("decoding method", lambda entry: [entry.config.kind], BUILT_IN)
