from dragoman.auto.search.state import SearchState as SearchState
from dragoman.auto.search.state import describe as describe
from dragoman.auto.search.state import has_search as has_search
from dragoman.auto.search.state import leaderboard_head as leaderboard_head
from dragoman.auto.search.state import leaderboard_rows as leaderboard_rows
from dragoman.auto.search.state import load_search as load_search
from dragoman.auto.search.verb import search as search
