"""A public encoder that tags words, by a linear layer over the first piece of each.

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, and a digest of its public encoder. The form holds no word, so there is no key.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.files import cache_folder
from confide.kinds import agreement
from confide.kinds.entities import NEEDS_ENCODER, EncoderKind, EntitySiteModel, MadeOfEncoder
from confide.kinds.pieces import (
    EncodedTokens,
    Pieces,
    TokenBatch,
    TokenText,
    annotated_tokens,
    token_batch,
    token_text,
    with_word_features,
)
from confide.kinds.protocol import ModelSpec, Release, SiteModel, cached_site_model
from confide.kinds.public import OfTags
from confide.seeds import seeded
from confide.settings import Settings as RunSettings
from confide.training import crf
from confide.training.batches import Example, Rows, TagSet, TypedSpan
from confide.training.devices import placed, widen
from confide.training.encoder import FrozenEncoder, Tuning, by_word, states_of, tune
from confide.training.trainer import EntityTrainer, FoundSpan, Parts, paths_of

# --- A token classifier
#
# An encoder of text, and one linear layer over the first piece of each word.
#
# Devlin et al. 2019 (BERT), 5.3: the state of a word's first piece stands for the word, and each
# word is classified by itself,
#
#     P(y_t = j) = softmax_j(linear(dropout(state_t)))
#
# so the loss of a sentence is the sum over its words, and splits by word into any two parts. Only
# decoding knows which tags may follow each other: it finds the best path that the scheme's rules
# allow (Viterbi), without learned scores of moves.
#
# Shapes: B sentences (windows), P pieces, L words, D numbers of a state, Y tags, N spans, K words
# of a span.


class TokenClassifier(nn.Module):
    """`encoder` takes `input_ids` and `attention_mask`, and gives `last_hidden_state`."""

    def __init__(self, encoder: nn.Module, *, dim: int, tags: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.tag = nn.Linear(dim, tags)

    def forward(self, batch: TokenBatch) -> Tensor:
        """logits_BLY; those in the padding are meaningless."""
        logits_BLY: Tensor = self.tag(self.dropout(self.features(batch)))
        return logits_BLY

    def features(self, batch: TokenBatch) -> Tensor:
        """features_BLD: the state of each word's first piece, the last layer's input."""
        if batch.features_BLD is not None:
            return batch.features_BLD
        states_BPD = states_of(self.encoder, batch.ids_BP, batch.mask_BP)
        rows_B1 = torch.arange(len(states_BPD), device=states_BPD.device)[:, None]
        return states_BPD[rows_B1, batch.firsts_BL]


def word_losses(logits_BLY: Tensor, batch: TokenBatch) -> Tensor:
    """loss_BL: the negative log-likelihood of each word's tag, 0 in the padding."""
    losses_BL = functional.cross_entropy(
        logits_BLY.transpose(1, 2), batch.tags_BL, reduction="none"
    )
    inside_BL = crf.mask_of(batch.lengths_B, logits_BLY.shape[1])
    return losses_BL.masked_fill(~inside_BL, 0.0)


def parted(losses_BL: Tensor, source_BL: Tensor) -> tuple[Tensor, Tensor]:
    """source_B and target_B: the sums over each text's tokens, or the symbols written of it.

    Wang et al. 2023, Eq. 6 to 9.
    """
    of_source_B = losses_BL.masked_fill(~source_BL, 0.0).sum(1)
    return of_source_B, losses_BL.masked_fill(source_BL, 0.0).sum(1)


def path_scores(rules: crf.Rules) -> crf.Scores:
    """Scores that decoding adds to the words' own: nothing if a move is allowed."""
    return crf.Scores(
        *(torch.zeros(part.shape).masked_fill(~part, crf.FORBIDDEN) for part in rules)
    )


def best_paths(logits_BLY: Tensor, scores: crf.Scores, *, lengths_B: Tensor) -> Tensor:
    """tags_BL: the likeliest path of each sentence that the rules allow, 0 in the padding."""
    return crf.viterbi(logits_BLY.log_softmax(2), scores, lengths_B=lengths_B)


