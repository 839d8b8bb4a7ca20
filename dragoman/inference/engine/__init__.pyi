from dragoman.inference.engine.ctranslate2_export import CTranslate2Exporter as CTranslate2Exporter
from dragoman.inference.engine.exporter import PLAIN as PLAIN
from dragoman.inference.engine.exporter import Exporter as Exporter
from dragoman.inference.engine.exporter import encoder_decoder as encoder_decoder
from dragoman.inference.engine.exporter import not_encoder_decoder as not_encoder_decoder
from dragoman.inference.engine.exporter import stacks_of as stacks_of
from dragoman.inference.engine.exporter import transformer_blockers as transformer_blockers
