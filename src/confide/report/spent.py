"""What noise spent, on the page of a run: ε by round, what it promises, and what it does not."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from confide.report.folder import FinishedRun
from confide.report.plots import spent_by_round
from confide.report.views import RunView
from confide.report.words import count
from confide.runs.result import Private

SIMULATED = (
    "Keys of draws and noise were made from the seed, so that the run can be repeated: nothing is"
    " hidden, and nothing is promised. With keys of the sites' own, ε would be as shown."
)
NEVER_NOISED = (
    "names of types and relations, which the settings name; that a site took part, and how long it"
    " took to answer, beyond what its guard reply_every hides",
    "other runs on the same text: each site keeps its own account over all of them (confide site"
    " status)",
    "the last digits of floating-point numbers that are worked out for several texts at once",
)
OPEN = "scores of held-out text, which left the sites without noise"


@dataclass(frozen=True, slots=True)
class SpentView:
    """What a run spent: in a sentence, by its facts, as a drawing; and what that does not cover.

    `warning` says why nothing is promised; it is empty otherwise.
    """

    said: str
    warning: str
    facts: tuple[tuple[str, str], ...]
    plot: Markup | None
    uncovered: tuple[str, ...]


def spent(views: Sequence[RunView]) -> list[tuple[RunView, SpentView]]:
    """What each run under noise spent."""
    return [
        (view, _view(view.run, view.run.result.privacy, id=f"spent{number}"))
        for number, view in enumerate(views)
        if view.run.result.privacy is not None
    ]


def won(epsilon: float, delta: float) -> float:
    """The share of even bets on one unit that are won at most, once everything has been seen.

    Of a bet that is right with a chance of p, p <= e^ε (1 - p) + δ.

    >>> round(won(1.0, 0.0), 2), won(0.0, 0.0)
    (0.73, 0.5)
    """
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def _view(run: FinishedRun, own: Private, *, id: str) -> SpentView:
    promised = _promised(run)
    plain = f"{own.epsilon:.2f} at δ = {own.delta:g}".replace("e-0", "e-")
    said = f"One {own.unit} changes what anybody sees, the model included, by at most ε = {plain}."
    if own.simulated:
        said = f"ε = {plain} for one {own.unit}."
    right = "would be right" if own.simulated else "is right"
    said += (
        f" Somebody who bets whether a {own.unit} was in the training text, even before he has seen"
        f" anything, {right} at most {_percent(won(own.epsilon, own.delta))} of the time"
        f" afterwards."
    )
    return SpentView(
        said,
        SIMULATED if own.simulated else "",
        tuple(_facts(own, promised)),
        _drawn(run, promised, id=id),
        (*NEVER_NOISED, *([OPEN] if own.held_out == "open" else [])),
    )


def _facts(own: Private, promised: float | None) -> Iterator[tuple[str, str]]:
    yield "what is hidden", f"one {own.unit}"
    yield "ε spent", f"{own.epsilon:.3g}"
    if promised is not None:
        yield "ε of the settings", f"{promised:g}"
    yield "δ", f"{own.delta:g}".replace("e-0", "e-")
    yield "rounds", count(own.rounds)
    yield f"each {own.unit} is drawn with probability", f"{own.rate:g}"
    yield "largest gradient (clip)", f"{own.clip:g}"
    yield "noise (σ), in clips", f"{own.noise:g}"
    yield f"{own.unit}s by the settings", f"{count(own.units)}; nothing was counted"


def _drawn(run: FinishedRun, promised: float | None, *, id: str) -> Markup | None:
    """ε by round; None if the history does not say."""
    told = ((turn.round, (turn.model_extra or {}).get("epsilon")) for turn in run.history)
    points = [(float(n), float(e)) for n, e in told if isinstance(e, (int, float))]
    if not points:
        return None
    last = f"ε by round: {points[0][1]:.2f} after round {points[0][0]:.0f},"
    last += f" {points[-1][1]:.2f} after round {points[-1][0]:.0f}."
    if promised is not None:
        last += f" The settings allow {promised:g}."
    return Markup(spent_by_round(points, promised=promised, id=id, alternative=last))


def _promised(run: FinishedRun) -> float | None:
    """The ε that the run's settings allow, if they name one."""
    try:
        own = tomllib.loads(run.settings).get("privacy")
    except tomllib.TOMLDecodeError:
        return None
    found = own.get("epsilon") if isinstance(own, dict) else None
    return float(found) if isinstance(found, (int, float)) else None


def _percent(share: float) -> str:
    """A share in percent; never rounded up to all.

    >>> _percent(0.731), _percent(0.99966), _percent(0.9999999)
    ('73 %', '99.97 %', 'more than 99.99 %')
    """
    percent = 100 * share
    if percent > 99.99:
        return "more than 99.99 %"
    return f"{percent:.0f} %" if percent < 99 else f"{percent:.2f} %"
