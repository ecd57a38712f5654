"""What a trained model is for who has it: documents in, documents out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch import nn

from confide.errors import FederationError
from confide.federation.messages import Arrays
from confide.learning.encoder import FrozenEncoder
from confide.learning.modelling import annotate_with, read
from confide.learning.weights import load
from confide.methods.context import NONE, find_encoder, with_cached
from confide.methods.pseudo_complete.forms import (
    BartShape,
    Modeller,
    Shape,
    TokenShape,
    modeller_for,
)
from confide.methods.taggers import TaggerForm
from confide.text.document import Document


@dataclass(frozen=True)
class EntityExtractor:
    """A trained model that finds entities of all types.

    `encoder` is the frozen one of a tagger that has contextual features.
    """

    modeller: Modeller
    model: nn.Module
    encoder: FrozenEncoder | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """The entity types that it finds."""
        return self.modeller.types

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with what the model finds, a confidence on each entity."""
        found = read(self.modeller, documents)
        if self.encoder is not None:
            text = with_cached(found.text, found.examples, self.encoder, keep=False)
            found = replace(found, text=text)
        return annotate_with(self.modeller, self.model, found)


def among(
    predicted: Sequence[Document], gold: Sequence[Document], annotated: Collection[str]
) -> list[Document]:
    """The documents with entities of those types alone that somebody looked for in their text.

    Those are what is `annotated` there, and what occurs in the gold documents.
    """
    types = {*annotated, *(e.type for one in gold for e in one.entities)}
    return [
        replace(one, entities=tuple(e for e in one.entities if e.type in types))
        for one in predicted
    ]


def extractor_of(
    shape: Shape, weights: Arrays, *, key: bytes | None, encoder: str | None = None
) -> EntityExtractor:
    """What a trained model is; `encoder` is where its encoder or BART lies, if not as it says.

    Raises KeyFileError, FederationError where these are other files; what `modeller_for` raises.
    """
    modeller, digest = modeller_for(shape, key=key, encoder=encoder)
    if isinstance(shape, (TokenShape, BartShape)) and digest != shape.digest:
        raise FederationError(
            "these are not the files that the model was trained with",
            got=encoder or (shape.encoder if isinstance(shape, TokenShape) else shape.bart),
            fix="name the folder of the same files",
        )
    model = modeller.initial(0)
    load(model, weights)
    frozen = None
    if isinstance(shape, TaggerForm) and shape.context != NONE:
        frozen = find_encoder(encoder or shape.context)
    return EntityExtractor(modeller, model, frozen)
