"""Scores of bags and their true facts -> counts that add up over sites -> curve, areas, P@N.

A candidate is a (bag, relation) with a relation other than `NO_RELATION`; it is true if the
relation is one of the bag's facts. All candidates are ranked together by score (Mintz et al. 2009).
Scores cannot be added up, but counts can: each site counts its candidates in `BINS` bins of the log
odds of their scores, and the sum of the sites' histograms ranks all candidates, with ties within a
bin (which is 1/256 wide: scores of 0.500 and 0.501 fall into different bins).

Legend: G bags, R relations (the first is `NO_RELATION`), B bins, from the lowest scores to the
highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError
from confide.scoring import calibration
from confide.scoring.calibration import Right, Sure
from confide.scoring.counts import Count
from confide.scoring.ranking import Ranking, auc, pr_curve, precisions_at
from confide.scoring.scores import Scored, micro, rate_of
from confide.text.document import NO_RELATION

BINS = 8192
FARTHEST = 16.0
"""Larger log odds count as this much: probabilities below 1e-7 and above 1 - 1e-7."""
TOP = 2000
"""How many candidates `auc_2000` covers."""


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

    def __add__(self, other: BagCounts) -> BagCounts:
        return sum_bag_counts((self, other))

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


def count_bags(
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
    >>> count_bags(scores, ["no-relation", "binds"], [frozenset({"binds"}), frozenset()]).relations
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

    Raises DataError as `count_bags` does.

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
    sums: dict[str, list[int]] = {}
    for label, known in zip(best, facts, strict=True):
        for name in known:
            sums.setdefault(name, [0, 0, 0])[2] += 1
        if label != NO_RELATION:
            count = sums.setdefault(label, [0, 0, 0])
            count[0] += label in known
            count[1] += 1
    return {name: Count(*sums[name]) for name in sorted(sums)}


def sum_bag_counts(parts: Iterable[BagCounts]) -> BagCounts:
    """The counts over all parts, relations in alphabetical order; nothing gives empty counts."""
    candidates_B, true_B, facts, bags = _no_bins(), _no_bins(), 0, 0
    relations: dict[str, Count] = {}
    for part in parts:
        candidates_B += part.candidates_B
        true_B += part.true_B
        facts, bags = facts + part.facts, bags + part.bags
        for name, count in part.relations.items():
            relations[name] = relations.get(name, Count()).plus(count)
    return BagCounts(candidates_B, true_B, facts, bags, dict(sorted(relations.items())))


def bag_scores(counts: BagCounts) -> Scored:
    """The JSON form of counts; every rate is a fraction from 0 to 1.

    `{"auc": area, "auc_2000": area over the first 2,000 candidates, "precision_at": {"100": p,
    "200": p, "300": p, "mean": p}, "micro": rates, "curve": [[recall, precision], ...], "bags": n,
    "facts": n, "candidates": n}`. The rates of `micro` count each bag's best label, in the form
    of `relation_scores`; `curve` has at most 200 points.
    """
    found = counts.ranking
    types = {name: rate_of(count) for name, count in counts.relations.items()}
    return {
        "auc": auc(found),
        "auc_2000": auc(found.first(TOP)),
        "precision_at": precisions_at(found),
        "micro": {**rate_of(micro(counts.relations)), "types": types},
        "curve": pr_curve(found),
        "bags": counts.bags,
        "facts": counts.facts,
        "candidates": int(counts.candidates_B.sum()),
    }
