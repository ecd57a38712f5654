"""Relation classifiers: making them from an encoder's files, training and predicting.

Shapes: S examples, R relations, F numbers that the last layer reads, G = R · F.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from confide.data.batches.flat import Rows
from confide.data.batches.relation_pieces import (
    EncodedRelations,
    Marking,
    RelationBatch,
    encode_relations,
    predict_relation_batches,
    relation_batch,
    train_relation_batches,
)
from confide.data.batches.relations import RelationExample
from confide.learning.devices import at_home, beside, home, on, placed, predicting
from confide.learning.encoder import FrozenEncoder
from confide.learning.fit import FitReport, train
from confide.learning.frozen import with_pair_features
from confide.learning.measuring import row_losses
from confide.learning.optimisers import Optimiser
from confide.learning.rows import only_rows, table_of
from confide.learning.slopes import OuterSlopes
from confide.learning.tuning import MARKS, WHOLE, MarkedEmbedding, Tuning, tune
from confide.learning.unit_slopes import unit_gradients
from confide.models import relation
from confide.models.products import widen
from confide.models.relation import Pool, RelationClassifier, RelationSizes
from confide.privacy.clipping import UnitSlopes
from confide.seeds import seeded

Loss = Callable[[RelationClassifier, RelationBatch], Tensor]
"""Gives loss_B of a batch."""


@dataclass(frozen=True)
class RelationForm:
    """All that a relation classifier is but its weights.

    `relations` are its classes in order, including the one of no relation. `types` are entity types
    with marks of their own; if empty, all share the same marks.
    """

    relations: tuple[str, ...]
    types: tuple[str, ...] = ()
    blind: bool = True
    pool: Pool = "sum"
    dropout: float = 0.1
    longest: int = 128
    tuning: Tuning = WHOLE


@dataclass(frozen=True)
class RelationModeller:
    """Makes classifiers of one form from one encoder, and encodes examples as its pieces."""

    encoder: FrozenEncoder
    form: RelationForm

    @cached_property
    def marking(self) -> Marking:
        """How examples are marked. Raises SettingsError if the encoder reads too few pieces."""
        self.encoder.check_longest(self.form.longest)
        loaded = self.encoder.loaded
        return Marking(
            first=loaded.rows,
            before=tuple(loaded.before),
            after=tuple(loaded.after),
            longest=self.form.longest,
            blind=self.form.blind,
            types=self.form.types,
            padding=loaded.padding,
        )

    def initial(self, seed: int) -> RelationClassifier:
        """The encoder with rows for the marks and a new linear layer, drawn by the seed."""
        sizes = RelationSizes(
            dim=self.encoder.dim,
            relations=len(self.form.relations),
            pool=self.form.pool,
            dropout=self.form.dropout,
        )
        with seeded(seed):
            body = self.body()
            model = RelationClassifier(body, sizes)
            widen(model)
            tune(model, body, self.form.tuning)
        return placed(model.eval())

    def body(self) -> nn.Module:
        """A copy of the encoder with rows for the marks, drawn by torch's global generator.

        Those of an encoder that is not trained as a whole are parameters of their own.
        """
        body: nn.Module = self.encoder.loaded.body()
        tuning = self.form.tuning
        with seeded(MARKS) if tuning.frozen else nullcontext():
            _add_rows(body, self.marking.count, apart=not tuning.whole)
        return body

    def featured(
        self, encoded: EncodedRelations, model: nn.Module, *, folder: Path | None
    ) -> EncodedRelations:
        """The examples with what a frozen encoder gives of them, kept in `folder` if named.

        The same examples if the encoder is trained. Raises DataError.
        """
        if not self.form.tuning.frozen:
            return encoded
        pieces = self.marking.count, type(model).__name__
        reads = f"{self.encoder.digest} {self.form.pool} {pieces} {MARKS}"
        return with_pair_features(encoded, model, reads=reads, folder=folder)

    def encoded(self, examples: Sequence[RelationExample]) -> EncodedRelations:
        """The examples, encoded. Raises DataError if one has a relation that is not a class."""
        return encode_relations(
            examples,
            relations=self.form.relations,
            marking=self.marking,
            tokenise=self._tokenise,
        )

    def _tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        return list(self.encoder.loaded.cutter.texts(texts))


def _add_rows(body: Any, count: int, *, apart: bool) -> None:
    """Append rows for new pieces to the table, drawn as the encoder's own were.

    With `apart` they are a parameter of their own, so that they can be trained without the rest.
    """
    old = body.get_input_embeddings()
    if apart:
        spread = getattr(body.config, "initializer_range", None) or 0.02
        marks_KD = nn.init.normal_(torch.empty(count, old.embedding_dim), std=spread)
        body.set_input_embeddings(MarkedEmbedding(old, marks_KD))
        return
    new = nn.Embedding(old.num_embeddings + count, old.embedding_dim, padding_idx=old.padding_idx)
    with torch.no_grad():
        new.weight[: old.num_embeddings] = old.weight
        spread = getattr(body.config, "initializer_range", None) or 0.02
        nn.init.normal_(new.weight[old.num_embeddings :], std=spread)
    body.set_input_embeddings(new)


def fit_relations(
    model: RelationClassifier,
    encoded: EncodedRelations,
    *,
    epochs: int,
    batch_size: int,
    optimiser: Optimiser,
    seed: int,
    loss: Loss | None = None,
    on_batch: Callable[[int, float], None] | None = None,
) -> FitReport:
    """Train in place with a fresh optimiser on the mean loss of each batch's examples.

    `loss` defaults to the cross entropy (`models.relation.loss`); another one can use
    `batch.rows_B` to look up what else it knows of each example. Where the numbers stay the same,
    the model has only the rows of pieces that these examples use while it trains (`learning.rows`).
    Raises DataError if there is no example.
    """
    of_batch = loss or relation.loss

    def batches(seed: int) -> Iterator[RelationBatch]:
        return train_relation_batches(encoded, batch_size=batch_size, seed=seed)

    with _table_of(model, encoded) if optimiser.keeps_still else nullcontext():
        return train(
            model,
            batches,
            lambda batch: of_batch(model, batch),
            epochs=epochs,
            optimiser=optimiser,
            seed=seed,
            on_batch=on_batch,
        )


def _table_of(model: RelationClassifier, encoded: EncodedRelations) -> AbstractContextManager[None]:
    """Reduce the encoder's table to the rows that these examples read."""
    return only_rows(model, table_of(model), np.append(encoded.ids_N, encoded.padding))


