"""A BiLSTM-CNN-CRF as tutorials write it: packed sequences, characters per token, pytorch-crf."""

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
