"""A public encoder that classifies spans: entities that lie in or across one another are learnt.

Zhong & Chen, "A Frustratingly Easy Approach for Entity and Relation Extraction", NAACL 2021, 3.2:
every span of words up to a width is classified by itself. Unlike theirs, a span may have several
types, as a drug's adverse effect may be a sign of an illness as well.

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, and a digest of its public encoder. The form holds no word, so there is no key.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from confide.errors import DataError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.kinds.agreement import describing, encoder_of
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.entities import NEEDS_ENCODER, EncoderKind, EntitySiteModel, MadeOfEncoder
from confide.kinds.pieces import TokenBatch, TokenText, token_batch
from confide.kinds.protocol import ModelSpec, PublicSet, Release, SiteModel, cached_site_model
from confide.kinds.public import SEVERAL, PublicSentences, check_public_size, public_examples
from confide.seeds import seeded
from confide.settings import Settings as RunSettings
from confide.text.document import Document, Problem
from confide.training import batches
from confide.training.devices import on, placed, widen
from confide.training.encoder import FrozenEncoder
from confide.training.trainer import Cells, EntityTrainer, FoundSpan, Parts, cells_from

# --- A classifier of spans
#
# Every run of words up to a width, with any number of types each.
#
#     h_ij = gelu(A x_i + B x_j + w_(j-i)),   logits_ij = C h_ij
#
# where x are the encoder's states at the first pieces of the first and the last word, and w is
# learnt for each width (Zhong & Chen, NAACL 2021, 3.2, with one hidden layer and a sigmoid per
# type in place of their softmax, so that a span may have several types).
#
# Shapes: B rows, P pieces, L words, D the encoder's states, H hidden, W widths, N = L · W spans in
# the order of first word, then width; Y types.


_HIDDEN = 256
_RARE = 0.01
"""The probability that a new model gives each type of each span: most spans are no entity."""


class SpanClassifier(nn.Module):
    """`encoder` takes `input_ids` and `attention_mask`, and gives `last_hidden_state`."""

    def __init__(
        self, encoder: nn.Module, *, dim: int, types: int, width: int, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.width = width
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.first = nn.Linear(dim, _HIDDEN)
        self.last = nn.Linear(dim, _HIDDEN, bias=False)
        self.wide = nn.Embedding(width, _HIDDEN)
        with warnings.catch_warnings():  # a site may have no type at all
            warnings.filterwarnings("ignore", message="Initializing zero-element tensors")
            self.span = nn.Linear(_HIDDEN, types)
        nn.init.constant_(self.span.bias, math.log(_RARE / (1 - _RARE)))

    def forward(self, batch: TokenBatch) -> Tensor:
        """logits_BNY; those of spans that reach into the padding are meaningless."""
        found = self.encoder(input_ids=batch.ids_BP, attention_mask=batch.mask_BP)
        states_BPD: Tensor = found.last_hidden_state
        rows_B1 = torch.arange(len(states_BPD), device=states_BPD.device)[:, None]
        words_BLD = self.dropout(states_BPD[rows_B1, batch.firsts_BL])
        count = words_BLD.shape[1]
        width = self.width
        ends_LW = _ends(count, width, like=words_BLD)
        last_BLH = self.last(words_BLD)
        last_BLWH = last_BLH[:, ends_LW.clamp(max=count - 1)]
        # a row of their own, as every input has: gradients are also taken row by row
        wide_1WH = self.wide(torch.arange(width, device=words_BLD.device)[None])
        hidden_BLWH = functional.gelu(
            self.first(words_BLD)[:, :, None] + last_BLWH + wide_1WH[:, None]
        )
        logits_BNY: Tensor = self.span(self.dropout(hidden_BLWH).flatten(1, 2))
        return logits_BNY


def _ends(words: int, width: int, *, like: Tensor) -> Tensor:
    """ends_LW: the last word of each span, by its first word and its width."""
    first_L1 = torch.arange(words, device=like.device)[:, None]
    return first_L1 + torch.arange(width, device=like.device)


def inside_spans(lengths_B: Tensor, *, words: int, width: int) -> Tensor:
    """inside_BN: whether a span ends before its row does."""
    return _ends(words, width, like=lengths_B).flatten() < lengths_B[:, None]


def cell_losses(logits_BNY: Tensor, gold_BNY: Tensor, weights_BNY: Tensor) -> Tensor:
    """loss_B: the negative log-likelihood of each row's cells, weighted and summed."""
    losses_BNY = functional.binary_cross_entropy_with_logits(
        logits_BNY, gold_BNY, weight=weights_BNY, reduction="none"
    )
    return losses_BNY.flatten(1).sum(1)


