"""A CRF's loss by token: against all paths by hand, against its sum, against autograd."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import Tensor

from cases import each
from confide.training import crf
from confide.training.batches import TagSet
from confide.training.crf import CRF, Scores, negative_log_likelihood, token_losses
from training.crfs import RAGGED, random_problem

problem = functools.partial(random_problem, seed=3)


def leaves(emissions: Tensor, scores: Scores) -> tuple[Tensor, Scores]:
    parts = [part.clone().requires_grad_() for part in (emissions, *scores)]
    return parts[0], Scores(*parts[1:])


def by_autograd(emissions: Tensor, scores: Scores, tags: Tensor, lengths: Tensor) -> Tensor:
    """The same from its definition: of each prefix, the weight of all paths that begin with it."""
    rows = []
    for row, length in enumerate(lengths.tolist()):
        paths = torch.tensor(list(itertools.product(range(emissions.shape[2]), repeat=length)))
        weights = scores.starts_Y[paths[:, 0]] + scores.ends_Y[paths[:, -1]]
        weights = weights + sum(emissions[row, t, paths[:, t]] for t in range(length))
        for t in range(length - 1):
            weights = weights + scores.moves_YY[paths[:, t], paths[:, t + 1]]
        totals = [weights.logsumexp(0)]
        for t in range(length):
            begun = (paths[:, : t + 1] == tags[row, : t + 1]).all(1)
            totals.append(weights[begun].logsumexp(0))
        losses = [before - after for before, after in itertools.pairwise(totals)]
        losses += [torch.zeros((), dtype=emissions.dtype)] * (emissions.shape[1] - length)
        rows.append(torch.stack(losses))
    return torch.stack(rows)


@pytest.fixture(params=["scaled", "in logarithms"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recursion in turn."""
    if request.param == "in logarithms":
        monkeypatch.setattr(crf, "_is_exact", lambda _: False)


@pytest.mark.usefixtures("both_ways")
def test_each_token_is_what_the_sum_over_paths_says_and_so_is_its_gradient() -> None:
    lengths = torch.tensor([5, 1, 3, 2])
    emissions, scores, tags = problem(lengths, 3)
    weights = torch.randn(4, 5, dtype=torch.float64)
    ours, theirs = leaves(emissions, scores), leaves(emissions, scores)
    found = token_losses(*ours, tags_BL=tags, lengths_B=lengths)
    wanted = by_autograd(*theirs, tags, lengths)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    for one, other in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("both_ways")
@each(("dtype", "near"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@each("tags", [1, 3, 11])
def test_the_sum_over_tokens_is_the_loss_and_its_gradient(
    dtype: torch.dtype, near: float, tags: int
) -> None:
    emissions, scores, gold = problem(RAGGED, tags, dtype=dtype)
    of_rows = torch.rand(len(RAGGED), dtype=dtype)
    ours, theirs = leaves(emissions, scores), leaves(emissions, scores)
    found = token_losses(*ours, tags_BL=gold, lengths_B=RAGGED).sum(1)
    wanted = negative_log_likelihood(*theirs, tags_BL=gold, lengths_B=RAGGED)
    torch.testing.assert_close(found, wanted, rtol=near, atol=near)
    (found * of_rows).sum().backward()
    (wanted * of_rows).sum().backward()
    for one, other in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=near, atol=near)


@pytest.mark.usefixtures("both_ways")
def test_the_gradient_of_single_tokens_by_differences() -> None:
    emissions, scores, gold = problem(torch.tensor([4, 2]), 3)

    def of(*parts: Tensor) -> Tensor:
        return token_losses(
            parts[0], Scores(*parts[1:]), tags_BL=gold, lengths_B=torch.tensor([4, 2])
        )

    parts = [part.requires_grad_() for part in (emissions, *scores)]
    assert torch.autograd.gradcheck(of, parts)


@pytest.mark.usefixtures("both_ways")
def test_padding_is_never_looked_at() -> None:
    emissions, scores, gold = problem(RAGGED, 4)
    outside = torch.arange(7) >= RAGGED[:, None]
    spoiled = emissions.masked_fill(outside[:, :, None], float("nan"))
    plain, other = leaves(emissions, scores), leaves(spoiled, scores)
    found = token_losses(*plain, tags_BL=gold, lengths_B=RAGGED)
    again = token_losses(*other, tags_BL=gold.masked_fill(outside, 0), lengths_B=RAGGED)
    assert torch.equal(found, again)
    assert not found[outside].any()
    found.sum().backward()
    (again * torch.ones_like(again)).sum().backward()
    for one, two in zip((plain[0], *plain[1]), (other[0], *other[1]), strict=True):
        torch.testing.assert_close(one.grad, two.grad)
    assert not plain[0].grad[outside].any()


@each("scale", [1.0, 10.0, 100.0, 1000.0])
def test_rules_and_scores_far_apart_stay_finite(scale: float) -> None:
    """Where the recursion in probabilities would vanish."""
    tags = TagSet(("a", "b"))
    moves, starts, ends = (torch.from_numpy(part) for part in tags.rules)
    torch.manual_seed(1)
    model = CRF(5, len(tags), rules=(moves, starts, ends)).double()
    emissions = (scale * torch.randn(2, 8, len(tags), dtype=torch.float64)).requires_grad_()
    gold = torch.from_numpy(tags.encode(8, [(0, 3, "a"), (3, 4, "b"), (6, 8, "a")])).long()
    lengths = torch.tensor([8, 4])
    tags_BL = torch.stack((gold, gold.clone()))
    found = token_losses(emissions, model.scores(), tags_BL=tags_BL, lengths_B=lengths)
    wanted = negative_log_likelihood(emissions, model.scores(), tags_BL=tags_BL, lengths_B=lengths)
    assert found.isfinite().all()
    assert (found > -1e-6).all()
    torch.testing.assert_close(found.sum(1), wanted, rtol=1e-6, atol=1e-6)
    found.sum().backward()
    assert emissions.grad is not None
    assert emissions.grad.isfinite().all()
    parts = [part.detach().requires_grad_() for part in (emissions, *model.scores())]
    slopes = []
    for loss in (token_losses, negative_log_likelihood):
        found = loss(parts[0], Scores(*parts[1:]), tags_BL=tags_BL, lengths_B=lengths)
        found = found.sum(1) if found.dim() == 2 else found
        slopes.append(torch.autograd.grad(found.sum(), parts))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_the_scaled_recursion_is_the_one_in_use() -> None:
    """And gives way where the tags' own probability vanishes."""
    emissions, scores, gold = problem(RAGGED, 4)

    def fast() -> bool:
        found = crf._scaled_chain(emissions, scores, gold, lengths_B=RAGGED)
        return found is not None

    assert fast()
    emissions[0, 3] = 0.0
    emissions[0, 3, gold[0, 3]] = -700.0
    assert not fast()
