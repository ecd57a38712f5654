"""Gold and predicted documents -> counts that add up over documents and sites -> scores.

- **Strict**: the same type and exactly the same characters.
- **Relaxed**: the same type and at least one shared character; predictions and gold entities are
  paired one to one, as many as possible.
- Mode `"n2c2"` counts like the script of the 2018 n2c2 shared task: a discontinuous entity becomes
  its hull; a prediction that touches an already matched gold entity is deleted and so no false
  positive; one prediction over two gold entities is one true positive and one false negative.

By default an entity that occurs twice in a document (same type, same characters) counts once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

from confide.errors import DataError
from confide.scoring.calibration import Sure, count_sure, sum_sure, sums_by_key
from confide.text.document import Document, Entity, Sentence

# --- Matching of spans
#
# Predicted and gold ones: overlaps and one-to-one maximum matching.
#
# A span is a tuple of character fragments, half open and ascending; most have one fragment.


Fragments = tuple[tuple[int, int], ...]
Pair = tuple[int, int]


def shared_characters(first: Fragments, second: Fragments) -> int:
    """Count the characters that lie in both spans.

    >>> shared_characters(((0, 4), (10, 14)), ((3, 12),))
    3
    """
    return sum(
        max(0, min(end, other_end) - max(start, other_start))
        for start, end in first
        for other_start, other_end in second
    )


def maximum_pairs(gold: Sequence[Fragments], predicted: Sequence[Fragments]) -> list[Pair]:
    """Find a largest set of one-to-one pairs (gold index, predicted index) of overlapping spans.

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
    """Return whether each span has one fragment and none overlaps the next."""
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


Mode = Literal["default", "n2c2"]
MODES: tuple[Mode, ...] = ("default", "n2c2")


class Count(NamedTuple):
    """The correct predictions, all predictions and all gold entities of one type."""

    true: int = 0
    predicted: int = 0
    gold: int = 0


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """Counts by entity type; `malformed` is how many tags had to be repaired before scoring.

    `sure` counts predictions by type and confidence, and how many of them are exactly right.
    """

    strict: dict[str, Count]
    relaxed: dict[str, Count]
    sentences: int = 0
    malformed: int = 0
    sure: Sure = field(default_factory=dict)


class TypeMatch(NamedTuple):
    """The strict and relaxed counts of one type in one document."""

    type: str
    strict: Count
    relaxed: Count


def sum_counts(parts: Iterable[EntityCounts]) -> EntityCounts:
    """The counts over all parts, types in alphabetical order; nothing gives empty counts."""
    parts = list(parts)
    return EntityCounts(
        sum_by_type(chain.from_iterable(part.strict.items() for part in parts)),
        sum_by_type(chain.from_iterable(part.relaxed.items() for part in parts)),
        sum(part.sentences for part in parts),
        sum(part.malformed for part in parts),
        sum_sure(part.sure for part in parts),
    )


def count_entities(
    gold: Sequence[Document],
    predicted: Sequence[Document],
    *,
    mode: Mode = "default",
    malformed: int = 0,
) -> EntityCounts:
    """Count the entities of documents that are paired by position.

    `sentences` counts the gold documents' sentences, or the predicted ones' if only those are
    segmented. Raises DataError if the two sides are not the same documents.

    >>> from confide.text.document import Document, Entity
    >>> gold = Document("d", "fever and cough", (Entity("1", "Sign", ((0, 5),)),))
    >>> seen = Document("d", "fever and cough", (Entity("1", "Sign", ((0, 9),)),))
    >>> counts = count_entities([gold], [seen])
    >>> counts.strict["Sign"], counts.relaxed["Sign"]
    (Count(true=0, predicted=1, gold=1), Count(true=1, predicted=1, gold=1))
    """
    matches = list(chain.from_iterable(match_documents(gold, predicted, mode=mode)))
    return EntityCounts(
        sum_by_type((match.type, match.strict) for match in matches),
        sum_by_type((match.type, match.relaxed) for match in matches),
        sum(len(g.sentences or p.sentences) for g, p in zip(gold, predicted, strict=True)),
        malformed,
        count_sure(chain.from_iterable(map(_finds, gold, predicted))),
    )


