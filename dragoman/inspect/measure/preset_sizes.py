"""The parameters of a preset, layer by layer, for `dragoman presets NAME --layers`."""

from __future__ import annotations

from dragoman.runs.tasks import build, preset_notes, task_of


def preset_layers(name: str) -> str:
    """One line for each layer with parameters: its kind, the sizes of its tensors, their number, and the sum."""
    config, notes = build({"preset": name, "data": {"train": "unread"}}), preset_notes(name)
    if getattr(config.model, "fitted", False):
        return f"{name} is counted from data; it has no layers\n"
    import torch

    from dragoman.inspect.views.layer_table import parameter_count, parameter_formula

    source, target = notes["vocabulary"]
    with torch.device("meta"):  # shapes without numbers
        model = task_of(config).untrained(config, source, target)
    rows, seen = [], set[int]()
    for place, module in model.named_modules():
        own = [part for part in module.parameters(recurse=False) if id(part) not in seen]
        seen.update(map(id, own))
        if own:
            count = sum(part.numel() for part in own)
            rows.append((place, type(module).__name__, parameter_formula(module), f"{count:,}"))
    rows.append(("sum", "", f"for a vocabulary of {source:,} and {target:,}", f"{parameter_count(model):,}"))
    first, second, third, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "".join(f"{a:<{first}}  {b:<{second}}  {c:<{third}}  {d:>{last}}\n" for a, b, c, d in rows)
