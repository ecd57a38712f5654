"""The trainer of models of bags.

Training takes a bag as rows of what `BagTrainer.prepared` made. All sentences of a training bag
have the same relation, the bag's.

Shapes: S sentences, G bags, R relations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from confide.data.batches.least import joined
from confide.data.batches.relation_pieces import (
    EncodedRelations,
    RelationBatch,
    relation_batch,
)
from confide.data.batches.relations import RelationExample
from confide.data.batches.sentences import (
    EncodedSentences,
    SentenceBatch,
    encode_sentences,
    sentence_batch,
)
from confide.data.batches.tagger import shuffled
from confide.data.batches.vectors import VectorFile
from confide.data.batches.vocabulary import PAD, How, Vocabulary
from confide.errors import DataError
from confide.learning.bag_scores import EncodedBags, Rows, said
from confide.learning.devices import beside, home, placed, predicting
from confide.learning.encoder import FrozenEncoder
from confide.learning.optimisers import Optimiser, row_steps
from confide.learning.relations import RelationForm, RelationTrainer
from confide.learning.rows import only_rows, pieces_read
from confide.learning.trainer import Make, Parts, Random, RowTrainer
from confide.learning.tuning import WHOLE, Tuning, tune
from confide.learning.weights import set_rows
from confide.models.bags import BagModel, Denoise, clearest, logits_of
from confide.models.pcnn import Activation, Pcnn, PcnnSizes
from confide.models.products import widen
from confide.models.relation import MentionReader, Pool
from confide.seeds import seeded

_MOST = 64  # most sentences of a bag that an encoder is trained on in an epoch


@dataclass(frozen=True)
class PcnnForm:
    """All that a piecewise CNN is but its vocabulary and weights."""

    how: How = "lower-digits"
    word_dim: int = 50
    position_dim: int = 5
    filters: int = 230
    width: int = 3
    activation: Activation = "tanh"
    longest: int = 120
    farthest: int = 60


@dataclass(frozen=True)
class EncoderForm:
    """How an encoder reads a sentence: the fields of `learning.relations.RelationForm`."""

    types: tuple[str, ...] = ()
    blind: bool = True
    pool: Pool = "max"
    longest: int = 128
    tuning: Tuning = WHOLE


@dataclass(frozen=True)
class BagForm:
    """All that a model of bags is but its words and weights. `relations` are its classes."""

    relations: tuple[str, ...]
    reader: PcnnForm | EncoderForm = PcnnForm()
    dropout: float = 0.5


@dataclass(frozen=True, eq=False)
class GroupedBags:
    """Encoded sentences in bags; `groups[g]` are the rows of bag `g`."""

    text: EncodedBags
    groups: Sequence[Rows]

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(frozen=True, eq=False)
class BagBatch:
    """The sentences of some bags; `bags_S` is the bag of each."""

    sentences: SentenceBatch | RelationBatch
    bags_S: Tensor
    relations_G: Tensor

    @property
    def tokens(self) -> int:
        """The number of words or word pieces."""
        return self.sentences.tokens

    def __len__(self) -> int:
        return len(self.relations_G)

    def part(self, start: int, end: int) -> BagBatch:
        """Some of its bags, whole."""
        begin, stop = torch.searchsorted(self.bags_S, torch.tensor([start, end])).tolist()
        bags_S, sentences = self.bags_S[begin:stop] - start, self.sentences.part(begin, stop)
        return BagBatch(sentences, bags_S, self.relations_G[start:end])


@dataclass(frozen=True)
class BagTrainer(RowTrainer):
    """Makes and trains models of one form, and turns examples into what they read.

    `source` is the vocabulary that a `PcnnForm` needs, or the encoder that an `EncoderForm` needs.
    `denoise` says how the sentences of a bag are combined in training.

    A batch has bags in random order. With "none" each sentence is a bag of its own. With "one" each
    batch picks the sentence of each bag by the current weights. An encoder trains on at most 64
    sentences of a bag, drawn anew in each epoch; a piecewise CNN on all. Words that do not occur
    stay as they are, even with weight decay; under SGD without momentum, weight decay applies only
    to the words of a batch.
    """

    head: ClassVar[str] = "relation"

    form: BagForm
    source: Vocabulary | FrozenEncoder
    denoise: Denoise = "none"

    def initial(self, seed: int) -> BagModel:
        """A new model; the seed draws its weights except those that an encoder brings."""
        with seeded(seed):
            model = self._new()
            if isinstance(model.reader, MentionReader):
                tune(model, model.reader.encoder, self._relations.form.tuning)
        return placed(model.eval())

    def _new(self) -> BagModel:
        form = self.form
        reader: Pcnn | MentionReader
        if isinstance(form.reader, PcnnForm):
            reader = Pcnn(_sizes(form.reader, len(self._vocabulary)))
        else:
            body = self._relations.body()
            reader = MentionReader(body, self._relations.encoder.dim, pool=form.reader.pool)
            widen(reader)
        return BagModel(reader, len(form.relations), dropout=form.dropout)

    def prepared(self, examples: Sequence[RelationExample]) -> EncodedBags:
        """The examples, encoded. Raises DataError if one has a relation that is not a class."""
        reader = self.form.reader
        if isinstance(reader, EncoderForm):
            return self._relations.prepared(examples)
        return encode_sentences(
            examples,
            words=self._vocabulary,
            relations=self.form.relations,
            how=reader.how,
            longest=reader.longest,
            farthest=reader.farthest,
        )

    def featured(self, encoded: EncodedBags, model: BagModel, folder: Path) -> EncodedBags:
        """The examples with what a frozen encoder gives of them, if that is what reads them."""
        if isinstance(encoded, EncodedSentences):
            return encoded
        return self._relations.featured(encoded, model, folder=folder)

    def annotated(self, text: EncodedBags, groups: Sequence[Rows]) -> GroupedBags:
        """Bags of these sentences; `groups[g]` are the rows of bag `g`.

        Raises DataError if a bag is empty.
        """
        if any(not len(group) for group in groups):
            raise DataError("a bag has no sentence")
        if self.denoise == "none":
            groups = [row[None] for group in groups for row in group]
        return GroupedBags(text, groups)

    def epoch(
        self, model: BagModel, own: GroupedBags, *, batch_size: int, random: Random
    ) -> Iterator[BagBatch]:
        """The batches of one epoch; for an encoder, bags of similar size are together."""
        for groups in _dealt(own.text, own.groups, batch_size, random):
            yield self._batch(model, own.text, groups)

    def batch(
        self,
        model: BagModel,
        text: EncodedBags,
        rows_B: Rows,
        *,
        own: GroupedBags | None = None,
        random: Random | None = None,
    ) -> BagBatch:
        """The bags of these numbers."""
        assert own is not None
        return self._batch(model, text, [own.groups[row] for row in rows_B])

    def counted(self, batch: BagBatch) -> int:
        """The number of sentences."""
        return len(batch.bags_S)

    def output(self, model: BagModel, batch: BagBatch) -> Tensor:
        """logits_GR of the bags."""
        return logits_of(self.denoise)(model, batch)

    def loss(self, model: BagModel, own: GroupedBags, batch: BagBatch, *, output: Tensor) -> Tensor:
        """loss_G: the negative log-likelihood of each bag's relation."""
        return functional.cross_entropy(output, batch.relations_G, reduction="none")

    def losses(
        self, model: BagModel, own: GroupedBags, batch: BagBatch, *, output: Tensor
    ) -> Parts:
        """The loss of each bag, which is all of the site's own annotation."""
        loss_G = self.loss(model, own, batch, output=output)
        return loss_G, torch.zeros_like(loss_G)

    def bag_losses(
        self, model: BagModel, text: EncodedBags, groups: Sequence[Rows]
    ) -> NDArray[np.float64]:
        """losses_G: what training would lose on each bag, without dropout; all sentences count.

        With "none" it is the mean over the bag's sentences.
        """
        losses_G = np.zeros(len(groups))
        with predicting(model):
            for number, group in enumerate(groups):
                own = self.annotated(text, [group])
                batch = beside(self._batch(model, text, own.groups), model)
                output = self.output(model, batch)
                losses_G[number] = float(home(self.loss(model, own, batch, output=output).mean()))
        return losses_G

    @contextmanager
    def reduced(
        self, model: BagModel, own: GroupedBags, optimiser: Optimiser
    ) -> Iterator[Make | None]:
        """Train only the rows of the table that are read; gives what makes the optimiser."""
        reader, text = model.reader, own.text
        if isinstance(reader, Pcnn) and optimiser.rowwise:
            reader.word.sparse = True
            try:
                yield row_steps
            finally:
                reader.word.sparse = False
            return
        within: AbstractContextManager[None] = nullcontext()
        if isinstance(reader, Pcnn) and isinstance(text, EncodedSentences):
            read = text.only(np.concatenate(own.groups)) if own.groups else text
            within = only_rows(model, reader.word, np.append(read.words_N, PAD))
        elif isinstance(reader, MentionReader) and isinstance(text, EncodedRelations):
            within = pieces_read(model, reader.encoder, text, optimiser=optimiser)
        with within:
            yield None

    def _batch(self, model: BagModel, text: EncodedBags, groups: Sequence[Rows]) -> BagBatch:
        chosen = _chosen(model, text, groups) if self.denoise == "one" else groups
        return _batch(text, chosen)

    @property
    def _vocabulary(self) -> Vocabulary:
        if isinstance(self.source, FrozenEncoder):
            raise TypeError("a piecewise CNN needs a vocabulary")
        return self.source

    @cached_property
    def _relations(self) -> RelationTrainer:
        reader = self.form.reader
        if not isinstance(self.source, FrozenEncoder) or isinstance(reader, PcnnForm):
            raise TypeError("an encoder form needs an encoder")
        own = RelationForm(
            relations=self.form.relations,
            types=reader.types,
            blind=reader.blind,
            pool=reader.pool,
            longest=reader.longest,
            tuning=reader.tuning,
        )
        return RelationTrainer(self.source, own)


