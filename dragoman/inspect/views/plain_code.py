"""Lines of plain PyTorch as formulas: what a page prints as mathematics is parsed from the code that it runs.

A formula is a tree of MathML: [tag, child, …] with texts as leaves.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Tree = list[Any]
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "mu": "μ"}
NAMES = {
    "sigmoid": "σ", "relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "elu": "ELU", "layer_norm": "LN",
    "rms_norm": "RMS", "amax": "max", "sum": "∑", "cumprod": "∏",
}  # fmt: skip
SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "−", ast.Mult: "⊙", ast.MatMult: "", ast.LtE: "≤", ast.Lt: "<", ast.USub: "−"
}  # fmt: skip
RANKS: dict[type, int] = {ast.Add: 1, ast.Sub: 1, ast.Mult: 2, ast.MatMult: 2}
# What only says how a tensor is laid out is no part of the formula.
SILENT = ("chunk", "unflatten", "cat", "split", "unbind", "reshape")


@dataclass(frozen=True)
class Library:
    """What computes lines: torch in float64, or something with the same functions."""

    torch: Any
    functional: Any
    read: Callable[[Any], Any]  # a tensor of the run as the library's own


def doubled(value: Any) -> Any:
    """In float64, so that plain code adds no errors of its own."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return value.double() if value.is_floating_point() else value


TORCH = Library(torch, F, doubled)


@dataclass(frozen=True)
class Code:
    """A few lines of plain PyTorch."""

    lines: tuple[str, ...]
    constants: dict[str, Any]  # weights and what else is the same at every step; a Code is a function
    takes: tuple[str, ...] = ()  # arguments, where it is a function of other code
    gives: tuple[str, ...] = ()

    def run(self, values: Mapping[str, Any], library: Library = TORCH) -> dict[str, Any]:
        """What every name that the lines set is for these values of the others."""
        return self.read_by(library).compute(values, library)

    def read_by(self, library: Library) -> Code:
        """With constants as the library's own, so that `compute` reads none of them again."""
        own = {
            name: value.read_by(library) if isinstance(value, Code) else library.read(value)
            for name, value in self.constants.items()
        }
        return replace(self, constants=own)

    def compute(self, values: Mapping[str, Any], library: Library) -> dict[str, Any]:
        scope: dict[str, Any] = {"torch": library.torch, "F": library.functional}
        for name, value in self.constants.items():
            scope[name] = value.function(library) if isinstance(value, Code) else value
        scope |= {name: library.read(value) for name, value in values.items()}
        exec("\n".join(self.lines), scope)
        return {name: scope[name] for name in self.assigned}

    def function(self, library: Library) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found = self.compute(dict(zip(self.takes, arguments, strict=True)), library)
            results = tuple(found[name] for name in self.gives)
            return results if len(results) > 1 else results[0]

        return call

    @cached_property
    def assigned(self) -> list[str]:
        """The names that the lines set, in their order."""
        return list(dict.fromkeys(name for line in self.lines for name in assigned(line)))

    @property
    def formulas(self) -> list[Tree]:
        return [formula(line, self.constants) for line in self.lines]

    def symbol(self, name: str) -> Tree:
        """A name of the lines, as formulas write it."""
        return _Writer(self.constants).tree(ast.Name(name))

    @property
    def text(self) -> list[str]:
        """The formulas, a line of text each."""
        return [as_text(tree) for tree in self.formulas]


def assigned(line: str) -> list[str]:
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.Assign), line
    return [node.id for node in ast.walk(statement.targets[0]) if isinstance(node, ast.Name)]


def formula(line: str, constants: Mapping[str, Any]) -> Tree:
    """The formula of a line; every lower-case name that is no constant belongs to step t."""
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.Assign), line
    writer = _Writer(constants)
    return ["mrow", writer.tree(statement.targets[0]), ["mo", "="], writer.tree(statement.value)]


def as_text(tree: Tree) -> str:
    """A formula in one line of text."""
    tag, *children = tree
    if tag in ("mi", "mn", "mtext"):
        return str(children[0])
    if tag == "mo":
        text = children[0]
        if text in ",;":
            return f"{text} "
        return text if text in "()[]|‖∑" else f" {text} "
    parts = [as_text(child) for child in children]
    if tag == "msub":
        return f"{parts[0]}_{_braced(parts[1])}"
    if tag in ("msup", "msubsup"):
        power = parts[-1].strip()
        above = {"⊤": "ᵀ", "2": "²"}.get(power, f"^{_braced(power)}")
        below = f"_{_braced(parts[1])}" if tag == "msubsup" else ""
        return f"{parts[0]}{below}{above}" if power == "⊤" else f"{parts[0]}{above}{below}"
    if tag == "mfrac":
        return "/".join(f"({part})" if " " in part and part[-1] not in ")‖" else part for part in parts)
    if tag == "msqrt":
        return f"√{parts[0]}"
    return "".join(parts)


def _braced(text: str) -> str:
    return text if len(text) == 1 else f"{{{text.replace(' ', '')}}}"


