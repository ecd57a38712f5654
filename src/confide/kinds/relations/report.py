"""The report of a relation classifier at a site: what it gets wrong and right, by document."""

from __future__ import annotations

from collections.abc import Sequence

from confide.data.batches.relations import (
    NO_RELATION,
    RelationExample,
    Rules,
    candidates,
    predicted_labels,
)
from confide.kinds.trained import RIGHT, Report, as_many_of_both, fingerprint
from confide.scoring import RelationCounts, count_relations, micro, sum_relation_counts
from confide.text.document import Document

_Case = tuple[RelationExample, str, float | None]
"""A pair, the label that the model predicted, and its confidence."""


def relation_report(
    gold: Sequence[Document], predicted: Sequence[Document], rules: Rules
) -> Report:
    """The confusion, the worst and some right pairs, and the counts of each document.

    `rules` say which pairs the extractor considers. Counts are kept per document, since pairs of
    one text are not independent.
    """
    counts: list[RelationCounts] = []
    wrong: list[_Case] = []
    good: list[_Case] = []
    for document, found in zip(gold, predicted, strict=True):
        pairs = candidates([document], rules)
        labels = predicted_labels(pairs, [found])
        right = [example.relation for example in pairs.examples]
        counts.append(count_relations(right, labels, missed=pairs.missed))
        sure = {(one.head, one.tail): one.confidence for one in found.relations}
        for example, label in zip(pairs.examples, labels, strict=True):
            if label != example.relation:
                wrong.append((example, label, sure.get(example.pair)))
            elif label != NO_RELATION:
                good.append((example, label, sure.get(example.pair)))
    whole = sum_relation_counts(counts)
    rows = whole.to_json()["confusion"]
    for relation, count in whole.missed.items():
        rows.setdefault(relation, {})[""] = count
    return Report(
        counts=whole,
        errors={
            "confusion": rows,
            "worst": [_pair(*case) for case in _worst(wrong)],
            "right": [_pair(*case) for case in sorted(good, key=_doubt)[:RIGHT]],
        },
        sentences={
            "fingerprint": fingerprint(gold, relations=True),
            "micro": [micro(one.relations) for one in counts],
        },
    )


def place_of(example: RelationExample) -> dict[str, object]:
    """A pair of entities and its text, for a list of errors."""
    return {
        "where": example.id,
        "text": example.text,
        "head": [*example.head],
        "tail": [*example.tail],
        "head_type": example.head_type,
        "tail_type": example.tail_type,
    }


def _pair(example: RelationExample, label: str, confidence: float | None) -> dict[str, object]:
    return {
        **place_of(example),
        "gold": example.relation,
        "predicted": label,
        "confidence": confidence,
    }


def _doubt(case: _Case) -> float:
    return -(case[2] or 0.0)


def _worst(wrong: Sequence[_Case]) -> list[_Case]:
    """The most confident wrong relations, and relations that the model missed."""
    found = [case for case in wrong if case[1] != NO_RELATION]
    found.sort(key=_doubt)
    unseen = [case for case in wrong if case[1] == NO_RELATION]
    return as_many_of_both(found, unseen)


def weighted_pair(where: str, example: RelationExample, weight: float) -> dict[str, object]:
    """A training pair of a document, and its instance weight."""
    return {
        "where": where,
        "text": example.text,
        "head": [list(span) for span in example.head],
        "tail": [list(span) for span in example.tail],
        "relation": example.relation,
        "weight": weight,
    }
