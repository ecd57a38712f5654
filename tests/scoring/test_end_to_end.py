"""Relations between found entities against hand-made cases and a search of all matchings."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import DataError
from confide.scoring import Count
from confide.scoring.relations import FactKey, Mention, count_facts


def fact(head, tail, relation="r", types=("A", "B")):
    ends = (Mention(kind, (span,)) for kind, span in zip(types, (head, tail), strict=True))
    return FactKey(relation, *ends)


def test_relation_types_and_both_spans_must_be_right():
    gold = fact((0, 4), (6, 9))
    for wrong in (
        fact((0, 4), (6, 9), "s"),
        fact((0, 4), (6, 9), types=("A", "A")),
        fact((6, 9), (0, 4)),
        fact((0, 4), (9, 12)),
    ):
        counts = count_facts([[gold]], [[wrong]])
        assert sum(count.true for count in counts.relaxed.values()) == 0
    near = count_facts([[gold]], [[fact((3, 7), (8, 20))]])
    assert near.strict["r"] == Count(0, 1, 1) and near.relaxed["r"] == Count(1, 1, 1)
    both = count_facts([[gold], [gold]], [[gold], []], missed={"r": 2, "s": 1})
    assert both.strict == {"r": Count(1, 1, 4), "s": Count(0, 0, 1)} == both.relaxed


def test_one_prediction_answers_one_relation_and_the_other_way_round():
    two = [fact((0, 2), (6, 9)), fact((2, 4), (6, 9))]
    assert count_facts([two], [[fact((0, 4), (6, 9))]]).relaxed["r"] == Count(1, 1, 2)
    assert count_facts([[fact((0, 4), (6, 9))]], [two]).relaxed["r"] == Count(1, 2, 1)
    same = [two[0], two[0]]
    assert count_facts([same], [same]).strict["r"] == Count(1, 1, 1)


def test_other_documents_are_refused():
    with pytest.raises(DataError, match="not the same documents"):
        count_facts([[]], [])


SPANS = st.tuples(st.integers(0, 6), st.integers(1, 4)).map(lambda one: (one[0], sum(one)))
FACTS = st.lists(st.builds(fact, SPANS, SPANS, st.sampled_from("rs")), max_size=4)


def touch(one, other):
    return all(
        max(a.fragments[0][0], b.fragments[0][0]) < min(a.fragments[0][1], b.fragments[0][1])
        for a, b in ((one.head, other.head), (one.tail, other.tail))
    )


@given(FACTS, FACTS)
def test_relaxed_is_the_best_of_all_matchings(gold, predicted):
    counts = count_facts([gold], [predicted])
    for kind in "rs":
        ours = [one for one in set(gold) if one.relation == kind]
        theirs = [one for one in set(predicted) if one.relation == kind]
        padded = theirs + [None] * len(ours)
        best = max(
            sum(other is not None and touch(one, other) for one, other in zip(ours, chosen))  # noqa: B905
            for chosen in permutations(padded, len(ours))
        )
        found = counts.relaxed.get(kind, Count())
        assert found == Count(best, len(theirs), len(ours))
        exact = Counter(ours) & Counter(theirs)
        assert counts.strict.get(kind, Count()).true == len(exact) <= best
