"""The token classifier's head, its losses and its paths, against loops."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional

from cases import each
from confide.kinds.encoder import (
    TokenClassifier,
    best_paths,
    parted,
    path_probabilities,
    path_scores,
    word_losses,
)
from confide.training.batches import TagScheme, TagSet


class Table(nn.Module):
    """States that are rows of a table: each piece has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(50, 6)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.rows(input_ids))


@dataclass
class Batch:
    ids_BP: Tensor
    firsts_BL: Tensor
    lengths_B: Tensor
    tags_BL: Tensor
    source_BL: Tensor
    mask_BP: Tensor | None = None
    features_BLD: Tensor | None = None


BATCH = Batch(
    ids_BP=torch.tensor([[2, 10, 11, 12, 3], [2, 20, 3, 0, 0]]),
    firsts_BL=torch.tensor([[1, 3], [1, 0]]),
    lengths_B=torch.tensor([2, 1]),
    tags_BL=torch.tensor([[1, 2], [3, 0]]),
    source_BL=torch.tensor([[True, False], [False, False]]),
)


def model() -> TokenClassifier:
    torch.manual_seed(2)
    return TokenClassifier(Table(), dim=6, tags=5).eval()


def test_a_word_is_its_first_piece() -> None:
    made = model()
    logits = made(BATCH)
    for row, word, piece in ((0, 0, 10), (0, 1, 12), (1, 0, 20)):
        state = made.encoder.rows.weight[piece]
        wanted = made.tag.weight @ state + made.tag.bias
        torch.testing.assert_close(logits[row, word], wanted)


def test_losses_are_those_of_each_word_and_zero_in_the_padding() -> None:
    logits = model()(BATCH)
    found = word_losses(logits, BATCH)
    for row, word in ((0, 0), (0, 1), (1, 0)):
        wanted = -functional.log_softmax(logits[row, word], 0)[BATCH.tags_BL[row, word]]
        torch.testing.assert_close(found[row, word], wanted)
    assert found[1, 1] == 0.0
    source, target = parted(found, BATCH.source_BL)
    torch.testing.assert_close(source, torch.stack((found[0, 0], torch.tensor(0.0))))
    torch.testing.assert_close(target, torch.stack((found[0, 1], found[1, 0])))


def test_dropout_works_in_training_alone() -> None:
    made = model()
    assert torch.equal(made(BATCH), made(BATCH))
    made.train()
    assert not torch.equal(made(BATCH), made(BATCH))


@each("scheme", ["iobes", "iob2"])
def test_the_path_is_the_likeliest_that_the_scheme_allows(scheme: TagScheme) -> None:
    tags = TagSet(("a", "b"), scheme)
    rules = tags.rules
    moves, starts, ends = (torch.from_numpy(part) for part in rules)
    torch.manual_seed(5)
    logits = 2.0 * torch.randn(6, 4, len(tags))
    lengths = torch.tensor([4, 3, 1, 4, 2, 4])
    found = best_paths(logits, path_scores((moves, starts, ends)), lengths_B=lengths)
    chances = logits.softmax(2)
    differ = 0
    for row, length in enumerate(lengths.tolist()):
        best, most = None, -1.0
        for path in itertools.product(range(len(tags)), repeat=length):
            allowed = rules.starts_Y[path[0]] and rules.ends_Y[path[-1]]
            if allowed and all(rules.moves_YY[i, j] for i, j in itertools.pairwise(path)):
                chance = float(chances[row, torch.arange(length), torch.tensor(path)].prod())
                best, most = (path, chance) if chance > most else (best, most)
        assert tuple(found[row, :length].tolist()) == best
        assert not found[row, length:].any()
        differ += best != tuple(logits[row, :length].argmax(1).tolist())
    assert differ  # the rules matter here


def test_a_spans_probability_is_the_product_over_its_words() -> None:
    torch.manual_seed(6)
    chances = torch.randn(2, 3, 4).softmax(2)
    found = path_probabilities(
        chances,
        torch.tensor([[0, 1], [1, 2]]),
        tags_NK=torch.tensor([[3, 1], [2, 0]]),
        lengths_N=torch.tensor([2, 1]),
    )
    wanted = torch.stack((chances[0, 1, 3] * chances[0, 2, 1], chances[1, 2, 2]))
    torch.testing.assert_close(found, wanted)
