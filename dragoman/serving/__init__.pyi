from dragoman.serving.config import ServeConfig as ServeConfig
from dragoman.serving.start import ServeOptions as ServeOptions
from dragoman.serving.start import serve as serve