# --- Annotation of spans
#
# Spans may share words; they are laid over text that is already numbers.
#
# Shapes: S windows, C annotated cells of all windows (4: first word and last word of the window,
# type, 1 if the site annotated it), B windows of a batch, N spans of a row (first word, then
# width), Y types.


CellArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EncodedSpans:
    """A text with its annotated spans. `own_Y`: the types that the site annotates itself.

    No row can learn a span that is longer than `width`, or across a window's border.
    """

    text: TokenText
    cells_C4: CellArray
    from_S1: NDArray[np.int64]
    own_Y: NDArray[np.bool_]
    width: int

    def __len__(self) -> int:
        return len(self.text)


def annotated_spans(
    text: TokenText,
    spans: Sequence[Sequence[batches.TypedSpan]],
    *,
    types: Sequence[str],
    source: Set[str],
    width: int,
) -> EncodedSpans:
    """The text with these spans of each example, which may share words.

    Raises DataError if a span lies outside its example, or the number of examples differs.
    """
    batches.check_spans(spans, text.windows, examples=text.examples)
    number = {name: place for place, name in enumerate(types)}
    cells: list[tuple[int, int, int, int]] = []
    counts: list[int] = []
    for window in text.windows:
        before = len(cells)
        for start, end, name in spans[window.example]:
            fits = window.start <= start and end <= window.end and end - start <= width
            if fits:
                first, last = start - window.start, end - window.start - 1
                cells.append((first, last, number[name], int(name in source)))
        counts.append(len(cells) - before)
    return EncodedSpans(
        text,
        cells_C4=np.array(cells, np.int32).reshape(-1, 4),
        from_S1=batches.offsets(counts),
        own_Y=np.array([name in source for name in types]),
        width=width,
    )


def gold_of(encoded: EncodedSpans, rows_B: batches.Rows, *, words: int) -> NDArray[np.float32]:
    """gold_BNY of these rows, padded to this many words: 1 where a span has the type."""
    gold = np.zeros((len(rows_B), words, encoded.width, len(encoded.own_Y)), np.float32)
    for place, row in enumerate(rows_B):
        cells = encoded.cells_C4[encoded.from_S1[row] : encoded.from_S1[row + 1]]
        gold[place, cells[:, 0], cells[:, 1] - cells[:, 0], cells[:, 2]] = 1.0
    return gold.reshape(len(rows_B), words * encoded.width, -1)


# --- A public set for the kind that classifies spans
#
# Its rows are all runs of words up to a width.
#
# A row has several labels if its span has several types, which share its certainty.
#
# Shapes: T rows of all sentences.


OUTSIDE = "O"
"""The label of a span that is no entity."""
MOST_SPANS = 1_000_000
"""The largest public set, in spans: each site predicts all in each round."""


@dataclass(frozen=True)
class PublicSpans(PublicSentences):
    """Public sentences without their annotation, of which each span of words is a row."""

    width: int = carries("most words of a span")

    @property
    def rows(self) -> int:
        """The number of spans: each is predicted."""
        return sum(self._each)

    @property
    def row_sentences(self) -> NDArray[np.int64]:
        """For each span the number of its sentence."""
        return np.repeat(np.arange(len(self.sentences)), self._each)

    @property
    def _each(self) -> list[int]:
        return [int(cells_from(len(one), self.width)[-1]) for one in self.sentences]

    def check(self) -> None:
        """Raise Refusal if a sentence or token is empty, or if there are too many spans."""
        if not 0 < self.width <= MOST_SPANS or self.rows > MOST_SPANS:
            raise Refusal("bad-ask")
        super().check()

    def with_sentences(self, sentences: list[list[str]]) -> Self:
        """A set of other sentences, read in the same way."""
        return type(self)(sentences, self.width)

    def labelled_spans(self, labels: Sequence[str]) -> list[list[batches.TypedSpan]]:
        """The spans of each sentence, from the labels of all rows; none without `labels`."""
        found: list[list[batches.TypedSpan]] = [[] for _ in self.sentences]
        starts_E1 = np.append(0, np.cumsum(self._each))
        for row, label in enumerate(labels):
            if label != OUTSIDE:
                number = int(np.searchsorted(starts_E1, row, side="right")) - 1
                before_L1 = cells_from(len(self.sentences[number]), self.width)
                place = row - int(starts_E1[number])
                first = int(np.searchsorted(before_L1, place, side="right")) - 1
                end = first + place - int(before_L1[first]) + 1
                found[number] += [(first, end, name) for name in label.split(SEVERAL)]
        return found


