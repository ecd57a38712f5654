"""A relation classifier: an encoder of text, its states of two marked entities, a linear layer.

Sui, Chen, Zhao, Jia, Xie & Sun, "FedED: Federated Learning via Ensemble Distillation for Medical
Relation Extraction", EMNLP 2020, 3.1:

    h = [CLS] ⊕ Σ states of the head's pieces ⊕ Σ states of the tail's pieces  →  dropout → linear

With `pool = "start"` the state of the piece that opens an entity stands for it instead (Baldini
Soares et al. 2019, "entity start"); with `pool = "max"` it is the maximum over the entity's pieces
("mention pooling"). With `pool = "cls"` the first piece's state alone is read: the marks tell where
the entities are (the "[CLS]" of Baldini Soares et al., and the head that transformers has).

Shapes: B examples, P pieces, D numbers of a state, R relations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from confide.kinds.pieces import (
    EncodedRelations,
    Marking,
    RelationBatch,
    encode_relations,
    relation_batch,
    with_pair_features,
)
from confide.kinds.relations.batches import RelationExample
from confide.seeds import seeded
from confide.training.batches import Rows, Window
from confide.training.devices import beside, home, on, placed, predicting, widen
from confide.training.encoder import MARKS, FrozenEncoder, MarkedEmbedding, Tuning, states_of, tune
from confide.training.examples import OuterGradients
from confide.training.trainer import Cells, Parts, Pulls, RowTrainer

Pool = Literal["sum", "start", "max", "cls"]


class RelationClassifier(nn.Module):
    """`encoder` takes `input_ids` and `attention_mask`, and gives `last_hidden_state`."""

    def __init__(
        self,
        encoder: nn.Module,
        *,
        dim: int,
        relations: int,
        pool: Pool = "sum",
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.pool: Pool = pool
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.relation = nn.Linear((1 if pool == "cls" else 3) * dim, relations)

    def forward(self, batch: RelationBatch) -> Tensor:
        """logits_BR."""
        logits_BR: Tensor = self.relation(self.dropout(self.features(batch)))
        return logits_BR

    def features(self, batch: RelationBatch) -> Tensor:
        """features_BF, F = 3 · dim (`pool = "cls"`: dim): h, the last layer's input."""
        if batch.features_BF is not None:
            return batch.features_BF
        states_BPD = states_of(self.encoder, batch.ids_BP, batch.mask_BP)
        if self.pool == "cls":
            return states_BPD[:, 0]
        entities_B2D = _entities(states_BPD, batch, self.pool)
        return torch.cat((states_BPD[:, :1], entities_B2D), 1).flatten(1)


class MentionReader(nn.Module):
    """The states of head and tail alone, head first: features_BF of a batch, F = 2 · dim.

    With `pool = "max"`, Sui et al., Findings of EMNLP 2021, B.1.
    """

    def __init__(self, encoder: nn.Module, dim: int, *, pool: Pool = "max") -> None:
        super().__init__()
        self.pool: Pool = pool
        self.features = 2 * dim
        self.encoder = encoder

    def forward(self, batch: RelationBatch) -> Tensor:
        """features_BF."""
        if batch.features_BF is not None:
            return batch.features_BF
        states_BPD = states_of(self.encoder, batch.ids_BP, batch.mask_BP)
        return _entities(states_BPD, batch, self.pool).flatten(1)


def _entities(states_BPD: Tensor, batch: RelationBatch, pool: Pool) -> Tensor:
    """entities_B2D; zeros for an entity without pieces, unless its opening mark stands for it."""
    if pool == "start":
        rows_B1 = torch.arange(states_BPD.shape[0], device=states_BPD.device)[:, None]
        return states_BPD[rows_B1, batch.openings_B2]
    entities_B2P = torch.stack((batch.head_BP, batch.tail_BP), 1)
    if pool == "sum":
        return entities_B2P.to(states_BPD.dtype) @ states_BPD
    inside_B2P1 = entities_B2P[..., None]
    most_B2D = states_BPD[:, None].masked_fill(~inside_B2P1, -math.inf).amax(2)
    return most_B2D.masked_fill(~inside_B2P1.any(2), 0.0)


