"""Pseudo-complete annotation of pairs: a site's own relations, plus a model's that it lacks.

Wang et al. 2023, 3.2, Eq. 5.

A pair has one label. If the site annotates a relation, that is the label. If not, the label is the
model's likeliest one, provided that the site lacks this relation. A pair that still has no label is
learnt to have none of the site's own relations, and no more: learning that it has no relation at
all would soon make a common model that finds little find nothing.

Shapes: S pairs, R classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.relation_pieces import EncodedRelations
from confide.data.batches.relations import NO_RELATION
from confide.kinds.protocol import CompleteText
from confide.learning.relations import LabelledPairs
from confide.text.document import Document

Logits = Callable[[EncodedRelations], NDArray[np.float32]]
"""Gives logits_SR of pairs."""


def completed(
    encoded: EncodedRelations,
    own_R: NDArray[np.bool_],
    *,
    nothing: int,
    logits: Logits,
    confidence: float = 0.0,
) -> CompleteText:
    """The pairs with the site's own relations, plus those that it lacks and a model finds.

    `own_R` marks the classes that the site annotates, `nothing` (no relation) among them. `logits`
    scores the pairs without a relation; a relation below this confidence is not taken.
    """
    labels_S = encoded.relations_S.copy()
    bare_S = np.flatnonzero(labels_S == nothing)
    source_S = np.ones(len(encoded), bool)
    if len(bare_S) and not own_R.all():
        logits_SR = logits(encoded.only(bare_S))
        best_S = logits_SR.argmax(1)
        found_S = ~own_R[best_S]
        odds_SR = np.exp(logits_SR - logits_SR.max(1, keepdims=True))  # the likeliest has 1
        found_S &= 1.0 / odds_SR.sum(1) >= confidence
        labels_S[bare_S[found_S]] = best_S[found_S]
        source_S[bare_S[found_S]] = False
    pairs = LabelledPairs(
        replace(encoded, relations_S=labels_S),
        source_S=source_S,
        open_S=labels_S != nothing,
        own_R=own_R,
    )
    return CompleteText(pairs, own=len(encoded) - len(bare_S), pseudo=int((~source_S).sum()))


def among(
    predicted: Sequence[Document], gold: Sequence[Document], annotated: Collection[str]
) -> list[Document]:
    """The documents with only relations that somebody looked for in their text.

    These are the `annotated` relations, and those that occur in the gold documents.
    """
    types = {*annotated, *relations_in(gold)}
    return [
        replace(one, relations=tuple(r for r in one.relations if r.type in types))
        for one in predicted
    ]


def relations_in(documents: Sequence[Document]) -> set[str]:
    """Names of the relations that occur in the documents."""
    return {one.type for document in documents for one in document.relations} - {NO_RELATION}