def _finds(gold: Document, predicted: Document) -> Iterator[tuple[str, float | None, bool]]:
    """Type and confidence of each find of a document, once, and whether it is exactly right."""
    right = {(one.type, one.fragments) for one in gold.entities}
    finds = {(one.type, one.fragments): one.confidence for one in predicted.entities}
    for found, confidence in finds.items():
        yield found[0], confidence, found in right


def match_documents(
    gold: Sequence[Document], predicted: Sequence[Document], *, mode: Mode = "default"
) -> Iterator[list[TypeMatch]]:
    """Each document's counts by type. Raises DataError as `count_entities` does."""
    if mode not in MODES:
        raise DataError("unknown way of counting", expected=" or ".join(MODES), got=repr(mode))
    count = _count_once if mode == "default" else _count_as_n2c2
    for one, other in pair_documents(gold, predicted):
        if one.entities or other.entities:
            yield list(count(_spans_by_type(one), _spans_by_type(other)))
        else:
            yield []


def pair_documents(
    gold: Sequence[Document], predicted: Sequence[Document]
) -> Iterator[tuple[Document, Document]]:
    """The documents in pairs. Raises DataError if their number or ids differ."""
    if len(gold) != len(predicted):
        raise DataError(
            "gold and predicted are not the same documents",
            expected=f"{len(gold)} documents",
            got=f"{len(predicted)}",
        )
    for position, (one, other) in enumerate(zip(gold, predicted, strict=True)):
        if one.id != other.id:
            raise DataError(
                f"gold and predicted documents differ at position {position}",
                expected=f"the id {one.id!r}",
                got=repr(other.id),
                fix="give both sides in the same order",
            )
        yield one, other


def _spans_by_type(document: Document) -> dict[str, list[Fragments]]:
    spans: dict[str, list[Fragments]] = {}
    for entity in document.entities:
        if not all(start < end for start, end in entity.fragments):
            raise DataError(
                f"the entity {entity.id!r} has an empty fragment",
                where=document.where,
                got=str(entity.fragments),
            )
        spans.setdefault(entity.type, []).append(entity.fragments)
    return spans


def _count_once(
    gold: dict[str, list[Fragments]], predicted: dict[str, list[Fragments]]
) -> Iterator[TypeMatch]:
    for type_ in gold.keys() | predicted.keys():
        ours, theirs = set(gold.get(type_, ())), set(predicted.get(type_, ()))
        strict = len(ours & theirs)
        relaxed = len(ours) if ours == theirs else len(maximum_pairs(list(ours), list(theirs)))
        sizes = len(theirs), len(ours)
        yield TypeMatch(type_, Count(strict, *sizes), Count(relaxed, *sizes))


def _count_as_n2c2(
    gold: dict[str, list[Fragments]], predicted: dict[str, list[Fragments]]
) -> Iterator[TypeMatch]:
    for type_ in gold.keys() | predicted.keys():
        ours = [(span[0][0], span[-1][1]) for span in gold.get(type_, ())]
        theirs = [(span[0][0], span[-1][1]) for span in predicted.get(type_, ())]
        equal = [[i for i, span in enumerate(ours) if span == other] for other in theirs]
        touching = [
            [i for i, (start, end) in enumerate(ours) if start < other_end and other_start < end]
            for other_start, other_end in theirs
        ]
        strict, relaxed = _keep_first_touch(equal), _keep_first_touch(touching)
        yield TypeMatch(type_, Count(*strict, len(ours)), Count(*relaxed, len(ours)))


def _keep_first_touch(matched: Sequence[Sequence[int]]) -> tuple[int, int]:
    """(true positives, predictions kept), given the gold entities that each prediction matches."""
    taken: set[int] = set()
    true = kept = 0
    for gold in matched:
        if taken.isdisjoint(gold):
            true += bool(gold)
            kept += 1
        taken.update(gold)
    return true, kept


def sum_by_type(counts: Iterable[tuple[str, Sequence[int]]]) -> dict[str, Count]:
    """The counts (true, predicted, gold) of each type, types in alphabetical order."""
    return {type_: Count(*sums) for type_, sums in sums_by_key(counts).items()}


# --- Scores from counts
#
# Precision, recall and F1, in the form that `result.json` holds.


