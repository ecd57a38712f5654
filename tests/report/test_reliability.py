"""Whether a model is right as often as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from confide.report.folder import load_run
from confide.report.page import report
from confide.report.sections import reliability_view
from report.folders import calibration, result, write_run


def told(**own: Any) -> dict[str, Any]:
    return {**result("fedavg", 0.8), "calibration": {**calibration(), **own}}


def test_points_are_the_shares_that_are_right(tmp_path: Path) -> None:
    found = reliability_view(load_run(write_run(tmp_path, told())), id="x")
    assert found is not None and found.calibrated and found.found == 100
    assert "40.0 right at 45.0; 80.0 right at 82.0." in found.plot
    assert found.errors == [
        ("all", 0.167, 0.023), ("ADE", 0.267, 0.123), ("DRUG", 0.167, 0.023),
    ]  # fmt: skip


def test_confidences_that_were_not_changed_are_drawn_once(tmp_path: Path) -> None:
    same = told(before=calibration()["after"])
    folder = write_run(tmp_path, same)
    found = reliability_view(load_run(folder), id="x")
    assert found is not None and not found.calibrated
    assert 'class="soft">before' not in report([folder]).read_text()


def test_without_finds_or_in_older_runs_there_is_no_drawing(tmp_path: Path) -> None:
    empty = {"error": None, "types": {}, "bins": []}
    nothing = write_run(tmp_path / "a", told(before=empty, after=empty))
    older = write_run(tmp_path / "b", result("fedavg", 0.8))
    for folder in (nothing, older):
        assert reliability_view(load_run(folder), id="x") is None
        assert "right as often" not in report([folder]).read_text()


def test_the_page_shows_it_without_text(tmp_path: Path) -> None:
    html = report([write_run(tmp_path, told())], text=False).read_text()
    assert "Is it right as often as it says?" in html
    cells = re.findall(r'<td data-label="gap">([^<]*)</td>', html)
    assert cells == ["2.3", "12.3", "2.3"]


def _typed() -> dict[str, Any]:
    """A result with bins of fifteen types; each has one find more than the next."""
    found = calibration()
    for part in ("before", "after"):
        one = found[part]["bins"][0]
        found[part]["type_bins"] = {
            f"T{n:02}": [{**one, "right": 1, "found": 30 - n}] for n in range(15)
        }
        found[part]["types"] = dict.fromkeys(found[part]["type_bins"], 0.1)
    found["after"]["type_bins"]["empty"] = []
    found["after"]["types"]["empty"] = None
    return told(**found)


@pytest.mark.usefixtures("drawn")
def test_the_types_with_the_most_finds_are_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path, _typed())
    found = reliability_view(load_run(folder), id="x")
    assert found is not None and found.more == 3
    assert [(name, finds) for name, finds, _ in found.types] == [
        (f"T{n:02}", 30 - n) for n in range(12)
    ]
    assert 'aria-label="T00: 3.3 right at' in found.types[0][2]
    ids = re.findall(r' id="([^"]+)"', "".join(plot for _, _, plot in found.types))
    assert len(ids) == len(set(ids)), "several drawings on one page"
    html = report([folder], text=False).read_text()
    assert html.count("<figcaption>T") == 12 and "3 more are in the table" in html


def test_a_single_type_is_not_drawn_twice(tmp_path: Path) -> None:
    one = _typed()
    bins = one["calibration"]["after"]["type_bins"]
    one["calibration"]["after"]["type_bins"] = {"T00": bins["T00"], "empty": []}
    found = reliability_view(load_run(write_run(tmp_path, one)), id="x")
    assert found is not None and found.types == [] and found.more == 0