def public_spans(
    documents: Sequence[Document], *, width: int, types: Sequence[str]
) -> tuple[PublicSpans, list[str]]:
    """The set as the sites get it, and the label of each span, which sites never get.

    Entities of more words than `width` are left out. Raises SettingsError if there is no sentence
    or too much text, and DataError if an entity has a type that is not among `types`.
    """
    sentences = [list(one.tokens) for one in public_examples(documents)]
    public = PublicSpans(sentences, width)
    less = " or a smaller `classifier.max_span_width`"
    check_public_size(public, MOST_SPANS, what="spans", fix=less)
    labels: list[str] = []
    for words, spans in zip(sentences, batches.nested_spans(documents), strict=True):
        before_L1, start = cells_from(len(words), width), len(labels)
        labels += [OUTSIDE] * int(before_L1[-1])
        for first, end, name in sorted(set(spans)):
            if name not in types:
                raise DataError(f"the public set has the type {name!r}, which no model learns")
            if end - first <= width:
                row = start + int(before_L1[first]) + end - first - 1
                seen = labels[row]
                labels[row] = name if seen == OUTSIDE else SEVERAL.join((seen, name))
    return public, labels


# --- The trainer of span classifiers
#
# Makes them from an encoder's files, trains, finds spans.
#
# Entities may lie in or across one another. All of a model is trained and travels; the gradients
# for the instance weights are those of its last linear layer.
#
# Shapes: S rows (sentences, or windows of long ones), B rows of a batch, N spans of a row, Y
# types.


@dataclass(frozen=True)
class SpanTrainer(EntityTrainer):
    """Makes and trains classifiers of one form from one encoder.

    `open`, from 0 to 1: how much less the types that the site lacks count where it annotated
    nothing; 1 leaves them out.
    """

    head: ClassVar[str] = "span"
    per_batch: ClassVar[int] = 1024
    flat: ClassVar[bool] = False

    encoder: FrozenEncoder
    form: SpanSpec
    open: float = 0.0

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return tuple(self.form.types)

    def initial(self, seed: int) -> SpanClassifier:
        """A new model on a copy of the encoder; all of it is trained."""
        own = self.form
        body = self.encoder.loaded.body()
        with seeded(seed):
            sizes = {"dim": self.encoder.dim, "types": len(own.types), "width": own.width}
            model = SpanClassifier(body, **sizes, dropout=own.dropout)
            widen(model)
        return placed(model.requires_grad_(True).eval())

    def prepared(self, examples: Sequence[batches.Example]) -> TokenText:
        """Sentences as word pieces, without their spans."""
        return self._reader.prepared(examples)

    def annotated(
        self, text: TokenText, spans: Sequence[Sequence[batches.TypedSpan]], *, source: Set[str]
    ) -> EncodedSpans:
        """The text with these spans of each example; types in `source` are the site's own."""
        own = self.form
        return annotated_spans(text, spans, types=own.types, source=source, width=own.width)

    @property
    def classes(self) -> int:
        """The number of types, and one for "no entity"."""
        return 1 + len(self.types)

    def cells(self, text: TokenText) -> Cells:
        """The rows of a public text: its spans of at most `width` words."""
        return Cells.of(text.windows, self.form.width)

    def beliefs(self, model: SpanClassifier, batch: TokenBatch, output: Tensor) -> Tensor:
        """logits_BNZ, with one of 0 for "no entity" before those of the types.

        The softmax of a row says the same as the model's own sigmoids: both are learnt exactly
        where the logits are the teacher's.
        """
        return functional.pad(output, (1, 0))

    def spans(
        self, scores: None, batch: TokenBatch, output: Tensor, *, wanted: Collection[str] | None
    ) -> list[list[FoundSpan]]:
        """The spans of each row that are likelier than not, which may share words.

        Each type is a question of its own, so the `wanted` ones are answered as among all.
        """
        types = self.types if wanted is None else [one for one in self.types if one in wanted]
        kept = [self.types.index(one) for one in types]
        by_row: list[list[FoundSpan]] = [[] for _ in range(len(batch))]
        likely_BNY = output[:, :, kept].sigmoid() * self._inside(batch)[:, :, None]
        for row, place, type in (likely_BNY > 0.5).nonzero().tolist():
            first, wider = divmod(place, self.form.width)
            chance = float(likely_BNY[row, place, type])
            by_row[row].append(FoundSpan(first, first + wider + 1, types[type], chance))
        return by_row

    @cached_property
    def _reader(self) -> TokenTrainer:
        own = self.form
        form = EncoderSpec(own.types, dropout=own.dropout, longest=own.longest)
        return TokenTrainer(self.encoder, form)

    def _inside(self, batch: TokenBatch) -> Tensor:
        words = batch.firsts_BL.shape[1]
        return inside_spans(batch.lengths_B, words=words, width=self.form.width)

    def batch(
        self, model: Any, text: TokenText, rows_B: batches.Rows, *, own: Any = None
    ) -> TokenBatch:
        """These rows."""
        return token_batch(text, rows_B)

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


