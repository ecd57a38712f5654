"""Pseudo-complete annotation: a site's own spans, and of another model's those that it lacks.

Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra & Henao, "Federated Domain Adaptation for Named Entity
Recognition via Distilling with Heterogeneous Tag Sets", Findings of ACL 2023, 3.2, Eq. 5.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from confide.data.batches.examples import Span
from confide.text.document import Document


def completed(own: Sequence[Span], found: Sequence[Span], *, missing: Set[str]) -> list[Span]:
    """The own spans of a sentence and the found ones of a `missing` type, by their start.

    A found span that shares a token with an own one is dropped; so is one that shares a token with
    a found one before it.

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
    """The documents as a site that annotates these entity types has them.

    A relation with an entity that went goes too.
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
