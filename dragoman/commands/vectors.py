"""`dragoman vectors`: learn word vectors from text; nearest neighbours and analogies."""

from __future__ import annotations

import click

from dragoman.base import DataError
from dragoman.classical import EmbeddingOptions
from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_json, print_message


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--output", "-o", metavar="FILE", help="Learn vectors from the text of FILE... and write them here.")
@click.option("--near", multiple=True, metavar="WORD", help="Print the nearest neighbours of a word.")
@click.option("--analogy", multiple=True, metavar="'A B C'", help="Print what is to C as B is to A.")
@options_of(EmbeddingOptions)
@json_option
def vectors(
    files: tuple[str, ...], output: str | None, near: tuple[str, ...], analogy: tuple[str, ...],
    options: EmbeddingOptions, as_json: bool,
) -> None:  # fmt: skip
    """Learn word vectors by negative sampling; find neighbours.

    With --output, FILE... are texts. Without it, FILE is a file of vectors of word2vec, GloVe or fastText. Models can
    start from such vectors: train.vectors.source=vectors.txt.

    \b
    dragoman vectors text.txt --output vectors.txt --near king
    dragoman vectors text.txt --output vectors.txt --method cbow --width 50
    dragoman vectors vectors.txt --near king --analogy 'man king woman'
    dragoman train labelled.tsv task=classify tokenizer.source.kind=words train.vectors.source=vectors.txt \\
        model.encoder.embedding=100
    """
    from dragoman.classical import WordEmbeddings, learn_embeddings

    as_utf8()
    asked = [words.split() for words in analogy]
    if wrong := next((words for words in asked if len(words) != 3), None):
        raise DataError(
            f"--analogy: found {len(wrong)} words ({' '.join(wrong)}), expected three, such as 'man king woman'"
        )
    if output is not None:
        found = learn_embeddings(files, options, print_message)
        found.save(output)
        print_message(f"{len(found.words):,} vectors of {options.width}: {output}")
    elif len(files) > 1 or not (near or asked):
        raise DataError(
            "found no --output; expected one to learn vectors, or one file of vectors with --near or --analogy"
        )
    else:
        found = WordEmbeddings.read(files[0])
    answers = [(word, found.nearest(word)) for word in near]
    answers += [(f"{b} − {a} + {c}", found.analogy(a, b, c)) for a, b, c in asked]
    if as_json:
        print_json([{"asked": name, "nearest": [one._asdict() for one in words]} for name, words in answers])
        return
    for name, words in answers:
        click.echo(f"{name}: " + "  ".join(f"{one.word} {one.cosine:.2f}" for one in words))
