"""Scores of relations: between given entities, of found facts, of bags, of ranked candidates.

Gold and predicted relations become counts that add up over documents and sites.

One label is compared for each pair of entities, `NO_RELATION` if nothing holds. That label is never
scored: a prediction is true if it is the pair's relation and not `NO_RELATION`. A gold relation
whose pair was never looked at (`missed`) counts as gold that was not found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from confide.errors import DataError
from confide.scoring import calibration
from confide.scoring.calibration import Right, Sure, count_sure, sum_sure
from confide.scoring.counts import (
    Count,
    EntityCounts,
    Fragments,
    Scored,
    maximum_matching,
    micro,
    rate_of,
    shared_characters,
    sum_by_type,
    sum_counts,
)
from confide.scoring.intervals import Interval
from confide.text.document import NO_RELATION

Labels = tuple[str, str]
_DIRECTED = re.compile(r"(.+)\((?:e1,e2|e2,e1)\)")


@dataclass(frozen=True, slots=True)
class RelationCounts:
    """Counts of gold relations predicted as each relation. Numbers only, no text.

    `confusion` counts the (gold, predicted) labels of pairs, `NO_RELATION` included; `missed`
    counts, by relation, gold relations whose pair was never looked at; `sure` counts predicted
    relations by name and confidence, and how many of them are right.
    """

    confusion: dict[Labels, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    sure: Sure = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """The number of pairs that were scored."""
        return sum(self.confusion.values())

    @property
    def relations(self) -> dict[str, Count]:
        """True, predicted and gold of each relation but `NO_RELATION`, in alphabetical order."""
        return _by_relation(self, {})

    def to_json(self) -> Scored:
        """`{"confusion": {gold: {predicted: n}}, "missed": {relation: n}}`."""
        rows: dict[str, dict[str, int]] = {}
        for (gold, predicted), count in self.confusion.items():
            rows.setdefault(gold, {})[predicted] = count
        return {"confusion": rows, "missed": dict(self.missed)}


def count_relations(
    gold: Sequence[str],
    predicted: Sequence[str],
    *,
    missed: Mapping[str, int] | None = None,
    confidences: Sequence[float] = (),
) -> RelationCounts:
    """Count labels that are paired by position; `missed` is as in `RelationCounts`.

    `confidences` are those of the predicted labels, if they are known.

    Raises DataError if the two differ in length or a number missed is negative.

    >>> counts = count_relations(["a", "no-relation", "a"], ["a", "a", "no-relation"])
    >>> counts.relations
    {'a': Count(true=1, predicted=2, gold=2)}
    """
    _must_pair(gold, predicted)
    finds = zip(gold, predicted, confidences, strict=True) if confidences else ()
    sure = count_sure((name, c, g == name) for g, name, c in finds if name != NO_RELATION)
    return _sorted(Counter(zip(gold, predicted, strict=True)), Counter(missed or {}), sure)


def sum_relation_counts(parts: Iterable[RelationCounts]) -> RelationCounts:
    """The counts over all parts, labels in alphabetical order; nothing gives empty counts."""
    confusion: Counter[Labels] = Counter()
    missed: Counter[str] = Counter()
    parts = list(parts)
    for part in parts:
        confusion.update(part.confusion)
        missed.update(part.missed)
    return _sorted(confusion, missed, sum_sure(part.sure for part in parts))


def _sorted(
    confusion: Mapping[Labels, int], missed: Mapping[str, int], sure: Sure
) -> RelationCounts:
    if any(count < 0 for count in (*confusion.values(), *missed.values())):
        raise DataError("a count is negative", expected="counts from 0")
    return RelationCounts(
        {labels: count for labels, count in sorted(confusion.items()) if count},
        {kind: count for kind, count in sorted(missed.items()) if count},
        sure,
    )


def _by_relation(counts: RelationCounts, base: Mapping[str, str]) -> dict[str, Count]:
    """Counts by relation; labels with the same name in `base` are merged.

    A prediction is true only if the whole label is right, even where `base` merges labels.
    """
    labels = [(label, (0, 0, count)) for label, count in counts.missed.items()]
    for (gold, predicted), count in counts.confusion.items():
        labels.append((gold, (count if gold == predicted else 0, 0, count)))
        labels.append((predicted, (0, count, 0)))
    named = ((base.get(label, label), row) for label, row in labels if label != NO_RELATION)
    return sum_by_type(named)


def relation_scores(counts: RelationCounts) -> Scored:
    """The JSON form of counts; every rate is a fraction from 0 to 1.

    `{"micro": rates, "macro": rates, "examples": n, "confusion": ..., "missed": ...}`. `micro` has
    `f1`, `precision` and `recall` over all relations but `NO_RELATION`, `support` (gold relations,
    missed ones included), `true`, `predicted` and, under `types`, the same by relation. `macro` has
    `f1`, `precision` and `recall`, each the mean over the relations that occur. The rest is as in
    `RelationCounts`.
    """
    relations = counts.relations
    return _scores(counts, relations, list(relations))


def directed_scores(counts: RelationCounts) -> Scored:
    """Score relations as `relation_scores` does, with the two directions of a relation merged.

    This is the official score of SemEval-2010 task 8, "(9+1)-way evaluation with directionality
    taken into account"; its number is `["macro"]["f1"]`. ``R(e1,e2)`` and ``R(e2,e1)`` are one
    relation R in the denominators of precision and recall, but a prediction is true only in the
    right direction. As there, `macro` is the mean over the relations that occur in the gold.
    """
    labels = {label for pair in counts.confusion for label in pair} | counts.missed.keys()
    base = {label: match[1] for label in labels if (match := _DIRECTED.fullmatch(label))}
    found = _by_relation(counts, base)
    return _scores(counts, found, [name for name, count in found.items() if count.gold])


def _scores(
    counts: RelationCounts, relations: Mapping[str, Count], averaged: Sequence[str]
) -> Scored:
    """All rates; the macro-average covers the relations in `averaged`."""
    types = {name: rate_of(count) for name, count in relations.items()}
    many = max(len(averaged), 1)
    macro = {
        rate: sum(types[name][rate] for name in averaged) / many
        for rate in ("f1", "precision", "recall")
    }
    return {
        "micro": {**rate_of(micro(relations)), "types": types},
        "macro": macro,
        "examples": counts.examples,
        **counts.to_json(),
    }


def _must_pair(gold: Sequence[str], predicted: Sequence[str]) -> None:
    if len(gold) != len(predicted):
        raise DataError(
            "gold and predicted are not labels of the same pairs",
            expected=f"{len(gold)} labels",
            got=str(len(predicted)),
        )


# --- Scores of found facts
#
# Relations between entities that a model found itself: gold and predicted facts -> counts.
#
# - **Strict**: the same relation, and both entities have the same type and exactly the same
#   characters as those of a gold relation.
# - **Relaxed**: the same relation and types, and each entity shares at least one character with its
#   counterpart. Predicted and gold relations are paired one to one, as many as possible.
#
# A fact that occurs twice in a document counts once.


class Mention(NamedTuple):
    """The part of an entity that counts: its type and its characters."""

    type: str
    fragments: Fragments


class FactKey(NamedTuple):
    """The part of a relation that counts: its name and its two ends."""

    relation: str
    head: Mention
    tail: Mention


def count_facts(
    gold: Sequence[Sequence[FactKey]],
    predicted: Sequence[Sequence[FactKey]],
    *,
    missed: Mapping[str, int] | None = None,
) -> EntityCounts:
    """Count the facts of documents by relation; the two sides are paired by position.

    `missed` counts, by relation, further gold relations that are in no document's facts.
    Raises DataError if the two sides differ in their number of documents.

    >>> drug = Mention("Drug", ((0, 7),))
    >>> whole, part = (FactKey("causes", drug, Mention("AE", ((start, 20),))) for start in (8, 15))
    >>> counts = count_facts([[whole]], [[part]])
    >>> counts.strict["causes"], counts.relaxed["causes"]
    (Count(true=0, predicted=1, gold=1), Count(true=1, predicted=1, gold=1))
    """
    if len(gold) != len(predicted):
        raise DataError(
            "gold and predicted are not the same documents",
            expected=f"{len(gold)} documents",
            got=f"{len(predicted)}",
        )
    lost = {name: Count(0, 0, number) for name, number in (missed or {}).items()}
    parts = [EntityCounts(lost, lost)]
    parts += [_counted(set(a), set(b)) for a, b in zip(gold, predicted, strict=True)]
    return sum_counts(parts)


def _counted(gold: set[FactKey], predicted: set[FactKey]) -> EntityCounts:
    """One document's counts."""
    sizes = [Counter(fact.relation for fact in side) for side in (predicted, gold)]
    strict = Counter(fact.relation for fact in gold & predicted)
    relaxed: Counter[str] = Counter()
    for names in {_names(fact) for fact in gold} & {_names(fact) for fact in predicted}:
        ours = [fact for fact in gold if _names(fact) == names]
        theirs = [fact for fact in predicted if _names(fact) == names]
        touching = [[j for j, other in enumerate(theirs) if _touch(one, other)] for one in ours]
        relaxed[names[0]] += len(maximum_matching(touching, len(theirs)))
    kinds = sorted(sizes[0].keys() | sizes[1].keys())
    exact, near = (
        {kind: Count(true[kind], *(size[kind] for size in sizes)) for kind in kinds}
        for true in (strict, relaxed)
    )
    return EntityCounts(exact, near)


