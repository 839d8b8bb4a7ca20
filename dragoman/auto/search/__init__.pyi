from dragoman.auto.search.state import SearchState as SearchState
from dragoman.auto.search.verb import search as search
