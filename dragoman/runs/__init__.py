"""Run folders: create, open, train and resume a run."""

from dragoman.runs.folder import Run
from dragoman.runs.plan import train
from dragoman.runs.resume import resume_config

__all__ = ["Run", "resume_config", "train"]
