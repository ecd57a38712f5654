"""The trainer of span classifiers: makes them from an encoder's files, trains, finds spans.

Entities may lie in or across one another. All of a model is trained and travels; the gradients for
the instance weights are those of its last linear layer.

Shapes: S rows (sentences, or windows of long ones), B rows of a batch, N spans of a row, Y types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.examples import Example, Span
from confide.data.batches.flat import Rows
from confide.data.batches.spans import EncodedSpans, annotated_spans, gold_of
from confide.data.batches.token_pieces import TokenBatch, TokenText, token_batch
from confide.learning.devices import beside, home, on, placed, predicting
from confide.learning.encoder import FrozenEncoder
from confide.learning.optimisers import Optimiser
from confide.learning.rows import pieces_read
from confide.learning.span_teaching import Cells
from confide.learning.teaching import Lesson
from confide.learning.tokens import TokenForm, TokenTrainer
from confide.learning.trainer import EntityTrainer, Parts, Random
from confide.learning.windows import FoundSpan, joined
from confide.models.products import widen
from confide.models.spans import SpanClassifier, SpanSizes, cell_losses, inside
from confide.seeds import seeded


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
class SpanTrainer(EntityTrainer):
    """Makes and trains classifiers of one form from one encoder.

    `open`, from 0 to 1: how much less the types that the site lacks count where it annotated
    nothing; 1 leaves them out.
    """

    head: ClassVar[str] = "span"
    per_batch: ClassVar[int] = 1024

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

    def gathered(
        self, text: TokenText, found: Iterable[tuple[Rows, Tensor]]
    ) -> NDArray[np.float32]:
        """logits_TZ of every span of at most `width` words, "no entity" first."""
        return Cells.of(text.windows, self.form.width).said(found, types=len(self.types))

    def soft_loss(self, lesson: Lesson, text: TokenText) -> Callable[[Tensor, Rows], Tensor]:
        """What makes loss_B against a teacher, span by span."""
        return partial(Cells.of(text.windows, self.form.width).taught, lesson)

    def label_weights(self, lesson: Lesson, text: TokenText) -> Callable[[Rows], Tensor]:
        """What gives weights_B: how much the loss of each window's labels counts."""
        return partial(Cells.of(text.windows, self.form.width).told, lesson)

    def find(
        self, model: SpanClassifier, text: TokenText, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example that are likelier than not, which may share words.

        Each type is a question of its own, so the `wanted` ones are answered as among all.
        """
        types = self.types if wanted is None else [one for one in self.types if one in wanted]
        kept = [self.types.index(one) for one in types]
        by_window: list[list[FoundSpan]] = [[] for _ in range(len(text))]
        with predicting(model):
            for batch in self.reads(model, text):
                likely_BNY = home(model(beside(batch, model)))[:, :, kept].sigmoid()
                likely_BNY = likely_BNY * self._inside(batch)[:, :, None]
                for row, place, type in (likely_BNY > 0.5).nonzero().tolist():
                    first, wider = divmod(place, self.form.width)
                    chance = float(likely_BNY[row, place, type])
                    span = FoundSpan(first, first + wider + 1, types[type], chance)
                    by_window[int(batch.rows_B[row])].append(span)
        return joined(by_window, text.windows, examples=text.examples, flat=False)

    @cached_property
    def _reader(self) -> TokenTrainer:
        own = self.form
        form = TokenForm(own.types, dropout=own.dropout, longest=own.longest)
        return TokenTrainer(self.encoder, form)

    def _inside(self, batch: TokenBatch) -> Tensor:
        words = batch.firsts_BL.shape[1]
        return inside(batch.lengths_B, words=words, width=self.form.width)

    def batch(
        self,
        model: SpanClassifier,
        text: TokenText,
        rows_B: Rows,
        *,
        own: EncodedSpans | None = None,
        random: Random | None = None,
    ) -> TokenBatch:
        """These rows."""
        return token_batch(text, rows_B)

    def reduced(
        self, model: SpanClassifier, own: EncodedSpans, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce the encoder's table to the pieces of the text."""
        return pieces_read(model, model.encoder, own.text, optimiser=optimiser)

    def losses(
        self, model: SpanClassifier, own: EncodedSpans, batch: TokenBatch, *, output: Tensor
    ) -> Parts:
        """Each row's loss of the site's own types, and that of the others."""
        words = batch.firsts_BL.shape[1]
        gold_BNY = on(gold_of(own, batch.rows_B, words=words), batch.firsts_BL)
        own_Y = on(own.own_Y, batch.firsts_BL)
        inside_BN1 = self._inside(batch)[:, :, None].to(gold_BNY.dtype)
        source_BNY = inside_BN1 * own_Y
        target_BNY = inside_BN1 * ~own_Y * (1.0 - self.open * (1.0 - gold_BNY))
        return cell_losses(output, gold_BNY, source_BNY), cell_losses(output, gold_BNY, target_BNY)
