"""Relation scores against scikit-learn, hand-made cases and the official scorer's own example."""

from __future__ import annotations

import tarfile
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import DataError
from confide.scoring import (
    Count,
    RelationCounts,
    count_relations,
    directed_scores,
    relation_scores,
    sum_relation_counts,
)
from confide.text.document import NO_RELATION

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own deprecations; it comes with seqeval
    from sklearn.metrics import precision_recall_fscore_support

NAMES = ["activates", "binds", "inhibits"]
LABELS = st.lists(st.tuples(*[st.sampled_from([*NAMES, NO_RELATION])] * 2), max_size=30)
GOLD = ["binds", "binds", NO_RELATION, "inhibits", NO_RELATION]
SEEN = ["binds", NO_RELATION, "binds", "binds", NO_RELATION]


def split(pairs):
    return [one for one, _ in pairs], [other for _, other in pairs]


def test_by_hand():
    counts = count_relations(GOLD, SEEN, missed={"inhibits": 2})
    assert counts.relations == {"binds": Count(1, 3, 2), "inhibits": Count(0, 0, 3)}
    assert (counts.examples, counts.missed) == (5, {"inhibits": 2})
    found = relation_scores(counts)
    rates = found["micro"]
    assert (rates["precision"], rates["recall"]) == (1 / 3, 1 / 5)
    assert rates["f1"] == pytest.approx(2 / 8)
    assert (rates["true"], rates["predicted"], rates["support"]) == (1, 3, 5)
    assert found["macro"] == pytest.approx({"f1": 0.2, "precision": 1 / 6, "recall": 0.25})
    assert rates["types"]["binds"]["f1"] == pytest.approx(0.4)
    assert found["confusion"]["binds"] == {"binds": 1, NO_RELATION: 1}
    assert found["confusion"][NO_RELATION] == {"binds": 1, NO_RELATION: 1}
    assert (found["missed"], found["examples"]) == ({"inhibits": 2}, 5)


@given(LABELS)
def test_as_scikit_learn(pairs):
    gold, seen = split(pairs)
    labels = sorted({label for pair in pairs for label in pair} - {NO_RELATION})
    found = relation_scores(count_relations(gold, seen))
    assert sorted(found["micro"]["types"]) == labels
    if not labels:
        assert (found["micro"]["f1"], found["macro"]["f1"]) == (0, 0)
        return
    names = ("precision", "recall", "f1")
    options = {"labels": labels, "zero_division": 0}
    for ours, average in ((found["micro"], "micro"), (found["macro"], "macro")):
        theirs = precision_recall_fscore_support(gold, seen, average=average, **options)
        assert [ours[name] for name in names] == pytest.approx(list(theirs[:3]))
    each = precision_recall_fscore_support(gold, seen, average=None, **options)
    for name, theirs in zip((*names, "support"), each, strict=True):
        assert [found["micro"]["types"][label][name] for label in labels] == pytest.approx(
            list(theirs)
        )


@given(LABELS, LABELS, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3)))
def test_counts_add_up(first, second, missed):
    whole = count_relations(*split(first + second), missed=missed)
    parts = [count_relations(*split(first), missed=missed), count_relations(*split(second))]
    assert sum_relation_counts(parts) == whole
    assert list(whole.confusion) == sorted(whole.confusion)


def test_nothing():
    assert sum_relation_counts([]) == RelationCounts()
    found = relation_scores(RelationCounts())
    assert (found["micro"]["f1"], found["macro"], found["micro"]["types"]) == (
        0, {"f1": 0, "precision": 0, "recall": 0}, {},
    )  # fmt: skip


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="same pairs"):
        count_relations(["a"], [])
    with pytest.raises(DataError, match="negative"):
        count_relations([], [], missed={"a": -1})


class TestDirection:
    def test_by_hand(self):
        """Both of R are gold once; one is found, one with the wrong direction, S is invented."""
        gold = ["R(e1,e2)", "R(e2,e1)", NO_RELATION, "S(e1,e2)"]
        seen = ["R(e1,e2)", "R(e1,e2)", "S(e2,e1)", NO_RELATION]
        found = directed_scores(count_relations(gold, seen))
        types = found["micro"]["types"]
        assert (types["R"]["true"], types["R"]["predicted"], types["R"]["support"]) == (1, 2, 2)
        assert types["S"]["f1"] == 0
        assert found["macro"]["f1"] == pytest.approx(0.25)
        assert relation_scores(count_relations(gold, seen))["macro"]["f1"] == pytest.approx(
            (2 / 3 + 0 + 0 + 0) / 4
        )

    def test_a_label_without_direction_stays_by_itself(self):
        counts = count_relations(["R", "R(e1,e2)"], ["R", "R"])
        types = directed_scores(counts)["micro"]["types"]
        assert types["R"]["true"] == 1
        assert list(types) == ["R"]

    @pytest.mark.data
    def test_as_the_official_scorer(self, corpora, tmp_path):
        """Answers and results that are given out with the scorer; a pair without answer is none."""
        archive = corpora / "semeval2010_task8" / "SemEval2010_task8_all_data.tar.gz"
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path, filter="data")
        (folder,) = tmp_path.rglob("SemEval2010_task8_scorer-v1.2")

        def answers(name):
            lines = (folder / name).read_text().split("\n")
            rows = dict(line.strip().split("\t") for line in lines if line.strip())
            return {n: NO_RELATION if label == "Other" else label for n, label in rows.items()}

        for number, macro, micro in ((1, 64.09, 59.26), (2, None, None), (3, None, None)):
            gold, seen = answers(f"answer_key{number}.txt"), answers(f"proposed_answer{number}.txt")
            result = (folder / f"result_scores{number}.txt").read_text()
            counts = count_relations(
                list(gold.values()), [seen.get(name, NO_RELATION) for name in gold]
            )
            found = directed_scores(counts)
            official = f"macro-averaged F1 = {100 * found['macro']['f1']:.2f}%"
            assert official in result
            if macro:
                assert round(100 * found["macro"]["f1"], 2) == macro
                assert round(100 * found["micro"]["f1"], 2) == micro
                assert round(100 * relation_scores(counts)["macro"]["f1"], 2) == 54.49