class _Writer:
    """Trees of expressions."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants

    def tree(self, node: ast.AST) -> Tree:
        written: Tree = getattr(self, f"_{type(node).__name__.lower()}")(node)
        return written

    def _name(self, node: ast.Name) -> Tree:
        base, *below = node.id.split("_")
        letter: Tree = ["mi", GREEK.get(base, base)]
        if node.id in self.constants or base[0].isupper():
            return ["msub", letter, ["mi", ",".join(below)]] if below else letter
        before = ["mrow", ["mi", "t"], ["mo", "−"], ["mn", "1"]]
        time: Tree = before if below[-1:] == ["prev"] else ["mi", "t"]
        below = [one for one in below if one != "prev"]
        if below and below[0].isdigit():  # one of several after another: x_2 is the second x of this step
            return ["msubsup", letter, time, ["mrow", ["mo", "("], ["mn", below[0]], ["mo", ")"]]]
        return ["msub", letter, ["mrow", ["mi", below[0]], ["mo", ","], time] if below else time]

    def _constant(self, node: ast.Constant) -> Tree:
        return ["mn", f"{node.value:g}" if isinstance(node.value, float) else str(node.value)]

    def _tuple(self, node: ast.Tuple | ast.List, sign: str = ",") -> Tree:
        parts = [self.tree(part) for part in node.elts]
        return ["mrow", ["mo", "["], *_between(parts, sign), ["mo", "]"]]

    def _list(self, node: ast.List) -> Tree:
        return self._tuple(node, ";")

    def _unaryop(self, node: ast.UnaryOp) -> Tree:
        return ["mrow", ["mi", SIGNS[type(node.op)]], self._inner(node.operand, 2)]

    def _binop(self, node: ast.BinOp) -> Tree:
        if isinstance(node.op, ast.Div):
            return ["mfrac", self.tree(node.left), self.tree(node.right)]
        if isinstance(node.op, ast.Pow):
            if isinstance(node.right, ast.Constant) and node.right.value == 0.5:
                return ["msqrt", self.tree(node.left)]
            return ["msup", self._inner(node.left, 3), self.tree(node.right)]
        rank, sign = RANKS[type(node.op)], SIGNS[type(node.op)]
        left = self._inner(node.left, rank, node.op)
        right = self._inner(node.right, rank + isinstance(node.op, ast.Sub), node.op)
        if isinstance(node.op, ast.MatMult) or (isinstance(node.op, ast.Mult) and self._is_number(node.left)):
            return ["mrow", left, ["mtext", " "], right]
        return ["mrow", left, ["mo", sign], right]

    def _inner(self, node: ast.AST, rank: int, around: ast.AST | None = None) -> Tree:
        """In parentheses if it binds less than its surroundings, or is one kind of product inside the other."""
        written = self.tree(node)
        if isinstance(node, ast.BinOp) and type(node.op) in RANKS:
            mixed = isinstance(around, ast.Mult | ast.MatMult) and type(node.op) is not type(around)
            return _called(written) if RANKS[type(node.op)] < rank or mixed else written
        return written

    def _is_number(self, node: ast.AST) -> bool:
        if isinstance(node, ast.UnaryOp):
            return self._is_number(node.operand)
        value = self.constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return isinstance(value, float | int) or (isinstance(value, Tensor) and value.dim() == 0)

    def _compare(self, node: ast.Compare) -> Tree:
        return ["mrow", self.tree(node.left), ["mo", SIGNS[type(node.ops[0])]], self.tree(node.comparators[0])]

    def _attribute(self, node: ast.Attribute) -> Tree:
        if node.attr in ("T", "mT"):
            value = self._inner(node.value, 3)
            return ["msubsup", *value[1:], ["mo", "⊤"]] if value[0] == "msub" else ["msup", value, ["mo", "⊤"]]
        assert node.attr == "inf", node.attr
        return ["mi", "∞"]

    def _subscript(self, node: ast.Subscript) -> Tree:
        return self.tree(node.value)  # one of several rows that are alike

    def _call(self, node: ast.Call) -> Tree:
        function, arguments = node.func, node.args
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if isinstance(function, ast.Attribute) and not isinstance(function.value, ast.Name | ast.Attribute):
            assert name == "sum", name  # of the heads
            return ["mrow", ["msub", ["mi", "∑"], ["mi", "h"]], ["mtext", " "], self._inner(function.value, 2)]
        first = self.tree(arguments[0])
        if name in SILENT:
            return first
        if name == "abs":
            return ["mrow", ["mo", "|"], first, ["mo", "|"]]
        if name == "normalize":
            return ["mfrac", first, ["mrow", ["mo", "‖"], first, ["mo", "‖"]]]
        if name == "where":
            visible, then, other = map(self.tree, arguments)
            return ["mrow", then, ["mtext", " where "], visible, ["mtext", ", else "], other]
        head: Tree = ["mi", NAMES.get(name, name.replace("_", "-"))]
        if name in ("layer_norm", "rms_norm"):
            parts = [self.tree(one) for one in arguments[2:] if isinstance(one, ast.Name) and one.id != "eps"]
            head = ["msub", head, ["mrow", *_between(parts, ",")]] if parts else head
        if isinstance(self.constants.get(name), Code):
            return ["mrow", head, ["mo", "("], *_between([self.tree(one) for one in arguments], ","), ["mo", ")"]]
        return ["mrow", head, _called(first)]


def _called(tree: Tree) -> Tree:
    return ["mrow", ["mo", "("], tree, ["mo", ")"]]


def _between(parts: Sequence[Tree], sign: str) -> Sequence[Tree]:
    return [piece for number, part in enumerate(parts) for piece in ([["mo", sign]] if number else []) + [part]]
