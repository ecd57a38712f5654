"""A token classifier: an encoder of text, and one linear layer over the first piece of each word.

Devlin et al. 2019 (BERT), 5.3: the state of a word's first piece stands for the word, and each word
is classified by itself,

    P(y_t = j) = softmax_j(linear(dropout(state_t)))

so the loss of a sentence is the sum over its words, and splits by word into any two parts. Only
decoding knows which tags may follow each other: it finds the best path that the scheme's rules
allow (Viterbi), without learned scores of moves.

Shapes: B sentences (windows), P pieces, L words, D numbers of a state, Y tags, N spans, K words of
a span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.models.bodies import states_of
from confide.models.crf import FORBIDDEN, Rules, Scores, viterbi


class TokenInput(Protocol):
    """A padded batch. `firsts_BL` is the index of each word's first piece; 0 in the padding."""

    @property
    def ids_BP(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def mask_BP(self) -> Tensor | None: ...  # noqa: D102, N802
    @property
    def firsts_BL(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def lengths_B(self) -> Tensor: ...  # noqa: D102, N802


class WordInput(TokenInput, Protocol):
    """`features_BLD` are those of `TokenClassifier.features`, if they are known already."""

    @property
    def features_BLD(self) -> Tensor | None: ...  # noqa: D102, N802


class Tagged(Protocol):
    """The tags of a batch's words; `source_BL` is true at words of the source loss."""

    @property
    def lengths_B(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def tags_BL(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def source_BL(self) -> Tensor: ...  # noqa: D102, N802


@dataclass(frozen=True)
class TokenSizes:
    """`dim` is the width of the encoder's states."""

    dim: int
    tags: int
    dropout: float = 0.1


class TokenClassifier(nn.Module):
    """`encoder` takes `input_ids` and `attention_mask`, and gives `last_hidden_state`."""

    def __init__(self, encoder: nn.Module, sizes: TokenSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder = encoder
        self.dropout = nn.Dropout(sizes.dropout)
        self.tag = nn.Linear(sizes.dim, sizes.tags)

    def forward(self, batch: WordInput) -> Tensor:
        """logits_BLY; those in the padding are meaningless."""
        logits_BLY: Tensor = self.tag(self.dropout(self.features(batch)))
        return logits_BLY

    def features(self, batch: WordInput) -> Tensor:
        """features_BLD: the state of each word's first piece, the last layer's input."""
        if batch.features_BLD is not None:
            return batch.features_BLD
        states_BPD = states_of(self.encoder, batch)
        rows_B1 = torch.arange(len(states_BPD), device=states_BPD.device)[:, None]
        return states_BPD[rows_B1, batch.firsts_BL]


def word_losses(logits_BLY: Tensor, batch: Tagged) -> Tensor:
    """loss_BL: the negative log-likelihood of each word's tag, 0 in the padding."""
    losses_BL = functional.cross_entropy(
        logits_BLY.transpose(1, 2), batch.tags_BL, reduction="none"
    )
    inside_BL = (
        torch.arange(logits_BLY.shape[1], device=batch.lengths_B.device) < batch.lengths_B[:, None]
    )
    return losses_BL.masked_fill(~inside_BL, 0.0)


def parted(losses_BL: Tensor, source_BL: Tensor) -> tuple[Tensor, Tensor]:
    """source_B and target_B: the sums over each text's tokens, or the symbols written of it.

    Wang et al. 2023, Eq. 6 to 9.
    """
    of_source_B = losses_BL.masked_fill(~source_BL, 0.0).sum(1)
    return of_source_B, losses_BL.masked_fill(source_BL, 0.0).sum(1)


def path_scores(rules: Rules) -> Scores:
    """What decoding adds to the words' own scores: nothing if a move is allowed."""
    return Scores(*(torch.zeros(part.shape).masked_fill(~part, FORBIDDEN) for part in rules))


def decode(logits_BLY: Tensor, scores: Scores, *, lengths_B: Tensor) -> Tensor:
    """tags_BL: the likeliest path of each sentence that the rules allow, 0 in the padding."""
    return viterbi(logits_BLY.log_softmax(2), scores, lengths_B=lengths_B)


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
