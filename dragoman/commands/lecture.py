"""`dragoman lecture`: the companion of a course."""

from __future__ import annotations

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.printing import print_message
from dragoman.commands.root import cli
from dragoman.lecture import LectureOptions


@click.command()
@click.argument("topic", required=False)
@options_of(LectureOptions)
@click.option("--list", "listed", is_flag=True, help="List the topics.")
def lecture(topic: str | None, options: LectureOptions, listed: bool) -> None:
    """Make a course's companion: figures, commands, questions.

    A folder gets sample files, tiny runs and figures, and index.html shows each figure with the command that drew it
    and a question with a checked answer. TOPIC makes what one topic needs, and the page opens there. All topics take
    minutes; after a stop the same command makes the rest.

    \b
    dragoman lecture                         all topics, in the folder lecture
    dragoman lecture attention -o course     one topic
    dragoman lecture --list                  the topics
    """
    from dragoman.lecture import TOPICS, make_lecture

    if listed:
        for one in TOPICS.values():
            click.echo(f"{one.name:<16}{one.title}")
        return
    made = make_lecture(cli, topic, options, print_message)
    click.echo(f"page: {made.page}")
