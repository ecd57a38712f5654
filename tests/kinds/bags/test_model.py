"""Denoisers: bag by bag, what their formulas say, in training and of held-out bags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.kinds.bags import model as bags
from confide.kinds.bags.model import LOGITS, SCORES, BagModel, Denoise, clearest

SIZES = (3, 1, 4)
RELATIONS, FEATURES = 5, 6
DENOISERS: tuple[Denoise, ...] = ("none", "one", "att", "ave", "att-ra")


class Table(nn.Module):
    """A reader whose features are its rows."""

    features = FEATURES

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(sum(SIZES), FEATURES, dtype=torch.double))

    def forward(self, sentences: Tensor) -> Tensor:
        return self.rows[sentences]


@pytest.fixture
def model() -> BagModel:
    torch.manual_seed(1)
    made = BagModel(Table(), RELATIONS, dropout=0.5).double().eval()
    nn.init.normal_(made.relation.bias)
    return made


def batch(denoise: Denoise) -> Any:
    rows_S = torch.arange(sum(SIZES))
    bags_S = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    relations_G = torch.tensor([2, 0, 4])
    if denoise in ("none", "one"):
        return SimpleNamespace(sentences=rows_S, bags_S=rows_S, relations_G=relations_G[bags_S])
    return SimpleNamespace(sentences=rows_S, bags_S=bags_S, relations_G=relations_G)


def slow_loss(denoise: Denoise, model: BagModel) -> Tensor:
    weight, bias = model.relation.weight, model.relation.bias
    found = []
    rows: Any = model.reader.rows
    for own, relation in zip(rows.split(SIZES), (2, 0, 4), strict=True):
        if denoise in ("none", "one"):
            logits = [weight @ sentence + bias for sentence in own]
        elif denoise == "ave":
            logits = [weight @ own.mean(0) + bias]
        elif denoise == "att":
            attention = torch.softmax(own @ weight[relation], 0)
            logits = [weight @ (attention @ own) + bias]
        else:
            bags = [torch.softmax(own @ row, 0) @ own for row in weight]
            each = zip(weight, bags, bias, strict=True)
            logits = [torch.stack([row @ bag + b for row, bag, b in each])]
        found += [-torch.log_softmax(one, 0)[relation] for one in logits]
    return torch.stack(found)


def loss_of(denoise: Denoise, model: BagModel, own: Any) -> Any:
    logits_GR = LOGITS[denoise](model, own)
    return functional.cross_entropy(logits_GR, own.relations_G, reduction="none")


@pytest.mark.parametrize("denoise", DENOISERS)
def test_losses_and_gradients(denoise: Denoise, model: BagModel) -> None:
    ours_G, plain_G = loss_of(denoise, model, batch(denoise)), slow_loss(denoise, model)
    torch.testing.assert_close(ours_G, plain_G)
    parameters = list(model.parameters())
    for ours, plain in zip(
        torch.autograd.grad(ours_G.mean(), parameters),
        torch.autograd.grad(plain_G.mean(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


def slow_score(denoise: Denoise, own_NF: Tensor, relation: nn.Linear) -> Tensor:
    weight, bias = relation.weight, relation.bias
    if denoise in ("none", "one"):
        return torch.stack([torch.softmax(weight @ x + bias, 0) for x in own_NF]).max(0).values
    if denoise == "ave":
        return torch.softmax(weight @ own_NF.mean(0) + bias, 0)
    bags = [torch.softmax(own_NF @ row, 0) @ own_NF for row in weight]
    if denoise == "att":
        return torch.stack([torch.softmax(weight @ b + bias, 0)[k] for k, b in enumerate(bags)])
    each = zip(weight, bags, bias, strict=True)
    return torch.softmax(torch.stack([row @ bag + b for row, bag, b in each]), 0)


@pytest.mark.parametrize("denoise", DENOISERS)
def test_scores_of_held_out_bags(denoise: Denoise, model: BagModel) -> None:
    with torch.no_grad():
        rows: Any = model.reader.rows
        want = torch.stack([slow_score(denoise, own, model.relation) for own in rows.split(SIZES)])
        said_SR = rows @ model.relation.weight.t()
        bags_S = batch("att").bags_S
        found = SCORES[denoise](said_SR, model.relation.bias, bags_S, len(SIZES))
    torch.testing.assert_close(found, want)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


def test_the_clearest_sentence_is_the_first_of_the_likeliest() -> None:
    logits_SR = torch.tensor([[0.0, 1], [2, 3], [0, 9], [0, 9], [4, 0], [1, 1], [5, 0]])
    bags_S = torch.tensor([0, 0, 0, 0, 1, 2, 2])
    assert clearest(logits_SR, bags_S, torch.tensor([1, 1, 0])).tolist() == [2, 4, 6]


def test_huge_scores_are_no_overflow(model: BagModel) -> None:
    with torch.no_grad():
        rows: Any = model.reader.rows
        rows.mul_(1e4)
    for denoise in DENOISERS:
        assert torch.isfinite(loss_of(denoise, model, batch(denoise))).all()


@pytest.mark.parametrize("denoise", DENOISERS)
def test_dropout_keeps_the_mean(denoise: Denoise, model: BagModel) -> None:
    """Logits are linear in what dropout scales, so their mean over many masks is that of none."""
    weight: Any = model.relation.weight
    calm = SimpleNamespace(**vars(batch(denoise)))
    with torch.no_grad():
        weight.mul_(0.1)  # attention does not see the masks
    still = _logits(denoise, model, calm)
    model.train()
    torch.manual_seed(2)
    mean = torch.stack([_logits(denoise, model, calm) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(mean, still, atol=0.06, rtol=0)
    assert not torch.equal(_logits(denoise, model, calm), still)


def _logits(denoise: Denoise, model: BagModel, own: Any) -> Tensor:
    with torch.no_grad():
        return bags.LOGITS[denoise](model, own)


def test_a_bag_of_one_sentence_is_its_sentence(model: BagModel) -> None:
    single = SimpleNamespace(
        sentences=torch.arange(4), bags_S=torch.arange(4), relations_G=torch.tensor([0, 1, 2, 3])
    )
    losses = [loss_of(denoise, model, single) for denoise in DENOISERS]
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0])
    assert functional.relu(losses[0]).sum() > 0
