import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError
from confide.scoring import Count, EntityCounts, count_entities, sum_counts
from confide.text.document import Document, Entity
from scoring.cases import TYPES, corpora, document, flat_document, flat_spans, sentences


def counts(gold, predicted, **how):
    found = count_entities([gold], [predicted], **how)
    return found.strict.get("Drug", Count()), found.relaxed.get("Drug", Count())


class TestDefault:
    @each(
        ("gold", "predicted", "strict", "relaxed"),
        [
            ([("Drug", 0, 5)], [("Drug", 0, 5)], (1, 1, 1), (1, 1, 1)),
            ([("Drug", 0, 5)], [("Drug", 0, 4)], (0, 1, 1), (1, 1, 1)),
            ([("Drug", 0, 5)], [("Test", 0, 5)], (0, 0, 1), (0, 0, 1)),
            ([("Drug", 0, 5)], [("Drug", 5, 9)], (0, 1, 1), (0, 1, 1)),
            # one prediction over two gold entities answers one of them
            ([("Drug", 0, 5), ("Drug", 6, 9)], [("Drug", 0, 9)], (0, 1, 2), (1, 1, 2)),
            # two predictions in one gold entity: one answers it
            ([("Drug", 0, 9)], [("Drug", 0, 5), ("Drug", 6, 9)], (0, 2, 1), (1, 2, 1)),
            # discontinuous: all fragments must agree; the gap is not part of it
            ([("Drug", 0, 2, 6, 9)], [("Drug", 0, 2, 6, 9)], (1, 1, 1), (1, 1, 1)),
            ([("Drug", 0, 2, 6, 9)], [("Drug", 0, 9)], (0, 1, 1), (1, 1, 1)),
            ([("Drug", 0, 2, 6, 9)], [("Drug", 3, 5)], (0, 1, 1), (0, 1, 1)),
            # nested
            ([("Drug", 0, 9), ("Drug", 3, 5)], [("Drug", 3, 5)], (1, 1, 2), (1, 1, 2)),
            # twice the same counts once
            ([("Drug", 0, 5)], [("Drug", 0, 5), ("Drug", 0, 5)], (1, 1, 1), (1, 1, 1)),
            ([("Drug", 0, 5), ("Drug", 0, 5)], [("Drug", 0, 5)], (1, 1, 1), (1, 1, 1)),
            ([], [], (0, 0, 0), (0, 0, 0)),
        ],
    )
    def test_by_hand(self, gold, predicted, strict, relaxed):
        assert counts(document(*gold), document(*predicted)) == (Count(*strict), Count(*relaxed))

    @given(corpora())
    def test_relaxed_finds_at_least_what_strict_finds(self, sides):
        found = count_entities(*sides)
        for type_, strict in found.strict.items():
            relaxed = found.relaxed[type_]
            assert strict[1:] == relaxed[1:]
            assert 0 <= strict.true <= relaxed.true <= min(relaxed.predicted, relaxed.gold)

    @given(corpora())
    def test_swapping_the_sides_swaps_predicted_and_gold(self, sides):
        gold, predicted = sides
        forth, back = count_entities(gold, predicted), count_entities(predicted, gold)
        for how in ("strict", "relaxed"):
            swapped = {t: Count(c.true, c.gold, c.predicted) for t, c in getattr(back, how).items()}
            assert getattr(forth, how) == swapped

    @given(corpora())
    def test_a_document_agrees_with_itself(self, sides):
        for found in count_entities(sides[0], sides[0]).strict.values():
            assert found.true == found.predicted == found.gold


