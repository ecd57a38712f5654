"""The trainer of token classifiers: makes them from an encoder's files, trains, finds spans.

What is trained of a classifier travels (`learning.tuning`); the gradients for the instance weights
are those of its last linear layer (Wang et al. 2023, 3.3, take them at the prompt, which all layers
share).

Shapes: S rows (sentences, or windows of long ones), B rows of a batch, L words, Y tags, G numbers
of the last layer's weight.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from confide.data.batches.encoding import TagScheme, TagSet
from confide.data.batches.examples import Example, Span
from confide.data.batches.flat import Rows
from confide.data.batches.token_pieces import (
    EncodedTokens,
    Pieces,
    TokenBatch,
    TokenText,
    annotated_tokens,
    token_batch,
    token_text,
)
from confide.learning.cutting import by_word
from confide.learning.devices import beside, home, placed, predicting
from confide.learning.encoder import FrozenEncoder
from confide.learning.frozen import with_word_features
from confide.learning.optimisers import Optimiser
from confide.learning.predict import paths_of
from confide.learning.rows import pieces_read
from confide.learning.trainer import EntityTrainer, Parts, Random
from confide.learning.tuning import WHOLE, Tuning, tune
from confide.learning.windows import FoundSpan, joined
from confide.models.crf import Scores
from confide.models.partial import allowed_tags, partial_word_losses, weights_outside
from confide.models.products import widen
from confide.models.tokens import (
    TokenClassifier,
    TokenSizes,
    decode,
    parted,
    path_probabilities,
    path_scores,
    word_losses,
)
from confide.seeds import seeded


@dataclass(frozen=True)
class TokenForm:
    """All that a token classifier is but its weights. `types` are in the order of its tags.

    `longest` is the most pieces of a window, special ones included.
    """

    types: tuple[str, ...]
    tag_scheme: TagScheme = "iobes"
    dropout: float = 0.1
    longest: int = 128
    tuning: Tuning = WHOLE


@dataclass(frozen=True)
class TokenTrainer(EntityTrainer):
    """Makes and trains classifiers of one form from one encoder.

    `open` is the weight, from 0 to 1, of the types that the site lacks at a word outside all
    entities (`models.partial`). Raises SettingsError if the encoder reads fewer pieces than the
    form says.
    """

    head: ClassVar[str] = "tag"
    per_batch: ClassVar[int] = 2048

    encoder: FrozenEncoder
    form: TokenForm
    open: float = 0.0

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return self.form.types

    @cached_property
    def tags(self) -> TagSet:
        """The tags that words are classified into."""
        return TagSet(self.form.types, self.form.tag_scheme)

    @property
    def classes(self) -> int:
        """The number of tags."""
        return len(self.tags)

    @cached_property
    def pieces(self) -> Pieces:
        """How the encoder reads."""
        self.encoder.check_longest(self.form.longest)
        loaded = self.encoder.loaded
        unknown = loaded.cutter.unknown
        return Pieces(
            before=tuple(loaded.before),
            after=tuple(loaded.after),
            unknown=loaded.padding if unknown is None else unknown,
            padding=loaded.padding,
            longest=self.form.longest,
        )

    def initial(self, seed: int) -> TokenClassifier:
        """The encoder with a new linear layer, drawn by the seed."""
        sizes = TokenSizes(self.encoder.dim, len(self.tags), self.form.dropout)
        body = self.encoder.loaded.body()
        with seeded(seed):
            model = TokenClassifier(body, sizes)
            widen(model)
            tune(model, body, self.form.tuning)
        return placed(model.eval())

    def featured(self, text: TokenText, model: nn.Module, *, folder: Path | None) -> TokenText:
        """The text with what a frozen encoder gives of its words, kept in `folder` if named.

        The same text if the encoder is trained. Raises DataError.
        """
        if not self.form.tuning.frozen:
            return text
        reads = f"{self.encoder.digest} first piece"
        return with_word_features(text, model, reads=reads, folder=folder)

    def prepared(self, examples: Sequence[Example]) -> TokenText:
        """Sentences as word pieces, without their spans."""
        return token_text(examples, pieces=self.pieces, cut=self._cut)

    def annotated(
        self, text: TokenText, spans: Sequence[Sequence[Span]], *, source: Set[str]
    ) -> EncodedTokens:
        """The text with these spans of each example; types in `source` are the site's own."""
        return annotated_tokens(text, spans, tags=self.tags, source=source)

    def find(
        self, model: TokenClassifier, text: TokenText, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example on its likeliest path that the scheme allows.

        A span's confidence is the product of the probabilities of its words' tags and, if the
        scheme does not mark an entity's end (IOB2), of the next word not continuing it. With
        `wanted`, words are classified among the tags of these types alone.
        """
        tags, scores, kept = self.tags, self._scores, None
        if wanted is not None:
            tags, kept = self.tags.only(wanted)
            scores = scores.only(kept)
        by_window: list[list[FoundSpan]] = [[] for _ in range(len(text))]
        with predicting(model):
            for batch in self.reads(model, text):
                logits_BLY = home(model(beside(batch, model)))
                if kept is not None:
                    logits_BLY = logits_BLY[:, :, kept]
                found = _batch_spans(logits_BLY, batch, tags=tags, scores=scores)
                for row, spans in zip(batch.rows_B.tolist(), found, strict=True):
                    by_window[row] = spans
        return joined(by_window, text.windows, examples=text.examples)

    def batch(
        self,
        model: TokenClassifier,
        text: TokenText,
        rows_B: Rows,
        *,
        own: EncodedTokens | None = None,
        random: Random | None = None,
    ) -> TokenBatch:
        """These rows."""
        return token_batch(text, rows_B, annotated=own)

    def reduced(
        self, model: TokenClassifier, own: EncodedTokens, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce the encoder's table to the pieces of the text."""
        return pieces_read(model, model.encoder, own.text, optimiser=optimiser)

    def losses(
        self, model: TokenClassifier, own: EncodedTokens, batch: TokenBatch, *, output: Tensor
    ) -> Parts:
        """The loss of each row's source words, and of its target words."""
        return split_loss(output, batch, outside_Y=self._outside(own))

    @cached_property
    def _scores(self) -> Scores:
        moves, starts, ends = (torch.from_numpy(part) for part in self.tags.rules)
        return path_scores((moves, starts, ends))

    def _outside(self, encoded: EncodedTokens) -> Tensor | None:
        """The tags that a word outside all entities may have, weighted; None: `O` alone."""
        opened = self.open > 0 and encoded.open_Y[1:].any()
        return weights_outside(encoded.open_Y, self.open) if opened else None

    def _cut(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return by_word(self.encoder.loaded.cutter, sentences)


def split_loss(
    logits_BLY: Tensor, batch: TokenBatch, *, outside_Y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """source_B and target_B: each row's loss, of its source words and of its target words.

    `outside_Y`: the tags that a word outside all entities may have, as `models.partial` weighs
    them. Then the target is what another model found given the site's own annotation.
    """
    if outside_Y is None:
        return parted(word_losses(logits_BLY, batch), batch.source_BL)
    outside_Y = outside_Y.to(logits_BLY.device)
    both_BLY = allowed_tags(batch.tags_BL, outside_Y)
    own_BLY = allowed_tags(batch.tags_BL.masked_fill(~batch.source_BL, 0), outside_Y)
    all_BLY = torch.zeros_like(own_BLY)
    source_BL, target_BL = (
        partial_word_losses(logits_BLY, inner_BLY=inner, outer_BLY=outer, lengths_B=batch.lengths_B)
        for inner, outer in ((own_BLY, all_BLY), (both_BLY, own_BLY))
    )
    return source_BL.sum(1), target_BL.sum(1)


def _batch_spans(
    logits_BLY: Tensor, batch: TokenBatch, *, tags: TagSet, scores: Scores
) -> list[list[FoundSpan]]:
    """The spans of each row, numbered by its own words."""
    tags_BL = decode(logits_BLY, scores, lengths_B=batch.lengths_B).numpy()
    by_row: list[list[FoundSpan]] = [[] for _ in range(len(batch))]
    lengths_B = batch.lengths_B.tolist()
    spans = [
        (row, span)
        for row, length in enumerate(lengths_B)
        for span in tags.spans(tags_BL[row, :length])
    ]
    if not spans:
        return by_row
    at_2N, tags_NK, lengths_N = paths_of(tags, spans)
    likely_BLY = logits_BLY.double().softmax(2)
    chances_N = path_probabilities(likely_BLY, at_2N, tags_NK=tags_NK, lengths_N=lengths_N)
    likely = likely_BLY.numpy()
    for (row, span), chance in zip(spans, chances_N.tolist(), strict=True):
        more = tags.continuation(span[2])
        if more is not None and span[1] < lengths_B[row]:
            chance *= 1.0 - float(likely[row, span[1], more])
        by_row[row].append(FoundSpan(*span, chance))
    return by_row
