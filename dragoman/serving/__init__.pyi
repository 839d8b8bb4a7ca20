from dragoman.serving.config import ServeConfig as ServeConfig
from dragoman.serving.config import ServeOptions as ServeOptions
from dragoman.serving.config import serve as serve
