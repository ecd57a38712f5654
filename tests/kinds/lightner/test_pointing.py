"""Decoding step by step against a decoder that reads everything again at every step."""

from __future__ import annotations

import pytest
import torch

from cases import each
from confide.kinds.lightner import model as pointing
from confide.kinds.lightner.model import NOTHING, Lightner, Text, write_symbols
from kinds.lightner.lightners import POSITIONS, STOP, TYPES, Batch, batch, lightner, only, word

WORDS = (6, 3, 9, 1, 7, 4, 2, 8)


def slow(model: Lightner, text: Batch, *, constrained: bool) -> tuple[list[int], list[float]]:
    """One text; a step is one pass over all that was written; the grammar in words."""
    words, symbols, log_probs = int(text.lengths_B[0]), [], []
    least = 0
    while len(symbols) < POSITIONS // 3 * 3 and len(symbols) < 3 * words + 1:
        text = only_symbols(text, [*symbols, STOP])
        likely_V = model(text)[0, -1].log_softmax(0)
        if constrained:
            step = len(symbols) % 3
            some = {word(place) for place in range(least, words)}
            allowed = [some | {STOP}, some, set(range(TYPES))][step]
        else:
            allowed = set(range(TYPES + 1 + words))
        symbol = max(sorted(allowed), key=lambda one: float(likely_V[one]))
        symbols.append(symbol)
        log_probs.append(float(likely_V[symbol]))
        if symbol == STOP:
            break
        if symbol > STOP:
            least = symbol - TYPES - 1 + (len(symbols) % 3 == 2)
    return symbols, log_probs


def only_symbols(text: Batch, symbols: list[int]) -> Batch:
    return Batch(
        text.ids_BP,
        None,
        text.firsts_BL,
        text.lengths_B,
        torch.tensor([symbols]),
        torch.ones(1, len(symbols), dtype=torch.bool),
    )


@each(
    ("constrained", "where", "seed"),
    [(True, "both", 1), (False, "decoder", 2), (True, "decoder", 3), (False, "both", 1)],
)
def test_it_writes_what_reading_everything_again_does(
    constrained: bool, where: str, seed: int
) -> None:
    model, given = lightner(where=where, seed=seed), batch(WORDS, seed=seed)
    with torch.inference_mode():
        found = write_symbols(model, given, constrained=constrained)
        for row in range(len(WORDS)):
            symbols, log_probs = slow(model, only(given, row), constrained=constrained)
            written = found.symbols_BT[row].tolist()
            assert written[: len(symbols)] == symbols
            assert set(written[len(symbols) :]) <= {NOTHING}
            assert found.log_probs_BT[row, : len(symbols)].tolist() == pytest.approx(
                log_probs, abs=1e-4
            )


@each(
    ("start", "types", "label", "chance"),
    [
        (0.9, (0.1, 0.7), 1, 0.7),  # .9 * .8 * .1 = .072 < .1: more likely no entity; it stays
        (0.9, (0.3, 0.5), 0, 0.3 / (1 - 0.9 * 0.8 * 0.5)),  # .216 > .1
        (0.2, (0.6, 0.3), 0, 0.6 / (1 - 0.2 * 0.8 * 0.3)),  # the likeliest label is wanted
    ],
)
def test_a_label_is_a_wanted_one_if_it_beats_no_entity(
    start: float, types: tuple[float, float], label: int, chance: float
) -> None:
    """Two types, of which the first is wanted; the end has a probability of 0.8."""
    wanted_Y = torch.tensor([True, False])
    writing = pointing._Writing(2, torch.tensor([4]), wanted_Y=wanted_Y)
    rest = (1 - sum(types)) / 5
    steps = [[0, 0, 1 - start, start, 0, 0, 0], [0, 0, 0.2, 0, 0.8, 0, 0], [*types, *[rest] * 5]]
    for row, chosen in zip(steps, (3, 4, int(types[1] > types[0])), strict=True):
        given = torch.tensor([row]).log()
        writing.add(torch.tensor([0]), torch.tensor([chosen]), log_probs_BV=given)
    found = writing.result()
    assert found.symbols_BT[0].tolist() == [3, 4, label]
    assert found.log_probs_BT[0].exp().tolist() == pytest.approx([start, 0.8, chance])


def test_all_types_wanted_are_no_restriction() -> None:
    model, given = lightner(), batch(WORDS)
    with torch.inference_mode():
        plain = write_symbols(model, given)
        found = write_symbols(model, given, wanted_Y=torch.ones(TYPES, dtype=torch.bool))
    assert torch.equal(found.symbols_BT, plain.symbols_BT)
    assert torch.equal(found.log_probs_BT, plain.log_probs_BT)


def test_these_models_write_something() -> None:
    """So that the comparison above is of more than a stop."""
    lengths = set()
    for seed in (1, 2, 3):
        with torch.inference_mode():
            found = write_symbols(lightner(seed=seed), batch(WORDS, seed=seed))
        lengths |= set((found.symbols_BT != NOTHING).sum(1).tolist())
    assert len(lengths) > 4
    assert max(lengths) > 10


@each("leave", [0.0, 1.0])
def test_who_leaves_changes_nothing(leave: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = lightner(), batch(WORDS)
    with torch.inference_mode():
        expected = write_symbols(model, given)
        monkeypatch.setattr(pointing, "_LEAVE", leave)
        found = write_symbols(model, given)
    assert torch.equal(found.symbols_BT, expected.symbols_BT)
    torch.testing.assert_close(found.log_probs_BT, expected.log_probs_BT, atol=1e-4, rtol=1e-4)


def test_what_is_written_follows_the_grammar() -> None:
    for seed in range(4, 12):
        with torch.inference_mode():
            found = write_symbols(lightner(seed=seed), batch(WORDS, seed=seed))
        for row, words in zip(found.symbols_BT.tolist(), WORDS, strict=True):
            written = [symbol for symbol in row if symbol != NOTHING]
            assert written[-1] == STOP
            last = -1
            for at in range(0, len(written) - 1, 3):
                start, end, name = written[at : at + 3]
                assert last < start - TYPES - 1 <= end - TYPES - 1 < words
                assert 0 <= name < TYPES
                last = end - TYPES - 1


def test_a_text_may_fill_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word is an entity; there are more than the decoder has places for."""
    plain = pointing.logits

    def eager(states_BTD: torch.Tensor, text: Text) -> torch.Tensor:
        scores_BTV = plain(states_BTD, text)
        scores_BTV = scores_BTV - 1e3 * torch.arange(scores_BTV.shape[2])
        scores_BTV[..., STOP] = -1e8
        return scores_BTV

    monkeypatch.setattr(pointing, "logits", eager)
    with torch.inference_mode():
        found = write_symbols(lightner(), batch((15, 3)))
    assert POSITIONS == 40
    every = [symbol for place in range(15) for symbol in (word(place), word(place), 0)]
    assert found.symbols_BT[0].tolist() == every[:39]
    assert found.symbols_BT[1].tolist() == [*every[:9], STOP, *[NOTHING] * 29]