def _names(fact: FactKey) -> tuple[str, str, str]:
    return fact.relation, fact.head.type, fact.tail.type


def _touch(one: FactKey, other: FactKey) -> bool:
    """Return whether both ends share a character with their counterparts."""
    pairs = ((one.head, other.head), (one.tail, other.tail))
    return all(shared_characters(a.fragments, b.fragments) for a, b in pairs)


# --- Scores of ranked candidates
#
# Precision-recall curve, the area under it, precision of the first N.
#
# Each candidate, from the highest score down, adds a point (recall, precision). Candidates with
# one score form a *step*: their order is unknown, so curve and area are each the expectation over
# all orders, in which each true candidate is equally likely to be anywhere in the step. (The
# expected area is a little less than the area under the expected curve: a true candidate that
# comes early lifts both recall and precision.) Recall's denominator is the number of facts, which
# exceeds the true candidates if a fact has no candidate.
#
# The area follows the trapezoid rule over the points, as is usual in the field (Riedel et al.
# 2010; Lin et al. 2016): there is no point (0, 1) before the first candidate.
#
# Legend: C candidates, B steps from the best on, P points.


Floats = NDArray[np.float64]
FIRSTS = (100, 200, 300)
"""The N of precision at N."""
_EULER = 0.5772156649015329
_SMALL = 64


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Steps from the best to the worst: how many candidates each has, and how many are true.

    `again_B` is the chance that a candidate is true if another one of its step is.
    """

    candidates_B: Floats
    true_B: Floats
    again_B: Floats
    facts: int

    @classmethod
    def of(cls, candidates_B: ArrayLike, true_B: ArrayLike, facts: int) -> Ranking:
        """The ranking with these steps; steps without a candidate are left out.

        Raises DataError if a step has more true candidates than candidates, or if there are more
        true candidates than facts.
        """
        many, right = np.asarray(candidates_B, np.float64), np.asarray(true_B, np.float64)
        if many.shape != right.shape or (right > many).any() or (right < 0).any():
            raise DataError("a step of a ranking has more true candidates than candidates")
        if right.sum() > facts:
            raise DataError(
                "there are more true candidates than facts",
                expected=f"at most {facts}",
                got=f"{right.sum():.0f}",
            )
        again = np.maximum(right - 1, 0) / np.maximum(many - 1, 1)
        return cls(many[many > 0], right[many > 0], again[many > 0], facts)

    def first(self, many: int) -> Ranking:
        """The ranking of the first `many` candidates; a step that is cut keeps its expectation."""
        before_B = np.cumsum(self.candidates_B) - self.candidates_B
        kept_B = np.clip(many - before_B, 0, self.candidates_B)
        true_B, kept = self.true_B * kept_B / np.maximum(self.candidates_B, 1), kept_B > 0
        return Ranking(kept_B[kept], true_B[kept], self.again_B[kept], self.facts)


def ranking(scores: ArrayLike, true: ArrayLike, facts: int) -> Ranking:
    """Rank candidates by these scores, given in any order; `true` says which are facts.

    Raises DataError if the two differ in length, a score is NaN, or there are too few facts.
    """
    scores_C, true_C = np.asarray(scores, np.float64), np.asarray(true, bool)
    if scores_C.shape != true_C.shape or scores_C.ndim != 1:
        raise DataError(
            "scores and truths do not belong to the same candidates",
            expected=f"one truth per score, shape {scores_C.shape}",
            got=f"shape {true_C.shape}",
        )
    if np.isnan(scores_C).any():
        raise DataError("a score is not a number", expected="numbers", got="NaN")
    _, step_C = np.unique(-scores_C, return_inverse=True)
    return Ranking.of(np.bincount(step_C), np.bincount(step_C, weights=true_C), facts)


def ranking_auc(found: Ranking) -> float:
    """The expected area under the curve; 0 if there is no fact.

    In a step of n candidates, t of them true, after N candidates with T true ones, the j-th is true
    with chance t / n. If it is, each before it in the step is true with chance b = (t-1) / (n-1),
    so it adds to the area, times 1 / facts, the mean of two precisions:

        (T + b (j-1)) / (N + j-1) = b + (T - b N) / (N + j-1)
        (T + b (j-1) + 1) / (N + j) = b + (T - b N + 1 - b) / (N + j)

    Their sums over j are differences of harmonic numbers.
    """
    if not found.facts or not len(found.candidates_B):
        return 0.0
    many_B, right_B, again_B = found.candidates_B, found.true_B, found.again_B
    before_B, had_B = np.cumsum(many_B) - many_B, np.cumsum(right_B) - right_B
    ranked_B, lead_B = before_B + many_B, had_B - again_B * before_B
    last_B, next_to_last_B = (_harmonic(np.maximum(ranked_B - back, 0)) for back in (0, 1))
    start_B, before_start_B = (_harmonic(np.maximum(before_B - back, 0)) for back in (0, 1))
    sums_B = (
        2 * again_B * many_B
        + lead_B * (next_to_last_B - before_start_B)
        + (lead_B + 1 - again_B) * (last_B - start_B)
    )
    sums_B[0] -= 1 + again_B[0]  # the very first candidate adds no area
    return float((right_B / many_B * sums_B).sum() / 2 / found.facts)


def precision_at(found: Ranking, first: int) -> float:
    """The share of true ones among the first candidates, or among all if there are fewer."""
    top = found.first(first)
    many = top.candidates_B.sum()
    return float(top.true_B.sum() / many) if many else 0.0


def precisions_at(found: Ranking, firsts: Iterable[int] = FIRSTS) -> dict[str, float]:
    """Precision at each N, keyed by N in digits, and their `mean`."""
    each = {str(first): precision_at(found, first) for first in firsts}
    return {**each, "mean": sum(each.values()) / max(len(each), 1)}


def pr_curve(found: Ranking, *, points: int = 200) -> list[list[float]]:
    """`[recall, precision]` at the first candidate and then at even steps of recall.

    At most `points` pairs, recall never falling; none if no true candidate was ranked.
    """
    right_B = found.true_B
    total = float(right_B.sum())
    if not total or not found.facts:
        return []
    before_B = np.cumsum(found.candidates_B) - found.candidates_B
    ends_B = np.cumsum(right_B)
    true_P = np.linspace(0, total, points)[1:]
    step_P = np.minimum(np.searchsorted(ends_B, true_P - 1e-9), len(ends_B) - 1)
    within_P = (true_P - (ends_B - right_B)[step_P]) / np.maximum(right_B[step_P], 1e-12)
    ranks_P = before_B[step_P] + within_P * found.candidates_B[step_P]
    kept_P = ranks_P > 1
    first = float(right_B[0] / found.candidates_B[0])
    recall_P, precision_P = true_P[kept_P] / found.facts, true_P[kept_P] / ranks_P[kept_P]
    rest = [[float(r), float(p)] for r, p in zip(recall_P, precision_P, strict=True)]
    return [[first / found.facts, first], *rest]


def _harmonic(counts: Floats) -> Floats:
    """The harmonic number 1 + 1/2 + ... + 1/n, interpolated for fractions."""
    table = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _SMALL + 1))])
    small = np.interp(counts, np.arange(_SMALL + 1), table)
    n = np.maximum(counts, _SMALL)
    large = np.log(n) + _EULER + 1 / (2 * n) - 1 / (12 * n**2) + 1 / (120 * n**4)
    found: Floats = np.where(counts > _SMALL, large, small)
    return found


# --- Scores of bags
#
# With their true facts -> counts that add up over sites -> curve, areas, P@N.
#
# A candidate is a (bag, relation) with a relation other than `NO_RELATION`; it is true if the
# relation is one of the bag's facts. All candidates are ranked together by score (Mintz et al.
# 2009). Scores cannot be added up, but counts can: each site counts its candidates in `BINS` bins
# of the log odds of their scores, and the sum of the sites' histograms ranks all candidates, with
# ties within a bin (which is 1/256 wide: scores of 0.500 and 0.501 fall into different bins).
#
# Legend: G bags, R relations (the first is `NO_RELATION`), B bins, from the lowest scores to the
# highest.


BINS = 8192
FARTHEST = 16.0
"""Larger log odds count as this much: probabilities below 1e-7 and above 1 - 1e-7."""
TOP = 2000
"""The number of candidates that `auc_2000` covers."""


def _no_bins() -> NDArray[np.int64]:
    return np.zeros(BINS, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class BagCounts:
    """All candidates and the true ones by score, and counts of each bag's best label. Numbers only.

    Attributes:
        candidates_B: how many candidates have a score in each bin.
        true_B: how many of them are facts.
        facts: how many facts there are, the denominator of recall.
        bags: how many bags were scored.
        relations: true, predicted and gold by relation, with each bag given its best label.
    """

    candidates_B: NDArray[np.int64] = field(default_factory=_no_bins)
    true_B: NDArray[np.int64] = field(default_factory=_no_bins)
    facts: int = 0
    bags: int = 0
    relations: dict[str, Count] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BagCounts):
            return NotImplemented
        return (
            np.array_equal(self.candidates_B, other.candidates_B)
            and np.array_equal(self.true_B, other.true_B)
            and (self.facts, self.bags) == (other.facts, other.bags)
            and self.relations == other.relations
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def sure(self) -> Sure:
        """Candidates by confidence, of all relations together, and how many of them are facts."""
        wide = np.arange(BINS) * (2 * FARTHEST / BINS) - FARTHEST
        far = calibration.FARTHEST
        places = ((np.clip(wide, -far, far - 1e-9) + far) // calibration.WIDTH).astype(np.int64)
        found = np.bincount(places, self.candidates_B, minlength=calibration.BINS)
        right = np.bincount(places, self.true_B, minlength=calibration.BINS)
        both = zip(right.astype(int).tolist(), found.astype(int).tolist(), strict=True)
        return {("", place): Right(*one) for place, one in enumerate(both) if one[1]}

    @property
    def ranking(self) -> Ranking:
        """The candidates, from the best bin to the worst."""
        return Ranking.of(self.candidates_B[::-1], self.true_B[::-1], self.facts)


def count_ranked(
    scores_GR: NDArray[np.floating], relations: Sequence[str], facts: Sequence[frozenset[str]]
) -> BagCounts:
    """Count the bags with these scores from 0 to 1 and these facts.

    A bag's best label is the relation with the highest score (the first of equals); it is true if
    it is one of the facts. A fact whose relation is not among `relations` has no candidate and
    counts as gold that was not found.

    Raises DataError if the shapes do not fit, a score is not a probability, or a fact is
    `NO_RELATION`.

    >>> import numpy as np
    >>> scores = np.array([[0.1, 0.9], [0.7, 0.3]])
    >>> facts = [frozenset({"binds"}), frozenset()]
    >>> count_ranked(scores, ["no-relation", "binds"], facts).relations
    {'binds': Count(true=1, predicted=1, gold=1)}
    """
    _check(scores_GR, relations, facts)
    true_GR = _truths(relations, facts)
    bins_GR = _bins(scores_GR)
    best_G = scores_GR.argmax(axis=1) if len(facts) else np.zeros(0, np.int64)
    return BagCounts(
        np.bincount(bins_GR[:, 1:].ravel(), minlength=BINS).astype(np.int64),
        np.bincount(bins_GR[:, 1:][true_GR[:, 1:]], minlength=BINS).astype(np.int64),
        facts=sum(map(len, facts)),
        bags=len(facts),
        relations=_of_best([relations[best] for best in best_G.tolist()], facts),
    )


def ranked_bags(
    scores_GR: NDArray[np.floating], relations: Sequence[str], facts: Sequence[frozenset[str]]
) -> list[list[int]]:
    """Of each bag: how many facts it has, then 2 * bin + (1 if it is a fact) of its candidates.

    Raises DataError as `count_ranked` does.

    >>> import numpy as np
    >>> ranked_bags(np.array([[0.5, 0.5]]), ["no-relation", "binds"], [frozenset({"binds"})])
    [[1, 8193]]
    """
    _check(scores_GR, relations, facts)
    places_GR = 2 * _bins(scores_GR) + _truths(relations, facts)
    rows = zip(facts, places_GR[:, 1:].tolist(), strict=True)
    return [[len(known), *places] for known, places in rows]


def _check(
    scores_GR: NDArray[np.floating], relations: Sequence[str], facts: Sequence[frozenset[str]]
) -> None:
    if scores_GR.shape != (len(facts), len(relations)):
        raise DataError(
            "the scores do not fit the bags and relations",
            expected=f"shape {(len(facts), len(relations))}",
            got=f"shape {scores_GR.shape}",
        )
    if not relations or relations[0] != NO_RELATION:
        raise DataError("the relations start with the wrong one", expected=repr(NO_RELATION))
    if not ((scores_GR >= 0) & (scores_GR <= 1)).all():
        raise DataError("a bag's score is not a probability", expected="0 to 1")
    if any(NO_RELATION in known for known in facts):
        raise DataError(f"a bag has {NO_RELATION!r} among its facts", expected="relations only")


def _truths(relations: Sequence[str], facts: Sequence[frozenset[str]]) -> NDArray[np.bool_]:
    place = {name: column for column, name in enumerate(relations)}
    true_GR = np.zeros((len(facts), len(relations)), bool)
    for bag, known in enumerate(facts):
        true_GR[bag, [place[name] for name in known if name in place]] = True
    return true_GR


def _bins(scores_GR: NDArray[np.floating]) -> NDArray[np.int64]:
    """The bin of each probability's log odds."""
    p_GR = np.asarray(scores_GR, np.float64)
    with np.errstate(divide="ignore"):
        odds_GR = np.clip(np.log(p_GR) - np.log1p(-p_GR), -FARTHEST, FARTHEST)
    places_GR = np.floor((odds_GR + FARTHEST) * (BINS / (2 * FARTHEST))).astype(np.int64)
    bins_GR: NDArray[np.int64] = np.minimum(places_GR, BINS - 1)
    return bins_GR


