"""The modeller of BiLSTM-CRF taggers, whose loss splits by token (see `learning.modelling`).

All of a tagger is trained and travels; the gradients for the instance weights are those of the
linear layer below its CRF (Wang et al. 2023, 3.3, take them at the prompt, which all layers share).

Shapes: N tokens of all windows, S rows (sentences, or windows of long ones), B rows of a batch, L
tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.annotation import annotation, of_rows
from confide.data.batches.encoding import Bools, Encoded, TagSet, encode
from confide.data.batches.examples import Example, Span
from confide.data.batches.flat import Rows
from confide.data.batches.tagger import (
    TaggerBatch,
    batch_of,
    drawn_batch,
    predict_batches,
    train_batches,
)
from confide.data.batches.vocabulary import How, Vocabulary
from confide.learning.devices import at_home, beside, home, on, predicting
from confide.learning.fit import FitReport, train
from confide.learning.gradients import gradients
from confide.learning.measuring import by_example, row_losses
from confide.learning.modelling import Slopes
from confide.learning.optimisers import Optimiser
from confide.learning.predict import predict_spans
from confide.learning.slopes import last_layer_slopes
from confide.learning.teaching import Lesson, said_of_tokens, taught_by, told_by
from confide.learning.unit_slopes import unit_gradients
from confide.learning.weights import Arrays, initial, still
from confide.learning.windows import FoundSpan
from confide.models import tagger
from confide.models.chain_rule import token_losses
from confide.models.crf import negative_log_likelihood
from confide.models.linear import LinearSizes
from confide.models.marginals import log_marginals
from confide.models.partial import allowed_tags, partial_loss, weights_outside
from confide.models.tagger import CrfTagger, TaggerSizes
from confide.models.tokens import parted
from confide.privacy.clipping import UnitSlopes

_PER_BATCH = 4096  # most padded tokens of a batch


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """A text with its tags; `source_N` is false at entities that another model found.

    `open_Y`: the tags that a token outside all entities may have as far as the site knows.
    """

    encoded: Encoded
    source_N: Bools
    open_Y: Bools

    def __len__(self) -> int:
        return len(self.encoded)


@dataclass(frozen=True)
class CrfModeller:
    """Makes taggers of one form: `EntityModeller[Encoded, EncodedSplit]`.

    `words`, `characters`, `how`, `max_tokens` and `max_characters` as `data.encoding.encode` takes
    them, `word_dropout` as `learning.fit.fit`. `sizes.tags` counts the tags of `tags`. `open` is
    the weight, from 0 to 1, of the types that the site lacks at a token outside all entities: above
    0, what is learnt is the likelihood of all paths that the annotation allows (`models.partial`).
    """

    sizes: TaggerSizes | LinearSizes
    tags: TagSet
    words: Vocabulary
    characters: Vocabulary | None
    how: How
    max_tokens: int = 512
    max_characters: int = 40
    word_dropout: float = 0.05
    open: float = 0.0

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return self.tags.types

    def initial(self, seed: int) -> CrfTagger:
        """A new tagger; all of it is trained."""
        return initial(self.sizes, seed, rules=self.tags.rules)

    def prepared(self, examples: Sequence[Example]) -> Encoded:
        """Sentences, encoded, without their spans."""
        return encode(
            [replace(one, spans=()) if one.spans else one for one in examples],
            words=self.words,
            characters=self.characters,
            tags=self.tags,
            how=self.how,
            max_tokens=self.max_tokens,
            max_characters=self.max_characters,
        )

    def annotated(
        self, text: Encoded, spans: Sequence[Sequence[Span]], *, source: Set[str]
    ) -> EncodedSplit:
        """The text with these spans of each example; types in `source` are the site's own.

        Raises DataError as `data.annotation.annotation` does.
        """
        found = annotation(
            text.windows, spans, examples=text.examples, tags=self.tags, source=source
        )
        return EncodedSplit(replace(text, tags_N=found.tags_N), found.source_N, found.open_Y)

    def find(
        self, model: nn.Module, text: Encoded, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example; a confidence is the CRF's exact probability of the span."""
        return predict_spans(_tagger(model), text, wanted=wanted, tokens_per_batch=_PER_BATCH)

    def fit(
        self,
        model: nn.Module,
        encoded: EncodedSplit,
        *,
        weights_S: NDArray[np.float32] | None,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place with a fresh optimiser on the mean loss of each batch's rows.

        A row's loss is its weight times the loss of its source tokens, plus that of its target
        tokens. Raises DataError if there is no row.
        """
        own = _tagger(model)

        def loss(batch: TaggerBatch) -> Tensor:
            each_B = None if weights_S is None else weights_S[batch.windows_B]
            if each_B is None or (each_B == 1.0).all():
                return self._loss(own, batch, encoded)
            source_B, target_B = self.split_loss(own(batch), own, batch, encoded=encoded)
            return on(each_B, source_B) * source_B + target_B

        def batches(seed: int) -> Iterator[TaggerBatch]:
            return train_batches(
                encoded.encoded, batch_size=batch_size, seed=seed, word_dropout=self.word_dropout
            )

        return train(own, batches, loss, epochs=epochs, optimiser=optimiser, seed=seed)

    def gradient(
        self, model: nn.Module, encoded: EncodedSplit, *, size: int, clip: float, seed: int
    ) -> tuple[float, Arrays]:
        """The mean loss of `size` rows drawn by the seed, and its gradient by parameter."""
        own, dropped = _tagger(model), self.word_dropout
        batch = drawn_batch(encoded.encoded, size, seed=seed, word_dropout=dropped)
        batch = beside(batch, own)
        return gradients(own, lambda: self._loss(own, batch, encoded), seed=seed, clip=clip)

    def unit_gradients(
        self, model: nn.Module, encoded: EncodedSplit, units: Iterable[Rows]
    ) -> Iterator[UnitSlopes]:
        """As `unit_slopes.unit_gradients`, and without losing words."""
        own = _tagger(model)

        def losses(rows_B: Rows) -> Tensor:
            return self._loss(own, beside(batch_of(encoded.encoded, rows_B), own), encoded)

        return unit_gradients(own, losses, units, lengths_S=encoded.encoded.lengths_S)

    def row_logits(self, model: nn.Module, text: Encoded) -> NDArray[np.float32]:
        """logits_TY of every token: the logarithms of its marginals."""
        own = _tagger(model)

        def said() -> Iterator[tuple[NDArray[np.int64], Tensor]]:
            for batch in predict_batches(text, tokens_per_batch=_PER_BATCH):
                there = beside(batch, own)
                yield batch.windows_B, home(_marginals(own, there, own(there)))

        with predicting(own):
            found = said_of_tokens(text.windows, said(), tags=len(self.tags))
        return found

    def distil(
        self,
        model: nn.Module,
        encoded: EncodedSplit,
        *,
        lesson: Lesson,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place: the CRF's marginals learn the teacher's probabilities of each token.

        The ordinary loss is that of `fit`, the CRF's negative log-likelihood. Raises DataError if
        there is no row.
        """
        own, text = _tagger(model), encoded.encoded
        soft, weights = taught_by(lesson, text.windows), told_by(lesson, text.windows)

        def loss(batch: TaggerBatch) -> Tensor:
            emissions_BLY = own(batch)
            said_BLY = _marginals(own, batch, emissions_BLY)
            loss_B = soft(said_BLY, batch.windows_B).to(emissions_BLY.dtype)
            if not lesson.labelled:
                return loss_B
            return loss_B + on(weights(batch.windows_B), loss_B) * negative_log_likelihood(
                emissions_BLY, own.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
            )

        def batches(seed: int) -> Iterator[TaggerBatch]:
            return train_batches(
                text, batch_size=batch_size, seed=seed, word_dropout=self.word_dropout
            )

        return train(own, batches, loss, epochs=epochs, optimiser=optimiser, seed=seed)

    def slopes(self, model: nn.Module, encoded: EncodedSplit) -> Slopes:
        """The gradients of each row's two losses by the weight below the CRF, without dropout."""
        own = _tagger(model)
        shape = (len(encoded), own.crf.linear.weight.numel())
        source_SG, target_SG = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        with still(own):
            for batch in predict_batches(encoded.encoded, tokens_per_batch=_PER_BATCH):
                found = self._batch_slopes(own, beside(batch, own), encoded)
                source_SG[batch.windows_B], target_SG[batch.windows_B] = map(at_home, found)
        return Slopes(source_SG, target_SG)

    def example_losses(self, model: nn.Module, encoded: EncodedSplit) -> NDArray[np.float64]:
        """losses_E of the examples, without dropout."""
        own, text = _tagger(model), encoded.encoded
        batches = predict_batches(text, tokens_per_batch=_PER_BATCH)
        losses_S = row_losses(
            own,
            ((batch.windows_B, batch) for batch in batches),
            lambda batch: self._loss(own, batch, encoded),
            rows=len(text),
        )
        return by_example(losses_S, text)

    def _loss(self, model: CrfTagger, batch: TaggerBatch, encoded: EncodedSplit) -> Tensor:
        """loss_B of a batch's rows, each counting once."""
        if not self._opened(encoded):
            return tagger.loss(model, batch)
        outside_Y = on(weights_outside(encoded.open_Y, self.open), batch.tags_BL)
        allowed_BLY = allowed_tags(batch.tags_BL, outside_Y)
        return _partial(model(batch), model, batch, allowed_BLY, torch.zeros_like(allowed_BLY))

    def split_loss(
        self, emissions_BLY: Tensor, model: CrfTagger, batch: TaggerBatch, *, encoded: EncodedSplit
    ) -> tuple[Tensor, Tensor]:
        """source_B and target_B: each row's loss, of its source tokens and of its target tokens.

        Where outside is open, target is what another model found given the site's own annotation.
        """
        own_BL = of_rows(encoded.source_N, encoded.encoded.tokens_from_S1, batch.windows_B)
        # a part of a batch is padded as the whole
        missing = emissions_BLY.shape[1] - own_BL.shape[1]
        source_BL = on(np.pad(own_BL, ((0, 0), (0, missing))), emissions_BLY)
        if not self._opened(encoded):
            losses_BL = token_losses(
                emissions_BLY, model.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
            )
            return parted(losses_BL, on(source_BL, losses_BL))
        outside_Y = on(weights_outside(encoded.open_Y, self.open), batch.tags_BL)
        both_BLY = allowed_tags(batch.tags_BL, outside_Y)
        own_BLY = allowed_tags(batch.tags_BL.masked_fill(~source_BL, 0), outside_Y)
        return (
            _partial(emissions_BLY, model, batch, own_BLY, torch.zeros_like(own_BLY)),
            _partial(emissions_BLY, model, batch, both_BLY, own_BLY),
        )

    def _batch_slopes(
        self, model: CrfTagger, batch: TaggerBatch, encoded: EncodedSplit
    ) -> tuple[Tensor, Tensor]:
        def losses(emissions_BLY: Tensor) -> tuple[Tensor, Tensor]:
            return self.split_loss(emissions_BLY, model, batch, encoded=encoded)

        return last_layer_slopes(model.crf.linear, lambda: model(batch), losses=losses)

    def _opened(self, encoded: EncodedSplit) -> bool:
        """Whether a token outside all entities may have any tag but `O`."""
        return self.open > 0 and bool(encoded.open_Y[1:].any())


def _partial(
    emissions_BLY: Tensor,
    model: CrfTagger,
    batch: TaggerBatch,
    inner_BLY: Tensor,
    outer_BLY: Tensor,
) -> Tensor:
    return partial_loss(
        emissions_BLY,
        model.crf.scores(),
        inner_BLY=inner_BLY,
        outer_BLY=outer_BLY,
        lengths_B=batch.lengths_B,
    )


def _marginals(model: CrfTagger, batch: TaggerBatch, emissions_BLY: Tensor) -> Tensor:
    return log_marginals(emissions_BLY, model.crf.scores(), lengths_B=batch.lengths_B)


def _tagger(model: nn.Module) -> CrfTagger:
    assert isinstance(model, CrfTagger), type(model).__name__
    return model