@dataclass(frozen=True)
class SpanSpec(MadeOfEncoder):
    """The form of an encoder that classifies spans."""

    private: ClassVar[Sequence[str]] = ("span",)
    head: ClassVar[str] = "span"
    slope: ClassVar[str] = "span.weight"
    Public: ClassVar[type[PublicSet] | None] = PublicSpans

    types: list[str] = carries("names of all entity types", rule="varies")
    encoder: str = carries("the encoder's name in the settings of the run", start=str)
    digest: str = carries("digest of the encoder's files", rule="varies", start=str)
    width: int = carries("most words of a span", start=lambda: 12)
    dropout: float = carries("share of features dropped in training", start=lambda: 0.1)
    longest: int = carries("longest window, in word pieces", start=lambda: 128)

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        own = run.classifier
        return {
            "encoder": own.encoder,
            "width": own.max_span_width,
            "dropout": own.dropout,
            "longest": own.max_length,
        }

    def public(self, documents: Sequence[Document]) -> tuple[PublicSpans, list[str]]:
        """The sentences of a public set, and the labels of their spans. Raises SettingsError."""
        return public_spans(documents, width=self.width, types=self.types)

    @property
    def class_names(self) -> Sequence[str]:
        """No entity, which is the first, and the types."""
        return (OUTSIDE, *self.types)

    def known(self, types: Set[str]) -> list[bool]:
        """For each class, whether it is one of these types; every site knows the first."""
        return [True, *(name in types for name in self.types)]

    def labelled_spans(
        self, public: PublicSpans, labels: Sequence[str]
    ) -> list[list[batches.TypedSpan]]:
        """The spans of each public sentence, from the labels of its rows; none without any."""
        return public.labelled_spans(labels)

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own model; with `types`, of the types of its text only."""
        return replace(self, types=sorted(_seen(site))) if types else self

    def class_axes(self) -> Mapping[str, Sequence[Sequence[Hashable]]]:
        """The last layer has a row for each type."""
        return {"span.weight": [self.types], "span.bias": [self.types]}

    def at(self, site: Site) -> SiteModel:
        """The site model of this form."""
        return cached_site_model(site, self, SpanSiteModel)

    def trainer(self, files: FrozenEncoder) -> EntityTrainer:
        """The trainer of this form."""
        return SpanTrainer(files, self)


def _seen(site: Site) -> set[str]:
    """The types of the training text, also those that occur only inside other entities."""
    return {span[2] for own in batches.nested_spans(site.train) for span in own}


def know_own_types(site: Site) -> frozenset[str]:
    """The types that the site annotates, like `own_types`, from all entities. Raises Refusal."""
    if "all types" not in site.cache:
        seen = _seen(site)
        if site.annotates and not seen <= set(site.annotates):
            raise Refusal("tag-outside-set")
        site.cache["all types"] = site.cache["own types"] = frozenset(site.annotates or seen)
    found: frozenset[str] = site.cache["all types"]
    return found


DESCRIBE = describing(encoder_of, types=know_own_types)


class SpanSiteModel(EntitySiteModel):
    """The site model: its training text has all entities, also those that share words."""

    def __init__(self, site: Site, form: SpanSpec) -> None:
        super().__init__(site, form)
        know_own_types(site)

    def predicted(self, weights: Arrays, public: PublicSentences) -> NDArray[np.float32]:
        """logits_TZ of the spans of a public set. Raises Refusal if it has another width."""
        if not isinstance(public, PublicSpans) or public.width != self.form.width:
            raise Refusal("other-public-set")
        return super().predicted(weights, public)

    def spans(self, documents: Sequence[Document]) -> list[list[batches.TypedSpan]]:
        """The spans of each sentence, with those that share words with others."""
        return batches.nested_spans(documents)

    @cached_property
    def own(self) -> Any:
        """The training sentences, encoded, with all of the site's own annotation."""
        return self.annotated(self.spans(self.site.train))


class SpanKind(EncoderKind):
    """The kind `model.kind = "spans"`."""

    name: ClassVar[str] = "spans"
    Spec: ClassVar[type[ModelSpec]] = SpanSpec
    release: ClassVar[Release] = Release("spans.safetensors", "ReleasedSpans", NEEDS_ENCODER)
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE,)

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """The annotations that it leaves out or changes: none for sharing words with others."""
        return batches.left_out_of_nested(documents)
