"""`python -m dragoman` is the command line; torchrun starts it this way."""

from dragoman.cli import run

run()