class TestN2c2:
    """The cases that distinguish the shared task's script, by hand."""

    @each(
        ("gold", "predicted", "strict", "relaxed"),
        [
            ([("Drug", 0, 5)], [("Drug", 0, 4)], (0, 1, 1), (1, 1, 1)),
            # the second prediction touches a matched gold entity: deleted, no false positive
            ([("Drug", 0, 9)], [("Drug", 0, 5), ("Drug", 6, 9)], (0, 2, 1), (1, 1, 1)),
            # one prediction over two gold entities: TP 1, FN 1
            ([("Drug", 0, 5), ("Drug", 6, 9)], [("Drug", 0, 9)], (0, 1, 2), (1, 1, 2)),
            # it has taken both: the next prediction, in the second one, is deleted
            (
                [("Drug", 0, 5), ("Drug", 6, 9)],
                [("Drug", 0, 7), ("Drug", 7, 9)],
                (0, 2, 2),
                (1, 1, 2),
            ),
            # a prediction that reaches from a free gold entity into a taken one is deleted, and yet
            # it takes the free one: a third prediction, in that one, is deleted too
            (
                [("Drug", 0, 5), ("Drug", 6, 9)],
                [("Drug", 0, 2), ("Drug", 3, 7), ("Drug", 8, 9)],
                (0, 3, 2),
                (1, 1, 2),
            ),
            # a prediction that touches nothing stays a false positive
            ([("Drug", 0, 5)], [("Drug", 0, 5), ("Drug", 8, 9)], (1, 2, 1), (1, 2, 1)),
            # the same prediction twice: the second is deleted under strict as well
            ([("Drug", 0, 5)], [("Drug", 0, 5), ("Drug", 0, 5)], (1, 1, 1), (1, 1, 1)),
            # a discontinuous entity is its hull
            ([("Drug", 0, 2, 6, 9)], [("Drug", 0, 9)], (1, 1, 1), (1, 1, 1)),
            ([("Drug", 0, 2, 6, 9)], [("Drug", 3, 5)], (0, 1, 1), (1, 1, 1)),
            ([("Drug", 0, 5)], [("Drug", 5, 9)], (0, 1, 1), (0, 1, 1)),
        ],
    )
    def test_by_hand(self, gold, predicted, strict, relaxed):
        found = counts(document(*gold), document(*predicted), mode="n2c2")
        assert found == (Count(*strict), Count(*relaxed))

    @given(flat_spans(), flat_spans())
    def test_strict_is_the_same_for_flat_annotation(self, gold, predicted):
        sides = [flat_document(gold)], [flat_document(predicted)]
        assert count_entities(*sides, mode="n2c2").strict == count_entities(*sides).strict

    @given(flat_spans(), flat_spans())
    def test_no_more_true_and_no_more_false_than_by_default(self, gold, predicted):
        sides = [flat_document(gold)], [flat_document(predicted)]
        default, script = (
            count_entities(*sides).relaxed,
            count_entities(*sides, mode="n2c2").relaxed,
        )
        for type_, count in script.items():
            assert count.true <= default[type_].true
            assert count.predicted - count.true <= default[type_].predicted - default[type_].true
            assert count.gold == default[type_].gold


class TestSums:
    @given(corpora(most=6), st.data(), st.sampled_from(["default", "n2c2"]))
    def test_counts_add_up_over_any_cut(self, sides, data, mode):
        gold, predicted = sides
        cut = data.draw(st.integers(0, len(gold)))
        parts = [
            count_entities(gold[where], predicted[where], mode=mode, malformed=2)
            for where in (slice(cut), slice(cut, None))
        ]
        whole = count_entities(gold, predicted, mode=mode, malformed=4)
        assert sum_counts(parts) == sum_counts(parts[::-1]) == whole

    def test_nothing_sums_to_nothing(self):
        assert sum_counts([]) == EntityCounts({}, {})

    def test_sentences_of_gold_or_else_of_the_prediction(self):
        cut = document(sentences=sentences(0, 8, 24))
        plain = document()
        assert count_entities([cut], [cut]).sentences == 2
        assert count_entities([plain], [cut]).sentences == 2
        assert count_entities([plain], [plain]).sentences == 0

    def test_types_come_in_alphabetical_order(self):
        gold = document(("Test", 0, 1), ("Drug", 2, 3), ("Effect", 4, 5))
        assert list(count_entities([gold], [gold]).strict) == sorted(TYPES)


class TestBadInput:
    def test_another_number_of_documents(self):
        with pytest.raises(DataError, match="expected 1 documents; got 0"):
            count_entities([document()], [])

    def test_another_document(self):
        with pytest.raises(DataError, match="position 1; expected the id 'b'; got 'c'"):
            count_entities(
                [document(id="a"), document(id="b")], [document(id="a"), document(id="c")]
            )

    def test_an_entity_without_a_character(self):
        empty = Document("d", "abc", (Entity("T1", "Drug", ((1, 1),)),))
        with pytest.raises(DataError, match="an empty fragment"):
            count_entities([empty], [empty])

    def test_an_unknown_mode(self):
        with pytest.raises(DataError, match="expected default or n2c2; got 'lenient'"):
            count_entities([document()], [document()], mode="lenient")


def test_ten_thousand_sentences_take_well_under_a_second():
    gold, predicted = [], []
    for n in range(10_000):
        spans = [("Drug", place, place + 4) for place in range(n % 3, 20, 6)]
        gold.append(document(*spans, id=str(n)))
        predicted.append(document(*((t, a, b - n % 2) for t, a, b in spans), id=str(n)))
    start = time.process_time()  # of this process, whoever else works here
    count_entities(gold, predicted)
    assert time.process_time() - start < 2  # 0.2 s on a quiet machine
