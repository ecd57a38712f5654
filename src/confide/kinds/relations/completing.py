"""Pseudo-complete annotation of pairs: a site's own relations, and a model's that the site lacks.

Wang et al. 2023, 3.2, Eq. 5; see `confide.kinds.completing`.

A pair has one label. Where the site says that a relation holds, that is it. Where it says that none
of its own does, the model's likeliest label is taken, if it is a relation that the site lacks. What
then still has none is learnt to have none of the site's own relations, and no more: were it learnt
to have no relation at all, a common model that finds little at first would soon find nothing.

Shapes: S pairs, R classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.relation_pieces import EncodedRelations
from confide.data.batches.relations import NO_RELATION
from confide.kinds.completing import CompleteText
from confide.learning.relations import Choices
from confide.text.document import Document

Logits = Callable[[EncodedRelations], NDArray[np.float32]]
"""logits_SR of pairs."""


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Training pairs as numbers, with a label each.

    `source_S` marks those whose label is the site's own, no relation among them; the others' is a
    model's. Of a pair without a relation nobody said that it has none of those that the site lacks:
    `open_S` marks the pairs that are chosen among all classes, `own_R` are those of the rest.
    """

    encoded: EncodedRelations
    source_S: NDArray[np.bool_]
    open_S: NDArray[np.bool_]
    own_R: NDArray[np.bool_]

    def choices(self, each_S: NDArray[np.float32] | None = None) -> Choices:
        """How a model learns them; `each_S`: how much those count whose label is the site's own."""
        weights_S = None
        if each_S is not None:
            weights_S = np.where(self.source_S, each_S, np.float32(1)).astype(np.float32)
        return Choices(self.own_R, ~self.open_S, weights_S)


def own_pairs(encoded: EncodedRelations, own_R: NDArray[np.bool_]) -> LabelledPairs:
    """Pairs with the site's own labels alone, all chosen among the site's own classes."""
    every_S = np.ones(len(encoded), bool)
    return LabelledPairs(encoded, source_S=every_S, open_S=~every_S, own_R=own_R)


def completed(
    encoded: EncodedRelations,
    own_R: NDArray[np.bool_],
    *,
    nothing: int,
    logits: Logits,
    confidence: float = 0.0,
) -> CompleteText:
    """The pairs with the site's own relations, and those that it lacks and a model finds.

    `own_R` marks the classes that the site annotates, the one of no relation, `nothing`, among
    them. `logits` is asked of the pairs without a relation; a relation that it is less sure of than
    `confidence` is not taken.
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
    """The documents with relations of those types alone that somebody looked for in their text.

    Those are what is `annotated` there, and what occurs in the gold documents.
    """
    types = {*annotated, *relations_in(gold)}
    return [
        replace(one, relations=tuple(r for r in one.relations if r.type in types))
        for one in predicted
    ]


def relations_in(documents: Sequence[Document]) -> set[str]:
    """Names of the relations that occur in the documents."""
    return {one.type for document in documents for one in document.relations} - {NO_RELATION}
