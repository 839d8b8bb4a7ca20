"""Run folders: create, open, train and resume a run."""

from dragoman.runs.folder import Run
from dragoman.runs.resume import resume_config
from dragoman.runs.training import train

__all__ = ["Run", "resume_config", "train"]
