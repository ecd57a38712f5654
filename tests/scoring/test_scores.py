import json

from hypothesis import given
from hypothesis import strategies as st

from confide.scoring import Count, EntityCounts, count_entities, f1, precision, recall, scores
from scoring.cases import corpora, document


def counts():
    def fitting(numbers):
        predicted, gold, true = numbers
        return Count(min(true, predicted, gold), predicted, gold)

    return st.tuples(*[st.integers(0, 50)] * 3).map(fitting)


@given(counts())
def test_rates_are_fractions_and_f1_is_the_harmonic_mean(count):
    p, r = precision(count), recall(count)
    assert 0 <= p <= 1
    assert 0 <= r <= 1
    assert abs(f1(count) - (2 * p * r / (p + r) if p + r else 0)) < 1e-12


def test_the_form_by_hand():
    gold = document(("Drug", 0, 4), ("Drug", 6, 9), ("Effect", 10, 14))
    seen = document(("Drug", 0, 4), ("Drug", 6, 8), ("Test", 20, 22))
    found = scores(count_entities([gold], [seen], malformed=3))
    assert found == {
        "strict": {
            "f1": 2 / 6, "precision": 1 / 3, "recall": 1 / 3,
            "support": 3, "true": 1, "predicted": 3,
            "types": {
                "Drug": {"f1": 0.5, "precision": 0.5, "recall": 0.5,
                         "support": 2, "true": 1, "predicted": 2},
                "Effect": {"f1": 0.0, "precision": 0.0, "recall": 0.0,
                           "support": 1, "true": 0, "predicted": 0},
                "Test": {"f1": 0.0, "precision": 0.0, "recall": 0.0,
                         "support": 0, "true": 0, "predicted": 1},
            },
        },
        "relaxed": {
            "f1": 4 / 6, "precision": 2 / 3, "recall": 2 / 3,
            "support": 3, "true": 2, "predicted": 3,
            "types": {
                "Drug": {"f1": 1.0, "precision": 1.0, "recall": 1.0,
                         "support": 2, "true": 2, "predicted": 2},
                "Effect": {"f1": 0.0, "precision": 0.0, "recall": 0.0,
                           "support": 1, "true": 0, "predicted": 0},
                "Test": {"f1": 0.0, "precision": 0.0, "recall": 0.0,
                         "support": 0, "true": 0, "predicted": 1},
            },
        },
        "sentences": 0,
        "malformed": 3,
    }  # fmt: skip


def test_nothing_scores_zero_and_stays_json():
    empty = scores(EntityCounts({}, {}))
    assert empty["strict"]["f1"] == empty["relaxed"]["recall"] == 0
    assert json.loads(json.dumps(empty)) == empty


@given(corpora())
def test_scores_survive_json(sides):
    found = scores(count_entities(*sides))
    assert json.loads(json.dumps(found)) == found
    assert found["strict"]["support"] == sum(
        rate["support"] for rate in found["strict"]["types"].values()
    )
