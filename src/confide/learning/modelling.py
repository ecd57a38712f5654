"""What a method needs of a kind of model that finds entities, whichever kind it is.

Text is turned into numbers once (`prepared`); annotation, which may change from round to round, is
laid over it (`annotated`). Each entity is a site's own annotation (source) or what another model
said (target), by its type; the loss splits accordingly (Wang et al. 2023, Eq. 6 to 10).

Shapes: S rows, that is sentences or windows of long ones; G numbers of the shared part.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.data.batches.examples import Example, Span
from confide.learning.fit import FitReport
from confide.learning.optimisers import Optimiser
from confide.learning.predict import FoundSpan, bare_sentences, with_entities
from confide.text.document import Document

T = TypeVar("T")
E = TypeVar("E")


class Slopes(NamedTuple):
    """Gradients of each row's loss by the shared part, flattened (Eq. 11); zeros for no token.

    `source_SG` of the tokens of the site's own entities, `target_SG` of those of the others.
    """

    source_SG: NDArray[np.float32]
    target_SG: NDArray[np.float32]


class EntityModeller(Protocol[T, E]):
    """Makes models of one kind and form, and does with them what a site needs.

    `T` is text as numbers, in `windows` that are a sentence or a part of a long one; `E` is the
    same with annotation, a row for each window. `types` is the complete tag set, in order.
    """

    @property
    def types(self) -> tuple[str, ...]: ...  # noqa: D102

    def initial(self, seed: int) -> nn.Module:
        """A new model; what requires a gradient is what is trained, and travels."""
        ...

    def prepared(self, examples: Sequence[Example]) -> T:
        """Sentences as numbers, whatever their spans."""
        ...

    def annotated(self, text: T, spans: Sequence[Sequence[Span]], *, source: Set[str]) -> E:
        """The text with these spans of each example; those of a type in `source` are the own."""
        ...

    def find(self, model: nn.Module, text: T) -> list[list[FoundSpan]]:
        """The spans of each example, by their start, none overlapping another."""
        ...

    def fit(
        self,
        model: nn.Module,
        encoded: E,
        *,
        weights_S: NDArray[np.float32] | None,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place: a row's loss is its weight times its source loss, and its target loss."""
        ...

    def gradient(
        self, model: nn.Module, encoded: E, *, size: int, clip: float, seed: int
    ) -> tuple[float, dict[str, NDArray[Any]]]:
        """The mean loss of `size` rows that the seed draws, and its gradient by parameter.

        The norm of the whole gradient is bounded by `clip` (0: not).
        """
        ...

    def slopes(self, model: nn.Module, encoded: E) -> Slopes:
        """The gradients for the instance weights, without dropout; the model keeps its weights."""
        ...


@dataclass(frozen=True)
class Read:
    """Documents that were looked at: segmented and bare, their sentences, and those as numbers."""

    documents: list[Document]
    examples: list[Example]
    text: Any


def read(modeller: EntityModeller[Any, Any], documents: Sequence[Document]) -> Read:
    """The work that does not depend on a model's weights, to be done once for many rounds."""
    bare, examples = bare_sentences(documents)
    return Read(bare, examples, modeller.prepared(examples))


def annotate_with(
    modeller: EntityModeller[Any, Any], model: nn.Module, found: Read
) -> list[Document]:
    """The documents, segmented, with what the model finds as their entities and no relations."""
    return with_entities(found.documents, found.examples, modeller.find(model, found.text))
