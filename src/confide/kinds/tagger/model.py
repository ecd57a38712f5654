"""The trainer of CRF taggers, neural or linear, and the features that a linear one reads.

Its loss splits by token (`training.crf`).

All of a tagger is trained and travels; the gradients for the instance weights are those of the
linear layer below its CRF (Wang et al. 2023, 3.3, take them at the prompt, which all layers share).

Shapes: N tokens of all windows, S rows (sentences, or windows of long ones), B rows of a batch, L
tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.kinds.encoder import parted
from confide.training.batches import (
    Bools,
    Encoded,
    Example,
    Rows,
    TagSet,
    TypedSpan,
    annotation,
    encode_examples,
    of_rows,
    offsets,
)
from confide.training.crf import (
    Posterior,
    Scores,
    allowed_tags,
    log_marginals,
    negative_log_likelihood,
    partial_loss,
    span_probabilities,
    token_losses,
    weights_outside,
)
from confide.training.devices import at_home, beside, home, on
from confide.training.optimisers import Optimiser
from confide.training.tagger import (
    CrfTagger,
    LinearSizes,
    LinearTagger,
    Tagger,
    TaggerBatch,
    TaggerSizes,
    batch_of,
    decode_with_posterior,
    lose_words,
    predict_batches,
)
from confide.training.trainer import EntityTrainer, FoundSpan, Parts, Random, only_rows, paths_of
from confide.training.vocabulary import PAD, UNK, Normalisation, Vocabulary, keyed_digest
from confide.training.weights import initial

# --- Features of a word
#
# A linear model reads them, as keyed numbers.
#
# Sites hash their features under a key that they share and the server never sees, as they do with
# the words of a vocabulary (`training.vocabulary`). Here nothing needs counting first: the
# hash itself says which weights belong to a feature (`training.tagger`).
#
# A word has features that are read at its own place (its first letters), also by its next
# neighbours (its last letters and its shape), and also by theirs (the word itself and its short
# shape).
#
# Shapes: F distinct words as written, M features of all words.


AFFIXES = 4
"""The most letters at the start or the end of a word that are a feature."""
_LONGEST = 12  # letters of a shape
_HASHED = 29  # bits of a mark that are hashed; two more say how far it reaches
_REPEATED = re.compile(r"(.)\1+")


def shape(word: str) -> str:
    """Its letters as `X` and `x`, its digits as `0`; other characters stay.

    >>> [shape(word) for word in ("IL-12", "Straße", "§")]
    ['XX-00', 'Xxxxxx', '§']
    """
    return "".join(map(_kind, word[:_LONGEST]))


def _kind(character: str) -> str:
    if character.isdigit():
        return "0"
    if character.isupper():
        return "X"
    return "x" if character.isalpha() else character


def features(word: str) -> Iterator[tuple[str, int]]:
    """The features of a word, and how far each is read: 0, 1 or 2 places away.

    >>> dict(features("Ab1"))["short Xx0"], sorted(text for text, far in features("Ab1") if far < 1)
    (2, ['first a', 'first ab', 'first ab1'])
    """
    low, form = word.lower(), shape(word)
    yield f"word {low}", 2
    yield f"short {_REPEATED.sub(lambda found: found[1], form)}", 2
    yield f"shape {form}", 1
    for letters in range(1, min(AFFIXES, len(low)) + 1):
        yield f"last {low[-letters:]}", 1
        yield f"first {low[:letters]}", 0


@dataclass(frozen=True)
class Marks:
    """Turns words into the marks of their features, for a holder of the key; `repr` hides it."""

    key: bytes = field(repr=False)
    _known: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def of(self, word: str) -> list[int]:
        """The marks of a word's features, each above 0 and below 2^31."""
        return [self._mark(text, far) for text, far in features(word)]

    def _mark(self, text: str, far: int) -> int:
        found = self._known.get(text)
        if found is None:
            hashed = (
                int.from_bytes(keyed_digest(self.key, "feature", text)[:4], "big") >> 32 - _HASHED
            )
            # the lowest ones stand for no feature and for the ends of a sentence
            found = self._known[text] = max(hashed, 2) << 2 | far
        return found


def with_marks(encoded: Encoded, examples: Sequence[Example], marks: Marks) -> Encoded:
    """The text with the marks of each distinct word's features in place of its characters."""
    words_F = [""] * len(encoded.words_F)
    for window, begin in zip(encoded.windows, encoded.tokens_from_S1.tolist(), strict=False):
        tokens = examples[window.example].tokens[window.start : window.end]
        for form, token in zip(encoded.forms_N[begin : begin + len(tokens)], tokens, strict=True):
            words_F[form] = token
    found = [marks.of(word) for word in words_F]
    return replace(
        encoded,
        characters_M=np.array([mark for own in found for mark in own], np.int32),
        characters_from_F1=offsets([len(own) for own in found]),
    )