# --- The trainer of relation classifiers
#
# Makes them from an encoder's files, trains, predicts.
#
# Shapes: S examples, R relations, F numbers that the last layer reads, G = R · F.


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Encoded pairs, each with a label.

    `source_S` marks the pairs whose label is the site's own (class 0, no relation, is one); the
    others have a model's label. `open_S` marks the pairs whose label is chosen among all classes;
    the rest were looked at for the classes `own_R` only.
    """

    text: EncodedRelations
    source_S: NDArray[np.bool_]
    open_S: NDArray[np.bool_]
    own_R: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class RelationTrainer(RowTrainer):
    """Makes and trains classifiers of one form from one encoder.

    `open` is the weight, from 0 to 1, of the relations that the site lacks at a pair without one.
    At 0, a pair that was looked at for some classes only chooses among these: the others are
    neither learnt nor unlearnt from it. Above 0 it chooses among all classes, and one without a
    relation (class 0) may as well have one that nobody looked for, which counts as much of it as
    the model finds it likely: the likelihood of a partial label (Greenberg et al. 2018;
    `confide.training.crf`).
    """

    head: ClassVar[str] = "relation"
    per_batch: ClassVar[int] = 2048

    encoder: FrozenEncoder
    form: Any
    open: float = 0.0

    @cached_property
    def tuning(self) -> Tuning:
        """The part of the encoder that is trained."""
        return Tuning.of(self.form.tuning)

    @cached_property
    def marking(self) -> Marking:
        """The marks of examples. Raises SettingsError if the encoder reads too few pieces."""
        self.encoder.check_longest(self.form.longest)
        loaded = self.encoder.loaded
        return Marking(
            first=loaded.rows,
            before=tuple(loaded.before),
            after=tuple(loaded.after),
            longest=self.form.longest,
            blind=self.form.blind,
            types=tuple(self.form.types),
            padding=loaded.padding,
        )

    def initial(self, seed: int) -> RelationClassifier:
        """The encoder with rows for the marks and a new linear layer, drawn by the seed."""
        own = self.form
        with seeded(seed):
            body = self.body()
            model = RelationClassifier(
                body,
                dim=self.encoder.dim,
                relations=len(own.relations),
                pool=own.pool,
                dropout=own.dropout,
            )
            widen(model)
            tune(model, body, self.tuning)
        return placed(model.eval())

    def body(self) -> nn.Module:
        """A copy of the encoder with rows for the marks, drawn by torch's global generator.

        Those of an encoder that is not trained as a whole are parameters of their own.
        """
        body: nn.Module = self.encoder.loaded.body()
        with seeded(MARKS) if self.tuning.frozen else nullcontext():
            _add_rows(body, self.marking.count, apart=not self.tuning.whole)
        return body

    def featured(
        self, encoded: EncodedRelations, model: nn.Module, *, folder: Path | None
    ) -> EncodedRelations:
        """The examples with what a frozen encoder gives of them, kept in `folder` if named.

        The same examples if the encoder is trained. Raises DataError.
        """
        if not self.tuning.frozen:
            return encoded
        pieces = self.marking.count, type(model).__name__
        reads = f"{self.encoder.digest} {self.form.pool} {pieces} {MARKS}"
        return with_pair_features(encoded, model, reads=reads, folder=folder)

    def prepared(self, examples: Sequence[RelationExample]) -> EncodedRelations:
        """The examples, encoded. Raises DataError if one has a relation that is not a class."""
        return encode_relations(
            examples, relations=self.form.relations, marking=self.marking, tokenise=self._tokenise
        )

    def annotated(
        self, text: EncodedRelations, known_R: NDArray[np.bool_] | None = None
    ) -> LabelledPairs:
        """The pairs with their own labels, all chosen among the known classes; None: all."""
        every_S = np.ones(len(text), bool)
        known_R = np.ones(self.classes, bool) if known_R is None else known_R
        return LabelledPairs(text, source_S=every_S, open_S=~every_S, own_R=known_R)

    @property
    def classes(self) -> int:
        """The number of relations."""
        return len(self.form.relations)

    def batch(self, model: Any, text: EncodedRelations, rows_B: Rows, *, own: Any = None) -> Any:
        """These pairs."""
        return relation_batch(text, rows_B)

    def loss(
        self, model: RelationClassifier, own: LabelledPairs, batch: RelationBatch, *, output: Tensor
    ) -> Tensor:
        """loss_B: the negative log-likelihood of each pair's label."""
        if self.open and not own.own_R.all():
            chosen_BR, allowed_BR = self._possible(own, batch)
            return (output + chosen_BR).logsumexp(1) - (output + allowed_BR).logsumexp(1)
        shut_BR = ~own.open_S[batch.rows_B][:, None] & ~own.own_R
        if shut_BR.any():
            output = output.masked_fill(on(shut_BR, output), -math.inf)
        return functional.cross_entropy(output, batch.relations_B, reduction="none")

    def losses(
        self, model: RelationClassifier, own: LabelledPairs, batch: RelationBatch, *, output: Tensor
    ) -> Parts:
        """The loss of pairs whose label is the site's own, and of those with a model's label."""
        losses_B = self.loss(model, own, batch, output=output)
        source_B = on(own.source_S[batch.rows_B], losses_B)
        return losses_B * source_B, losses_B * ~source_B

    def pulls(self, model: RelationClassifier, own: LabelledPairs) -> Pulls:
        """The gradients of each pair's loss by the last layer's weight, without dropout.

        The loss's gradient by the logits is p - y, where y is what the model says of the labels
        that are allowed, so by the weight it is the outer product of p - y and the layer's input:
        no backward pass is needed.
        """
        relations, dim = model.relation.weight.shape
        errors_SR = np.zeros((len(own), relations), np.float32)
        inputs_SF = np.zeros((len(own), dim), np.float32)
        target_RF = np.zeros((relations, dim), np.float64)
        with predicting(model):
            for batch in self.reads(model, own.text):
                features_BF = model.features(beside(batch, model))
                logits_BR, features_BF = home(model.relation(features_BF)), home(features_BF)
                chosen_BR, allowed_BR = self._possible(own, batch)
                right_BR = (logits_BR + allowed_BR).softmax(1)
                errors_BR = ((logits_BR + chosen_BR).softmax(1) - right_BR).numpy()
                own_B1 = own.source_S[batch.rows_B][:, None]
                errors_SR[batch.rows_B] = errors_BR * own_B1
                inputs_SF[batch.rows_B] = features_BF.numpy()
                target_RF += (errors_BR * ~own_B1).T.astype(np.float64) @ features_BF.numpy()
        target_G = target_RF.astype(np.float32).ravel()
        return Pulls(OuterGradients(errors_SR, inputs_SF), target_G, int((~own.source_S).sum()))

    def cells(self, text: EncodedRelations) -> Cells:
        """The rows of a public text: its pairs, each as if it were a sentence of one word."""
        return Cells.of([Window(row, 0, 1, 0, 1) for row in range(len(text))])

    def beliefs(self, model: RelationClassifier, batch: RelationBatch, output: Tensor) -> Tensor:
        """logits_BNZ of the one row, a pair."""
        return output[:, None]

    def _possible(self, own: LabelledPairs, batch: RelationBatch) -> tuple[Tensor, Tensor]:
        """chosen_BR and allowed_BR, logarithms of weights.

        A pair chooses among the former, and its label is any of the latter.
        """
        some_B1 = on(~own.open_S[batch.rows_B], batch.relations_B)[:, None]
        unknown_R = on(~own.own_R, batch.relations_B)
        own_BR = functional.one_hot(batch.relations_B, len(unknown_R)).float()
        if not self.open:
            return (~(some_B1 & unknown_R)).float().log(), own_BR.log()
        bare_B1 = some_B1 & (batch.relations_B == 0)[:, None]
        return torch.zeros_like(own_BR), (own_BR + self.open * (bare_B1 & unknown_R)).log()

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


def probabilities(logits_SR: NDArray[np.floating]) -> NDArray[np.float64]:
    """The softmax of each row; a logit of minus infinity gives 0."""
    likely_SR: NDArray[np.float64] = np.exp(
        logits_SR.astype(np.float64) - logits_SR.max(1, keepdims=True)
    )
    likely_SR /= likely_SR.sum(1, keepdims=True)
    return likely_SR
