"""Whether a model is being exported as a graph."""

from __future__ import annotations

import torch


def is_exporting() -> bool:
    """Whether torch.export traces the model; torch 2.11 also says so inside torch.compile."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
