"""How hypotheses are scored."""

from __future__ import annotations

NEG_INF = float("-inf")
