"""BiLSTM-CNNs-CRF: words and characters in, emissions out (Ma & Hovy 2016, Fig. 3).

    word embedding ⊕ characters (CNN or BiLSTM) ⊕ contextual features
        → word CNN → BiLSTM → linear → CRF, with dropout after each

Contextual features and the word CNN are those of Ge et al. 2020, 3.1 (FedNER); without them it is
Ma & Hovy's tagger, and characters, word CNN and BiLSTM can each be left out.

The parts are attributes with fixed names (`PARTS`), so a method can name those that it shares;
`crf` is the linear layer and the moves: all that depends on the tag set. Contextual features have
no parameters. Loss, decoding and posterior are functions beside the model, on the same `forward`.

Shapes: B sentences, L tokens, U distinct words of the batch, D features, X contextual features, Y
tags, R rows with an entity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from confide.models.crf import (
    CRF,
    Posterior,
    Rules,
    Scores,
    negative_log_likelihood,
    posterior,
    viterbi,
)
from confide.models.layers import (
    BiLSTM,
    CharacterBiLSTM,
    CharacterCNN,
    LockedDropout,
    WordCNN,
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
    def context_BLX(self) -> Tensor | None: ...  # noqa: D102, N802
    @property
    def tags_BL(self) -> Tensor: ...  # noqa: D102, N802


PARTS = ("word", "character", "cnn", "bilstm", "crf")
"""The parts of a tagger that have parameters, from bottom to top."""


@dataclass(frozen=True)
class TaggerSizes:
    """A tagger's sizes, and its dropout rate.

    `words`, `characters` and `tags` count ids, including those of padding and the unknown.
    `context_dim = 0` means no contextual features; `cnn_filters` is per width of `cnn_widths`, 0
    means no word CNN; `bilstm_layers = 0` means no BiLSTM.
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
    context_dim: int = 0
    cnn_filters: int = 0
    cnn_widths: tuple[int, ...] = (3,)
    bilstm_hidden: int = 200
    bilstm_layers: int = 1
    dropout: float = 0.5


class CrfTagger(nn.Module):
    """Any model whose `forward` gives the emissions_BLY of a `TaggerInput`, and its CRF."""

    crf: CRF


class Tagger(CrfTagger):
    """The model of one tag set; a part that it lacks is None.

    Without `rules` every move between tags is allowed.
    """

    def __init__(self, sizes: TaggerSizes, rules: Rules | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.word = start_embedding(sizes.words, sizes.word_dim)
        self.character = _character_part(sizes)
        width = sizes.word_dim + (self.character.features if self.character else 0)
        width += sizes.context_dim
        self.cnn = None
        if sizes.cnn_filters:
            self.cnn = WordCNN(width, filters=sizes.cnn_filters, widths=sizes.cnn_widths)
            width = self.cnn.features
        self.bilstm = None
        if sizes.bilstm_layers:
            self.bilstm = BiLSTM(
                width, sizes.bilstm_hidden, layers=sizes.bilstm_layers, dropout=sizes.dropout
            )
            width = 2 * sizes.bilstm_hidden
        self.crf = CRF(width, sizes.tags, rules=rules)
        self.dropout = LockedDropout(sizes.dropout)

    def forward(self, batch: TaggerInput) -> Tensor:
        """emissions_BLY; those in the padding are meaningless."""
        features = [self.word(batch.words_BL)]
        if self.character is not None:
            spelled_UD = self.character(batch.characters_UC, batch.character_lengths_U)
            features.append(spelled_UD[batch.forms_BL])
        if self.sizes.context_dim:
            assert batch.context_BLX is not None
            features.append(batch.context_BLX)
        values_BLD = self.dropout(torch.cat(features, 2))
        if self.cnn is not None:
            values_BLD = self.dropout(self.cnn(values_BLD, batch.lengths_B))
        if self.bilstm is not None:
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


def loss(model: CrfTagger, batch: TaggerInput) -> Tensor:
    """loss_B: the negative log-likelihood of each sentence's tags."""
    return negative_log_likelihood(
        model(batch), model.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
    )


def decode_with_posterior(
    emissions_BLY: Tensor, scores: Scores, *, lengths_B: Tensor
) -> tuple[Tensor, Tensor, Posterior | None]:
    """The best paths, the rows that have an entity, and the posterior of only these rows.

    The posterior is None if no row has an entity.
    """
    tags_BL = viterbi(emissions_BLY, scores, lengths_B=lengths_B)
    rows_R = tags_BL.any(1).nonzero()[:, 0]
    if not len(rows_R):
        return tags_BL, rows_R, None
    found = posterior(emissions_BLY[rows_R], scores, lengths_B=lengths_B[rows_R])
    return tags_BL, rows_R, found
