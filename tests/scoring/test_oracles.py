"""Our numbers against seqeval, nervaluate and conlleval, each where the definitions agree."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.scoring import Count, count_entities, f1, micro, scores
from confide.text.tagging import spans_from_tags
from scoring.cases import LENGTH, TYPES, flat_document, flat_spans

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scikit-learn's own deprecations
    from nervaluate import Evaluator
    from seqeval.metrics import f1_score, precision_score, recall_score

TAGS = ["O", *(f"{prefix}-{type_}" for prefix in "BI" for type_ in TYPES)]


def counted(gold_tags, predicted_tags, scheme="iob2"):
    """Micro counts of tag sequences, by way of our spans."""
    sides = [
        [flat_document(spans_from_tags(tags, scheme)[0], id=str(n)) for n, tags in enumerate(side)]
        for side in (gold_tags, predicted_tags)
    ]
    return count_entities(*sides)


@st.composite
def tag_sides(draw, tags=TAGS):
    """Two lists of tag sequences of the same lengths, malformed more often than not."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    return [
        [draw(st.lists(st.sampled_from(tags), min_size=n, max_size=n)) for n in lengths]
        for _ in range(2)
    ]


class TestSeqeval:
    """Its default mode, which repairs malformed sequences as conlleval does."""

    @staticmethod
    def check(gold, predicted, scheme):
        found = scores(counted(gold, predicted, scheme))["strict"]
        for ours, theirs in (("f1", f1_score), ("precision", precision_score),
                             ("recall", recall_score)):  # fmt: skip
            assert found[ours] == pytest.approx(theirs(gold, predicted, zero_division=0))
        by_type = f1_score(gold, predicted, average=None, zero_division=0)
        types = [
            type_ for type_, rate in found["types"].items() if rate["support"] + rate["predicted"]
        ]
        assert [found["types"][type_]["f1"] for type_ in types] == pytest.approx(list(by_type))

    @given(tag_sides())
    def test_iob2(self, sides):
        self.check(*sides, "iob2")

    @given(tag_sides(["O", *(f"{prefix}-{type_}" for prefix in "BIES" for type_ in TYPES)]))
    def test_iobes(self, sides):
        self.check(*sides, "iobes")


class TestNervaluate:
    """It counts inclusive ends, so one is taken off; its `partial` knows no types."""

    @staticmethod
    def results(gold, predicted):
        sides = [
            [[{"label": t, "start": start, "end": end - 1} for start, end, t in side]]
            for side in (gold, predicted)
        ]
        return Evaluator(*sides, tags=list(TYPES), loader="dict").evaluate()["overall"]

    @given(flat_spans(), flat_spans())
    def test_strict(self, gold, predicted):
        theirs = self.results(gold, predicted)["strict"]
        ours = count_entities([flat_document(gold)], [flat_document(predicted)])
        count = micro(ours.strict)
        assert count == Count(theirs.correct, theirs.actual, theirs.possible)
        assert f1(count) == pytest.approx(theirs.f1)

    @given(flat_spans(types=("Drug",)), flat_spans(types=("Drug",)))
    def test_relaxed_and_partial_of_one_type(self, gold, predicted):
        theirs = self.results(gold, predicted)
        ours = count_entities([flat_document(gold)], [flat_document(predicted)])
        assert micro(ours.strict).true == theirs["exact"].correct
        partial = theirs["partial"]
        assert micro(ours.relaxed).true == partial.correct + partial.partial


class TestConlleval:
    """Known cases of the CoNLL-2000/2003 script."""

    @each(
        ("gold", "predicted", "true", "guessed", "correct"),
        [
            ("B-NP I-NP O", "B-NP I-NP O", 1, 1, 1),
            ("B-NP I-NP O", "B-NP B-NP O", 1, 2, 0),
            ("B-NP I-NP O", "I-NP I-NP O", 1, 1, 1),  # an entity may begin with I
            ("B-NP I-NP O", "B-NP I-VP O", 1, 2, 0),  # another type begins a new one
            ("B-NP B-NP O", "B-NP I-NP O", 2, 1, 0),
            ("I-NP I-NP O", "B-NP I-NP O", 1, 1, 1),
            ("O B-NP I-NP", "O O I-NP", 1, 1, 0),
            ("O O O", "B-NP O I-NP", 0, 2, 0),
            ("B-NP I-NP B-VP", "B-NP I-NP I-VP", 2, 2, 2),
        ],
    )
    def test_chunks(self, gold, predicted, true, guessed, correct):
        found = counted([gold.split()], [predicted.split()])
        assert micro(found.strict) == Count(correct, guessed, true)

    def test_adjacent_iobes_entities_stay_apart(self):
        """The script joins these; the scheme says that there are two."""
        tags = ["B-NP", "E-NP", "B-NP", "E-NP", "S-NP"]
        assert micro(counted([tags], [tags], "iobes").strict) == Count(3, 3, 3)


@given(flat_spans(length=LENGTH), flat_spans(length=LENGTH))
def test_micro_f1_by_sets(gold, predicted):
    """The definition itself: the intersection of (type, start, end)."""
    ours = micro(count_entities([flat_document(gold)], [flat_document(predicted)]).strict)
    assert ours == Count(len(set(gold) & set(predicted)), len(predicted), len(gold))
