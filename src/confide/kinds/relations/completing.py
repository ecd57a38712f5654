"""Pseudo-complete annotation of pairs: a site's own relations, and a model's that the site lacks.

Wang et al. 2023, 3.2, Eq. 5; see `confide.kinds.completing`.

A pair has one label. Where the site says that a relation holds, that is it. Where it says that none
of its own does, the model's likeliest label is taken, if it is a relation that the site lacks.

Shapes: S pairs, R classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from confide.data.relation_pieces import EncodedRelations
from confide.data.relations import NO_RELATION
from confide.kinds.completing import CompleteText
from confide.learning.relations import Loss, weighed
from confide.models import relation
from confide.models.relation import loss_among
from confide.text.document import Document

Logits = Callable[[EncodedRelations], NDArray[np.float32]]
"""logits_SR of pairs."""


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Training pairs as numbers, with a label each.

    `source_S` marks those whose label is the site's own, no relation among them; the others' is a
    model's. `among_R`: the classes that a model learns to choose among.
    """

    encoded: EncodedRelations
    source_S: NDArray[np.bool_]
    among_R: Sequence[bool]

    def loss(self, each_S: NDArray[np.float32] | None = None) -> Loss | None:
        """What training takes down; None: the cross entropy of each pair over all classes.

        `each_S`: how much each pair counts whose label is the site's own.
        """
        plain = None if all(self.among_R) else loss_among(self.among_R)
        if each_S is None:
            return plain
        weights_S = np.where(self.source_S, each_S, np.float32(1)).astype(np.float32)
        return weighed(plain or relation.loss, weights_S)


def own_pairs(encoded: EncodedRelations, among_R: Sequence[bool]) -> LabelledPairs:
    """Pairs with the site's own labels alone."""
    return LabelledPairs(encoded, np.ones(len(encoded), bool), among_R)


def completed(
    encoded: EncodedRelations, *, relations: Sequence[str], own: Collection[str], logits: Logits
) -> CompleteText:
    """The pairs with the site's own relations, and those that it lacks and a model finds.

    `own` are the relations that the site annotates, `logits` is asked of the pairs without one.
    """
    nothing = relations.index(NO_RELATION)
    labels_S = encoded.relations_S.copy()
    missing_R = np.array([name != NO_RELATION and name not in own for name in relations])
    bare_S = np.flatnonzero(labels_S == nothing)
    source_S = np.ones(len(encoded), bool)
    if missing_R.any() and len(bare_S):
        best_S = logits(encoded.only(bare_S)).argmax(1)
        found_S = missing_R[best_S]
        labels_S[bare_S[found_S]] = best_S[found_S]
        source_S[bare_S[found_S]] = False
    pairs = LabelledPairs(replace(encoded, relations_S=labels_S), source_S, [True] * len(relations))
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
