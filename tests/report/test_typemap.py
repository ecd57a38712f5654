"""The map of sites and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confide.report.folder import load_run
from confide.report.sections import STRONGEST, TypeMap, type_map
from report.folders import SITES, TYPES, result, write_run


def made(folder: Path, told: dict[str, Any]) -> TypeMap | None:
    return type_map(load_run(write_run(folder, told)))


def test_a_cell_for_each_pair_stronger_where_better(tmp_path: Path) -> None:
    found = made(tmp_path, result("fedavg", 0.8))
    assert found is not None
    assert (found.across, found.columns) == ("site", SITES)
    assert [name for name, _ in found.rows] == sorted(TYPES)
    cells = dict(found.rows)
    assert [round(cell.f1 or 0, 2) for cell in cells["DRUG"]] == [0.77, 0.8, 0.83]
    assert (round(found.low, 2), round(found.high, 2)) == (0.62, 0.83)
    assert cells["DRUG"][2].share == STRONGEST and cells["REASON"][0].share == 0
    assert cells["DRUG"][0].support == 30


def test_types_that_nobody_marked_or_found_there_are_empty(tmp_path: Path) -> None:
    told = result("fedavg", 0.8)
    types = told["scores"]["sites"]["oncology"]["strict"]["types"]
    types["ADE"] |= {"f1": 0.0, "support": 0, "predicted": 0}
    del types["DOSE"]
    found = made(tmp_path, told)
    assert found is not None and found.low > 0
    cells = dict(found.rows)
    assert cells["ADE"][1].f1 is None and cells["DOSE"][1].f1 is None


def test_the_longer_side_goes_down_the_page(tmp_path: Path) -> None:
    found = made(tmp_path, result("fedavg", 0.5, sites=tuple(f"s{n}" for n in range(9))))
    assert found is not None
    assert (found.across, found.columns, len(found.rows)) == ("type", tuple(sorted(TYPES)), 9)


def test_one_site_has_no_map(tmp_path: Path) -> None:
    assert made(tmp_path, result("fedavg", 0.8, sites=("ward",))) is None


def test_two_types_at_two_sites_are_a_map_and_one_is_none(tmp_path: Path) -> None:
    told = result("fedavg", 0.8, sites=SITES[:2])
    for many, there in ((2, True), (1, False)):
        for scores in told["scores"]["sites"].values():
            own = scores["strict"]["types"]
            scores["strict"]["types"] = {name: own[name] for name in TYPES[:many]}
        assert (made(tmp_path / str(many), told) is not None) is there
