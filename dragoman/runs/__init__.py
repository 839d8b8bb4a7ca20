"""Run folders: create, open, train and resume a run."""

from typing import TYPE_CHECKING

from dragoman.runs.folder import Run

if TYPE_CHECKING:
    from dragoman.runs.plan import train
    from dragoman.runs.resume import resume_config

__all__ = ["Run", "resume_config", "train"]


def __getattr__(name: str) -> object:
    """Training is imported when it is first used: whoever opens a run need not wait for it."""
    if name == "train":
        from dragoman.runs.plan import train

        return train
    if name == "resume_config":
        from dragoman.runs.resume import resume_config

        return resume_config
    raise AttributeError(f"module 'dragoman.runs' has no attribute {name!r}")