def _sizes(form: PcnnForm, words: int) -> PcnnSizes:
    return PcnnSizes(
        words=words,
        word_dim=form.word_dim,
        position_dim=form.position_dim,
        farthest=form.farthest,
        filters=form.filters,
        width=form.width,
        activation=form.activation,
    )


def set_vectors(model: BagModel, vectors: VectorFile) -> None:
    """Copy the file's vectors into the rows of its words. Raises DataError if the width differs."""
    if isinstance(model.reader, Pcnn):
        set_rows(model.reader.word, vectors)


def _dealt(
    encoded: EncodedBags, groups: Sequence[Rows], batch_size: int, random: np.random.Generator
) -> Iterator[list[Rows]]:
    """The bags of each batch of an epoch; for an encoder, bags of similar size are together."""
    if isinstance(encoded, EncodedSentences):
        order = random.permutation(len(groups))
        starts = range(0, len(order), batch_size)
        for numbers in joined(order[start : start + batch_size] for start in starts):
            yield [groups[number] for number in numbers]
        return
    lengths_S = encoded.lengths_S
    kept = [
        group if len(group) <= _MOST else np.sort(random.choice(group, _MOST, replace=False))
        for group in groups
    ]
    sizes_G = np.array([len(group) * lengths_S[group].max() for group in kept], np.int64)
    for numbers in shuffled(sizes_G, batch_size, random=random):
        yield [kept[number] for number in numbers]


