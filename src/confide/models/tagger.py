"""BiLSTM-CNNs-CRF: words and characters in, emissions out (Ma & Hovy 2016, Fig. 3).

    word embedding ⊕ characters (CNN or BiLSTM) → dropout → BiLSTM → dropout → linear → CRF

The parts are attributes with fixed names, so that a method can say which of them it shares:
`word`, `character`, `bilstm` and `crf` (the linear layer and the moves: all that depends on the tag
set). Loss, decoding and posterior stand beside the model and call the same `forward`.

Shapes: B sentences, L tokens, U distinct words of the batch, D features, Y tags, R rows with an
entity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from confide.models.crf import CRF, Posterior, Rules, negative_log_likelihood, posterior, viterbi
from confide.models.layers import (
    BiLSTM,
    CharacterBiLSTM,
    CharacterCNN,
    LockedDropout,
    start_embedding,
)


class TaggerInput(Protocol):
    """A padded batch; `forms_BL` are rows of `characters_UC`, the distinct words of the batch."""

    @property
    def words_BL(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def lengths_B(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def forms_BL(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def characters_UC(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def character_lengths_U(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def tags_BL(self) -> Tensor: ...  # noqa: D102, N802


@dataclass(frozen=True)
class TaggerSizes:
    """All that a tagger's shape depends on, and its dropout rate.

    `words`, `characters` and `tags` count ids, those of padding and of the unknown included.
    """

    words: int
    characters: int
    tags: int
    word_dim: int = 100
    character: Literal["cnn", "bilstm", "none"] = "cnn"
    character_dim: int = 30
    character_filters: int = 30
    character_width: int = 3
    character_hidden: int = 25
    bilstm_hidden: int = 200
    bilstm_layers: int = 1
    dropout: float = 0.5


class Tagger(nn.Module):
    """The model of one tag set; its parts are `word`, `character`, `bilstm` and `crf`.

    Without `rules` every move between tags is possible.
    """

    def __init__(self, sizes: TaggerSizes, rules: Rules | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.word = start_embedding(sizes.words, sizes.word_dim)
        self.character = _character_part(sizes)
        width = sizes.word_dim + (self.character.features if self.character else 0)
        self.bilstm = BiLSTM(
            width, sizes.bilstm_hidden, layers=sizes.bilstm_layers, dropout=sizes.dropout
        )
        self.crf = CRF(2 * sizes.bilstm_hidden, sizes.tags, rules=rules)
        self.dropout = LockedDropout(sizes.dropout)

    def forward(self, batch: TaggerInput) -> Tensor:
        """emissions_BLY; those in the padding hold no meaning."""
        features = [self.word(batch.words_BL)]
        if self.character is not None:
            spelled_UD = self.character(batch.characters_UC, batch.character_lengths_U)
            features.append(spelled_UD[batch.forms_BL])
        values_BLD = self.dropout(torch.cat(features, 2))
        values_BLD = self.dropout(self.bilstm(values_BLD, batch.lengths_B))
        emissions_BLY: Tensor = self.crf(values_BLD)
        return emissions_BLY


def _character_part(sizes: TaggerSizes) -> CharacterCNN | CharacterBiLSTM | None:
    if sizes.character == "cnn":
        return CharacterCNN(
            sizes.characters,
            sizes.character_dim,
            filters=sizes.character_filters,
            width=sizes.character_width,
            dropout=sizes.dropout,
        )
    if sizes.character == "bilstm":
        return CharacterBiLSTM(
            sizes.characters,
            sizes.character_dim,
            hidden=sizes.character_hidden,
            dropout=sizes.dropout,
        )
    return None


def loss(model: Tagger, batch: TaggerInput) -> Tensor:
    """loss_B: the negative log-likelihood of each sentence's tags."""
    return negative_log_likelihood(
        model(batch), model.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
    )


def decode(model: Tagger, batch: TaggerInput) -> Tensor:
    """tags_BL: the best path of each sentence, 0 in the padding."""
    return viterbi(model(batch), model.crf.scores(), lengths_B=batch.lengths_B)


def decode_with_posterior(
    model: Tagger, batch: TaggerInput
) -> tuple[Tensor, Tensor, Posterior | None]:
    """The best paths, the rows that have an entity, and the posterior of just these rows.

    The posterior is None where no row has one: what nobody asks for is not computed.
    """
    emissions_BLY, scores = model(batch), model.crf.scores()
    tags_BL = viterbi(emissions_BLY, scores, lengths_B=batch.lengths_B)
    rows_R = tags_BL.any(1).nonzero()[:, 0]
    if not len(rows_R):
        return tags_BL, rows_R, None
    found = posterior(emissions_BLY[rows_R], scores, lengths_B=batch.lengths_B[rows_R])
    return tags_BL, rows_R, found
