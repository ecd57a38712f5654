"""The trainer of CRF taggers, neural or linear, whose loss splits by token (`models.chain_rule`).

All of a tagger is trained and travels; the gradients for the instance weights are those of the
linear layer below its CRF (Wang et al. 2023, 3.3, take them at the prompt, which all layers share).

Shapes: N tokens of all windows, S rows (sentences, or windows of long ones), B rows of a batch, L
tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.annotation import annotation, of_rows
from confide.data.batches.encoding import Bools, Encoded, TagSet, encode
from confide.data.batches.examples import Example, Span
from confide.data.batches.features import Marks, with_features
from confide.data.batches.flat import Rows
from confide.data.batches.tagger import TaggerBatch, batch_of, lose_words, predict_batches
from confide.data.batches.vocabulary import How, Vocabulary
from confide.learning.devices import at_home, beside, on
from confide.learning.optimisers import Optimiser
from confide.learning.predict import predict_spans
from confide.learning.rows import only_rows
from confide.learning.trainer import EntityTrainer, Parts, Random
from confide.learning.weights import initial
from confide.learning.windows import FoundSpan
from confide.models.chain_rule import token_losses
from confide.models.crf import negative_log_likelihood
from confide.models.linear import LinearSizes, LinearTagger
from confide.models.marginals import log_marginals
from confide.models.partial import allowed_tags, partial_loss, weights_outside
from confide.models.tagger import CrfTagger, TaggerSizes
from confide.models.tokens import parted


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """A text with its tags; `source_N` is false at entities that another model found.

    `open_Y`: the tags that a token outside all entities may have as far as the site knows.
    """

    text: Encoded
    source_N: Bools
    open_Y: Bools

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class TaggerTrainer(EntityTrainer):
    """Makes and trains taggers of one form.

    `words`, `characters`, `how`, `max_tokens` and `max_characters` as `data.encoding.encode` takes
    them; `word_dropout` is the share of tokens that training reads as the unknown word.
    `sizes.tags` counts the tags of `tags`. `open` is the weight, from 0 to 1, of the types that the
    site lacks at a token outside all entities: above 0, what is learnt is the likelihood of all
    paths that the annotation allows (`models.partial`). `marks` turns words into the features of a
    linear tagger.
    """

    head: ClassVar[str] = "crf.linear"
    per_batch: ClassVar[int] = 4096

    sizes: TaggerSizes | LinearSizes
    tags: TagSet
    words: Vocabulary
    characters: Vocabulary | None
    how: How
    max_tokens: int = 512
    max_characters: int = 40
    word_dropout: float = 0.05
    open: float = 0.0
    marks: Marks | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return self.tags.types

    @property
    def classes(self) -> int:
        """The number of tags."""
        return len(self.tags)

    def initial(self, seed: int) -> CrfTagger:
        """A new tagger; all of it is trained."""
        return initial(self.sizes, seed, rules=self.tags.rules)

    def prepared(self, examples: Sequence[Example]) -> Encoded:
        """Sentences, encoded, without their spans."""
        text = encode(
            [replace(one, spans=()) if one.spans else one for one in examples],
            words=self.words,
            characters=self.characters,
            tags=self.tags,
            how=self.how,
            max_tokens=self.max_tokens,
            max_characters=self.max_characters,
        )
        return text if self.marks is None else with_features(text, examples, self.marks)

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
        self, model: CrfTagger, text: Encoded, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example; a confidence is the CRF's exact probability of the span."""
        return predict_spans(model, text, wanted=wanted, tokens_per_batch=self.per_batch)

    def batch(
        self,
        model: CrfTagger,
        text: Encoded,
        rows_B: Rows,
        *,
        own: EncodedSplit | None = None,
        random: Random | None = None,
    ) -> TaggerBatch:
        """These rows; `random` draws the words that are read as the unknown one."""
        batch = batch_of(text, rows_B)
        if random is not None:
            lose_words(batch, random, self.word_dropout)
        return batch

    def reduced(
        self, model: CrfTagger, own: EncodedSplit, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce a linear tagger's table to the rows that the text reads; others stay as is."""
        if isinstance(model, LinearTagger):
            return only_rows(model, model.table, rows_read(model, own.text))
        return nullcontext()

    def beliefs(self, model: CrfTagger, batch: TaggerBatch, output: Tensor) -> Tensor:
        """The logarithms of each token's marginals."""
        return log_marginals(output, model.crf.scores(), lengths_B=batch.lengths_B)

    def loss(
        self, model: CrfTagger, own: EncodedSplit, batch: TaggerBatch, *, output: Tensor
    ) -> Tensor:
        """loss_B of a batch's rows, each counting once."""
        if not self._opened(own):
            return negative_log_likelihood(
                output, model.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
            )
        outside_Y = on(weights_outside(own.open_Y, self.open), batch.tags_BL)
        allowed_BLY = allowed_tags(batch.tags_BL, outside_Y)
        return _partial(output, model, batch, allowed_BLY, torch.zeros_like(allowed_BLY))

    def losses(
        self, model: CrfTagger, own: EncodedSplit, batch: TaggerBatch, *, output: Tensor
    ) -> Parts:
        """source_B and target_B: each row's loss, of its source tokens and of its target tokens.

        Where outside is open, target is what another model found given the site's own annotation.
        """
        mine_BL = of_rows(own.source_N, own.text.tokens_from_S1, batch.rows_B)
        # a part of a batch is padded as the whole
        missing = output.shape[1] - mine_BL.shape[1]
        source_BL = on(np.pad(mine_BL, ((0, 0), (0, missing))), output)
        if not self._opened(own):
            losses_BL = token_losses(
                output, model.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
            )
            return parted(losses_BL, on(source_BL, losses_BL))
        outside_Y = on(weights_outside(own.open_Y, self.open), batch.tags_BL)
        both_BLY = allowed_tags(batch.tags_BL, outside_Y)
        mine_BLY = allowed_tags(batch.tags_BL.masked_fill(~source_BL, 0), outside_Y)
        return (
            _partial(output, model, batch, mine_BLY, torch.zeros_like(mine_BLY)),
            _partial(output, model, batch, both_BLY, mine_BLY),
        )

    def _opened(self, own: EncodedSplit) -> bool:
        """Whether a token outside all entities may have any tag but `O`."""
        return self.open > 0 and bool(own.open_Y[1:].any())


def rows_read(model: LinearTagger, text: Encoded) -> NDArray[np.int64]:
    """The rows of a linear tagger's table that this text reads, each once."""
    seen_V = np.zeros(len(model.table.weight), np.bool_)
    for batch in predict_batches(text):
        seen_V[at_home(model.rows(beside(batch, model)))] = True
    found: NDArray[np.int64] = np.flatnonzero(seen_V)
    return found


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