def _of_best(best: Sequence[str], facts: Sequence[frozenset[str]]) -> dict[str, Count]:
    labels = [(name, (0, 0, 1)) for known in facts for name in known]
    for label, known in zip(best, facts, strict=True):
        if label != NO_RELATION:
            labels.append((label, (int(label in known), 1, 0)))
    return sum_by_type(labels)


def sum_bag_counts(parts: Iterable[BagCounts]) -> BagCounts:
    """The counts over all parts, relations in alphabetical order; nothing gives empty counts."""
    parts = list(parts)
    return BagCounts(
        sum((part.candidates_B for part in parts), _no_bins()),
        sum((part.true_B for part in parts), _no_bins()),
        sum(part.facts for part in parts),
        sum(part.bags for part in parts),
        sum_by_type(one for part in parts for one in part.relations.items()),
    )


def ranked_scores(counts: BagCounts) -> Scored:
    """The JSON form of counts; every rate is a fraction from 0 to 1.

    `{"auc": area, "auc_2000": area over the first 2,000 candidates, "precision_at": {"100": p,
    "200": p, "300": p, "mean": p}, "micro": rates, "curve": [[recall, precision], ...], "bags": n,
    "facts": n, "candidates": n}`. The rates of `micro` count each bag's best label, in the form
    of `relation_scores`; `curve` has at most 200 points.
    """
    found = counts.ranking
    types = {name: rate_of(count) for name, count in counts.relations.items()}
    return {
        "auc": ranking_auc(found),
        "auc_2000": ranking_auc(found.first(TOP)),
        "precision_at": precisions_at(found),
        "micro": {**rate_of(micro(counts.relations)), "types": types},
        "curve": pr_curve(found),
        "bags": counts.bags,
        "facts": counts.facts,
        "candidates": int(counts.candidates_B.sum()),
    }


