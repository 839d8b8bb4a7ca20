"""Run modules of pages in node or, where there is none, in Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dragoman.web.page import bundle

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def run_javascript(entry: str, function: str, data: Any, folder: Path) -> Any:
    """What an async function of JavaScript makes of data; it finds the module `entry` as `module_entry`."""
    work = f"(() => {{ {bundle(entry)}\nreturn ({function}); }})()"
    if NODE is not None:
        read = "JSON.parse(require('fs').readFileSync(0, 'utf8'))"
        script = folder / f"{entry}.cjs"
        script.write_text(f"{work}({read}).then((out) => process.stdout.write(JSON.stringify(out)));", encoding="utf-8")
        done = subprocess.run(
            [NODE, script], input=json.dumps(data), capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)
    if CHROMIUM is None:
        pytest.skip("neither node nor Chromium found: tests of JavaScript need one")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
        try:
            return browser.new_page().evaluate(f"(data) => {work}(data)", data)
        finally:
            browser.close()
