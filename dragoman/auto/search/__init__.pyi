from dragoman.auto.search.state import SearchState as SearchState
from dragoman.auto.verbs import search as search
