"""Tables for the terminal."""

from __future__ import annotations

import doctest
import io
from pathlib import Path

import pytest
from rich.table import Table

from confide import words
from confide.cli import screen
from confide.errors import RunError
from confide.report.folder import left, load_run, results
from report.folders import ledger, relation_result, result, write_run


def lines(table: Table) -> list[str]:
    buffer = io.StringIO()
    screen.console(buffer).print(table)
    return [" ".join(line.split()) for line in buffer.getvalue().splitlines()]


def test_sites_are_compared_run_by_run(tmp_path: Path) -> None:
    alone = load_run(write_run(tmp_path / "a", result("alone", 0.6, sites=("ward", "clinic"))))
    federated = load_run(write_run(tmp_path / "f", result("fedavg", 0.8)))
    shown = lines(results({"alone": alone, "federated": federated}, title="F1"))
    assert "F1" in shown
    assert "site alone federated" in shown
    assert "ward 57.0 (61.0) – (–)" in shown
    assert "cardiology – (–) 77.0 (81.0)" in shown
    assert "all 60.0 (64.0) 80.0 (84.0)" in shown


def test_relations_are_shown_micro_and_macro_and_not_beside_entities(tmp_path: Path) -> None:
    feded = load_run(write_run(tmp_path / "f", relation_result("feded", 30)))
    shown = lines(results({"feded": feded}))
    assert "all 84.5 (84.6)" in shown
    assert "micro F1, and macro F1 in brackets; on test text" in " ".join(shown)
    with pytest.raises(RunError, match="different tasks"):
        results({"a": feded, "b": load_run(write_run(tmp_path / "n", result("fedavg", 0.8)))})


def test_only_what_left_is_listed(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, result("fedavg", 0.8), ledger=ledger()))
    shown = lines(left(run))
    assert "count_words word_counts array one by one 20.5 kB 20.5 kB 20.5 kB" in shown
    assert "train weights arrays sum 600.0 kB 600.0 kB 600.0 kB" in shown
    assert "all 3.6 MB 3.6 MB 3.6 MB" in shown
    assert not any("down" in line for line in shown)


def test_names_are_not_markup(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, result("fedavg", 0.8, sites=("[red]",))))
    assert any(line.startswith("[red]") for line in lines(results({"[/b]": run})))


def test_numbers_in_words() -> None:
    assert doctest.testmod(words).failed == 0
    assert words.size(999_960) == "1.0 MB"
    assert words.size(5e15) == "5000.0 TB"
    assert words.duration(59.97) == "1 min 0 s"