def crf_axes(tags: Sequence[Hashable]) -> dict[str, list[Sequence[Hashable]]]:
    """The arrays of a tagger's CRF with a place for each tag, along one axis or two."""
    one_each = ("crf.linear.weight", "crf.linear.bias", "crf.starts_Y", "crf.ends_Y")
    return {"crf.moves_YY": [tags, tags], **{name: [tags] for name in one_each}}


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

    `words`, `characters`, `how`, `max_tokens` and `max_characters` as `encode` takes them;
    `word_dropout` is the share of tokens that training reads as the unknown word. `sizes.tags`
    counts the tags of `tags`. `open` is the weight, from 0 to 1, of the types that the site lacks
    at a token outside all entities: above 0, what is learnt is the likelihood of all paths that the
    annotation allows (`training.crf`). `marks` turns words into the features of a linear tagger.
    """

    head: ClassVar[str] = "crf.linear"
    per_batch: ClassVar[int] = 4096

    sizes: TaggerSizes | LinearSizes
    tags: TagSet
    words: Vocabulary
    characters: Vocabulary | None
    how: Normalisation
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
        text = encode_examples(
            [replace(one, spans=()) if one.spans else one for one in examples],
            words=self.words,
            characters=self.characters,
            tags=self.tags,
            how=self.how,
            max_tokens=self.max_tokens,
            max_characters=self.max_characters,
        )
        return text if self.marks is None else with_marks(text, examples, self.marks)

    def annotated(
        self, text: Encoded, spans: Sequence[Sequence[TypedSpan]], *, source: Set[str]
    ) -> EncodedSplit:
        """The text with these spans of each example; types in `source` are the site's own.

        Raises DataError as `training.batches.annotation` does.
        """
        found = annotation(
            text.windows, spans, examples=text.examples, tags=self.tags, source=source
        )
        return EncodedSplit(replace(text, tags_N=found.tags_N), found.source_N, found.open_Y)

    def scores(self, model: CrfTagger) -> Scores:
        """The scores of the CRF's moves."""
        return Scores(*map(home, model.crf.scores()))

    def spans(
        self, scores: Scores, batch: TaggerBatch, output: Tensor, *, wanted: Collection[str] | None
    ) -> list[list[FoundSpan]]:
        """The spans of each row on its best path.

        The confidence of a span is the CRF's probability that its tokens are exactly this entity.
        With `wanted`, the CRF has only the tags of these types: it gives the best path without the
        others, and confidences given that nothing else is there.
        """
        tags = self.tags
        if wanted is not None:
            tags, kept = tags.only(wanted)
            output, scores = output[:, :, kept], scores.only(kept)
        by_row: list[list[FoundSpan]] = [[] for _ in range(len(batch))]
        tags_BL, rows_R, found = decode_with_posterior(output, scores, lengths_B=batch.lengths_B)
        if found is None:
            return by_row
        lengths_B, rows = batch.lengths_B.tolist(), rows_R.tolist()
        spans = [
            (place, span)
            for place, row in enumerate(rows)
            for span in tags.spans(tags_BL[row, : lengths_B[row]].numpy())
        ]
        chances = _chances(found, tags, spans)
        if tags.scheme == "iob2":
            inner = [i for i, (place, span) in enumerate(spans) if span[1] < lengths_B[rows[place]]]
            chances[inner] -= _chances(found, tags, [spans[i] for i in inner], grown=True)
        for (place, span), chance in zip(spans, np.clip(chances, 0.0, 1.0).tolist(), strict=True):
            by_row[rows[place]].append(FoundSpan(*span, chance))
        return by_row

    def batch(self, model: Any, text: Encoded, rows_B: Rows, *, own: Any = None) -> TaggerBatch:
        """These rows."""
        return batch_of(text, rows_B)

    def lose(self, batch: TaggerBatch, random: Random) -> None:
        """Draw the words that are read as the unknown one."""
        lose_words(batch, random, self.word_dropout)

    def reduced(
        self, model: CrfTagger, own: EncodedSplit, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce the table of words, or of a linear tagger's features, to what the text reads.

        Other features stay as they are even under weight decay.
        """
        if isinstance(model, LinearTagger):
            return only_rows(model, model.table, rows_read(model, own.text))
        if isinstance(model, Tagger) and optimiser.keeps_still:
            return only_rows(model, model.word, np.append(own.text.words_F, (PAD, UNK)))
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
        """Return whether a token outside all entities may have any tag but `O`."""
        return self.open > 0 and bool(own.open_Y[1:].any())


def _chances(
    found: Posterior, tags: TagSet, spans: Sequence[tuple[int, TypedSpan]], *, grown: bool = False
) -> NDArray[np.float64]:
    """The probability of each span's tags; `grown` adds the tag that would extend it by one."""
    if not spans:
        return np.zeros(0)
    at_2N, tags_NK, lengths_N = paths_of(tags, spans, grown=grown)
    return span_probabilities(found, at_2N, tags_NK=tags_NK, lengths_N=lengths_N).numpy()


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
