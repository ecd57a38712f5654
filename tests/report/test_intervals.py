"""Intervals of scores from what each sentence counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from confide.errors import RunError
from confide.report.folder import load_run
from confide.report.page import report
from confide.report.sections import ALL_SITES, intervals, type_intervals
from confide.scoring.intervals import bootstrap_interval
from report.folders import (
    SITES,
    bag_result,
    bag_sentences,
    relation_result,
    result,
    sentences,
    write_run,
    write_sentences,
)


def run_with(folder: Path, f1: float = 0.8) -> Path:
    """The sites' scores are 0.03 apart; so are their sentences."""
    write_run(folder, result("fedavg", f1))
    for number, site in enumerate(SITES):
        write_sentences(folder, sentences(site, f1 + 0.03 * (number - 1), many=100))
    return folder


def test_each_site_has_an_interval_and_all_together_a_narrower_one(tmp_path: Path) -> None:
    import numpy as np

    found = intervals(load_run(run_with(tmp_path)))
    assert set(found) == {*SITES, ALL_SITES}
    rows = np.array(sentences("oncology", 0.8, many=100)["strict"])
    one = bootstrap_interval(rows)
    assert found["oncology"] == (one.low, one.high)
    low, high = found[ALL_SITES]
    assert low < 0.8 < high and high - low < 0.8 * (one.high - one.low)


def test_counts_of_other_text_give_no_interval(tmp_path: Path) -> None:
    folder = run_with(tmp_path)
    write_sentences(folder, sentences("practice", 0.2))
    assert set(intervals(load_run(folder))) == {"cardiology", "oncology"}


def test_without_counts_or_with_those_of_another_kind_there_is_none(tmp_path: Path) -> None:
    assert intervals(load_run(write_run(tmp_path / "a", result("fedavg", 0.8)))) == {}
    folder = write_run(tmp_path / "b", relation_result("feded", 30))
    write_sentences(folder, sentences(SITES[0]))
    assert intervals(load_run(folder)) == {}


def test_each_type_has_an_interval_over_all_sentences(tmp_path: Path) -> None:
    """Of 300 sentences, 90 have the type: once as many have it, the interval is narrower."""
    import numpy as np

    told = result("fedavg", 0.8)
    folder = write_run(tmp_path, told)
    rows = [[1, 1, 1]] * 24 + [[0, 1, 1]] * 6
    for site in SITES:
        write_sentences(folder, {**sentences(site, 0.8, many=100), "types": {"DRUG": rows}})
    found = type_intervals(load_run(folder))
    table = np.array([*(rows * 3), *([[0, 0, 0]] * 210)])
    one = bootstrap_interval(table)
    assert found == {"DRUG": (one.low, one.high)} and one.low < 0.8 < one.high
    write_sentences(folder, sentences("oncology", 0.8, many=100))
    assert type_intervals(load_run(folder)) == {}


def test_intervals_are_on_the_page_and_hold_no_text(tmp_path: Path) -> None:
    html = report([run_with(tmp_path)], text=False).read_text()
    assert "95 % interval" in html and "Bars are 95 % intervals" in html
    assert html.count('<small title="95 % interval') == len(SITES) + 1


def test_bags_have_intervals_of_the_area(tmp_path: Path) -> None:
    folder = write_run(tmp_path, bag_result("lazy-mil", 1.5))
    for number, site in enumerate(SITES):
        write_sentences(folder, bag_sentences(site, 1.5 + 0.2 * number, seed=number))
    run = load_run(folder)
    found = intervals(run)
    assert set(found) == {*SITES, ALL_SITES}
    for site in (*SITES, None):
        low, high = found[site or ALL_SITES]
        score = run.score("auc", site)
        assert score is not None and low < score < high
    wide = [high - low for low, high in (found[SITES[0]], found[ALL_SITES])]
    assert 0.02 < wide[1] < wide[0] < 0.3, "three times as many bags are more certain"
    html = report([folder], text=False).read_text()
    assert html.count('<small title="95 % interval') == len(SITES) + 1


def test_candidates_that_are_none_are_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path, bag_result("lazy-mil", 1.5))
    held = bag_sentences(SITES[0], 1.5)
    for wrong in ([[]], [[0, 1]], [[1, 99_999]]):
        write_sentences(folder, {**held, "ranked": wrong})
        with pytest.raises(RunError):
            intervals(load_run(folder))
