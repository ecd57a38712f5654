"""The page shows an audit of the model that the run has, and none of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confide.errors import RunError
from confide.report.page import report
from confide.report.sections import audit_svg
from confide.runs.folder import AUDIT, Audit, RunFolder
from report.folders import SITES, result, write_run
from report.test_page import Page


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value / 2, "high": (1 + value) / 2}


def one(found: float, **more: Any) -> dict[str, Any]:
    own = {"units": "sentences", "members": 300, "others": 200, "references": 0}
    return {"membership": {**own, "auc": interval(0.7), "found": interval(found)}, **more}


CANARIES = {"canaries": 100, "guesses": 50, "right": 45, "epsilon": 1.234, "delta": 1e-5,
            "exposure": 2.5, "most": 5.6,
            "auc": {"value": 0.75, "low": 0.7, "high": 0.8}}  # fmt: skip


def found_of(**more: Any) -> Audit:
    """An audit of the three sites of a run made by hand; one of them had canaries."""
    sites = {name: one(0.04) for name in SITES}
    sites[SITES[1]] = one(0.12, canaries=CANARIES)
    crossed = {"digests": 3, "asks": 9, "masked": False, "smallest": 1}
    return Audit.model_validate({"rounds": {}, "sites": sites, "crossed": crossed, **more})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", result("fedavg", 0.8))


def test_the_three_numbers_are_on_the_page(folder: Path) -> None:
    found_of().write(RunFolder(folder))
    page = Page(report([folder]).read_text())
    assert "What the model tells of its training text" in page.words
    assert f"{SITES[1]}: of 100 sentences of ours an attacker" in page.words
    assert "finds 12 (6 to 56); by chance it would be 1" in page.words
    assert "ε promised: none; ε measured: at least 1.23 for one document" in page.words
    assert "The smallest number of sites in any sum that the server could read: 1" in page.words
    assert max(page.ids.values()) == 1


def test_runs_side_by_side_each_have_their_own(folder: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", result("fedner", 0.7))
    promised = {"unit": "document", "epsilon": 1.0, "delta": 1e-6}
    for each, audit in ((folder, found_of()), (other, found_of(promised=promised))):
        audit.write(RunFolder(each))
    page = Page(report([folder, other]).read_text())
    assert "The promise was broken" in page.words
    assert max(page.ids.values()) == 1


def test_without_one_there_is_no_section(folder: Path) -> None:
    found_of(rounds={"": 3}).write(RunFolder(folder))  # of another round's model
    assert "What the model tells" not in report([folder]).read_text()
    (folder / AUDIT).unlink()
    assert "What the model tells" not in report([folder]).read_text()
    (folder / AUDIT).write_text("{}")
    with pytest.raises(RunError, match="does not hold an audit"):
        report([folder])


@pytest.mark.usefixtures("drawn")
def test_the_picture_is_a_file_of_its_own() -> None:
    drawn = audit_svg(found_of())
    assert drawn.startswith("<?xml")
    assert "found of 100" in drawn
