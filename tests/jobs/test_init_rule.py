"""The rule by which `init` chooses a model and how long to train it: docs/defaults.md."""

from __future__ import annotations

import os

import pytest

from cases import each
from confide.jobs.initialise import Amount, rule, usable_cores

SMALLER = {"context": "minilm", "word_dim": 50, "bilstm_hidden": 64}


def entities(examples: int, language: str = "en") -> Amount:
    return Amount("entities", sites=3, examples=examples, held_out=100, language=language)


@each(
    ("examples", "rounds", "model"),
    [
        (50, 40, {"context": "minilm"}),  # at most 40 passes, one in a round
        (500, 31, {"context": "minilm"}),
        (501, 31, SMALLER),
        (700, 26, SMALLER),
        (2000, 16, SMALLER),
        (100_000, 10, SMALLER),  # at least 10
    ],
)
def test_english_text_gets_a_tagger_by_its_amount(
    examples: int, rounds: int, model: dict[str, object]
) -> None:
    found = rule(entities(examples), encoder=True)
    assert (found.rounds, found.model) == (rounds, model)
    assert found.training == {"learning_rate": 0.008, "local_epochs": 1}
    twice = rule(entities(examples), passes=2, encoder=True)
    assert twice.rounds == round(rounds / 2) and twice.training["local_epochs"] == 2


@each(("language", "encoder"), [("de", True), ("", True), ("en", False)])
def test_other_text_gets_the_linear_kind(language: str, encoder: bool) -> None:
    assert rule(entities(700, language), encoder=encoder).model == {"kind": "linear"}


def test_workers_are_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert usable_cores() == 1 == rule(entities(700), encoder=True).workers
    assert rule(entities(700), encoder=True, cores=64).workers == 3
