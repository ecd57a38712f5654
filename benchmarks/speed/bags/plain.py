"""A PCNN with selective attention as tutorials write it: padded, dense gradients, torch's own SGD.

Its weights can be copied from ours, and then its loss is the same.

Shapes: S sentences, L words (all padded to the longest allowed), D numbers of a word with its
positions, H filters, G bags, R relations.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from confide.kinds.bags.batches import EncodedSentences
from confide.kinds.bags.model import BagModel, Pcnn


class PlainBatch:
    """Some bags: everything padded to `longest`."""

    def __init__(
        self, encoded: EncodedSentences, groups: list[NDArray[np.int64]], longest: int
    ) -> None:
        rows = np.concatenate(groups)
        far = encoded.farthest
        shape = (len(rows), longest)
        words, heads, tails = (np.zeros(shape, np.int64) for _ in range(3))
        pieces = np.zeros((*shape, 3), np.float32)
        for place, row in enumerate(rows):
            start, end = encoded.from_S1[row], encoded.from_S1[row + 1]
            steps = np.arange(end - start)
            words[place, : end - start] = encoded.words_N[start:end]
            for ids, spans in ((heads, encoded.heads_S2), (tails, encoded.tails_S2)):
                first, last = spans[row]
                away = steps - np.clip(steps, first, last - 1)
                ids[place, : end - start] = np.clip(away, -far, far) + far + 1
            one, two = sorted((encoded.heads_S2[row, 1], encoded.tails_S2[row, 1]))
            pieces[place, :one, 0] = pieces[place, one:two, 1] = 1
            pieces[place, two : end - start, 2] = 1
        self.words_SL, self.heads_SL, self.tails_SL = map(torch.from_numpy, (words, heads, tails))
        self.pieces_SL3 = torch.from_numpy(pieces)
        self.sizes = [len(group) for group in groups]
        first = np.array([group[0] for group in groups])
        self.relations_G = torch.from_numpy(encoded.relations_S[first].astype(np.int64))


class PlainBags(nn.Module):
    """The sizes of ours."""

    def __init__(self, ours: BagModel) -> None:
        super().__init__()
        reader = ours.reader
        assert isinstance(reader, Pcnn)
        self.word, self.head, self.tail = (
            nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False, padding_idx=0)
            for table in (reader.word, reader.head, reader.tail)
        )
        filters, width, dim = reader.filters.shape
        self.convolution = nn.Conv1d(dim, filters, width, padding=width // 2)
        self.convolution.weight = nn.Parameter(reader.filters.detach().transpose(1, 2).clone())
        self.convolution.bias = nn.Parameter(reader.bias.detach().clone())
        self.dropout = nn.Dropout(ours.dropout.p)
        self.relation = nn.Linear(3 * filters, len(ours.relation.bias))
        self.relation.load_state_dict(ours.relation.state_dict())

    def features(self, batch: PlainBatch) -> Tensor:
        """features_SF."""
        parts = (self.word(batch.words_SL), self.head(batch.heads_SL), self.tail(batch.tails_SL))
        answers_SHL = self.convolution(torch.cat(parts, 2).transpose(1, 2))
        pieces_S3L = batch.pieces_SL3.transpose(1, 2)
        inside = answers_SHL[:, None] + (pieces_S3L[:, :, None] - 1) * 1e4
        empty_S31 = pieces_S3L.sum(2, keepdim=True) == 0
        return torch.tanh(inside.amax(3).masked_fill(empty_S31, 0.0)).flatten(1)

    def loss(self, batch: PlainBatch) -> Tensor:
        """The mean over bags, under selective attention."""
        bags = []
        for own, relation in zip(
            self.features(batch).split(batch.sizes), batch.relations_G, strict=True
        ):
            weights = torch.softmax(own @ self.relation.weight[relation], 0)
            bags.append(weights @ own)
        logits_GR = self.relation(self.dropout(torch.stack(bags)))
        return functional.cross_entropy(logits_GR, batch.relations_G)
