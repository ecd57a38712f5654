"""The notebooks: small on disk, without outputs; slowly, every cell runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cases import each

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    read = json.loads(path.read_text(encoding="utf-8"))
    assert (read["nbformat"], read["metadata"]["kernelspec"]["name"]) == (4, "python3")
    return [cell for cell in read["cells"] if cell["cell_type"] == kind]


def test_there_are_four() -> None:
    assert NAMES == ["correct-and-improve", "first-federation", "five-methods", "own-files"]


@each("path", NOTEBOOKS)
def test_notebooks_hold_no_outputs(path: Path) -> None:
    for cell in cells(path, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None
        assert cell["metadata"] == {}
    assert "".join(cells(path, "markdown")[0]["source"]).startswith("# ")
    assert path.stat().st_size < 20_000


@each("path", NOTEBOOKS)
def test_every_cell_is_python(path: Path) -> None:
    for number, cell in enumerate(cells(path, "code")):
        compile("".join(cell["source"]), f"{path.name}[{number}]", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_every_cell_runs(path: Path, in_tmp: Path) -> None:
    """In order and in one namespace, as a kernel runs them; it writes only beside itself."""
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    for number, cell in enumerate(cells(path, "code")):
        exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), namespace)
    assert [folder.name for folder in in_tmp.iterdir()] == [path.stem]
