"""Benchmarks go with this confide: what they import is there, and they say what they do."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cases import each

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted((ROOT / "benchmarks").rglob("*.py"))


def _is_missing(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return False
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return True
    return False


def test_names_that_benchmarks_import_exist() -> None:
    assert PROGRAMS
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.module}.{one.name}"
        for path in PROGRAMS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "confide"
        for one in node.names
        if node.module and _is_missing(node.module, one.name)
    ]
    assert not missing


@pytest.mark.slow
@each("path", [one for one in PROGRAMS if "ArgumentParser(" in one.read_text("utf-8")])
def test_help_says_what_a_benchmark_does(path: Path) -> None:
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, path, "--help"], capture_output=True, text=True, env=own, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert "usage:" in found.stdout
