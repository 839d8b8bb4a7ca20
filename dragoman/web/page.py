"""Build a page of one file: style sheet, ES modules and data inside, no network request, a strict security policy.

The modules under `modules/` are plain ES modules; a server may also serve them as they are. The builder wraps each in a
function, because inline modules cannot import each other. It knows two forms of statement and refuses all others:
`import { a, b } from "./name.js";` and `export function|const|class name`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable
from graphlib import TopologicalSorter
from importlib import resources
from string import Template
from typing import Any

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
_UNKNOWN = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
FOLDERS = ("modules", "offline")  # of modules, all with different names
DIGITS = 7  # significant digits of numbers in a page


def asset(name: str) -> str:
    """The text of a file of this folder, such as "style.css" or "modules/core.js"."""
    return resources.files("dragoman.web").joinpath(name).read_text(encoding="utf-8")


def bundle(entry: str) -> str:
    """The module `entry` and all that it imports as one script, each module in a scope of its own."""
    sources = modules_of(entry)
    graph = {name: _imports(source) for name, source in sources.items()}
    parts = [_wrapped(name, sources[name]) for name in TopologicalSorter(graph).static_order()]
    return '"use strict";\n' + "\n".join(parts)


def modules_of(entry: str) -> dict[str, str]:
    """The texts of the module `entry` and of all that it imports, by their names."""
    sources: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = module(name)
            waiting += _imports(sources[name])
    return sources


def module(name: str) -> str:
    """The text of a module, in whichever folder of FOLDERS it is."""
    root = resources.files("dragoman.web")
    return next(asset(f"{folder}/{name}.js") for folder in FOLDERS if root.joinpath(folder, f"{name}.js").is_file())


def _imports(source: str) -> list[str]:  # a list: the order of a set differs from process to process
    return [imported for _, imported in _IMPORT.findall(source)]


def _wrapped(name: str, source: str) -> str:
    """A module as a constant that holds its exports."""
    exports = _EXPORT.findall(source)
    body = _IMPORT.sub(lambda match: f"const {{{match[1].replace(' as ', ': ')}}} = {_scope(match[2])};\n", source)
    body = _EXPORT.sub("", body)
    assert not (left := _UNKNOWN.search(body)), f"{name}.js: {left and left[0]!r} is not a form that pages can inline"
    assert "</script" not in body, f"{name}.js: would end the script element"
    return f"const {_scope(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"


def _scope(name: str) -> str:
    return "module_" + name.replace("-", "_")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def security_policy(
    scripts: Iterable[str], styles: Iterable[str], webassembly: bool = False, beside: bool = False
) -> str:
    """A Content-Security-Policy that allows these inline scripts and styles and images inside the page, no more.

    With `webassembly` the scripts may compile it; with `beside` the page shows pictures and pages of its folder.
    """
    sources = [*map(_hash, scripts), *(["'wasm-unsafe-eval'"] if webassembly else [])]
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(sources)}",
            f"style-src {' '.join(map(_hash, styles))}",
            *(["img-src 'self' file: data:", "frame-src 'self' file:"] if beside else ["img-src data:"]),
            "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def json_for_html(data: Any) -> str:
    """JSON that cannot end its script element; ASCII alone, so that any text survives any decoding."""
    return json.dumps(plain(data), separators=(",", ":"), allow_nan=False).translate(_UNSAFE)


def plain(value: Any) -> Any:
    """Nested values as JSON has them: floats with seven digits, numbers that are not finite as null."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def page_data(page: str) -> Any:
    """The data inside a page; ValueError if it has none."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    if found is None:
        raise ValueError("no data")
    return json.loads(found[1])


def build_page(title: str, entry: str, data: Any, beside: bool = False) -> str:
    """A whole page: the module `entry` runs with `data`, which it finds in the element with the id "data".

    With `beside` it may show pictures and pages of its own folder.
    """
    style, script = asset("style.css"), bundle(entry)
    return Template(asset("page.html")).substitute(
        policy=html.escape(security_policy([script], [style], beside=beside)),
        title=html.escape(title.encode("utf-8", "replace").decode("utf-8")),
        style=style,
        data=json_for_html(data),
        script=script,
    )
