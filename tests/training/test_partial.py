"""The likelihood of partial annotation: against all paths by hand, its gradient, its splits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from cases import each
from confide.training.batches import TagSet
from confide.training.crf import (
    CRF,
    Scores,
    allowed_tags,
    negative_log_likelihood,
    partial_loss,
    partial_word_losses,
    weights_outside,
)
from training.crfs import RAGGED, random_problem

LENGTHS = torch.tensor([4, 2, 1])


def summed(emissions_LY: Tensor, scores: Scores, allowed_LY: Tensor) -> Tensor:
    """log of the weighted sum of exp(score) over the allowed paths, one by one; differentiable."""
    each = []
    emissions_LY = emissions_LY + allowed_LY
    for path in itertools.product(*(row.exp().nonzero()[:, 0].tolist() for row in allowed_LY)):
        score = scores.starts_Y[path[0]] + scores.ends_Y[path[-1]]
        score = score + sum(emissions_LY[t, tag] for t, tag in enumerate(path))
        each.append(score + sum(scores.moves_YY[i, j] for i, j in itertools.pairwise(path)))
    return torch.stack(each).logsumexp(0)


def nested(lengths: Tensor, tags: int) -> tuple[Tensor, Tensor]:
    """inner_BLY and outer_BLY, drawn so that outer allows what inner does, with more weight."""
    torch.manual_seed(3)
    shape = (len(lengths), int(lengths.max()), tags)
    inner = torch.rand(shape) < 0.4
    inner[..., 0] |= ~inner.any(2)
    outer = inner | (torch.rand(shape) < 0.3)
    weights = torch.rand(shape).double() * 0.9 + 0.1
    return (inner * weights).log(), (outer * weights.sqrt()).log()


@each("scale", [0.1, 1.0, 8.0])
def test_it_equals_enumeration_and_so_does_its_gradient(scale: float) -> None:
    emissions, scores, _ = random_problem(LENGTHS, 3, scale=scale)
    inner, outer = nested(LENGTHS, 3)
    weight = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    found = []
    for way in ("recursions", "paths"):
        leaves = [part.clone().requires_grad_() for part in (emissions, *scores)]
        own = Scores(*leaves[1:])
        if way == "recursions":
            loss = partial_loss(leaves[0], own, inner_BLY=inner, outer_BLY=outer, lengths_B=LENGTHS)
        else:
            loss = torch.stack(
                [
                    summed(leaves[0][row, :length], own, outer[row, :length])
                    - summed(leaves[0][row, :length], own, inner[row, :length])
                    for row, length in enumerate(LENGTHS.tolist())
                ]
            )
        (loss * weight).sum().backward()
        found.append((loss.detach(), *(leaf.grad for leaf in leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert (found[0][0][:2] > 0).all()


def test_of_one_path_it_is_the_ordinary_likelihood() -> None:
    emissions, scores, tags = random_problem(RAGGED, 5)
    inner = allowed_tags(tags, weights_outside(np.array([1, 1, 1, 0, 0], bool), 0.0))
    assert (inner.exp().sum(2) == 1).all()
    found = partial_loss(
        emissions, scores, inner_BLY=inner, outer_BLY=torch.zeros_like(inner), lengths_B=RAGGED
    )
    expected = negative_log_likelihood(emissions, scores, tags_BL=tags, lengths_B=RAGGED)
    torch.testing.assert_close(found, expected)


def test_open_tokens_may_have_the_tags_of_types_that_the_site_lacks() -> None:
    tags = torch.tensor([[0, 2, 3]])
    allowed = allowed_tags(tags, weights_outside(np.array([1, 0, 0, 1, 1], bool), 0.25)).exp()
    outside = [1.0, 0.0, 0.0, 0.25, 0.25]
    assert allowed.tolist() == [[outside, [0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.25, 0.0]]]


@each("weight", [1e-6, 0.1, 0.5, 1.0])
def test_no_part_of_a_loss_is_below_zero_whatever_the_weight(weight: float) -> None:
    """The model is sure of what another model found: then nothing is left to learn of it."""
    _, scores, tags = random_problem(RAGGED, 5)
    emissions = 10 * torch.nn.functional.one_hot(tags, 5).double()
    outside = weights_outside(np.array([1, 0, 0, 1, 1], bool), weight).double()
    both = allowed_tags(tags, outside)
    own = allowed_tags(tags.where(tags < 3, 0), outside)
    for inner, outer in ((own, torch.zeros_like(own)), (both, own)):
        ways = {"inner_BLY": inner, "outer_BLY": outer, "lengths_B": RAGGED}
        assert (inner <= outer).all()
        assert (partial_loss(emissions, scores, **ways) > -1e-9).all()
        assert (partial_word_losses(emissions, **ways) > -1e-9).all()


def test_the_loss_of_a_sentence_splits_into_own_and_found() -> None:
    """log P(both) = log P(own) + log P(both | own): nothing is counted twice, nothing is lost."""
    emissions, scores, _ = random_problem(RAGGED, 5)
    (inner, middle), everything = nested(RAGGED, 5), torch.zeros(5, 7, 5)
    parts = [
        partial_loss(emissions, scores, inner_BLY=a, outer_BLY=b, lengths_B=RAGGED)
        for a, b in ((inner, everything), (middle, everything), (inner, middle))
    ]
    torch.testing.assert_close(parts[0], parts[1] + parts[2])
    same = partial_loss(emissions, scores, inner_BLY=middle, outer_BLY=middle, lengths_B=RAGGED)
    torch.testing.assert_close(same, torch.zeros_like(same))


def test_no_path_leaves_the_scheme_and_the_padding_is_not_seen() -> None:
    tags = TagSet(("drug", "event"), "iobes")
    moves, starts, ends = map(torch.from_numpy, tags.rules)
    crf = CRF(3, len(tags), rules=(moves, starts, ends))
    emissions, _, _ = random_problem(RAGGED, len(tags), scale=30.0)
    open_Y = np.arange(len(tags)) % 5 != 1  # all but one type's four tags and one of the other
    outside = torch.zeros(emissions.shape[:2], dtype=torch.long)
    inner = allowed_tags(outside, weights_outside(open_Y, 0.5))
    own = {"inner_BLY": inner, "outer_BLY": torch.zeros_like(inner), "lengths_B": RAGGED}
    found = partial_loss(emissions, crf.scores(), **own)
    assert found.isfinite().all() and (found > -1e-9).all()
    padding = torch.arange(emissions.shape[1]) >= RAGGED[:, None]
    odd = emissions.masked_fill(padding[:, :, None], math.nan)
    assert torch.equal(partial_loss(odd, crf.scores(), **own), found)


def test_each_word_by_itself() -> None:
    logits, _, _ = random_problem(RAGGED, 4)
    inner, outer = nested(RAGGED, 4)
    logits.requires_grad_()
    found = partial_word_losses(logits, inner_BLY=inner, outer_BLY=outer, lengths_B=RAGGED)
    chances = logits.softmax(2)
    expected = ((chances * outer.exp()).sum(2) / (chances * inner.exp()).sum(2)).log()
    inside = torch.arange(7) < RAGGED[:, None]
    torch.testing.assert_close(found, expected.masked_fill(~inside, 0.0))
    found.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert not logits.grad[~inside].any()
