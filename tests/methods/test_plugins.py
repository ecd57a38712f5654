"""The method of docs/extend/writing-a-method.md, installed as a plugin, on two kinds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cases import each
from confide.errors import SettingsError
from confide.methods import plugged

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


@each(
    ("old", "new", "said"),
    [
        ('= "by-loss"', '= "fedavg"', "two methods are called 'fedavg'"),
        ('("tagger", "relations")', '("taggers",)', "does not say which kinds it trains"),
        ('("tagger", "relations")', "()", "does not say which kinds it trains"),
    ],
)
def test_one_that_does_not_fit_is_named(
    old: str, new: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not plugged()
    installed(tmp_path, code().replace(old, new))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "by_loss", raising=False)
    with pytest.raises(SettingsError, match="by_loss:ByLoss") as caught:
        plugged()
    assert said in str(caught.value)
    del sys.modules["by_loss"]
