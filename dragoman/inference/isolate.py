"""Predictions of inputs of which some may fail: one that fails does not take the others with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dragoman.errors import DragomanError

Input = TypeVar("Input")
Result = TypeVar("Result")


def predict_each(
    predict: Callable[[Sequence[Input]], Sequence[Result]], inputs: Sequence[Input]
) -> list[Result | DragomanError]:
    """The result of every input, or its error: halves of the inputs are tried again until the faulty ones are alone.

    This costs nothing where no input fails, and some log₂ n more calls for every one that does.
    """
    if not inputs:
        return []
    try:
        return list(predict(inputs))
    except DragomanError as error:
        if len(inputs) == 1:
            return [error]
    middle = len(inputs) // 2
    return [*predict_each(predict, inputs[:middle]), *predict_each(predict, inputs[middle:])]
