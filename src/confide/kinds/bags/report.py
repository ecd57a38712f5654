"""The report of a bag model at a site: bags whose likeliest relation is wrong, or right.

Shapes: G bags, R relations (class 0 is no relation).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confide.data.batches.bags import Bags
from confide.data.batches.relations import NO_RELATION
from confide.kinds.relations.report import place_of
from confide.kinds.trained import RIGHT, Report, as_many_of_both, fingerprint
from confide.scoring import Count, count_bags
from confide.scoring.bags import ranked_bags
from confide.text.document import Document

if TYPE_CHECKING:
    from confide.kinds.bags.extractor import BagExtractor

SHOWN = 5
"""Sentences shown for each bag in the list of errors."""
Case = tuple[int, str, float]
"""The index of a bag, the relation that the model predicted, and its confidence."""


def bag_report(extract: BagExtractor, documents: Sequence[Document]) -> Report:
    """The worst and some right bags, and the counts of each."""
    bags, scores_GR = extract.scores(documents)
    counted: list[Count] = []
    wrong: list[Case] = []
    good: list[Case] = []
    for bag, (known, scores_R) in enumerate(zip(bags.facts, scores_GR, strict=True)):
        best = int(scores_R.argmax())
        label = extract.relations[best]
        counted.append(Count(label in known, label != NO_RELATION, len(known)))
        if label not in known and (known or label != NO_RELATION):
            wrong.append((bag, label, float(scores_R[best])))
        elif label in known:
            good.append((bag, label, float(scores_R[best])))
    worst, right = (
        [_shown(extract, documents, bags, case=case) for case in cases]
        for cases in (_worst(wrong), sorted(good, key=lambda case: -case[2])[:RIGHT])
    )
    return Report(
        counts=count_bags(scores_GR, extract.relations, bags.facts),
        errors={"confusion": {}, "worst": worst, "right": right},
        sentences={
            "fingerprint": fingerprint(documents, relations=True),
            "best": [tuple(map(int, count)) for count in counted],
            "ranked": ranked_bags(scores_GR, extract.relations, bags.facts),
        },
    )


def _worst(wrong: Sequence[Case]) -> list[Case]:
    """The most confident wrong relations, and bags in which the model missed one."""
    said = sorted((case for case in wrong if case[1] != NO_RELATION), key=lambda case: -case[2])
    silent = sorted((case for case in wrong if case[1] == NO_RELATION), key=lambda case: -case[2])
    return as_many_of_both(said, silent)


def _shown(
    extract: BagExtractor, documents: Sequence[Document], bags: Bags, *, case: Case
) -> dict[str, object]:
    """A bag, with the sentences that support the predicted (or missed) relation most."""
    bag, label, confidence = case
    examples = [bags.examples[row] for row in bags.groups[bag]]
    relation = label if label != NO_RELATION else min(bags.facts[bag])
    places = sorted({example.document for example in examples})
    score = {
        (places[one.document], one.pair): one.score
        for fact in extract.facts([documents[place] for place in places], least=0.0)
        if fact.relation == relation and (fact.head, fact.tail) == bags.pairs[bag]
        for one in fact.sentences
    }
    scored = [(one, score.get((one.document, one.pair))) for one in examples]
    scored.sort(key=lambda pair: -(pair[1] or 0.0))
    first = scored[0][0]
    document = documents[first.document]
    names = {one.id: document.surface(one) for one in document.entities}
    return {
        "head": bags.pairs[bag][0],
        "tail": bags.pairs[bag][1],
        "names": [names[end] for end in first.pair],
        "gold": sorted(bags.facts[bag]),
        "predicted": label,
        "confidence": confidence,
        "relation": relation,
        "sentences": [{**place_of(one), "score": likely} for one, likely in scored[:SHOWN]],
        "more": max(0, len(scored) - SHOWN),
    }
