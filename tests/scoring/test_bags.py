"""Counts of bags: histograms that add up over sites, against the exact ranking of raw scores."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cases import each
from confide.errors import DataError
from confide.scoring import Count
from confide.scoring.calibration import Right, bin_of
from confide.scoring.relations import (
    BINS,
    BagCounts,
    count_ranked,
    precisions_at,
    ranked_scores,
    ranking,
    ranking_auc,
    sum_bag_counts,
)
from confide.text.document import NO_RELATION

LABELS = (NO_RELATION, "a", "b", "c")


def drawn(bags, seed=0, sure=2.0):
    """Scores and facts; some bags have two facts, some one that the model does not know."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(bags, len(LABELS)))
    facts = []
    for row in logits:
        known = {LABELS[n] for n in generator.choice(len(LABELS), size=generator.integers(1, 3))}
        for label in known:
            row[LABELS.index(label)] += sure
        facts.append(
            frozenset((known | ({"new"} if generator.random() < 0.1 else set())) - {NO_RELATION})
        )
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return scores.astype(np.float32), facts


def exact(scores, facts):
    true = [[label in known for label in LABELS[1:]] for known in facts]
    many = sum(map(len, facts))
    return ranking(scores[:, 1:].ravel(), np.array(true).ravel(), many)


@each("bags", [30, 400, 5000])
def test_the_histogram_comes_to_what_raw_scores_come_to(bags: int) -> None:
    scores, facts = drawn(bags)
    found, raw = ranked_scores(count_ranked(scores, LABELS, facts)), exact(scores, facts)
    assert abs(found["auc"] - ranking_auc(raw)) < 1e-3
    assert abs(found["auc_2000"] - ranking_auc(raw.first(2000))) < 1e-3
    for first, share in precisions_at(raw).items():
        assert abs(found["precision_at"][first] - share) < 5e-3
    assert (found["bags"], found["candidates"]) == (bags, 3 * bags)
    assert found["facts"] == sum(map(len, facts))


def test_counts_of_sites_add_up_to_those_of_all() -> None:
    scores, facts = drawn(300)
    whole = count_ranked(scores, LABELS, facts)
    parts = [
        count_ranked(scores[cut], LABELS, facts[cut]) for cut in (slice(0, 90), slice(90, 300))
    ]
    assert sum_bag_counts(parts) == whole
    assert whole != parts[0]
    assert sum_bag_counts([]) == BagCounts()
    assert ranked_scores(BagCounts())["auc"] == 0


def test_best_labels_are_counted_by_relation() -> None:
    scores = np.array([
        [0.1, 0.6, 0.2, 0.1],  # a, and is a and b
        [0.7, 0.1, 0.1, 0.1],  # none, and is c
        [0.1, 0.2, 0.6, 0.1],  # b, and is none
        [0.4, 0.3, 0.2, 0.1],  # none, and is none
        [0.1, 0.1, 0.2, 0.6],  # c, and is a relation that the model does not know
    ])  # fmt: skip
    facts = [frozenset("ab"), frozenset("c"), frozenset(), frozenset(), frozenset({"new"})]
    counts = count_ranked(scores, LABELS, facts)
    assert counts.relations == {
        "a": Count(1, 1, 1), "b": Count(0, 1, 1), "c": Count(0, 1, 1), "new": Count(0, 0, 1)
    }  # fmt: skip
    assert (counts.facts, counts.bags) == (4, 5)
    assert counts.candidates_B.sum() == 15 and counts.true_B.sum() == 3
    rates = ranked_scores(counts)["micro"]
    assert (rates["true"], rates["predicted"], rates["support"]) == (1, 3, 4)


def test_scores_at_the_ends_fall_into_the_last_bins() -> None:
    counts = count_ranked(np.array([[0.0, 1.0], [1.0, 0.0]]), LABELS[:2], [frozenset("a")] * 2)
    assert counts.candidates_B[[0, BINS - 1]].tolist() == [1, 1]
    assert counts.sure == {("", bin_of(0.0)): Right(1, 1), ("", bin_of(1.0)): Right(1, 1)}


def test_a_score_is_json() -> None:
    scores, facts = drawn(50)
    found = ranked_scores(count_ranked(scores, LABELS, facts))
    assert json.loads(json.dumps(found)) == found


@each(
    ("scores", "labels", "facts", "says"),
    [
        ([[0.1, 0.9]], LABELS, [frozenset()], "do not fit"),
        ([[0.1, 0.9]], ("a", "b"), [frozenset()], "start with the wrong one"),
        ([[0.1, 1.9]], LABELS[:2], [frozenset()], "not a probability"),
        ([[0.1, float("nan")]], LABELS[:2], [frozenset()], "not a probability"),
        ([[0.1, 0.9]], LABELS[:2], [frozenset({NO_RELATION})], "among its facts"),
    ],
)
def test_what_cannot_be_is_refused(scores, labels, facts, says) -> None:
    with pytest.raises(DataError, match=says):
        count_ranked(np.array(scores), labels, facts)


def test_counts_are_equal_only_if_every_number_is() -> None:
    whole = count_ranked(*drawn(9)[:1], LABELS, drawn(9)[1])
    moved = np.roll(whole.candidates_B, 1)
    for change in (
        {"candidates_B": moved}, {"true_B": np.roll(whole.true_B, 1)}, {"facts": 99}, {"bags": 8},
        {"relations": {}},
    ):  # fmt: skip
        assert replace(whole, **change) != whole
    assert replace(whole) == whole


def test_the_area_of_the_first_2000_ends_with_the_2000th() -> None:
    bins = np.zeros((2, BINS), np.int64)
    bins[0, -1], bins[0, -2], bins[1, -2] = 2000, 1, 1
    late = BagCounts(bins[0], bins[1], facts=1, bags=1)
    assert ranked_scores(late)["auc"] > ranked_scores(late)["auc_2000"] == 0
