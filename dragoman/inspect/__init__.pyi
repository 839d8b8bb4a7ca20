from dragoman.inspect.options import AttentionOptions as AttentionOptions
from dragoman.inspect.options import BenchOptions as BenchOptions
from dragoman.inspect.options import CalibrateOptions as CalibrateOptions
from dragoman.inspect.options import InfoOptions as InfoOptions
from dragoman.inspect.options import InspectOptions as InspectOptions
from dragoman.inspect.options import ProbeOptions as ProbeOptions
from dragoman.inspect.options import ShortlistOptions as ShortlistOptions
from dragoman.inspect.options import SuiteOptions as SuiteOptions
