# Settings of an entry: a frozen dataclass with a `kind`.
from dragoman.base.config.fields import Range as Range
from dragoman.base.config.fields import Size as Size
from dragoman.base.config.fields import setting as setting

# Data: readers of files, the examples that they give, and batches.
from dragoman.data.batch import Batch as Batch
from dragoman.data.examples import Example as Example
from dragoman.data.examples import Fault as Fault
from dragoman.data.examples import FaultError as FaultError
from dragoman.data.examples import make_example as make_example
from dragoman.data.readers.base import Reader as Reader
from dragoman.data.readers.base import ReadOptions as ReadOptions
from dragoman.data.readers.lines import parse_lines as parse_lines
from dragoman.data.tokenizers.base import EOS as EOS
from dragoman.data.tokenizers.base import PAD as PAD
from dragoman.data.tokenizers.base import SOS as SOS
from dragoman.data.tokenizers.base import UNK as UNK
from dragoman.decoding.constraints.compiler import NamedConstraint as NamedConstraint

# Decoding methods and constraints.
from dragoman.decoding.constraints.constraint import AutomatonState as AutomatonState
from dragoman.decoding.constraints.constraint import Constraint as Constraint
from dragoman.decoding.constraints.token_bytes import TokenBytes as TokenBytes
from dragoman.decoding.greedy import greedy_search as greedy_search
from dragoman.decoding.hypothesis import Hypothesis as Hypothesis
from dragoman.decoding.method import Method as Method
from dragoman.decoding.method import MethodEntry as MethodEntry
from dragoman.decoding.method import Request as Request
from dragoman.decoding.scorer import Scorer as Scorer

# Tasks, exporters and document formats.
from dragoman.documents.base import PartsDocument as PartsDocument
from dragoman.documents.base import Reading as Reading
from dragoman.documents.registry import DocumentFormat as DocumentFormat
from dragoman.inference.engine.exporter import Exporter as Exporter
from dragoman.inference.segments.markup import Block as Block
from dragoman.inference.segments.markup import unchanged as unchanged

# Models: what passes between encoders, decoders and searches.
from dragoman.models.contracts import Decoder as Decoder
from dragoman.models.contracts import Encoder as Encoder
from dragoman.models.contracts import Loss as Loss
from dragoman.models.contracts import Memory as Memory
from dragoman.models.contracts import State as State
from dragoman.models.entries import DecoderEntry as DecoderEntry
from dragoman.models.entries import EncoderEntry as EncoderEntry
from dragoman.models.entries import FeatureEncoderEntry as FeatureEncoderEntry
from dragoman.models.entries import SequenceEncoderEntry as SequenceEncoderEntry
from dragoman.runs.folder import Run as Run
from dragoman.runs.tasks.base import Starter as Starter
from dragoman.runs.tasks.base import Task as Task
from dragoman.runs.tasks.translate import Translate as Translate
from dragoman.runs.tasks.translate import TranslateConfig as TranslateConfig

# Metrics.
from dragoman.scoring.metric import FloatArray as FloatArray
from dragoman.scoring.metric import LabelMetric as LabelMetric
from dragoman.scoring.metric import References as References
from dragoman.scoring.metric import Statistics as Statistics
from dragoman.scoring.metric import TextMetric as TextMetric
from dragoman.scoring.metric import as_rows as as_rows
from dragoman.scoring.metric import ratio as ratio
from dragoman.scoring.metric import signature as signature

# Checks of registered entries, one for each kind.
from dragoman.testing import check_constraint as check_constraint
from dragoman.testing import check_decoder as check_decoder
from dragoman.testing import check_document as check_document
from dragoman.testing import check_encoder as check_encoder
from dragoman.testing import check_exporter as check_exporter
from dragoman.testing import check_method as check_method
from dragoman.testing import check_metric as check_metric
from dragoman.testing import check_objective as check_objective
from dragoman.testing import check_reader as check_reader
from dragoman.testing import check_task as check_task

# Training objectives.
from dragoman.training.objectives.base import Objective as Objective
from dragoman.training.objectives.base import ObjectiveConfig as ObjectiveConfig
from dragoman.training.objectives.base import ObjectiveEntry as ObjectiveEntry

# Trackers of trainings.
from dragoman.training.trackers import OnMetrics as OnMetrics
from dragoman.training.trackers import TrackedRun as TrackedRun
from dragoman.training.trackers import Tracker as Tracker
