from dragoman.exchange.export_check import export as export
from dragoman.exchange.huggingface.importing import import_model as import_model
from dragoman.exchange.options import ExportOptions as ExportOptions
from dragoman.exchange.options import ImportOptions as ImportOptions
from dragoman.exchange.registry import EXPORTERS as EXPORTERS
from dragoman.exchange.registry import export_run as export_run
