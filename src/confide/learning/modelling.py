"""The protocol of modellers: what a method needs of any kind of model that finds entities.

Text is encoded once (`prepared`); annotation, which may change from round to round, is laid over it
(`annotated`). An entity is a site's own annotation (source) or another model's (target), by its
type; the loss splits accordingly (Wang et al. 2023, Eq. 6 to 10).

Shapes: S rows, that is sentences or windows of long ones; G numbers of the shared part.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.data.batches.examples import Example, Span
from confide.learning.fit import FitReport
from confide.learning.optimisers import Optimiser
from confide.learning.predict import bare_sentences, with_entities
from confide.learning.weights import Arrays
from confide.learning.windows import FoundSpan
from confide.text.document import Document

T = TypeVar("T")
E = TypeVar("E")


class Slopes(NamedTuple):
    """Each row's gradients by the shared part, flattened (Eq. 11); zeros without tokens.

    `source_SG` is of the tokens of the site's own entities, `target_SG` of all others'.
    """

    source_SG: NDArray[np.float32]
    target_SG: NDArray[np.float32]


class EntityModeller(Protocol[T, E]):
    """Makes models of one kind and form, trains them, and predicts with them.

    `T` is encoded text, in `windows` that are each a sentence or a part of a long one; `E` is the
    same with annotation, a row for each window. `types` is the complete tag set, in order.
    """

    @property
    def types(self) -> tuple[str, ...]: ...  # noqa: D102

    def initial(self, seed: int) -> nn.Module:
        """A new model; parameters that require a gradient are trained, and travel."""
        ...

    def prepared(self, examples: Sequence[Example]) -> T:
        """Sentences, encoded, without their spans."""
        ...

    def annotated(self, text: T, spans: Sequence[Sequence[Span]], *, source: Set[str]) -> E:
        """The text with these spans of each example; types in `source` are the site's own."""
        ...

    def find(
        self, model: nn.Module, text: T, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example, in order of start, without overlaps.

        With `wanted`, the model chooses among these types and "no entity" alone.
        """
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
        """Train in place; a row's loss is its weight times its source loss plus its target loss."""
        ...

    def gradient(
        self, model: nn.Module, encoded: E, *, size: int, clip: float, seed: int
    ) -> tuple[float, Arrays]:
        """The mean loss of `size` rows drawn by the seed, and its gradient by parameter.

        The norm of the whole gradient is at most `clip` (0: no bound).
        """
        ...

    def slopes(self, model: nn.Module, encoded: E) -> Slopes:
        """The gradients for the instance weights, without dropout; the model keeps its weights."""
        ...

    def example_losses(self, model: nn.Module, encoded: E) -> NDArray[np.float64]:
        """losses_E: what training would lose on each example, without dropout."""
        ...


@dataclass(frozen=True)
class Read(Generic[T]):
    """Documents ready for prediction: segmented, without annotation, and encoded."""

    documents: list[Document]
    examples: list[Example]
    text: T


def read(modeller: EntityModeller[T, E], documents: Sequence[Document]) -> Read[T]:
    """Prepare documents: the work that does not depend on weights, done once for many rounds."""
    bare, examples = bare_sentences(documents)
    return Read(bare, examples, modeller.prepared(examples))


def annotate_with(
    modeller: EntityModeller[T, E],
    model: nn.Module,
    found: Read[T],
    *,
    wanted: Collection[str] | None = None,
) -> list[Document]:
    """The documents, segmented, with only the entities that the model finds, of `wanted` types."""
    spans = modeller.find(model, found.text, wanted=wanted)
    return with_entities(found.documents, found.examples, spans)
