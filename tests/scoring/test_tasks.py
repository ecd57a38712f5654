"""What the two tasks have in common."""

from __future__ import annotations

import pytest

from confide.scoring import SCORING, RelationCounts, count_relations, scoring_of


@pytest.mark.parametrize("task", sorted(SCORING))
def test_scores_say_of_which_task_they_are(task: str) -> None:
    scoring = SCORING[task]
    found = scoring.scores(scoring.sum([scoring.nothing, scoring.nothing]))
    assert scoring_of(found) is scoring
    assert found[scoring.unit] == 0
    assert scoring.values(found) == dict.fromkeys(scoring.kinds, 0)


def test_nothing_known_is_scored_as_entities_were_before() -> None:
    assert scoring_of({}) is SCORING["ner"]


def test_counts_of_relations_add_up() -> None:
    scoring = SCORING["re"]
    one = count_relations(["a"], ["a"])
    assert scoring.sum([one, RelationCounts(), one]).examples == 2
    assert scoring.values(scoring.scores(one)) == {"micro": 1, "macro": 1}
