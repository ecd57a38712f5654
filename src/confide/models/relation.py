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
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.models.bodies import states_of

Pool = Literal["sum", "start", "max", "cls"]


class RelationInput(Protocol):
    """A padded batch. `head_BP` and `tail_BP` are true at the pieces of each entity.

    `features_BF` are those that a model reads, if they are known already.
    """

    @property
    def ids_BP(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def mask_BP(self) -> Tensor | None: ...  # noqa: D102, N802
    @property
    def head_BP(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def tail_BP(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def openings_B2(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def relations_B(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def features_BF(self) -> Tensor | None: ...  # noqa: D102, N802


@dataclass(frozen=True)
class RelationSizes:
    """`dim` is the width of the encoder's states."""

    dim: int
    relations: int
    pool: Pool = "sum"
    dropout: float = 0.1


class RelationClassifier(nn.Module):
    """`encoder` takes `input_ids` and `attention_mask`, and gives `last_hidden_state`."""

    def __init__(self, encoder: nn.Module, sizes: RelationSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder = encoder
        self.dropout = nn.Dropout(sizes.dropout)
        read = 1 if sizes.pool == "cls" else 3
        self.relation = nn.Linear(read * sizes.dim, sizes.relations)

    def forward(self, batch: RelationInput) -> Tensor:
        """logits_BR."""
        logits_BR: Tensor = self.relation(self.dropout(self.features(batch)))
        return logits_BR

    def features(self, batch: RelationInput) -> Tensor:
        """features_BF, F = 3 · dim (`pool = "cls"`: dim): h, the last layer's input."""
        if batch.features_BF is not None:
            return batch.features_BF
        states_BPD = states_of(self.encoder, batch)
        if self.sizes.pool == "cls":
            return states_BPD[:, 0]
        entities_B2D = _entities(states_BPD, batch, self.sizes.pool)
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

    def forward(self, batch: RelationInput) -> Tensor:
        """features_BF."""
        if batch.features_BF is not None:
            return batch.features_BF
        return _entities(states_of(self.encoder, batch), batch, self.pool).flatten(1)


def _entities(states_BPD: Tensor, batch: RelationInput, pool: Pool) -> Tensor:
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


def loss(model: RelationClassifier, batch: RelationInput) -> Tensor:
    """loss_B: the negative log-likelihood of each example's relation."""
    return functional.cross_entropy(model(batch), batch.relations_B, reduction="none")