def unit_gradients_of(
    model: RelationClassifier, encoded: EncodedRelations, units: Iterable[Rows], *, loss: Loss
) -> Iterator[UnitSlopes]:
    """As `unit_slopes.unit_gradients`."""

    def losses(rows_B: Rows) -> Tensor:
        return loss(model, beside(relation_batch(encoded, rows_B), model))

    return unit_gradients(model, losses, units, lengths_S=encoded.lengths_S)


def relation_logits(
    model: RelationClassifier, encoded: EncodedRelations, *, pieces_per_batch: int = 2048
) -> NDArray[np.float32]:
    """logits_SR of every example, in order."""
    logits_SR = np.zeros((len(encoded), model.sizes.relations), np.float32)
    with predicting(model):
        for batch in predict_relation_batches(encoded, pieces_per_batch=pieces_per_batch):
            logits_SR[batch.rows_B] = at_home(model(beside(batch, model)))
    return logits_SR


def relation_losses(
    model: RelationClassifier,
    encoded: EncodedRelations,
    *,
    loss: Loss | None = None,
    pieces_per_batch: int = 2048,
) -> NDArray[np.float64]:
    """losses_S of every example, without dropout; `loss` as in `fit_relations`."""
    of_batch = loss or relation.loss
    batches = predict_relation_batches(encoded, pieces_per_batch=pieces_per_batch)
    return row_losses(
        model,
        ((batch.rows_B, batch) for batch in batches),
        lambda batch: of_batch(model, batch),
        rows=len(encoded),
    )


