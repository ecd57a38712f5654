"""Log marginals of a CRF: against all paths by hand, their gradient, and at extreme scores."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from cases import each
from confide.training.batches import TagSet
from confide.training.crf import CRF, LEAST, Scores, log_marginals, posterior
from confide.training.trainer import distillation_loss
from training.crfs import RAGGED, random_problem


def enumerated(emissions_LY: Tensor, scores: Scores) -> Tensor:
    """P(y_t = y) by the sum over all paths; differentiable, and slow."""
    length, tags = emissions_LY.shape
    paths = list(itertools.product(range(tags), repeat=length))
    each = []
    for path in paths:
        score = scores.starts_Y[path[0]] + scores.ends_Y[path[-1]]
        score = score + sum(emissions_LY[t, tag] for t, tag in enumerate(path))
        each.append(score + sum(scores.moves_YY[i, j] for i, j in itertools.pairwise(path)))
    chance_P = torch.stack(each).softmax(0)
    rows = [
        [chance_P[[path[t] == tag for path in paths]].sum() for tag in range(tags)]
        for t in range(length)
    ]
    return torch.stack([torch.stack(row) for row in rows])


@each("scale", [0.1, 1.0, 8.0])
def test_they_equal_enumeration(scale: float) -> None:
    lengths = torch.tensor([4, 2, 1])
    emissions, scores, _ = random_problem(lengths, 3, scale=scale)
    found = log_marginals(emissions, scores, lengths_B=lengths)
    assert found.dtype == torch.float64
    for row, length in enumerate(lengths.tolist()):
        expected = enumerated(emissions[row, :length], scores).log()
        torch.testing.assert_close(found[row, :length], expected.clamp_min(LEAST))


def test_they_are_the_posteriors_and_do_not_see_the_padding() -> None:
    emissions, scores, _ = random_problem(RAGGED, 9)
    found = log_marginals(emissions, scores, lengths_B=RAGGED)
    inside = torch.arange(emissions.shape[1]) < RAGGED[:, None]
    expected = posterior(emissions, scores, lengths_B=RAGGED).marginals_BLY
    torch.testing.assert_close(found.exp()[inside], expected[inside])
    torch.testing.assert_close(found.exp().sum(2), torch.ones(inside.shape, dtype=torch.float64))
    odd = emissions.masked_fill(~inside[:, :, None], math.nan)
    assert torch.equal(log_marginals(odd, scores, lengths_B=RAGGED), found)


def test_the_gradient_of_a_soft_loss_is_that_of_enumeration() -> None:
    """The loss of a student, by autograd through the recursions and through the sum over paths."""
    lengths = torch.tensor([3, 2, 1])
    emissions, scores, _ = random_problem(lengths, 3)
    teacher = torch.rand(3, 3, 3, dtype=torch.float64).softmax(2)
    slopes = []
    for way in ("recursions", "paths"):
        leaves = [part.clone().requires_grad_() for part in (emissions, *scores)]
        own = Scores(*leaves[1:])
        if way == "recursions":
            said = log_marginals(leaves[0], own, lengths_B=lengths)
            parts = [said[row, :length] for row, length in enumerate(lengths.tolist())]
        else:
            parts = [
                enumerated(leaves[0][row, :length], own).log()
                for row, length in enumerate(lengths.tolist())
            ]
        loss = sum(
            distillation_loss(part, teacher[row, : len(part)], temperature=2.0).sum()
            for row, part in enumerate(parts)
        )
        slopes.append(torch.autograd.grad(loss, leaves))  # type: ignore[arg-type]
    for found, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(found, expected)
        assert expected.any()


def test_the_gradient_is_that_of_finite_differences() -> None:
    lengths = torch.tensor([5, 3])
    emissions, scores, _ = random_problem(lengths, 4)
    weights = torch.randn(2, 5, 4, dtype=torch.float64)
    weights[1, 3:] = 0

    def loss(emissions_BLY: Tensor, *moves: Tensor) -> Tensor:
        return (log_marginals(emissions_BLY, Scores(*moves), lengths_B=lengths) * weights).sum()

    leaves = tuple(part.clone().requires_grad_() for part in (emissions, *scores))
    assert torch.autograd.gradcheck(loss, leaves)


@each("scale", [1.0, 300.0, 3000.0])
def test_forbidden_tags_and_extreme_scores_give_finite_numbers(scale: float) -> None:
    """A tag that the scheme forbids at an edge has the least logarithm, and pulls at nothing."""
    tags = TagSet(("Drug",))
    rules = tuple(torch.from_numpy(part) for part in tags.rules)
    crf = CRF(2, len(tags), rules=rules)  # type: ignore[arg-type]
    lengths = torch.tensor([3, 1])
    emissions = scale * random_problem(lengths, len(tags))[0].float()
    emissions.requires_grad_()
    found = log_marginals(emissions, crf.scores(), lengths_B=lengths)
    inside, end = tags.tags.index("I-Drug"), tags.tags.index("E-Drug")
    assert (found[:, 0, [inside, end]] == LEAST).all()
    teacher = torch.full(found.shape, 1 / len(tags), dtype=torch.float64)
    teacher[1, 1:] = 0
    distillation_loss(found, teacher).sum().backward()  # type: ignore[no-untyped-call]
    assert emissions.grad is not None
    assert emissions.grad.isfinite().all()
    assert not emissions.grad[1, 1:].any()
    assert not emissions.grad[1, 0, [inside, end]].any()