def _batch(encoded: EncodedBags, groups: Sequence[Rows]) -> BagBatch:
    rows_S = np.concatenate(groups)
    bags_S = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    firsts_G = np.array([group[0] for group in groups])
    relations_G = encoded.relations_S[firsts_G].astype(np.int64)
    sentences = (
        sentence_batch(encoded, rows_S)
        if isinstance(encoded, EncodedSentences)
        else relation_batch(encoded, rows_S)
    )
    return BagBatch(sentences, torch.from_numpy(bags_S), torch.from_numpy(relations_G))


def _chosen(model: BagModel, encoded: EncodedBags, groups: Sequence[Rows]) -> list[Rows]:
    """The clearest sentence of each bag under the model's current weights."""
    found = list(groups)
    several = [number for number, group in enumerate(groups) if len(group) > 1]
    if not several:
        return found
    many = [groups[number] for number in several]
    rows_S = np.concatenate(many)
    bags_S = torch.from_numpy(np.repeat(np.arange(len(many)), [len(group) for group in many]))
    relations_G = torch.from_numpy(encoded.relations_S[[group[0] for group in many]]).long()
    logits_SR = torch.from_numpy(said(model, encoded.only(rows_S))) + home(model.relation.bias)
    best_G = clearest(logits_SR, bags_S, relations_G).numpy()
    for number, place in zip(several, best_G, strict=True):
        found[number] = rows_S[place : place + 1]
    return found
