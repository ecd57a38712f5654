"""The CRF against pytorch-crf, against all paths by hand, and at extreme scores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torchcrf
from torch import Tensor

from cases import each
from confide.training import crf
from confide.training.batches import TagSet
from confide.training.crf import (
    CRF,
    Scores,
    log_marginals,
    negative_log_likelihood,
    partial_loss,
    posterior,
    token_losses,
    viterbi,
)
from training.crfs import RAGGED, on_apple, random_problem


def peer(scores: Scores) -> torchcrf.CRF:
    model = torchcrf.CRF(len(scores.starts_Y), batch_first=True).to(scores.starts_Y.dtype)
    with torch.no_grad():
        model.transitions.copy_(scores.moves_YY)
        model.start_transitions.copy_(scores.starts_Y)
        model.end_transitions.copy_(scores.ends_Y)
    return model


def path_score(emissions_LY: Tensor, scores: Scores, path: tuple[int, ...]) -> float:
    total = float(scores.starts_Y[path[0]] + scores.ends_Y[path[-1]])
    total += sum(float(emissions_LY[t, tag]) for t, tag in enumerate(path))
    return total + sum(float(scores.moves_YY[i, j]) for i, j in itertools.pairwise(path))


def all_paths(emissions_LY: Tensor, scores: Scores) -> dict[tuple[int, ...], float]:
    """The probability of every path, by enumeration."""
    length, tags = emissions_LY.shape
    paths = list(itertools.product(range(tags), repeat=length))
    weights = torch.tensor(
        [path_score(emissions_LY, scores, path) for path in paths], dtype=torch.float64
    )
    return dict(zip(paths, weights.softmax(0).tolist(), strict=True))


@each(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@each("tags", [1, 3, 11])
def test_loss_and_gradients_equal_pytorch_crf(
    dtype: torch.dtype, tolerance: float, tags: int
) -> None:
    emissions, scores, gold = random_problem(RAGGED, tags, dtype=dtype)
    weights = torch.rand(len(RAGGED), dtype=dtype)
    ours = Scores(*(part.clone().requires_grad_() for part in scores))
    our_emissions = emissions.clone().requires_grad_()
    our_loss = negative_log_likelihood(our_emissions, ours, tags_BL=gold, lengths_B=RAGGED)
    (our_loss * weights).sum().backward()

    theirs, their_emissions = peer(scores), emissions.clone().requires_grad_()
    mask = torch.arange(emissions.shape[1]) < RAGGED[:, None]
    their_loss = -theirs(their_emissions, gold, mask=mask, reduction="none")
    (their_loss * weights).sum().backward()

    near = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(our_loss, their_loss, **near)
    torch.testing.assert_close(our_emissions.grad, their_emissions.grad, **near)
    torch.testing.assert_close(ours.moves_YY.grad, theirs.transitions.grad, **near)
    torch.testing.assert_close(ours.starts_Y.grad, theirs.start_transitions.grad, **near)
    torch.testing.assert_close(ours.ends_Y.grad, theirs.end_transitions.grad, **near)


@each("dtype", [torch.float64, torch.float32])
@each("scale", [0.1, 1.0, 20.0])
def test_decoding_equals_pytorch_crf(dtype: torch.dtype, scale: float) -> None:
    lengths = torch.randint(1, 31, (40,), generator=torch.Generator().manual_seed(1))
    emissions, scores, _ = random_problem(lengths, 9, dtype=dtype, scale=scale)
    found = viterbi(emissions, scores, lengths_B=lengths)
    mask = torch.arange(emissions.shape[1]) < lengths[:, None]
    expected = peer(scores).decode(emissions, mask=mask)
    assert [row[:n].tolist() for row, n in zip(found, lengths, strict=True)] == expected
    assert not found[~mask].any()


def test_everything_equals_enumeration() -> None:
    lengths = torch.tensor([4, 2, 1])
    emissions, scores, gold = random_problem(lengths, 3)
    found = posterior(emissions, scores, lengths_B=lengths)
    losses = negative_log_likelihood(emissions, scores, tags_BL=gold, lengths_B=lengths)
    best = viterbi(emissions, scores, lengths_B=lengths)
    for row, length in enumerate(lengths.tolist()):
        chances = all_paths(emissions[row, :length], scores)
        assert losses[row].exp().item() == pytest.approx(
            1 / chances[tuple(gold[row, :length].tolist())]
        )
        assert tuple(best[row, :length].tolist()) == max(chances, key=lambda path: chances[path])
        for t, tag in itertools.product(range(length), range(3)):
            marginal = sum(chance for path, chance in chances.items() if path[t] == tag)
            assert found.marginals_BLY[row, t, tag].item() == pytest.approx(marginal)
        for i, j in itertools.product(range(3), repeat=2):
            count = sum(
                chance * list(itertools.pairwise(path)).count((i, j))
                for path, chance in chances.items()
            )
            assert found.move_counts_BYY[row, i, j].item() == pytest.approx(count)


@each("in_logs", [False, True])
def test_span_probabilities_equal_enumeration(
    in_logs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_logs:
        monkeypatch.setattr(crf, "_is_exact", lambda _: False)
    lengths = torch.tensor([4, 3])
    emissions, scores, _ = random_problem(lengths, 3)
    spans = [
        (row, start, path)
        for row, length in enumerate(lengths.tolist())
        for start in range(length)
        for size in range(1, length - start + 1)
        for path in itertools.product(range(3), repeat=size)
    ]
    longest = max(len(path) for _, _, path in spans)
    chances = crf.span_probabilities(
        posterior(emissions, scores, lengths_B=lengths),
        torch.tensor([[row for row, _, _ in spans], [start for _, start, _ in spans]]),
        tags_NK=torch.tensor([[*path, *[0] * (longest - len(path))] for _, _, path in spans]),
        lengths_N=torch.tensor([len(path) for _, _, path in spans]),
    )
    by_row = [all_paths(emissions[row, :n], scores) for row, n in enumerate(lengths.tolist())]
    for (row, start, wanted), chance in zip(spans, chances.tolist(), strict=True):
        expected = sum(
            weight
            for path, weight in by_row[row].items()
            if path[start : start + len(wanted)] == wanted
        )
        assert chance == pytest.approx(expected)


def test_gradient_passes_finite_differences() -> None:
    emissions, scores, gold = random_problem(RAGGED, 4)
    inputs = [part.requires_grad_() for part in (emissions, *scores)]

    def total(emissions: Tensor, moves: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        return negative_log_likelihood(
            emissions, Scores(moves, starts, ends), tags_BL=gold, lengths_B=RAGGED
        )

    assert torch.autograd.gradcheck(total, inputs)


@each("size", [100.0, 1000.0])
@each("ruled", [False, True])
def test_extreme_emissions_are_exact(size: float, ruled: bool) -> None:
    """Adversarial ±size: every token is sure of a random tag, which the rules often forbid."""
    lengths = torch.tensor([30, 12, 1, 25])
    _, scores, gold = random_problem(lengths, 9)
    if ruled:
        rules = TagSet(("a", "b")).rules
        allowed = (torch.from_numpy(part) for part in rules)
        scores = Scores(
            *(
                part.masked_fill(~permission, crf.FORBIDDEN)
                for part, permission in zip(scores, allowed, strict=True)
            )
        )
        gold = torch.zeros_like(gold)
    sure = torch.randint(0, 9, (4, 30, 1))
    emissions = torch.full((4, 30, 9), -size, dtype=torch.float64).scatter_(2, sure, size)
    found = posterior(emissions, scores, lengths_B=lengths)
    exact = crf._logarithmic(emissions, scores, lengths)
    torch.testing.assert_close(found.log_partition_B, exact.log_partition_B)
    torch.testing.assert_close(found.marginals_BLY, exact.marginals_BLY, atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(found.move_counts_BYY, exact.move_counts_BYY, atol=1e-9, rtol=1e-7)

    single = emissions.float().requires_grad_()
    loss = negative_log_likelihood(
        single, Scores(*(p.float() for p in scores)), tags_BL=gold, lengths_B=lengths
    )
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert single.grad is not None and torch.isfinite(single.grad).all()
    assert single.grad.abs().max() <= 1.0 + 1e-6


def test_moderate_scores_never_need_the_slow_form() -> None:
    """Emissions of ±100 stay on the fast path when the rules contradict them."""
    tags = TagSet(("a", "b", "c"))
    lengths = torch.tensor([40, 40])
    torch.manual_seed(3)
    sure = torch.randint(0, len(tags), (2, 40, 1))
    emissions = torch.full((2, 40, len(tags)), -100.0, dtype=torch.float64)
    emissions.scatter_(2, sure, 100.0)
    parts = [
        torch.zeros(part.shape, dtype=torch.float64).masked_fill(
            ~torch.from_numpy(part), crf.FORBIDDEN
        )
        for part in tags.rules
    ]
    assert crf._is_exact(crf._scaled(emissions, Scores(*parts), lengths)[1])


def test_both_forms_agree() -> None:
    emissions, scores, _ = random_problem(RAGGED, 5, scale=3.0)
    emissions *= (torch.arange(7) < RAGGED[:, None])[:, :, None]
    fast, least = crf._scaled(emissions, scores, RAGGED)
    slow = crf._logarithmic(emissions, scores, RAGGED)
    assert crf._is_exact(least)
    for name in ("log_partition_B", "marginals_BLY", "move_counts_BYY"):
        torch.testing.assert_close(getattr(fast, name), getattr(slow, name))


def test_padding_is_never_looked_at() -> None:
    emissions, scores, gold = random_problem(RAGGED, 4)
    padding = ~(torch.arange(7) < RAGGED[:, None])
    spoilt = emissions.masked_fill(padding[:, :, None], math.nan).requires_grad_()
    loss = negative_log_likelihood(spoilt, scores, tags_BL=gold, lengths_B=RAGGED)
    loss.sum().backward()
    torch.testing.assert_close(
        loss, negative_log_likelihood(emissions, scores, tags_BL=gold, lengths_B=RAGGED)
    )
    assert spoilt.grad is not None
    assert not spoilt.grad[padding].any()
    assert torch.equal(
        viterbi(spoilt, scores, lengths_B=RAGGED), viterbi(emissions, scores, lengths_B=RAGGED)
    )
    assert not posterior(spoilt, scores, lengths_B=RAGGED).marginals_BLY[padding].any()


def test_rules_bind_loss_decoding_and_marginals() -> None:
    tags = TagSet(("a", "b"))
    moves, starts, ends = (torch.from_numpy(part) for part in tags.rules)
    torch.manual_seed(0)
    model = CRF(6, len(tags), rules=(moves, starts, ends))
    lengths = torch.tensor([9, 5, 1])
    emissions = 5.0 * model(torch.randn(3, 9, 6))
    path = viterbi(emissions, model.scores(), lengths_B=lengths)
    counts = posterior(emissions, model.scores(), lengths_B=lengths).move_counts_BYY
    assert not counts[:, ~moves].any()
    for row, length in zip(path.tolist(), lengths.tolist(), strict=True):
        assert starts[row[0]] and ends[row[length - 1]]
        assert all(moves[i, j] for i, j in itertools.pairwise(row[:length]))
    assert not any("forbidden" in name for name in model.state_dict())


def _partial(emissions: Tensor, scores: Scores, *, tags_BL: Tensor, lengths_B: Tensor) -> Tensor:
    inner = torch.nn.functional.one_hot(tags_BL, 4).float().log()
    outer = torch.zeros_like(inner)
    return partial_loss(emissions, scores, inner_BLY=inner, outer_BLY=outer, lengths_B=lengths_B)


def _marginals(emissions: Tensor, scores: Scores, *, tags_BL: Tensor, lengths_B: Tensor) -> Tensor:
    return log_marginals(emissions, scores, lengths_B=lengths_B)


@each("loss", [negative_log_likelihood, _partial, token_losses, _marginals])
def test_on_apples_gpu_the_processor_computes_the_sums(loss: Callable[..., Tensor]) -> None:
    """Which has no 64-bit numbers: loss and gradients are those of the processor, bit for bit."""
    emissions, scores, tags = random_problem(RAGGED, 4, dtype=torch.float32)
    found = []
    for place in (lambda tensor: tensor, on_apple):
        leaves = [part.clone().requires_grad_() for part in (emissions, *scores)]
        first, *others = map(place, leaves)
        made = loss(first, Scores(*others), tags_BL=place(tags), lengths_B=place(RAGGED))
        assert type(made) is Tensor
        made.sum().backward()
        found.append([made.detach(), *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
