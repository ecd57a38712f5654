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
from typing import Literal

import torch
from torch import Tensor, nn

from confide.data.batches import TaggerBatch
from confide.data.encoding import TagRules
from confide.data.vocabulary import UNK
from confide.models.crf import CRF, Posterior, negative_log_likelihood, posterior, viterbi
from confide.models.layers import (
    BiLSTM,
    CharacterBiLSTM,
    CharacterCNN,
    LockedDropout,
    start_embedding,
)


@dataclass(frozen=True)
class TaggerSizes:
    """All that a tagger's shape depends on, and its two dropout rates.

    `words`, `characters` and `tags` count ids (specials included). `word_dropout` is the share of
    tokens that are read as the unknown word while training, which is how that word is learnt.
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
    word_dropout: float = 0.05


class Tagger(nn.Module):
    """The model of one tag set; its parts are `word`, `character`, `bilstm` and `crf`.

    Without `rules` every move between tags is possible.
    """

    def __init__(self, sizes: TaggerSizes, rules: TagRules | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.word = start_embedding(sizes.words, sizes.word_dim)
        self.character = _character_part(sizes)
        width = sizes.word_dim + (self.character.features if self.character else 0)
        self.bilstm = BiLSTM(
            width, sizes.bilstm_hidden, layers=sizes.bilstm_layers, dropout=sizes.dropout
        )
        allowed = None if rules is None else tuple(torch.from_numpy(part) for part in rules)
        self.crf = CRF(2 * sizes.bilstm_hidden, sizes.tags, rules=allowed)
        self.dropout = LockedDropout(sizes.dropout)

    def forward(self, batch: TaggerBatch) -> Tensor:
        """emissions_BLY; those in the padding hold no meaning."""
        features = [self.word(self._read(batch.words_BL))]
        if self.character is not None:
            spelled_UD = self.character(batch.characters_UC, batch.character_lengths_U)
            features.append(spelled_UD[batch.forms_BL])
        values_BLD = self.dropout(torch.cat(features, 2))
        values_BLD = self.dropout(self.bilstm(values_BLD, batch.lengths_B))
        emissions_BLY: Tensor = self.crf(values_BLD)
        return emissions_BLY

    def _read(self, words_BL: Tensor) -> Tensor:
        if not self.training or self.sizes.word_dropout == 0.0:
            return words_BL
        lost_BL = torch.rand(words_BL.shape) < self.sizes.word_dropout
        return words_BL.masked_fill(lost_BL & (words_BL > UNK), UNK)


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


def loss(model: Tagger, batch: TaggerBatch) -> Tensor:
    """loss_B: the negative log-likelihood of each sentence's tags."""
    return negative_log_likelihood(model(batch), model.crf.scores(), batch.tags_BL, batch.lengths_B)


def decode(model: Tagger, batch: TaggerBatch) -> Tensor:
    """tags_BL: the best path of each sentence, 0 in the padding."""
    return viterbi(model(batch), model.crf.scores(), batch.lengths_B)


def decode_with_posterior(
    model: Tagger, batch: TaggerBatch
) -> tuple[Tensor, Tensor, Posterior | None]:
    """The best paths, the rows that have an entity, and the posterior of just these rows.

    The posterior is None where no row has one: what nobody asks for is not computed.
    """
    emissions_BLY, scores = model(batch), model.crf.scores()
    tags_BL = viterbi(emissions_BLY, scores, batch.lengths_B)
    rows_R = tags_BL.any(1).nonzero()[:, 0]
    if not len(rows_R):
        return tags_BL, rows_R, None
    return tags_BL, rows_R, posterior(emissions_BLY[rows_R], scores, batch.lengths_B[rows_R])
