"""Tables of scores for the terminal, for entities and for relations."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from confide.cli.tables import comparison_table, score_table, site_table
from confide.jobs.comparison import Difference, RunComparison, SideScore
from confide.runs.result import Result
from confide.scoring import count_entities, count_relations, relation_scores
from confide.scoring import scores as entity_scores
from confide.tasks import TASKS
from confide.text.document import NO_RELATION, Document, Entity


def lines(table: Table) -> list[str]:
    buffer = io.StringIO()
    Console(file=buffer, width=140).print(table)
    return [" ".join(line.split()) for line in buffer.getvalue().splitlines()]


@pytest.fixture
def relations() -> dict[str, Any]:
    """Two relations: `a` once right of two, `b` never; three more were not looked at."""
    gold, predicted = ["a", "a", "b", NO_RELATION], ["a", NO_RELATION, "a", "b"]
    return relation_scores(count_relations(gold, predicted, missed={"b": 3}))


@pytest.fixture
def entities() -> dict[str, Any]:
    gold = Document("d", "fever and cough", (Entity("1", "Sign", ((0, 5),)),))
    seen = Document("d", "fever and cough", (Entity("1", "Sign", ((0, 9),)),))
    return entity_scores(count_entities([gold], [seen]))


def test_relations_one_by_one_then_micro_and_macro(relations: dict[str, Any]) -> None:
    shown = lines(score_table(relations))
    assert "relation P R F1 relations" in shown
    assert "a 50.0 50.0 50.0 2" in shown and "b 0.0 0.0 0.0 4" in shown
    assert "micro 33.3 16.7 22.2 6" in shown and "macro 25.0 25.0 25.0" in shown
    assert "their pair was not looked at: 3" in " ".join(shown)
    assert "looked at" not in " ".join(lines(score_table({**relations, "missed": {}})))


def test_entities_strict_and_relaxed(entities: dict[str, Any]) -> None:
    shown = lines(score_table(entities))
    assert "type strict P R F1 relaxed P R F1 entities" in shown
    assert "Sign 0.0 0.0 0.0 100.0 100.0 100.0 1" in shown
    assert "all 0.0 0.0 0.0 100.0 100.0 100.0 1" in shown


def test_the_sites_of_a_relation_run(relations: dict[str, Any]) -> None:
    bytes = {"up": {"north": 323}, "down": {"north": 90_000_000}}
    found = {"overall": relations, "sites": {"north": relations}}
    run = {"task": "re", "method": "feded", "scores": found, "bytes": bytes}
    shown = lines(site_table(Result.model_validate({"schema": 1, **run})))
    assert "site micro macro examples sent received" in shown
    assert "north 22.2 25.0 4 323 B 90.0 MB" in shown
    assert "all 22.2 25.0 4 323 B 90.0 MB" in shown


def test_the_sites_of_a_run_that_says_no_task(entities: dict[str, Any]) -> None:
    scores = {"overall": entities, "sites": {"a": entities}}
    shown = lines(site_table(Result.model_validate({"method": "fedavg", "scores": scores})))
    assert "site strict relaxed sentences sent received" in shown
    assert "a 0.0 100.0 0 – –" in shown


def test_a_run_without_test_text_has_no_scores() -> None:
    """0.0 would say that everything was wrong."""
    nothing = TASKS["ner"].scores(TASKS["ner"].nothing)
    found = Result.model_validate(
        {"method": "fedavg", "scores": {"overall": nothing, "sites": {"a": nothing}}}
    )
    shown = lines(site_table(found))
    assert "a – – 0 – –" in shown
    assert "no test text, so there are no scores" in " ".join(shown)


def test_a_comparison_says_what_was_drawn() -> None:
    row = Difference(*[SideScore(0.5, 0.5, None)] * 2, 0, -0.1, 0.1, 1, 7, "no clear difference")
    sides = ("fedavg", "feded")
    found = RunComparison(*sides, (sides,), True, "micro", 0.95, 500, 0, row, {"north": row})
    assert "500 resamples of sentences" in " ".join(lines(comparison_table(found)))
    shown = lines(comparison_table(replace(found, unit="documents")))
    assert "micro F1 on test text, in percent" in shown
    assert "500 resamples of documents" in " ".join(shown)
    assert any(line.startswith("site documents fedavg feded") for line in shown)
