"""The method of docs/extend/writing-a-method.md, installed as a plugin, on two kinds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/extend/writing-a-method.md"
RUN = """
import sys, pathlib
from confide.methods import METHODS, wire
from confide.runs.run import run
from contract.corpus import tiny
for kind in ("tagger", "relations"):
    folder = pathlib.Path(sys.argv[1]) / kind
    result = run(tiny(folder, f"method=by-loss-{kind}", "rounds=2"), out=folder / "run").result
    first, second = (entry.loss for entry in result.history)
    assert result.method == "by-loss" and 0 < second < first, (kind, first, second)
    assert {"train_by_loss"} <= {row.step for row in wire(f"by-loss-{kind}")}
print(sorted(name for name in METHODS if name.startswith("by-loss")))
"""


def code() -> str:
    return re.search(r"file by_loss.py -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


def installed(folder: Path, text: str, value: str = "by_loss:ByLoss") -> None:
    """A package with that entry point, as pip would lay it out."""
    (folder / "by_loss.py").write_text(text, encoding="utf-8")
    info = folder / "by_loss-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: by-loss\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[confide.methods]\nby-loss = {value}\n")


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [str(folder), tests, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_it_is_short() -> None:
    lines = [line for line in code().split('"""')[2].splitlines() if line.strip()]
    names = re.findall(r"^from confide\S+ import (.*)$", code(), re.MULTILINE)
    assert len(lines) <= 25
    assert sum(len(one.split(",")) for one in names) <= 6


@pytest.mark.slow
def test_it_trains_two_kinds(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    installed(tmp_path, code())
    done = python(tmp_path, RUN, str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "['by-loss-relations', 'by-loss-tagger']"


IMPORT = """
import os, sys, torch
for folder in sys.argv[1:]:
    child = os.fork()
    if not child:
        sys.path.insert(0, folder)
        import confide.methods
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_one_that_does_not_fit_is_named(tmp_path: Path) -> None:
    odd = [
        ('= "by-loss"', '= "fedavg"', "two methods are called 'fedavg'"),
        ('("tagger", "relations")', '("taggers",)', "does not say which kinds it trains"),
        ('("tagger", "relations")', "()", "does not say which kinds it trains"),
    ]
    folders = [tmp_path / str(number) for number in range(len(odd))]
    for folder, (old, new, _) in zip(folders, odd, strict=True):
        folder.mkdir()
        installed(folder, code().replace(old, new))
    done = python(tmp_path, IMPORT, *map(str, folders))
    assert done.stdout.split() == ["1"] * len(odd)
    errors = done.stderr.split("Traceback (most recent call last):")[1:]
    found = [one.strip().splitlines()[-1] for one in errors if "by_loss:ByLoss" in one]
    assert len(found) == len(odd)
    assert all(said in one for one, (_, _, said) in zip(found, odd, strict=True)), found
