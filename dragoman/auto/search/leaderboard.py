"""The leaderboard of a search while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dragoman.auto.search.state import SearchState, leaderboard_head, leaderboard_rows
from dragoman.training import Display


@contextmanager
def leaderboard(display: Display) -> Iterator[Callable[[SearchState], None]]:
    """A live table on a terminal; elsewhere a line for each change at the top."""
    if display.quiet:
        yield lambda state: None
        return
    if not display.interactive:
        shown = ""

        def show_best(state: SearchState) -> None:
            nonlocal shown
            if not any(trial.scores or trial.final is not None for trial in state.trials):
                return
            cells = dict(zip(leaderboard_head(state), leaderboard_rows(state)[0], strict=True))
            line = (
                f"search: best so far {cells['configuration']}, {leaderboard_head(state)[-1]} {[*cells.values()][-1]} "
                f"after {cells['steps']} steps ({cells['trained']})"
            )
            if line != shown:
                shown = line
                display.info(line)

        yield show_best
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(file=display.stream)
    with Live(console=console, auto_refresh=False) as live:
        display.stream = console.file  # messages go above the table

        def show(state: SearchState) -> None:
            table = Table(*leaderboard_head(state))
            for row in leaderboard_rows(state):
                table.add_row(*row)
            live.update(table, refresh=True)

        yield show
