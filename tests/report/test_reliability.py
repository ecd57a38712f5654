"""Whether a model is right as often as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from confide.report import report
from confide.report.folder import load_run
from confide.report.reliability import MOST_DRAWN, bins_of, reliability
from confide.scoring.reliability import Bin
from report.folders import result, sentences, write_run, write_sentences


def test_the_gap_is_the_mean_distance_over_the_bins() -> None:
    bins = {"DRUG": [Bin(0.4, 10, 4.5, 4), Bin(0.9, 90, 88.0, 87)]}
    (one,) = reliability(bins, id="x")
    assert (one.name, one.count) == ("DRUG", 100)
    assert one.sure == pytest.approx(0.925) and one.right == pytest.approx(0.91)
    assert one.gap == pytest.approx(abs(0.45 - 0.4) * 0.1 + abs(88 / 90 - 87 / 90) * 0.9)
    assert one.plot is not None and "40.0 right at 45.0; 96.7 right at 97.8" in one.plot


def test_all_types_come_first_and_bins_of_sites_are_added_up() -> None:
    same = [Bin(0.9, 10, 9.5, 5)]
    rows = reliability({"ADE": same, "DRUG": [*same, *same], "DOSE": []}, id="x")
    assert [(row.name, row.count) for row in rows] == [("all", 30), ("DRUG", 20), ("ADE", 10)]
    assert all(row.gap == pytest.approx(0.45) for row in rows)


def test_many_types_are_all_in_the_table() -> None:
    rows = reliability({f"T{n}": [Bin(0.5, 3, 1.6, 2)] for n in range(30)}, id="x")
    assert len(rows) == 31
    assert [row.plot is not None for row in rows] == [n <= MOST_DRAWN for n in range(31)]


def test_nothing_was_answered() -> None:
    assert reliability({}, id="x") == reliability({"A": [Bin(0.1, 0, 0.0, 0)]}, id="x") == ()


def test_the_sites_bins_are_on_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, result("fedavg", 0.8))
    for site in ("cardiology", "oncology"):
        write_sentences(folder, sentences(site))
    assert sum(one.count for one in bins_of(load_run(folder))["DRUG"]) == 200
    html = report([folder], text=False).read_text()
    assert "Is it right as often as it says?" in html
    assert '<td data-label="answers">240</td>' in html
