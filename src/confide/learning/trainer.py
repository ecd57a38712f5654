"""What every model that learns from rows of text can do, written once.

A trainer makes models of one kind and form. Text is encoded once (`prepared`); annotation, which
may change from round to round, is laid over it. A kind says how rows become a batch, what makes of
the model's output two losses of each row, and which layer is the last: that of the site's own
annotation (source), and that of what another model found (target; Wang et al. 2023, Eq. 6 to 10).
Training, single gradients, gradients of units, losses, slopes and distillation follow from these.

Encoded text has a row for each sentence, window of a long one, pair or bag, with `lengths_S`;
annotated text has it as `text`.

Shapes: S rows, B rows of a batch, T rows of a public text (tokens, spans, pairs), Y classes, G
numbers of the last layer's weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.examples import Example, Span
from confide.data.batches.flat import Rows
from confide.data.batches.tagger import drawn_rows, longest_first, shuffled
from confide.learning.devices import at_home, beside, home, on, predicting
from confide.learning.fit import FitReport, train
from confide.learning.gradients import gradients
from confide.learning.measuring import by_example, row_losses
from confide.learning.optimisers import Optimiser, Steps, build
from confide.learning.predict import bare_sentences, with_entities
from confide.learning.slopes import RowSlopes, WholeSlopes, last_layer_slopes
from confide.learning.teaching import Lesson, said_of_tokens, taught_by, told_by
from confide.learning.unit_slopes import unit_gradients
from confide.learning.weights import Arrays, still
from confide.learning.windows import FoundSpan
from confide.privacy.clipping import UnitSlopes
from confide.text.document import Document

Random = np.random.Generator
Parts = tuple[Tensor, Tensor]
Make = Callable[[list[nn.Parameter], Optimiser], Steps]
"""Makes an optimiser of parameters."""


class Slopes(NamedTuple):
    """Each row's gradients by the last layer's weight, flattened (Wang et al. 2023, Eq. 11).

    `source_SG` is of the loss of the site's own annotation, `target_SG` of what another model
    found; zeros for a row without either.
    """

    source_SG: NDArray[np.float32]
    target_SG: NDArray[np.float32]


class Pulls(NamedTuple):
    """Gradients by the last layer's weight, as far as instance weights need them.

    `source` has each row's gradient of the site's own annotation; `target_G` is the sum over all
    rows for the model's annotation, which `rows` rows have.
    """

    source: RowSlopes
    target_G: NDArray[np.float32]
    rows: int


class Epochs(NamedTuple):
    """How often, in which steps and in which order a text is read."""

    epochs: int
    batch_size: int
    optimiser: Optimiser
    seed: int


class RowTrainer(ABC):
    """Makes, trains and measures models of one kind and form.

    `head` is the name of a model's last linear layer, `per_batch` the most padded places of a batch
    that is only read.
    """

    head: ClassVar[str]
    per_batch: ClassVar[int]

    # --- what a kind says -------------------------------------------------------------------

    @abstractmethod
    def initial(self, seed: int) -> Any:
        """A new model; parameters that require a gradient are trained, and travel."""

    @abstractmethod
    def batch(
        self, model: Any, text: Any, rows_B: Rows, *, own: Any = None, random: Random | None = None
    ) -> Any:
        """These rows, with the annotation `own`; `random` draws what training leaves out."""

    @abstractmethod
    def losses(self, model: Any, own: Any, batch: Any, *, output: Tensor) -> Parts:
        """source_B and target_B of the model's output for these rows of annotated text."""

    def loss(self, model: Any, own: Any, batch: Any, *, output: Tensor) -> Tensor:
        """loss_B of rows that each count once."""
        source_B, target_B = self.losses(model, own, batch, output=output)
        return source_B + target_B

    def output(self, model: Any, batch: Any) -> Tensor:
        """What the model makes of a batch."""
        output: Tensor = model(batch)
        return output

    def epoch(self, model: Any, own: Any, *, batch_size: int, random: Random) -> Iterator[Any]:
        """The batches of one epoch in random order, each of similar lengths."""
        for rows_B in shuffled(own.text.lengths_S, batch_size, random=random):
            yield self.batch(model, own.text, rows_B, own=own, random=random)

    def counted(self, batch: Any) -> int:
        """How many training examples a batch is counted as."""
        return len(batch)

    def reduced(
        self, model: Any, own: Any, optimiser: Optimiser
    ) -> AbstractContextManager[Make | None]:
        """Reduce tables to the rows that the text reads, if the numbers stay the same.

        Gives what makes the optimiser; None: `build`.
        """
        return nullcontext()

    def beliefs(self, model: Any, batch: Any, output: Tensor) -> Tensor:
        """Logits whose softmax is what the model believes of each row of a public text."""
        return output

    def gathered(self, text: Any, found: Iterable[tuple[Rows, Tensor]]) -> NDArray[np.float32]:
        """logits_TY of a public text, from those of batches, here token by token."""
        return said_of_tokens(text.windows, found, tags=self.classes)

    def soft_loss(self, lesson: Lesson, text: Any) -> Callable[[Tensor, Rows], Tensor]:
        """What makes loss_B against a teacher of logits and rows_B, here token by token."""
        return taught_by(lesson, text.windows)

    def label_weights(self, lesson: Lesson, text: Any) -> Callable[[Rows], Tensor]:
        """What gives weights_B of rows_B: how much the loss of their labels counts."""
        return told_by(lesson, text.windows)

    @property
    def classes(self) -> int:
        """The number of classes of a row of a public text."""
        raise NotImplementedError

    # --- what follows -----------------------------------------------------------------------

    def fit(
        self,
        model: Any,
        own: Any,
        *,
        weights_S: NDArray[np.float32] | None = None,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place with a fresh optimiser on the mean loss of each batch's rows.

        A row's loss is its weight times its source loss, plus its target loss. Raises DataError if
        there is no row.
        """

        def loss(batch: Any) -> Tensor:
            output = self.output(model, batch)
            each_B = None if weights_S is None else weights_S[batch.rows_B]
            if each_B is None or (each_B == 1.0).all():
                return self.loss(model, own, batch, output=output)
            source_B, target_B = self.losses(model, own, batch, output=output)
            return on(each_B, source_B).to(source_B.dtype) * source_B + target_B

        return self._train(model, own, loss, Epochs(epochs, batch_size, optimiser, seed))

    def distil(
        self,
        model: Any,
        own: Any,
        *,
        lesson: Lesson,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place on a teacher's beliefs and, as the lesson says, on the text's labels.

        The loss is that of `learning.teaching`. Raises DataError if there is no row.
        """
        soft_loss = self.soft_loss(lesson, own.text)
        label_weights = self.label_weights(lesson, own.text)

        def loss(batch: Any) -> Tensor:
            output = self.output(model, batch)
            loss_B = soft_loss(self.beliefs(model, batch, output), batch.rows_B).to(output.dtype)
            if not lesson.labelled:
                return loss_B
            weights_B = on(label_weights(batch.rows_B), loss_B)
            return loss_B + weights_B * self.loss(model, own, batch, output=output)

        return self._train(model, own, loss, Epochs(epochs, batch_size, optimiser, seed))

    def _train(self, model: Any, own: Any, loss: Callable[[Any], Tensor], how: Epochs) -> FitReport:
        def batches(seed: int) -> Iterator[Any]:
            random = np.random.default_rng(seed)
            return self.epoch(model, own, batch_size=how.batch_size, random=random)

        with self.reduced(model, own, how.optimiser) as make:
            return train(
                model,
                batches,
                loss,
                epochs=how.epochs,
                optimiser=how.optimiser,
                seed=how.seed,
                make=make or build,
                count=self.counted,
            )

    def gradient(
        self, model: Any, own: Any, *, size: int, clip: float, seed: int
    ) -> tuple[float, Arrays]:
        """The mean loss of `size` rows drawn by the seed, and its gradient by parameter.

        The norm of the whole gradient is at most `clip` (0: no bound).
        """
        random = np.random.default_rng(seed)
        rows_B = drawn_rows(own.text.lengths_S, size, random=random)
        batch = beside(self.batch(model, own.text, rows_B, own=own, random=random), model)
        return gradients(model, lambda: self._loss_of(model, own, batch), seed=seed, clip=clip)

    def unit_gradients(self, model: Any, own: Any, units: Iterable[Rows]) -> Iterator[UnitSlopes]:
        """The gradient of each unit's loss, without dropout (`unit_slopes.unit_gradients`)."""

        def losses(rows_B: Rows) -> Tensor:
            batch = beside(self.batch(model, own.text, rows_B, own=own), model)
            return self._loss_of(model, own, batch)

        return unit_gradients(model, losses, units, lengths_S=own.text.lengths_S)

    def row_losses(self, model: Any, own: Any) -> NDArray[np.float64]:
        """losses_S: what training would lose on each row, without dropout."""
        return row_losses(
            model,
            ((one.rows_B, one) for one in self.reads(model, own.text, own=own)),
            lambda batch: self._loss_of(model, own, batch),
            rows=len(own),
        )

    def example_losses(self, model: Any, own: Any) -> NDArray[np.float64]:
        """losses_E: what training would lose on each example, of one row or several windows."""
        return by_example(self.row_losses(model, own), own.text)

    def slopes(self, model: Any, own: Any) -> Slopes:
        """The gradients of each row's two losses by the last layer's weight, without dropout.

        The model keeps its weights.
        """
        linear = model.get_submodule(self.head)
        assert isinstance(linear, nn.Linear)
        shape = (len(own), linear.weight.numel())
        source_SG, target_SG = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        with still(model):
            for one in self.reads(model, own.text, own=own):
                batch = beside(one, model)

                def losses(output: Tensor, batch: Any = batch) -> Parts:
                    return self.losses(model, own, batch, output=output)

                outputs = partial(self.output, model, batch)
                found = last_layer_slopes(linear, outputs, losses=losses)
                source_SG[batch.rows_B], target_SG[batch.rows_B] = map(at_home, found)
        return Slopes(source_SG, target_SG)

    def pulls(self, model: Any, own: Any) -> Pulls:
        """The same gradients, with those of what another model found summed."""
        found = self.slopes(model, own)
        rows = int(found.target_SG.any(1).sum())
        return Pulls(WholeSlopes(found.source_SG), found.target_SG.sum(0), rows)

    def row_logits(self, model: Any, text: Any) -> NDArray[np.float32]:
        """logits_TY of every row of a public text; their softmax is the model's belief."""

        def found() -> Iterator[tuple[Rows, Tensor]]:
            for one in self.reads(model, text):
                batch = beside(one, model)
                yield batch.rows_B, home(self.beliefs(model, batch, self.output(model, batch)))

        with predicting(model):
            return self.gathered(text, found())

    def reads(self, model: Any, text: Any, *, own: Any = None) -> Iterator[Any]:
        """Every row once, longest first, in batches of `per_batch`."""
        for rows_B in longest_first(text.lengths_S, self.per_batch):
            yield self.batch(model, text, rows_B, own=own)

    def _loss_of(self, model: Any, own: Any, batch: Any) -> Tensor:
        return self.loss(model, own, batch, output=self.output(model, batch))


class EntityTrainer(RowTrainer):
    """A trainer of models that find entities.

    An entity is a site's own annotation (source) or another model's (target), by its type.
    """

    @property
    @abstractmethod
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""

    @abstractmethod
    def prepared(self, examples: Sequence[Example]) -> Any:
        """Sentences, encoded, without their spans."""

    @abstractmethod
    def annotated(self, text: Any, spans: Sequence[Sequence[Span]], *, source: Set[str]) -> Any:
        """The text with these spans of each example; types in `source` are the site's own."""

    @abstractmethod
    def find(
        self, model: Any, text: Any, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example, in order of start.

        With `wanted`, the model chooses among these types and "no entity" alone.
        """


@dataclass(frozen=True)
class Read:
    """Documents ready for prediction: segmented, without annotation, and encoded."""

    documents: list[Document]
    examples: list[Example]
    text: Any


def read(trainer: EntityTrainer, documents: Sequence[Document]) -> Read:
    """Prepare documents: the work that does not depend on weights, done once for many rounds."""
    bare, examples = bare_sentences(documents)
    return Read(bare, examples, trainer.prepared(examples))


def annotate_with(
    trainer: EntityTrainer,
    model: nn.Module,
    found: Read,
    *,
    wanted: Collection[str] | None = None,
) -> list[Document]:
    """The documents, segmented, with only the entities that the model finds, of `wanted` types."""
    spans = trainer.find(model, found.text, wanted=wanted)
    return with_entities(found.documents, found.examples, spans)
