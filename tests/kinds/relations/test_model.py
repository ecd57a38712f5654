"""The relation classifier: what it says of two entities is what the formula says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.kinds.relations.model import MentionReader, RelationClassifier


class Echo(nn.Module):
    """An encoder whose state of a piece is a row of a table; padding is masked to -1."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor | None) -> Any:
        states = self.table(input_ids)
        if attention_mask is not None:
            states = states.masked_fill(attention_mask[..., None] == 0, -1.0)
        return SimpleNamespace(last_hidden_state=states)


def batch(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "ids_BP": torch.tensor([[1, 5, 2, 6, 7, 3], [1, 4, 6, 2, 0, 0]]),
        "mask_BP": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
        "head_BP": torch.tensor([[0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]], dtype=torch.bool),
        "tail_BP": torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]], dtype=torch.bool),
        "openings_B2": torch.tensor([[1, 3], [1, 2]]),
        "relations_B": torch.tensor([1, 0]),
        "features_BF": None,
    }
    return SimpleNamespace(**{**fields, **changes})


@pytest.fixture
def encoder() -> Echo:
    torch.manual_seed(1)
    return Echo()


def test_the_first_state_and_the_sums_over_each_entity(encoder: Echo) -> None:
    model = RelationClassifier(encoder, dim=3, relations=4).eval()
    table = encoder.table.weight
    want = torch.stack(
        (
            torch.cat((table[1], table[2], table[7] + table[3])),
            torch.cat((table[1], table[6], table[2])),
        )
    )
    torch.testing.assert_close(model(batch()), model.relation(want))


def test_the_states_that_open_the_entities(encoder: Echo) -> None:
    model = RelationClassifier(encoder, dim=3, relations=4, pool="start").eval()
    table = encoder.table.weight
    want = torch.stack(
        (torch.cat((table[1], table[5], table[6])), torch.cat((table[1], table[4], table[6])))
    )
    torch.testing.assert_close(model(batch()), model.relation(want))


def test_the_maximum_over_each_entity(encoder: Echo) -> None:
    table = encoder.table.weight
    pairs = [(table[2], torch.maximum(table[7], table[3])), (table[6], table[2])]
    reader = MentionReader(encoder, 3)
    want = torch.stack([torch.cat(pair) for pair in pairs])
    torch.testing.assert_close(reader(batch()), want)
    assert reader.features == 6
    empty = batch(head_BP=torch.zeros(2, 6, dtype=torch.bool))
    torch.testing.assert_close(reader(empty)[:, :3], torch.zeros(2, 3))
    model = RelationClassifier(encoder, dim=3, relations=4, pool="max").eval()
    opening = table[1].expand(2, 3)
    torch.testing.assert_close(model(batch()), model.relation(torch.cat((opening, want), 1)))


@pytest.mark.parametrize("pool", ["sum", "start", "max"])
def test_loss_falls_and_every_parameter_learns(encoder: Echo, pool: Any) -> None:
    model = RelationClassifier(encoder, dim=3, relations=2, pool=pool, dropout=0.0)
    steps = torch.optim.Adam(model.parameters(), lr=0.1)
    first = loss_B(model)
    assert first.shape == (2,)
    for _ in range(30):
        steps.zero_grad()
        loss_B(model).mean().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
        steps.step()
    assert loss_B(model).mean() < 0.1 * first.mean()


def test_an_entity_without_a_piece_counts_as_zeros(encoder: Echo) -> None:
    model = RelationClassifier(encoder, dim=3, relations=4).eval()
    empty = batch(head_BP=torch.zeros(2, 6, dtype=torch.bool))
    table = encoder.table.weight
    want = torch.cat((table[1], torch.zeros(3), table[7] + table[3]))
    torch.testing.assert_close(model(empty)[0], model.relation(want))


def loss_B(model: RelationClassifier) -> Tensor:
    return functional.cross_entropy(model(batch()), batch().relations_B, reduction="none")