# --- Intervals of areas
#
# The bootstrap over bags, for the area under the curve of ranked candidates.
#
# A bag's candidates are drawn together: they come from the same sentences.
#
# Legend: G bags, C candidates, B bins of scores.


MOST_DRAWN = 20_000_000
"""Candidates drawn over all resamples, at most; large corpora get fewer resamples, 100 at least."""


def auc_interval(
    ranked: Sequence[Sequence[int]], *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Interval:
    """The area, and the percentile interval over resampled bags (Efron 1979), as fractions.

    `ranked` is what `bags.ranked_bags` gives of all bags. Raises DataError: there is no bag, or a
    place is none.
    """
    bag_C, place_C, facts_G = _table(ranked)
    bin_C, true_C = place_C >> 1, place_C & 1

    def area(many_G: np.ndarray) -> float:
        weight_C = many_G[bag_C]
        candidates_B = np.bincount(bin_C, weight_C, minlength=BINS)
        true_B = np.bincount(bin_C, weight_C * true_C, minlength=BINS)
        return ranking_auc(Ranking.of(candidates_B[::-1], true_B[::-1], int(many_G @ facts_G)))

    size = len(facts_G)
    generator = np.random.default_rng(seed)
    samples = max(100, min(samples, MOST_DRAWN // max(1, len(bin_C))))
    drawn = [area(generator.multinomial(size, np.full(size, 1 / size))) for _ in range(samples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(area(np.ones(size, np.int64)), float(low), float(high), level)


def _table(ranked: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bag and the place of each candidate, and the facts of each bag."""
    if not ranked or not all(ranked):
        raise DataError("there is no bag to draw from", expected="at least one, with its facts")
    many_G = np.array([len(row) - 1 for row in ranked], np.int64)
    place_C = np.fromiter((place for row in ranked for place in row[1:]), np.int64, many_G.sum())
    facts_G = np.array([row[0] for row in ranked], np.int64)
    bag_C = np.repeat(np.arange(len(ranked)), many_G)
    true_G = np.bincount(bag_C, place_C & 1, minlength=len(ranked))
    if ((place_C < 0) | (place_C >= 2 * BINS)).any() or (true_G > facts_G).any():
        raise DataError("a bag's candidates are none", expected=f"places from 0 to {2 * BINS - 1}")
    return bag_C, place_C, facts_G
