"""The layers of a tagger: an LSTM for each direction, locked dropout, characters to words.

Sequences are not packed: packing leaves a CPU's fast path. The backward direction is an ordinary
LSTM over length-reversed sentences, so padding always comes last.

Shapes: B sentences, L tokens, U distinct words, C characters, D features in, H features out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from confide.models.autograd import Context
from confide.models.crf import mirrored


class _Mirror(torch.autograd.Function):
    """Reverses sentences. It is its own inverse, so the gradient is the same operation."""

    @staticmethod
    def forward(ctx: Context, values_BLD: Tensor, places_BL: Tensor) -> Tensor:
        batch, length, features = values_BLD.shape
        rows_BL = places_BL + length * torch.arange(batch, device=places_BL.device)[:, None]
        ctx.save_for_backward(rows_BL.flatten())
        turned: Tensor = values_BLD.reshape(-1, features).index_select(0, rows_BL.flatten())
        return turned.view(batch, length, features)

    @staticmethod
    def backward(ctx: Context, gradient_BLD: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        turned = gradient_BLD.reshape(-1, gradient_BLD.shape[2]).index_select(0, rows)
        return turned.view(gradient_BLD.shape), None


def mirror(values_BLD: Tensor, lengths_B: Tensor) -> Tensor:
    """Each sentence from its last token to its first; padding stays in place."""
    places_BL = mirrored(lengths_B, values_BLD.shape[1])
    if (
        torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()
    ):  # no function of our own in a graph
        return values_BLD.gather(1, places_BL[:, :, None].expand_as(values_BLD))
    turned: Tensor = _Mirror.apply(values_BLD, places_BL)  # type: ignore[no-untyped-call]
    return turned


class LockedDropout(nn.Module):
    """Dropout with one mask per sentence, the same for all tokens (Gal & Ghahramani 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values_BLD: Tensor) -> Tensor:
        """The values, in training with some features of each sentence set to zero."""
        if not self.training or self.rate == 0.0:
            return values_BLD
        shape = (values_BLD.shape[0], 1, values_BLD.shape[2])
        keep_B1D = torch.empty(shape, device=values_BLD.device)
        keep_B1D.bernoulli_(1.0 - self.rate).div_(1.0 - self.rate)
        return values_BLD * keep_B1D.to(values_BLD.dtype)


class BiLSTM(nn.Module):
    """Stacked bidirectional LSTM: BLD -> BL(2H), the same numbers as a packed `nn.LSTM`.

    `forwards` and `backwards` hold one LSTM per layer; dropout is applied between layers.
    """

    def __init__(
        self, features: int, hidden: int, *, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [features] + [2 * hidden] * (layers - 1)
        self.forwards = nn.ModuleList(nn.LSTM(w, hidden, batch_first=True) for w in widths)
        self.backwards = nn.ModuleList(nn.LSTM(w, hidden, batch_first=True) for w in widths)
        self.between = LockedDropout(dropout)
        for name, parameter in self.named_parameters():
            _start_lstm(name, parameter)

    def forward(self, values_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """Both directions of the last layer side by side; values in the padding are meaningless."""
        for layer, (ahead, back) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if layer:
                values_BLD = self.between(values_BLD)
            ahead_BLH, _ = ahead(values_BLD)
            back_BLH, _ = back(mirror(values_BLD, lengths_B))
            values_BLD = torch.cat([ahead_BLH, mirror(back_BLH, lengths_B)], 2)
        return values_BLD


def _start_lstm(name: str, parameter: nn.Parameter) -> None:
    """Glorot for input weights, orthogonal for recurrent ones, forget gates open (bias 1)."""
    with torch.no_grad():
        gates = parameter.chunk(4)
        if "weight_ih" in name:
            for gate in gates:
                nn.init.xavier_uniform_(gate)
        elif "weight_hh" in name:
            for gate in gates:
                nn.init.orthogonal_(gate)
        else:
            parameter.zero_()
            if "bias_ih" in name:
                gates[1].fill_(1.0)


class CharacterCNN(nn.Module):
    """Words from characters: embedding, convolution, maximum over places (Ma & Hovy 2016, 2.1)."""

    def __init__(
        self, characters: int, dim: int, *, filters: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = start_embedding(characters, dim)
        self.convolution = nn.Conv1d(dim, filters, width, padding=width // 2)
        self.dropout = LockedDropout(dropout)
        self.features = filters
        nn.init.xavier_uniform_(self.convolution.weight)
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]

    def forward(self, characters_UC: Tensor, lengths_U: Tensor) -> Tensor:
        """words_UH: the maximum of each filter over a word."""
        values_UDC = self.dropout(self.embedding(characters_UC)).transpose(1, 2)
        answers_UHC = self.convolution(values_UDC)[:, :, : characters_UC.shape[1]]
        outside_UC = _steps(characters_UC.shape[1], lengths_U) >= lengths_U[:, None]
        words_UH: Tensor = answers_UHC.masked_fill(outside_UC[:, None, :], -math.inf).amax(2)
        return words_UH


class CharacterBiLSTM(nn.Module):
    """Words from characters: the last state of each direction (Lample et al. 2016, 4.1)."""

    def __init__(self, characters: int, dim: int, *, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding = start_embedding(characters, dim)
        self.bilstm = BiLSTM(dim, hidden)
        self.dropout = LockedDropout(dropout)
        self.features = 2 * hidden

    def forward(self, characters_UC: Tensor, lengths_U: Tensor) -> Tensor:
        """words_UH: forward direction at the last character, backward direction at the first."""
        values_UCD = self.dropout(self.embedding(characters_UC))
        states_UCH: Tensor = self.bilstm(values_UCD, lengths_U)
        half = states_UCH.shape[2] // 2
        ahead_UH = states_UCH[_steps(lengths_U.shape[0], lengths_U), lengths_U - 1, :half]
        return torch.cat([ahead_UH, states_UCH[:, 0, half:]], 1)


class WordCNN(nn.Module):
    """Parallel convolutions over the words of a sentence, one for each width (Kim 2014).

    Sentences are zero-padded on both sides, so their values do not depend on their batch. Widths
    are odd.
    """

    def __init__(self, features: int, *, filters: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(features, filters, width, padding=width // 2) for width in widths
        )
        self.features = filters * len(widths)
        for name, parameter in self.named_parameters():
            start = nn.init.zeros_ if name.endswith("bias") else nn.init.xavier_uniform_
            start(parameter)

    def forward(self, values_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """values_BLH, rectified; those in the padding are meaningless."""
        inside_BL1 = (_steps(values_BLD.shape[1], lengths_B) < lengths_B[:, None])[:, :, None]
        values_BDL = (values_BLD * inside_BL1).transpose(1, 2)
        answers_BHL = torch.cat([convolve(values_BDL) for convolve in self.convolutions], 1)
        return torch.relu(answers_BHL).transpose(1, 2)


def _steps(count: int, beside: Tensor) -> Tensor:
    return torch.arange(count, device=beside.device)


def start_embedding(rows: int, dim: int) -> nn.Embedding:
    """From scratch: uniform in ±sqrt(3 / dim) (Ma & Hovy 2016, 3.1); row 0 is padding."""
    embedding = nn.Embedding(rows, dim, padding_idx=0)
    bound = math.sqrt(3.0 / dim)
    with torch.no_grad():
        embedding.weight.uniform_(-bound, bound)
        embedding.weight[0].zero_()
    return embedding
