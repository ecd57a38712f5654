"""Pseudo-complete annotation: a site's own spans, plus another model's spans of missing types.

Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra & Henao, "Federated Domain Adaptation for Named Entity
Recognition via Distilling with Heterogeneous Tag Sets", Findings of ACL 2023, 3.2, Eq. 5.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from confide.data.batches.examples import Span
from confide.text.document import Document


def completed(own: Sequence[Span], found: Sequence[Span], *, missing: Set[str]) -> list[Span]:
    """The own spans of a sentence and the found ones of a `missing` type, sorted by start.

    A found span that shares a token with an own span, or with an earlier found one, is dropped.

    >>> completed([(0, 2, "drug")], [(1, 3, "event"), (4, 5, "event"), (6, 7, "drug")],
    ...           missing={"event"})
    [(0, 2, 'drug'), (4, 5, 'event')]
    """
    kept = list(own)
    for span in found:
        start, end, kind = span[:3]
        if kind in missing and not any(start < b and a < end for a, b, _ in kept):
            kept.append((start, end, kind))
    return sorted(kept)


def only(documents: Sequence[Document], types: Set[str]) -> list[Document]:
    """The documents as a site would have them that annotates only these entity types.

    A relation is dropped along with its entity.
    """
    return [_only(document, types) for document in documents]


def _only(document: Document, types: Set[str]) -> Document:
    kept = tuple(entity for entity in document.entities if entity.type in types)
    if len(kept) == len(document.entities):
        return document
    lost = {one.id for one in document.entities} - {one.id for one in kept}
    relations = tuple(
        one
        for one in document.relations
        if one.level != "entity" or not {one.head, one.tail} & lost
    )
    return replace(document, entities=kept, relations=relations)
