"""Runs that release 0.2 wrote are read: for `predict`, `evaluate`, `report` and `compare`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from confide import api
from confide.errors import RunError
from confide.models import MODELS
from confide.runs.folder import RunFolder
from confide.runs.run import run
from confide.settings.upgrade import REMOVED, upgraded_run

OLD = Path(__file__).parent / "old"
"""Folders of runs made by release 0.2, each with its text and what it predicted then.

`models` has the encoder that one of them was trained with: processors draw other random weights.
"""
GONE = """
[options]
download = "whole"
label_share = 1.0
wire_dtype = "float16"
"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.setenv(MODELS, str(tmp_path / "old" / "models"))
    return tmp_path / "old"


def predicted(run: Path, file: Path) -> list[Any]:
    """Entities by type and offsets, and relations, of each document."""
    return [
        [
            [[one.type, *map(list, one.fragments)] for one in document.entities],
            [[one.type, one.head, one.tail] for one in document.relations],
        ]
        for document in api.predict(run, [file])
    ]


@pytest.mark.parametrize("name", ["fedavg", "feded", "lazy-mil"])
def test_an_old_run_is_used(old: Path, name: str) -> None:
    if name == "feded":
        pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    here = old / name
    (test,) = (here / "data/data/site-1").glob("test.*")
    assert predicted(here / "run", test) == json.loads((here / "expected.json").read_text())
    scored = api.evaluate(here / "run", [test], site="site-1")
    kind = "strict" if name == "fedavg" else "micro"
    assert scored[kind] == RunFolder(here / "run").result().scores.sites["site-1"][kind]
    page = api.report([here / "run"], out=here / "report.html")
    assert page.stat().st_size > 10_000
    assert api.compare([here / "run"], [here / "run"])
    released = api.release(here / "run", out=here / "released")
    assert predicted(released, test) == predicted(here / "run", test)


def test_old_settings_are_upgraded_in_memory(old: Path) -> None:
    found = RunFolder(old / "fedavg/run").settings()
    assert found.training.unannotated_types == 1.0
    assert found.training.optimiser_state == "keep"
    assert found.federation.down == "cached" and found.federation.max_upload_mb == 9
    assert [site.annotates for site in found.site] == [("Drug", "Effect"), ("Drug",)]
    options = RunFolder(old / "feded/run").settings().options
    assert options == {"past_weight": 0.5, "holdout_share": 0.25, "max_logit": 12.0}


def test_settings_that_went_are_left_out(old: Path) -> None:
    folder = old / "feded/run"
    text = (folder / "settings.toml").read_text().replace("[options]\n", GONE)
    (folder / "settings.toml").write_text(
        text.replace("[federation]", '[federation]\nsums = "integers"')
    )
    found = RunFolder(folder).settings()
    assert found.options["wire_dtype"] == "float16" and "download" not in found.options
    assert found.federation.sums == "masked"


def test_an_old_run_is_not_resumed(old: Path) -> None:
    settings = RunFolder(old / "fedavg/run").settings()
    with pytest.raises(RunError, match=r"an older confide started this run.*environment\.json"):
        run(settings, out=old / "fedavg/run", resume=True)


def test_what_another_method_still_has_stays() -> None:
    own = {"wire_dtype": "float16", "local_steps": 2}
    for method, left in (("fedner", {"local_steps": 2}), ("feded", own)):
        assert upgraded_run({"method": method, "options": own})["options"] == left
    assert own == {"wire_dtype": "float16", "local_steps": 2}
    found = upgraded_run({"options": 3, "federation": {"sums": "integers"}})
    assert found == {"schema": 2, "options": 3, "federation": {"sums": "masked"}}
    assert all(text and text[0].islower() for text in REMOVED.values())