Scored = dict[str, Any]
"""Scores as `result.json` holds them: objects of numbers, nested; each task has its own keys."""


def precision(count: Count) -> float:
    """True / predicted, as a fraction; 0 if nothing was predicted."""
    return count.true / count.predicted if count.predicted else 0.0


def recall(count: Count) -> float:
    """True / gold, as a fraction; 0 if there was nothing to find."""
    return count.true / count.gold if count.gold else 0.0


def f1(count: Count) -> float:
    """The harmonic mean of precision and recall; 0 if nothing was predicted or to be found."""
    both = count.predicted + count.gold
    return 2 * count.true / both if both else 0.0


def micro(counts: Mapping[str, Count]) -> Count:
    """The count over all types."""
    return Count(*(sum(numbers) for numbers in zip(*counts.values(), strict=True)))


def scores(counts: EntityCounts) -> Scored:
    """The JSON form of counts; every rate is a fraction from 0 to 1.

    `{"strict": rates, "relaxed": rates, "sentences": n, "malformed": n}`, where rates are `f1`,
    `precision`, `recall` (micro-averaged), `support` (gold entities), `true`, `predicted` and, by
    type, the same under `types`.
    """
    return {
        "strict": _rates(counts.strict),
        "relaxed": _rates(counts.relaxed),
        "sentences": counts.sentences,
        "malformed": counts.malformed,
    }


def _rates(counts: Mapping[str, Count]) -> Scored:
    types = {type_: rate_of(count) for type_, count in sorted(counts.items())}
    return {**rate_of(micro(counts)), "types": types}


def rate_of(count: Count) -> dict[str, float | int]:
    """F1, precision and recall with the counts behind them, as result.json has them."""
    return {
        "f1": f1(count),
        "precision": precision(count),
        "recall": recall(count),
        "support": count.gold,
        "true": count.true,
        "predicted": count.predicted,
    }


# --- Single sentences
#
# They are the unit of error lists and of the bootstrap.


def by_sentence(
    gold: Sequence[Document], predicted: Sequence[Document]
) -> tuple[list[Document], list[Document]]:
    """Cut documents into one for each sentence; offsets count from the sentence's start.

    The gold document's sentences are used, or the predicted one's if only that is segmented. An
    entity belongs to the sentence in which it starts. A document of at most one sentence is kept
    as it is.
    """
    left, right = [], []
    for one, other in pair_documents(gold, predicted):
        sentences = one.sentences or other.sentences
        if len(sentences) < 2:
            left.append(one)
            right.append(other)
        else:
            left += _cut(one, sentences)
            right += _cut(other, sentences)
    return left, right


def _cut(document: Document, sentences: Sequence[Sentence]) -> list[Document]:
    starts = [sentence.start for sentence in sentences]
    entities: list[list[Entity]] = [[] for _ in sentences]
    for entity in document.entities:
        entities[max(0, bisect_right(starts, entity.start) - 1)].append(entity)
    return [
        Document(
            f"{document.id}#{number}",
            document.text[sentence.start : sentence.end],
            tuple(entity.shifted(-sentence.start) for entity in inside),
            sentences=(sentence.shifted(-sentence.start),),
            source=document.source,
        )
        for number, (sentence, inside) in enumerate(zip(sentences, entities, strict=True), 1)
    ]


# --- Confusion
#
# Counts of types taken for others, and the worst cases.
#
# Error lists hold text: they are for the owner of the documents only.


Aligned = tuple[Entity | None, Entity | None]


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """A sentence with mistakes: both annotations of it, and the number of each kind of mistake.

    The kinds are `missed` and `spurious`, `borders` (the right type with other characters) and
    `types` (shared characters, another type).
    """

    gold: Document
    predicted: Document
    mistakes: Counter[str]


def count_confusions(
    gold: Sequence[Document], predicted: Sequence[Document]
) -> dict[str, dict[str, int]]:
    """Count which type was taken for which: gold type -> predicted type -> entities.

    "" stands for no counterpart on that side. An entity that occurs twice counts once.

    Entities are paired one to one: first equal ones, then as many as possible that overlap and have
    the same type, then, over all types, those that share most characters. So for flat annotation,
    the diagonal is the relaxed count of true predictions.
    """
    counts = Counter(
        (ours.type if ours else "", theirs.type if theirs else "")
        for one, other in pair_documents(gold, predicted)
        for ours, theirs in align(one, other)
    )
    rows: dict[str, dict[str, int]] = {}
    for pair in sorted(counts, key=lambda pair: (pair[0] == "", pair[1] == "", pair)):
        rows.setdefault(pair[0], {})[pair[1]] = counts[pair]
    return rows


