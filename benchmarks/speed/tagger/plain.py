"""Two BiLSTM-CNN-CRFs: as tutorials write it, and as somebody writes it who times it.

The first has packed sequences, characters per token and pytorch-crf. The second reads each distinct
word's characters once, packs nothing, and computes the CRF for all sentences at once.
"""

from __future__ import annotations

import math

import torch
import torchcrf
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from confide.training.tagger import Tagger, TaggerBatch, TaggerSizes


class PlainTagger(nn.Module):
    """The sizes of ours. Its weights can be copied from ours, and then its loss is the same."""

    def __init__(self, sizes: TaggerSizes) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.words, sizes.word_dim, padding_idx=0)
        self.character = nn.Embedding(sizes.characters, sizes.character_dim, padding_idx=0)
        self.convolution = nn.Conv1d(
            sizes.character_dim,
            sizes.character_filters,
            sizes.character_width,
            padding=sizes.character_width // 2,
        )
        width = sizes.word_dim + sizes.character_filters
        self.lstm = nn.LSTM(width, sizes.bilstm_hidden, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(2 * sizes.bilstm_hidden, sizes.tags)
        self.crf = torchcrf.CRF(sizes.tags, batch_first=True)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, words_BL: Tensor, characters_BLC: Tensor, mask_BL: Tensor) -> Tensor:
        batch, length, spelled = characters_BLC.shape
        characters = self.dropout(self.character(characters_BLC))
        characters = characters.view(batch * length, spelled, -1).transpose(1, 2)
        outside = characters_BLC.view(batch * length, 1, spelled) == 0
        answers = self.convolution(characters).masked_fill(outside, -math.inf)
        spelled_BLD = answers.amax(2).view(batch, length, -1)
        spelled_BLD = spelled_BLD.masked_fill(
            ~mask_BL[:, :, None], 0.0
        )  # padding has no characters
        values = self.dropout(torch.cat([self.word(words_BL), spelled_BLD], 2))
        packed = pack_padded_sequence(
            values, mask_BL.sum(1), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        emissions_BLY: Tensor = self.linear(self.dropout(states))
        return emissions_BLY

    def loss(self, batch: TaggerBatch) -> Tensor:
        emissions = self(batch.words_BL, characters_of(batch), batch.mask_BL)
        likelihood: Tensor = self.crf(
            emissions, batch.tags_BL, mask=batch.mask_BL, reduction="mean"
        )
        return -likelihood

    def decode(self, batch: TaggerBatch) -> list[list[int]]:
        emissions = self(batch.words_BL, characters_of(batch), batch.mask_BL)
        paths: list[list[int]] = self.crf.decode(emissions, mask=batch.mask_BL)
        return paths

    @torch.no_grad()
    def copy_from(self, ours: Tagger) -> None:
        """Takes over the weights of a tagger with a character CNN and one BiLSTM layer."""
        for mine, other in (
            (self.word.weight, ours.word.weight),
            (self.character.weight, ours.character.embedding.weight),
            (self.convolution.weight, ours.character.convolution.weight),
            (self.convolution.bias, ours.character.convolution.bias),
            (self.linear.weight, ours.crf.linear.weight),
            (self.linear.bias, ours.crf.linear.bias),
            (self.crf.transitions, ours.crf.scores().moves_YY),
            (self.crf.start_transitions, ours.crf.scores().starts_Y),
            (self.crf.end_transitions, ours.crf.scores().ends_Y),
        ):
            mine.copy_(other)
        for part, end in ((ours.bilstm.forwards[0], ""), (ours.bilstm.backwards[0], "_reverse")):
            for name, value in part.named_parameters():
                getattr(self.lstm, name + end).copy_(value)


def characters_of(batch: TaggerBatch) -> Tensor:
    """characters_BLC: the spelling of every token, as a plain data loader pads it."""
    return batch.characters_UC[batch.forms_BL] * batch.mask_BL[:, :, None]


class CarefulTagger(PlainTagger):
    """The same parameters, written to be fast; its LSTM reads the padding behind a sentence."""

    def emissions(self, batch: TaggerBatch) -> Tensor:
        spelled_UCD = self.dropout(self.character(batch.characters_UC))
        answers_UDC = self.convolution(spelled_UCD.transpose(1, 2))
        outside_UC = torch.arange(answers_UDC.shape[2]) >= batch.character_lengths_U[:, None]
        words_UD = answers_UDC.masked_fill(outside_UC[:, None], -math.inf).amax(2)
        values_BLD = torch.cat([self.word(batch.words_BL), words_UD[batch.forms_BL]], 2)
        states_BLD, _ = self.lstm(self.dropout(values_BLD))
        emissions_BLY: Tensor = self.linear(self.dropout(states_BLD))
        return emissions_BLY

    def loss(self, batch: TaggerBatch) -> Tensor:
        return self.crf_loss(self.emissions(batch), batch).mean()

    def crf_loss(self, emissions_BLY: Tensor, batch: TaggerBatch) -> Tensor:
        """The negative log-likelihood of each sentence: log Z by products of exponentials."""
        crf, tags_BL, inside_BL = self.crf, batch.tags_BL, batch.mask_BL.float()
        path_B = crf.start_transitions[tags_BL[:, 0]]
        path_B = path_B + (emissions_BLY.gather(2, tags_BL[:, :, None])[:, :, 0] * inside_BL).sum(1)
        moves_BL = crf.transitions[tags_BL[:, :-1], tags_BL[:, 1:]]
        path_B = path_B + (moves_BL * inside_BL[:, 1:]).sum(1)
        last_B1 = tags_BL.gather(1, batch.lengths_B[:, None] - 1)
        path_B = path_B + crf.end_transitions[last_B1[:, 0]]
        moves_YY = crf.transitions.exp()
        before_BY = crf.start_transitions + emissions_BLY[:, 0]
        for place in range(1, emissions_BLY.shape[1]):
            most_B1 = before_BY.amax(1, keepdim=True)
            grown_BY = ((before_BY - most_B1).exp() @ moves_YY).log() + most_B1
            now_BY = grown_BY + emissions_BLY[:, place]
            before_BY = torch.where(batch.mask_BL[:, place, None], now_BY, before_BY)
        return torch.logsumexp(before_BY + crf.end_transitions, 1) - path_B

    def decode(self, batch: TaggerBatch) -> list[list[int]]:
        emissions_BLY, crf = self.emissions(batch), self.crf
        best_BY = crf.start_transitions + emissions_BLY[:, 0]
        stay_Y = torch.arange(best_BY.shape[1])
        before = []
        for place in range(1, emissions_BLY.shape[1]):
            found_BY, from_BY = (best_BY[:, :, None] + crf.transitions).max(1)
            inside_B1 = batch.mask_BL[:, place, None]
            best_BY = torch.where(inside_B1, found_BY + emissions_BLY[:, place], best_BY)
            before.append(torch.where(inside_B1, from_BY, stay_Y))
        tags = [(best_BY + crf.end_transitions).argmax(1)]
        for from_BY in reversed(before):
            tags.append(from_BY.gather(1, tags[-1][:, None])[:, 0])
        paths_BL = torch.stack(tags[::-1], 1).tolist()
        return [path[:n] for path, n in zip(paths_BL, batch.lengths_B.tolist(), strict=True)]
