"""Adversaries against hand computations; what is reversed, and what is not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import each
from confide.kinds.lightner.adversaries import (
    Adversary,
    Kind,
    Seen,
    adversarial_loss,
    reversed_gradient,
)

SITES, LAYERS, DIM, SITE = 3, 2, 6, 1


@dataclass
class Case:
    adversary: Adversary
    seen: Seen
    leaves: list[Tensor]
    scores: Tensor


def case(kind: Kind, *, weight: float = 1.0, pseudo: bool = True) -> Case:
    torch.manual_seed(4)
    layers = [torch.randn(2, 4, DIM, requires_grad=True) for _ in range(LAYERS)]
    decoder = torch.randn(2, 5, DIM, requires_grad=True)
    scores = torch.randn(2, 5, 7, requires_grad=True)
    marked = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0]]).bool() & pseudo
    seen = Seen(
        encoder_layers=layers,
        mask_BP=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        decoder_BTD=decoder,
        log_probs_BTV=scores.log_softmax(2),
        real_BT=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool(),
        pseudo_BT=marked,
    )
    adversary = Adversary(kind, sites=SITES, layers=LAYERS, dim=DIM, weight=weight)
    return Case(adversary, seen, [*layers, decoder], scores)


def loss_of(one: Case, *, reversal: float = 1.0) -> Tensor:
    return adversarial_loss(one.adversary, one.seen, site=SITE, reversal=reversal)


def told(states: np.ndarray, matrix: np.ndarray, lengths: list[int]) -> float:
    """The mean cross entropy of the site, by a loop."""
    losses = []
    for row, length in enumerate(lengths):
        logits = matrix @ states[row, :length].mean(0)
        losses.append(math.log(np.exp(logits).sum()) - logits[SITE])
    return float(np.mean(losses))


def by_layer(one: Case) -> list[float]:
    pairs = zip(one.seen.encoder_layers, one.adversary.sites_NKD, strict=True)
    return [told(s.detach().numpy(), m.detach().numpy(), [4, 2]) for s, m in pairs]


def test_dann_is_the_mean_cross_entropy_of_the_layers() -> None:
    one = case("dann")
    assert loss_of(one).item() == pytest.approx(np.mean(by_layer(one)), rel=1e-5)


def test_fade_squares_each_layer_and_adds_the_entropy_of_pseudo_symbols() -> None:
    one = case("fade", weight=0.5)
    chances = one.scores.softmax(2)[one.seen.pseudo_BT].detach().numpy()
    entropy = np.mean([-sum(p * math.log(p) for p in row) for row in chances])
    wanted = np.mean(np.square(by_layer(one))) + 0.5 * entropy
    assert loss_of(one).item() == pytest.approx(wanted, rel=1e-5)


def test_fade_without_a_pseudo_symbol() -> None:
    one = case("fade", pseudo=False)
    loss = loss_of(one)
    assert loss.item() == pytest.approx(np.mean(np.square(by_layer(one))), rel=1e-5)
    loss.backward()
    assert all(leaf.grad.isfinite().all() for leaf in one.leaves[:LAYERS])


def test_what_has_no_probability_adds_no_entropy() -> None:
    one = case("fade")
    masked = one.scores.masked_fill(torch.arange(7) > 3, -math.inf)
    few = one.scores[:, :, :4].log_softmax(2)
    wanted = one.seen._replace(log_probs_BTV=few)
    have = one.seen._replace(log_probs_BTV=masked.log_softmax(2))
    found = [
        adversarial_loss(one.adversary, seen, site=SITE, reversal=1.0) for seen in (have, wanted)
    ]
    torch.testing.assert_close(*found)
    found[0].backward()
    assert one.scores.grad is not None
    assert one.scores.grad.isfinite().all()


def test_minimising_the_entropy_makes_pseudo_symbols_surer() -> None:
    one = case("fade")
    (slope,) = torch.autograd.grad(loss_of(one), one.scores)
    assert not slope[~one.seen.pseudo_BT].any()
    before = one.scores[one.seen.pseudo_BT].softmax(1)
    after = (one.scores - 0.1 * slope)[one.seen.pseudo_BT].softmax(1)
    assert (torch.special.entr(after).sum(1) < torch.special.entr(before).sum(1)).all()


def test_fada_adds_the_sites_own_part_and_its_correlations() -> None:
    one = case("fada", weight=2.0)
    matrix = one.adversary.site_KD
    assert matrix is not None
    weights = matrix.detach().double().numpy()
    states = one.seen.decoder_BTD.detach().double().numpy()
    real = np.concatenate([states[0], states[1, :3]])
    basis, _ = np.linalg.qr(weights.T)
    of_site = real @ basis
    of_task = real - of_site @ basis.T
    assert np.allclose(of_task @ weights.T, 0)  # nothing of the site's rows is left
    total = 0.0
    for a in of_site.T:
        for b in of_task.T:
            covariance = np.mean((a - a.mean()) * (b - b.mean()))
            total += covariance**2 / ((a.var() + 1e-5) * (b.var() + 1e-5))
    own = told(states, weights, [5, 3]) + total / (SITES * DIM)
    wanted = np.mean(by_layer(one)) + 2.0 * own
    assert loss_of(one).item() == pytest.approx(wanted, rel=1e-4)


def test_fada_goes_down_to_parts_that_are_independent() -> None:
    """Of states in which all numbers go together, a few steps make parts that do not."""
    one = case("fada")
    torch.manual_seed(1)
    shared = torch.randn(2, 5, 1)
    states = (shared + 0.3 * torch.randn(2, 5, DIM)).requires_grad_()
    seen = one.seen._replace(decoder_BTD=states)
    optimiser = torch.optim.Adam([states], lr=0.05)
    values = []
    for _ in range(60):
        loss = adversarial_loss(one.adversary, seen, site=SITE, reversal=0.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(loss.item())
    assert values[-1] < values[0] - 0.3


@each("kind", ["dann", "fada", "fade"])
def test_the_model_goes_up_where_discriminators_go_down(kind: Kind) -> None:
    one = case(kind, weight=0.0)
    loss = loss_of(one, reversal=0.3)
    own = torch.autograd.grad(loss, [one.adversary.sites_NKD, *one.leaves[:LAYERS]])
    straight = loss_of(one, reversal=-1.0)
    true = torch.autograd.grad(straight, [one.adversary.sites_NKD, *one.leaves[:LAYERS]])
    torch.testing.assert_close(own[0], true[0])
    for found, wanted in zip(own[1:], true[1:], strict=True):
        torch.testing.assert_close(found, -0.3 * wanted)
        assert wanted.any()
        assert not wanted[1, 2:].any()  # padding


def test_the_reversed_gradient_by_hand() -> None:
    values = torch.tensor([1.0, -2.0], requires_grad=True)
    turned = reversed_gradient(values, 0.5)
    assert torch.equal(turned, values)
    (turned**2).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [-1.0, 2.0]


def test_no_mask_is_a_mask_of_ones() -> None:
    one = case("dann")
    ones = one.seen._replace(mask_BP=torch.ones(2, 4))
    none = one.seen._replace(mask_BP=None)
    losses = [adversarial_loss(one.adversary, seen, site=0, reversal=1.0) for seen in (ones, none)]
    torch.testing.assert_close(*losses)
    assert losses[0].item() != pytest.approx(loss_of(one).item())


def test_sizes_are_the_papers() -> None:
    """12 · K · d: 72 d for OntoNotes' six sites, 36 d for the clinics' three (Appendix A)."""
    for sites in (6, 3):
        sizes = {
            kind: sum(p.numel() for p in made.parameters())
            for kind in ("dann", "fada", "fade")
            for made in [Adversary(kind, sites=sites, layers=12, dim=768)]
        }
        assert sizes["dann"] == sizes["fade"] == 12 * sites * 768
        assert sizes["fada"] == 13 * sites * 768


def test_a_discriminator_learns_what_differs_and_a_model_unlearns_it() -> None:
    """Two sites whose states lie apart: what is told apart first is then drawn together."""
    torch.manual_seed(2)
    base, shift = torch.randn(2, 1, 8, DIM), torch.zeros(2, DIM, requires_grad=True)
    base[0, ..., 0] += 2.0
    base[1, ..., 0] -= 2.0
    adversary = Adversary("dann", sites=2, layers=1, dim=DIM)
    unused, real = torch.zeros(1, 1, 1), torch.ones(1, 1).bool()

    def steps(parts: list[Tensor], count: int, *, rate: float) -> float:
        optimiser = torch.optim.SGD(parts, lr=rate)
        for _ in range(count):
            losses = []
            for site in range(2):
                states = [base[site] + shift[site]]
                seen = Seen(states, None, unused, unused, real, real)
                losses.append(adversarial_loss(adversary, seen, site=site, reversal=1.0))
            loss = torch.stack(losses).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return loss.item()

    def distance() -> float:
        states = base.mean((1, 2)) + shift.detach()
        return float((states[0] - states[1]).norm())

    before, told = distance(), steps(list(adversary.parameters()), 4, rate=0.2)
    assert told < 0.5
    assert steps([shift], 10, rate=1.0) > told
    assert distance() < 0.8 * before