def worst_errors(
    gold: Sequence[Document], predicted: Sequence[Document], n: int
) -> list[ErrorCase]:
    """The `n` sentences with most mistakes; among equals, the most confident mistakes come first.

    The cases hold text: show them to the owner of the documents and to nobody else.
    """
    cases = [
        (case, doubt)
        for one, other in zip(*by_sentence(gold, predicted), strict=True)
        for case, doubt in [_case(one, other)]
        if case.mistakes.total()
    ]
    cases.sort(key=lambda pair: (-pair[0].mistakes.total(), pair[1]))
    return [case for case, _ in cases[:n]]


def right_sentences(
    gold: Sequence[Document], predicted: Sequence[Document], n: int
) -> list[ErrorCase]:
    """The `n` sentences with most entities in which every entity is right, and nothing else found.

    The cases hold text: show them to the owner of the documents and to nobody else.
    """
    whole = (_case(one, other)[0] for one, other in zip(*by_sentence(gold, predicted), strict=True))
    cases = [case for case in whole if case.gold.entities and not case.mistakes.total()]
    cases.sort(key=lambda case: -len(case.gold.entities))
    return cases[:n]


def align(gold: Document, predicted: Document) -> list[Aligned]:
    """Every entity of both sides once, paired where they correspond (see `count_confusions`)."""
    theirs = {(entity.type, entity.fragments): entity for entity in predicted.entities}
    ours = {(entity.type, entity.fragments): entity for entity in gold.entities}
    pairs: list[Aligned] = [(ours[key], theirs[key]) for key in ours if key in theirs]
    left = [entity for key, entity in ours.items() if key not in theirs]
    right = [entity for key, entity in theirs.items() if key not in ours]
    for pick in (_same_type, _most_shared):
        found = pick(left, right)
        pairs += found
        used = {id(entity) for pair in found for entity in pair}
        left = [entity for entity in left if id(entity) not in used]
        right = [entity for entity in right if id(entity) not in used]
    return [*pairs, *((entity, None) for entity in left), *((None, entity) for entity in right)]


def _same_type(left: Sequence[Entity], right: Sequence[Entity]) -> list[Aligned]:
    pairs: list[Aligned] = []
    for type_ in sorted({entity.type for entity in left}):
        ours = [entity for entity in left if entity.type == type_]
        theirs = [entity for entity in right if entity.type == type_]
        found = maximum_pairs([e.fragments for e in ours], [e.fragments for e in theirs])
        pairs += [(ours[i], theirs[j]) for i, j in found]
    return pairs


def _most_shared(left: Sequence[Entity], right: Sequence[Entity]) -> list[Aligned]:
    overlaps = [
        (-shared, i, j)
        for i, one in enumerate(left)
        for j, other in enumerate(right)
        if (shared := shared_characters(one.fragments, other.fragments))
    ]
    pairs: list[Aligned] = []
    used_left: set[int] = set()
    used_right: set[int] = set()
    for _, i, j in sorted(overlaps):
        if i not in used_left and j not in used_right:
            used_left.add(i)
            used_right.add(j)
            pairs.append((left[i], right[j]))
    return pairs


def _case(gold: Document, predicted: Document) -> tuple[ErrorCase, float]:
    """The sentence's mistakes, and minus the summed confidence of its wrong predictions."""
    kinds: Counter[str] = Counter()
    sure = 0.0
    for ours, theirs in align(gold, predicted):
        if kind := _mistake(ours, theirs):
            kinds[kind] += 1
            sure += (theirs.confidence or 0.0) if theirs else 0.0
    return ErrorCase(gold, predicted, kinds), -sure


def _mistake(ours: Entity | None, theirs: Entity | None) -> str:
    if ours is None or theirs is None:
        return "spurious" if ours is None else "missed"
    if ours.type != theirs.type:
        return "types"
    return "" if ours.fragments == theirs.fragments else "borders"
