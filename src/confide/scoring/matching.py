"""Which predicted span goes with which gold one: overlaps and one-to-one maximum matching.

A span is a tuple of character fragments, half open and ascending; most have one fragment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

Fragments = tuple[tuple[int, int], ...]
Pair = tuple[int, int]


def shared_characters(first: Fragments, second: Fragments) -> int:
    """How many characters lie in both spans.

    >>> shared_characters(((0, 4), (10, 14)), ((3, 12),))
    3
    """
    return sum(
        max(0, min(end, other_end) - max(start, other_start))
        for start, end in first
        for other_start, other_end in second
    )


def maximum_pairs(gold: Sequence[Fragments], predicted: Sequence[Fragments]) -> list[Pair]:
    """As many one-to-one pairs (gold index, predicted index) of overlapping spans as possible.

    Linear after sorting if no side overlaps itself and no span is discontinuous, as with every flat
    tagger. Otherwise by augmenting paths: `O(pairs x overlaps)`.

    >>> maximum_pairs([((0, 9),), ((8, 9),)], [((0, 2),), ((3, 9),)])
    [(0, 0), (1, 1)]
    """
    gold_order, predicted_order = _reading_order(gold), _reading_order(predicted)
    if _flat(gold, gold_order) and _flat(predicted, predicted_order):
        return _sweep(gold, predicted, gold_order, predicted_order)
    return maximum_matching(_neighbours(gold, predicted, predicted_order), len(predicted))


def _reading_order(spans: Sequence[Fragments]) -> list[int]:
    return sorted(range(len(spans)), key=spans.__getitem__)


def _flat(spans: Sequence[Fragments], order: Sequence[int]) -> bool:
    """Whether each span has one fragment and none overlaps the next."""
    last = -1
    for index in order:
        span = spans[index]
        if len(span) > 1 or span[0][0] < last:
            return False
        last = span[0][1]
    return True


def _sweep(
    gold: Sequence[Fragments],
    predicted: Sequence[Fragments],
    gold_order: Sequence[int],
    predicted_order: Sequence[int],
) -> list[Pair]:
    """For two flat sides: pair the leading spans if they overlap, else drop the one ending first.

    The result is a maximum: of two overlapping leading spans, the one that ends first overlaps
    nothing else that is left, so some maximum matching pairs the two.
    """
    pairs = []
    i = j = 0
    while i < len(gold_order) and j < len(predicted_order):
        start, end = gold[gold_order[i]][0]
        other_start, other_end = predicted[predicted_order[j]][0]
        if max(start, other_start) < min(end, other_end):
            pairs.append((gold_order[i], predicted_order[j]))
            i, j = i + 1, j + 1
        elif end <= other_end:
            i += 1
        else:
            j += 1
    return pairs


def _neighbours(
    gold: Sequence[Fragments], predicted: Sequence[Fragments], order: Sequence[int]
) -> list[list[int]]:
    """The predicted spans that each gold span overlaps, in reading order."""
    starts = [predicted[index][0][0] for index in order]
    longest = max((span[-1][1] - span[0][0] for span in predicted), default=0)
    found = []
    for span in gold:
        low = bisect_left(starts, span[0][0] - longest)
        high = bisect_left(starts, span[-1][1])
        near = order[low:high]
        found.append([j for j in near if shared_characters(span, predicted[j])])
    return found


def maximum_matching(neighbours: Sequence[Sequence[int]], predicted: int) -> list[Pair]:
    """A maximum bipartite matching, as pairs (gold index, predicted index).

    `neighbours[i]` lists the predicted indices, each below `predicted`, that gold i may be paired
    with. Uses breadth-first augmenting paths (Berge 1957), without recursion.
    """
    partner_of_gold: list[int] = [-1] * len(neighbours)
    partner_of_predicted: list[int] = [-1] * predicted
    for root in range(len(neighbours)):
        reached_from: dict[int, int] = {}
        queue = deque([root])
        free = -1
        while queue and free < 0:
            i = queue.popleft()
            for j in neighbours[i]:
                if j in reached_from:
                    continue
                reached_from[j] = i
                if partner_of_predicted[j] < 0:
                    free = j
                    break
                queue.append(partner_of_predicted[j])
        while free >= 0:
            i = reached_from[free]
            partner_of_predicted[free] = i
            partner_of_gold[i], free = free, partner_of_gold[i]
    return [(i, j) for i, j in enumerate(partner_of_gold) if j >= 0]
