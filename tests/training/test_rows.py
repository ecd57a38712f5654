"""A few rows of a table are trained as if they were all of it, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cases import each
from confide.training.optimisers import FusedSteps, Optimiser
from confide.training.trainer import only_rows
from confide.training.weights import arrays

ROWS, WIDTH = 50, 16
READ = np.array([7, 3, 3, 40, 0, 7, 21])


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.before = nn.Linear(WIDTH, WIDTH)
        self.table = nn.Embedding(ROWS, WIDTH, padding_idx=0)
        self.after = nn.Linear(WIDTH, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.after(self.before(self.table(ids)).tanh())


def train(model: Reader, settings: Optimiser) -> None:
    steps_of = FusedSteps(model.parameters(), settings)
    for start in range(6):
        steps_of.zero_grad()
        model(torch.from_numpy(READ[start : start + 2])).sum().backward()
        if settings.clip:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        steps_of.step()


@each("clip", [0.0, 0.01])
@each("name", ["sgd", "adam", "adamw"])
def test_the_numbers_are_those_of_training_the_whole_table(name: str, clip: float) -> None:
    settings = Optimiser(name, learning_rate=0.1, clip=clip)
    assert settings.keeps_still
    whole, few = Reader(), Reader()
    start = few.table.weight.detach().clone()
    train(whole, settings)
    with only_rows(few, few.table, READ):
        assert len(few.table.weight) == 5
        train(few, settings)
    assert list(whole.state_dict()) == list(few.state_dict())
    for one, other in zip(whole.parameters(), few.parameters(), strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    moved = (few.table.weight != start).any(1).nonzero().flatten()
    assert moved.tolist() == [3, 7, 21, 40]  # row 0 is padding


def test_the_parameter_is_the_old_one_and_what_was_lent_is_not_written_over() -> None:
    model = Reader()
    lent = np.ones((ROWS, WIDTH), np.float32)
    weight = model.table.weight
    weight.data = torch.from_numpy(lent)
    names = [name for name, _ in model.named_parameters()]
    with only_rows(model, model.table, READ):
        assert np.array_equal(arrays(model)["table.weight"], lent)
        assert [name for name, _ in model.named_parameters()] == names
        train(model, Optimiser(clip=0.0))
    assert model.table.weight is weight
    assert model.table.padding_idx == 0
    assert np.array_equal(arrays(model)["table.weight"], weight.detach().numpy())
    assert (lent == 1).all()
    assert not (weight == 1).all()


def test_an_exception_leaves_the_table_whole_and_as_far_as_it_was_trained() -> None:
    model = Reader()
    start, weight = model.table.weight.detach().clone(), model.table.weight
    with pytest.raises(ZeroDivisionError), only_rows(model, model.table, READ):
        train(model, Optimiser(clip=0.0))
        raise ZeroDivisionError
    assert model.table.weight is weight
    assert model.table.padding_idx == 0
    assert (weight != start).any(1).nonzero().flatten().tolist() == [3, 7, 21, 40]
    assert model(torch.tensor([ROWS - 1])).shape == (1, 1)


def test_a_row_that_is_not_there_cannot_be_read() -> None:
    model = Reader()
    with only_rows(model, model.table, READ):
        model(torch.tensor([40]))
        with pytest.raises(IndexError):
            model(torch.tensor([41]))


def test_padding_that_is_not_read_needs_no_row() -> None:
    model = Reader()
    with only_rows(model, model.table, np.array([5, 6])):
        assert model.table.padding_idx is None
        model(torch.tensor([5])).sum().backward()
        assert model.table.weight.grad is not None
        assert model.table.weight.grad[0].any()


def test_a_table_that_others_read_stays_whole() -> None:
    class Tied(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Linear(WIDTH, ROWS, bias=False)
            self.words.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return functional.linear(self.table(ids), self.words.weight)

    model = Tied()
    with only_rows(model, model.table, READ):
        assert len(model.table.weight) == ROWS


def test_a_frozen_table_and_one_with_a_norm_to_keep_stay_whole() -> None:
    frozen, bounded = Reader(), Reader()
    frozen.table.weight.requires_grad_(False)
    bounded.table.max_norm = 1.0
    for model in (frozen, bounded):
        with only_rows(model, model.table, READ):
            assert len(model.table.weight) == ROWS


def test_weight_decay_moves_every_row() -> None:
    assert not Optimiser("adamw", weight_decay=0.01).keeps_still
