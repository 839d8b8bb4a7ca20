"""Tensors to tensors; nothing here knows a task."""
