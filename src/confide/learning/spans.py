"""The modeller of span classifiers: makes them from an encoder's files, trains, finds spans.

It implements `learning.modelling` for entities that lie in or across one another. All of a model
is trained and travels; the gradients for the instance weights are those of its last linear layer.

Shapes: S rows (sentences, or windows of long ones), B rows of a batch, N spans of a row, Y types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.examples import Example, Span
from confide.data.batches.spans import EncodedSpans, annotated_spans, gold_of
from confide.data.batches.token_pieces import (
    TokenBatch,
    TokenText,
    predict_token_batches,
)
from confide.learning.devices import beside, home, on, placed, predicting
from confide.learning.encoder import FrozenEncoder
from confide.learning.fit import FitReport
from confide.learning.optimisers import Optimiser
from confide.learning.pieces import Epochs, Losses, PieceModeller
from confide.learning.span_teaching import Cells
from confide.learning.teaching import Lesson
from confide.learning.tokens import TokenForm, TokenModeller
from confide.learning.windows import FoundSpan, joined
from confide.models.products import widen
from confide.models.spans import SpanClassifier, SpanSizes, cell_losses, inside
from confide.seeds import seeded

_PER_BATCH = 1024  # most padded pieces of a batch


@dataclass(frozen=True)
class SpanForm:
    """All that a span classifier is but its weights. `types` are in the order of its outputs.

    `width` is the most words of a span; `longest` the most pieces of a window.
    """

    types: tuple[str, ...]
    width: int = 12
    dropout: float = 0.1
    longest: int = 128


@dataclass(frozen=True)
class SpanModeller(PieceModeller[EncodedSpans]):
    """Makes classifiers of one form from one encoder: `EntityModeller[TokenText, EncodedSpans]`.

    `open`, from 0 to 1: how much less the types that the site lacks count where it annotated
    nothing; 1 leaves them out.
    """

    head: ClassVar[str] = "span"
    pieces_per_batch: ClassVar[int] = _PER_BATCH

    encoder: FrozenEncoder
    form: SpanForm
    open: float = 0.0

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return self.form.types

    def initial(self, seed: int) -> SpanClassifier:
        """A new model on a copy of the encoder; all of it is trained."""
        own = self.form
        sizes = SpanSizes(self.encoder.dim, len(own.types), own.width, dropout=own.dropout)
        body = self.encoder.loaded.body()
        with seeded(seed):
            model = SpanClassifier(body, sizes)
            widen(model)
        return placed(model.requires_grad_(True).eval())

    def prepared(self, examples: Sequence[Example]) -> TokenText:
        """Sentences as word pieces, without their spans."""
        return self._reader.prepared(examples)

    def annotated(
        self, text: TokenText, spans: Sequence[Sequence[Span]], *, source: Set[str]
    ) -> EncodedSpans:
        """The text with these spans of each example; types in `source` are the site's own."""
        own = self.form
        return annotated_spans(text, spans, types=own.types, source=source, width=own.width)

    def row_logits(self, model: nn.Module, text: TokenText) -> NDArray[np.float32]:
        """logits_TZ of every span of at most `width` words, "no entity" first."""

        def given() -> Iterator[tuple[NDArray[np.int64], Tensor]]:
            for batch in predict_token_batches(text, pieces_per_batch=_PER_BATCH):
                yield batch.rows_B, home(model(beside(batch, model)))

        with predicting(model):
            return Cells.of(text.windows, self.form.width).said(given(), types=len(self.types))

    def distil(
        self,
        model: nn.Module,
        encoded: EncodedSpans,
        *,
        lesson: Lesson,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place on what a teacher says of each span, and on labels as the lesson says.

        The ordinary loss is that of `fit`. Raises DataError if there is no row.
        """
        cells = Cells.of(encoded.text.windows, self.form.width)

        def loss(batch: TokenBatch) -> Tensor:
            logits_BNY = model(batch)
            loss_B = cells.taught(lesson, logits_BNY, batch.rows_B)
            if not lesson.labelled:
                return loss_B
            source_B, target_B = self.losses(encoded, batch)(logits_BNY)
            own_B = on(cells.told(lesson, batch.rows_B), loss_B)
            return loss_B + own_B * (source_B + target_B)

        how = Epochs(epochs, batch_size, optimiser, seed)
        return self.train_on(model, encoded, loss, how=how)

    def find(
        self, model: nn.Module, text: TokenText, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example that are likelier than not, which may share words.

        Each type is a question of its own, so the `wanted` ones are answered as among all.
        """
        types = self.types if wanted is None else [one for one in self.types if one in wanted]
        kept = [self.types.index(one) for one in types]
        by_window: list[list[FoundSpan]] = [[] for _ in range(len(text))]
        with predicting(model):
            for batch in predict_token_batches(text, pieces_per_batch=_PER_BATCH):
                likely_BNY = home(model(beside(batch, model)))[:, :, kept].sigmoid()
                likely_BNY = likely_BNY * self._inside(batch)[:, :, None]
                for row, place, type in (likely_BNY > 0.5).nonzero().tolist():
                    first, wider = divmod(place, self.form.width)
                    chance = float(likely_BNY[row, place, type])
                    span = FoundSpan(first, first + wider + 1, types[type], chance)
                    by_window[int(batch.rows_B[row])].append(span)
        return joined(by_window, text.windows, examples=text.examples, flat=False)

    @cached_property
    def _reader(self) -> TokenModeller:
        own = self.form
        form = TokenForm(own.types, dropout=own.dropout, longest=own.longest)
        return TokenModeller(self.encoder, form)

    def _inside(self, batch: TokenBatch) -> Tensor:
        words = batch.firsts_BL.shape[1]
        return inside(batch.lengths_B, words=words, width=self.form.width)

    def losses(self, encoded: EncodedSpans, batch: TokenBatch) -> Losses:
        """What makes of logits_BNY each row's loss of its own types, and that of the others."""
        words = batch.firsts_BL.shape[1]
        gold_BNY = on(gold_of(encoded, batch.rows_B, words=words), batch.firsts_BL)
        own_Y = on(encoded.own_Y, batch.firsts_BL)
        inside_BN1 = self._inside(batch)[:, :, None].to(gold_BNY.dtype)
        source_BNY = inside_BN1 * own_Y
        target_BNY = inside_BN1 * ~own_Y * (1.0 - self.open * (1.0 - gold_BNY))

        def losses(logits_BNY: Tensor) -> tuple[Tensor, Tensor]:
            return (
                cell_losses(logits_BNY, gold_BNY, source_BNY),
                cell_losses(logits_BNY, gold_BNY, target_BNY),
            )

        return losses
