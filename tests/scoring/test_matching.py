from hypothesis import given
from hypothesis import strategies as st

from confide.scoring.counts import maximum_pairs, shared_characters
from scoring.cases import flat_spans, fragments


def characters(span):
    return {place for start, end in span for place in range(start, end)}


def size_by_networkx(gold, predicted):
    import networkx

    graph = networkx.Graph()
    top = [("gold", i) for i in range(len(gold))]
    graph.add_nodes_from(top)
    graph.add_nodes_from(("predicted", j) for j in range(len(predicted)))
    graph.add_edges_from(
        (("gold", i), ("predicted", j))
        for i, one in enumerate(gold)
        for j, other in enumerate(predicted)
        if characters(one) & characters(other)
    )
    return len(networkx.bipartite.hopcroft_karp_matching(graph, top)) // 2


def check(gold, predicted):
    pairs = maximum_pairs(gold, predicted)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert all(characters(gold[i]) & characters(predicted[j]) for i, j in pairs)
    assert len(pairs) == size_by_networkx(gold, predicted)


@given(fragments(), fragments())
def test_shared_characters_are_the_intersection(first, second):
    assert shared_characters(first, second) == len(characters(first) & characters(second))


@given(st.lists(fragments(), max_size=9), st.lists(fragments(), max_size=9))
def test_any_spans_match_as_many_as_networkx(gold, predicted):
    check(gold, predicted)


@given(flat_spans(), flat_spans(), st.randoms(use_true_random=False))
def test_flat_spans_match_as_many_as_networkx_in_any_order(gold, predicted, random):
    sides = [[((start, end),) for start, end, _ in side] for side in (gold, predicted)]
    for side in sides:
        random.shuffle(side)
    check(*sides)


def test_a_greedy_choice_is_undone():
    """First come, first served would give the short gold span's only partner away."""
    gold = [((0, 9),), ((8, 9),)]
    assert sorted(maximum_pairs(gold, [((3, 9),), ((0, 2),)])) == [(0, 1), (1, 0)]


def test_equal_spans_may_serve_others():
    """Pairing the two equal spans first would leave their neighbours alone."""
    assert len(maximum_pairs([((0, 10),), ((8, 10),)], [((0, 10),), ((0, 2),)])) == 2


def test_touching_is_not_overlapping():
    assert maximum_pairs([((0, 3),)], [((3, 5),)]) == []


def test_a_gap_is_not_part_of_a_span():
    assert maximum_pairs([((0, 3), (6, 9))], [((3, 6),)]) == []


def test_a_long_chain_of_overlaps_is_quick():
    gold = [((10 * n, 10 * n + 10),) for n in range(5000)]
    predicted = [((10 * n - 5, 10 * n + 5),) for n in range(1, 5000)]
    assert len(maximum_pairs(gold, predicted)) == 4999


def test_a_long_chain_with_a_discontinuous_span_needs_no_recursion():
    gold = [((10 * n, 10 * n + 10),) for n in range(2000)] + [((30_000, 30_001), (30_010, 30_011))]
    predicted = [((10 * n - 5, 10 * n + 5),) for n in range(1, 2000)] + [((30_010, 30_012),)]
    assert len(maximum_pairs(gold, predicted)) == 2000