def path_probabilities(
    chances_BLY: Tensor, at_2N: Tensor, *, tags_NK: Tensor, lengths_N: Tensor
) -> Tensor:
    """chance_N: the product of the probabilities of a span's tags.

    `at_2N` holds the row and first word of each span, `tags_NK` its tags (padded), `lengths_N`
    their number.
    """
    steps_K = torch.arange(tags_NK.shape[1], device=tags_NK.device)
    inside_NK = steps_K < lengths_N[:, None]
    rows_N1, first_N1 = at_2N[:, :, None].unbind()
    places_NK = torch.where(inside_NK, first_N1 + steps_K, 0)
    chances_NK = chances_BLY[rows_N1, places_NK, tags_NK]
    return chances_NK.masked_fill(~inside_NK, 1.0).prod(1)


# --- The trainer of token classifiers
#
# Makes them from an encoder's files, trains, finds spans.
#
# What is trained of a classifier travels (`training.encoder`); the gradients for the instance
# weights are those of its last linear layer (Wang et al. 2023, 3.3, take them at the prompt,
# which all layers share).
#
# Shapes: S rows (sentences, or windows of long ones), B rows of a batch, L words, Y tags, G
# numbers of the last layer's weight.


@dataclass(frozen=True)
class TokenTrainer(EntityTrainer):
    """Makes and trains classifiers of one form from one encoder.

    `open` is the weight, from 0 to 1, of the types that the site lacks at a word outside all
    entities (`training.crf`). Raises SettingsError if the encoder reads fewer pieces than the
    form says.
    """

    head: ClassVar[str] = "tag"
    per_batch: ClassVar[int] = 512  # larger ones hold more padding

    encoder: FrozenEncoder
    form: EncoderSpec
    open: float = 0.0

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return tuple(self.form.types)

    @cached_property
    def tags(self) -> TagSet:
        """The tags that words are classified into."""
        return self.form.tags

    @cached_property
    def tuning(self) -> Tuning:
        """The part of the encoder that is trained."""
        return Tuning.of(self.form.tuning)

    @property
    def classes(self) -> int:
        """The number of tags."""
        return len(self.tags)

    @cached_property
    def pieces(self) -> Pieces:
        """The form of the encoder's pieces."""
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
        body = self.encoder.loaded.body()
        with seeded(seed):
            own = {"dim": self.encoder.dim, "tags": self.classes}
            model = TokenClassifier(body, **own, dropout=self.form.dropout)
            widen(model)
            tune(model, body, self.tuning)
        return placed(model.eval())

    def featured(self, text: TokenText, model: nn.Module, *, folder: Path | None) -> TokenText:
        """The text with what a frozen encoder gives of its words, kept in `folder` if named.

        The same text if the encoder is trained. Raises DataError.
        """
        if not self.tuning.frozen:
            return text
        reads = f"{self.encoder.digest} first piece"
        return with_word_features(text, model, reads=reads, folder=folder)

    def prepared(self, examples: Sequence[Example]) -> TokenText:
        """Sentences as word pieces, without their spans."""
        return token_text(examples, pieces=self.pieces, cut=self._cut)

    def annotated(
        self, text: TokenText, spans: Sequence[Sequence[TypedSpan]], *, source: Set[str]
    ) -> EncodedTokens:
        """The text with these spans of each example; types in `source` are the site's own."""
        return annotated_tokens(text, spans, tags=self.tags, source=source)

    def spans(
        self, scores: None, batch: TokenBatch, output: Tensor, *, wanted: Collection[str] | None
    ) -> list[list[FoundSpan]]:
        """The spans of each row on its likeliest path that the scheme allows.

        A span's confidence is the product of the probabilities of its words' tags and, if the
        scheme does not mark an entity's end (IOB2), of the next word not continuing it. With
        `wanted`, words are classified among the tags of these types alone.
        """
        tags, moves = self.tags, self._scores
        if wanted is not None:
            tags, kept = tags.only(wanted)
            output, moves = output[:, :, kept], moves.only(kept)
        return _batch_spans(output, batch, tags=tags, scores=moves)

    def batch(self, model: Any, text: TokenText, rows_B: Rows, *, own: Any = None) -> TokenBatch:
        """These rows."""
        return token_batch(text, rows_B, annotated=own)

    def losses(
        self, model: TokenClassifier, own: EncodedTokens, batch: TokenBatch, *, output: Tensor
    ) -> Parts:
        """The loss of each row's source words, and of its target words."""
        return split_loss(output, batch, outside_Y=self._outside(own))

    @cached_property
    def _scores(self) -> crf.Scores:
        moves, starts, ends = (torch.from_numpy(part) for part in self.tags.rules)
        return path_scores((moves, starts, ends))

    def _outside(self, encoded: EncodedTokens) -> Tensor | None:
        """The tags that a word outside all entities may have, weighted; None: `O` alone."""
        opened = self.open > 0 and encoded.open_Y[1:].any()
        return crf.weights_outside(encoded.open_Y, self.open) if opened else None

    def _cut(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return by_word(self.encoder.loaded.cutter, sentences)


def split_loss(
    logits_BLY: Tensor, batch: TokenBatch, *, outside_Y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """source_B and target_B: each row's loss, of its source words and of its target words.

    `outside_Y`: the tags that a word outside all entities may have, as `training.crf` weighs
    them. Then the target is what another model found given the site's own annotation.
    """
    if outside_Y is None:
        return parted(word_losses(logits_BLY, batch), batch.source_BL)
    outside_Y = outside_Y.to(logits_BLY.device)
    both_BLY = crf.allowed_tags(batch.tags_BL, outside_Y)
    own_BLY = crf.allowed_tags(batch.tags_BL.masked_fill(~batch.source_BL, 0), outside_Y)
    all_BLY = torch.zeros_like(own_BLY)
    source_BL, target_BL = (
        crf.partial_word_losses(
            logits_BLY, inner_BLY=inner, outer_BLY=outer, lengths_B=batch.lengths_B
        )
        for inner, outer in ((own_BLY, all_BLY), (both_BLY, own_BLY))
    )
    return source_BL.sum(1), target_BL.sum(1)


def _batch_spans(
    logits_BLY: Tensor, batch: TokenBatch, *, tags: TagSet, scores: crf.Scores
) -> list[list[FoundSpan]]:
    """The spans of each row, numbered by its own words."""
    tags_BL = best_paths(logits_BLY, scores, lengths_B=batch.lengths_B).numpy()
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


@dataclass(frozen=True)
class EncoderSpec(OfTags, MadeOfEncoder):
    """The form of an encoder that tags words."""

    private: ClassVar[Sequence[str]] = ("tag",)
    head: ClassVar[str] = "tag"
    slope: ClassVar[str] = "tag.weight"

    types: list[str] = carries("names of all entity types", rule="varies")
    tag_scheme: str = carries("scheme of the tags: iobes or iob2", start=lambda: "iobes")
    encoder: str = carries("the encoder's name in the settings of the run", start=str)
    digest: str = carries("digest of the encoder's files", rule="varies", start=str)
    dropout: float = carries("share of features dropped in training", start=lambda: 0.1)
    longest: int = carries("longest window, in word pieces", start=lambda: 128)
    tuning: str = carries(agreement.TUNING, before="", start=lambda: "all")

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        own = run.classifier
        return {
            "tag_scheme": run.model.tag_scheme,
            "encoder": own.encoder,
            "dropout": own.dropout,
            "longest": own.max_length,
            "tuning": str(agreement.tuning_of(run)),
        }

    def class_axes(self) -> Mapping[str, Sequence[Sequence[Hashable]]]:
        """The last layer has a row for each tag."""
        return {"tag.weight": [self.named_tags], "tag.bias": [self.named_tags]}

    def at(self, site: Site) -> SiteModel:
        """The site model of this form."""
        return cached_site_model(site, self, EncoderSiteModel)

    def trainer(self, files: FrozenEncoder) -> EntityTrainer:
        """The trainer of this form."""
        return TokenTrainer(files, self)


class EncoderSiteModel(EntitySiteModel):
    """An encoder that tags words, at a site; what a frozen one gives is kept on the site's disk."""

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of its words, if the encoder is frozen. Raises Refusal."""
        assert isinstance(text, TokenText)
        shared_model = self.form.shared_model(self.site)
        assert isinstance(shared_model.trainer, TokenTrainer)
        with agreement.keeping_features():
            return shared_model.trainer.featured(text, shared_model.model, folder=cache_folder())


DESCRIBE = agreement.describing(agreement.encoder_of, types=agreement.own_types)


class TokenKind(EncoderKind):
    """The kind `model.kind = "encoder"`."""

    tunes: ClassVar[bool] = True

    name: ClassVar[str] = "encoder"
    Spec: ClassVar[type[ModelSpec]] = EncoderSpec
    release: ClassVar[Release] = Release("tokens.safetensors", "ReleasedTokens", NEEDS_ENCODER)
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE,)