@dataclass(frozen=True, eq=False)
class Choices:
    """The classes among which training chooses each example's relation, and its weight.

    Examples marked by `some_S` were looked at for the classes `known_R` only. With `outside = 0`
    they choose among these: the other classes are neither learnt nor unlearnt from them. Above 0
    they choose among all classes, and one without a relation (class 0) may as well have one that
    nobody looked for, which counts so many times as likely as the model says: the likelihood of a
    partial label (Greenberg et al. 2018; `confide.models.partial`). The rest choose among all
    classes.
    """

    known_R: NDArray[np.bool_]
    some_S: NDArray[np.bool_]
    weights_S: NDArray[np.float32] | None = None
    outside: float = 0.0

    def possible(self, batch: RelationBatch) -> tuple[Tensor, Tensor]:
        """chosen_BR and allowed_BR, logarithms of weights.

        An example chooses among the former, and its label is any of the latter.
        """
        some_B1 = on(self.some_S[batch.rows_B], batch.relations_B)[:, None]
        unknown_R = on(~self.known_R, batch.relations_B)
        own_BR = functional.one_hot(batch.relations_B, len(unknown_R)).float()
        if not self.outside:
            return (~(some_B1 & unknown_R)).float().log(), own_BR.log()
        bare_B1 = some_B1 & (batch.relations_B == 0)[:, None]
        return torch.zeros_like(own_BR), (own_BR + self.outside * (bare_B1 & unknown_R)).log()

    def loss(self, model: RelationClassifier, batch: RelationBatch) -> Tensor:
        """loss_B: the negative log-likelihood of each example's label, times its weight."""
        logits_BR: Tensor = model(batch)
        losses_B: Tensor
        if self.outside:
            chosen_BR, allowed_BR = self.possible(batch)
            losses_B = (logits_BR + chosen_BR).logsumexp(1) - (logits_BR + allowed_BR).logsumexp(1)
        else:
            shut_BR = self.some_S[batch.rows_B][:, None] & ~self.known_R
            logits_BR = logits_BR.masked_fill(on(shut_BR, logits_BR), -math.inf)
            losses_B = functional.cross_entropy(logits_BR, batch.relations_B, reduction="none")
        if self.weights_S is None:
            return losses_B
        return losses_B * on(self.weights_S[batch.rows_B], losses_B)


def relation_slopes(
    model: RelationClassifier,
    encoded: EncodedRelations,
    *,
    choices: Choices,
    source_S: NDArray[np.bool_],
    pieces_per_batch: int = 2048,
) -> tuple[OuterSlopes, NDArray[np.float32]]:
    """Gradients of each example's loss by the last layer's weight, without dropout or weights.

    Gives the gradients of examples marked by `source_S`, zeros for the others, and the sum over the
    others, target_G. The loss's gradient by the logits is p - y, where y is what the model says of
    the labels that are allowed, so by the weight it is the outer product of p - y and the layer's
    input: no backward pass is needed.
    """
    relations, dim = model.relation.weight.shape
    errors_SR = np.zeros((len(encoded), relations), np.float32)
    inputs_SF = np.zeros((len(encoded), dim), np.float32)
    target_RF = np.zeros((relations, dim), np.float64)
    with predicting(model):
        for batch in predict_relation_batches(encoded, pieces_per_batch=pieces_per_batch):
            features_BF = model.features(beside(batch, model))
            logits_BR, features_BF = home(model.relation(features_BF)), home(features_BF)
            chosen_BR, allowed_BR = choices.possible(batch)
            right_BR = (logits_BR + allowed_BR).softmax(1)
            errors_BR = ((logits_BR + chosen_BR).softmax(1) - right_BR).numpy()
            own_B1 = source_S[batch.rows_B][:, None]
            errors_SR[batch.rows_B] = errors_BR * own_B1
            inputs_SF[batch.rows_B] = features_BF.numpy()
            target_RF += (errors_BR * ~own_B1).T.astype(np.float64) @ features_BF.numpy()
    return OuterSlopes(errors_SR, inputs_SF), target_RF.astype(np.float32).ravel()


def probabilities(logits_SR: NDArray[np.floating]) -> NDArray[np.float64]:
    """The softmax of each row; a logit of minus infinity gives 0."""
    likely_SR: NDArray[np.float64] = np.exp(
        logits_SR.astype(np.float64) - logits_SR.max(1, keepdims=True)
    )
    likely_SR /= likely_SR.sum(1, keepdims=True)
    return likely_SR
