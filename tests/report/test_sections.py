"""When runs reached which score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confide.report.folder import load_runs
from confide.report.sections import MOST_LEVELS, Reached, reached, view_of
from report.folders import relation_result, result, write_run


def views(folder: Path, *made: dict[str, Any]) -> list[Any]:
    paths = [write_run(folder / str(number), one) for number, one in enumerate(made)]
    return [view_of(number, run) for number, run in enumerate(load_runs(paths))]


def told(method: str, *dev: float | None, up: int = 10) -> dict[str, Any]:
    """A relation run with these development scores, round by round."""
    made = relation_result(method, 10, rounds=len(dev), up=up)
    for seconds, turn, f1 in zip((3.0, 2.0, 1.0, 2.0, 3.0), made["history"], dev, strict=False):
        turn["compute_seconds"] = seconds
        turn["dev"] = None if f1 is None else {"micro": f1, "macro": 0.99}
    return made


def test_the_first_round_that_reached_a_score_and_the_bytes_until_then(tmp_path: Path) -> None:
    rows = reached(
        views(
            tmp_path,
            told("feded", 0.55, None, 0.7, 0.72, 0.6),
            told("fedavg", 0.2, 0.75, 0.8, 0.1, 0.9, up=1000),
            told("alone", 0.6, 0.6, 0.6, 0.6, 0.6),
        )
    )
    assert [row.level for row in rows] == [0.65, 0.7, 0.75, 0.8, 0.85, 0.9]
    assert len(rows) == MOST_LEVELS
    cells = {row.level: row.cells for row in rows}
    assert cells[0.65] == (Reached(3, 30, 6.0), Reached(2, 2000, 5.0), None)
    assert cells[0.7] == (Reached(3, 30, 6.0), Reached(2, 2000, 5.0), None)
    assert cells[0.85] == cells[0.9] == (None, Reached(5, 5000, 11.0), None)


def test_scores_that_nobody_reached_are_left_out(tmp_path: Path) -> None:
    assert reached(views(tmp_path / "a", told("feded", 0.05, 0.09))) == []
    (row,) = reached(views(tmp_path / "b", told("feded", 0.05, 0.1)))
    assert (row.level, row.cells) == (0.1, (Reached(2, 20, 5.0),))


def test_of_scores_that_all_reached_at_once_the_highest_is_shown(tmp_path: Path) -> None:
    made = told("feded", 0.62, 0.75), told("alone", None, 0.6)
    rows = reached(views(tmp_path, *made))
    assert [row.level for row in rows] == [0.6, 0.65, 0.7, 0.75]
    assert rows[0].cells == (Reached(1, 10, 3.0), Reached(2, None, 5.0))
    assert rows[1].cells == (Reached(2, 20, 5.0), None)


def test_entities_are_told_by_strict_scores(tmp_path: Path) -> None:
    made = result("fedavg", 0.8, rounds=3)  # 0.32, 0.56 and 0.64 strict
    made["history"][0].pop("bytes")
    rows = reached(views(tmp_path, made))
    assert [(row.level, row.cells[0].round) for row in rows if row.cells[0]] == [
        (0.3, 1), (0.4, 2), (0.5, 2), (0.6, 3),
    ]  # fmt: skip
    assert rows[0].cells[0] == Reached(1, None, 2.5)
