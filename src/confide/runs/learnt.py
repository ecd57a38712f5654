"""Whether a run has learnt, and whether it was still learning when it ended: what to set, if so.

Everything is judged by the one number that stands for the task (`Task.kinds[0]`):

    nothing    fewer than `NOTHING` on test text (else on development text), of at least `FEWEST`
               marked answers
    learning   in the last fifth of the scored rounds development text reached `GAIN` more than ever
               before; or, where there is none, the loss fell by more than `FALL` of its whole fall

docs/result.md gives the reasons for these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confide.runs.result import Result
from confide.scoring.scores import Scored
from confide.settings import REFERENCES, Settings
from confide.tasks import TASKS, Task

NOTHING = 0.05
"""A score below this is next to nothing."""
FEWEST = 10
"""Of fewer marked answers a model that finds a quarter may well find none (0.75^10 = 6 %)."""
GAIN = 0.01
"""How much more the last fifth of the rounds has to bring on development text."""
FALL = 0.05
"""The share of the loss's whole fall that the last fifth of the rounds has to bring."""
FASTER: Mapping[str, object] = {
    "training.optimiser": "adam",
    "training.learning_rate": 0.005,
    "training.decay": 1.0,
}
"""For a tagger that learnt too little by SGD: on small texts Adam learns within a few rounds."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to know of a run that has not learnt, or not all that it could, and what to set.

    `changes` are settings by their dotted keys: to continue the run with if `resumes`, or else for
    another run.
    """

    said: str
    changes: Mapping[str, object] = field(default_factory=dict)
    resumes: bool = False


def advice(result: Result, settings: Settings | None = None) -> Advice | None:
    """What to say of a finished run; None if there is nothing to say.

    Without the run's `settings` it proposes no changes.
    """
    task, scored = TASKS[result.task], result.scores.overall
    text = "test"
    if task.empty(scored):
        scored, text = result.dev or {}, "development"
    value = task.value(scored, task.kinds[0])
    losses = [turn.loss for turn in result.history if turn.loss is not None]
    if value is not None and value < _least(task, scored) and task.marked(scored) >= FEWEST:
        name = task.words.full(task.kinds[0])
        said = f"this model has learnt next to nothing: {name} {100 * value:.1f} on {text} text"
        return _nothing(said, losses, result, settings)
    why = _still(result, task, losses)
    if why is None or result.privacy is not None:
        return None  # under noise more rounds cost more ε
    said = f"this model was still learning when the run ended: {why}"
    return Advice(said, _more(result, settings), resumes=settings is not None)


def _least(task: Task, scored: Scored) -> float:
    """The score below which nothing was learnt.

    A random ranking has an area of the share of facts.
    """
    facts, candidates = int(scored.get("facts", 0)), int(scored.get("candidates", 0))
    return max(NOTHING, 1.5 * facts / max(1, candidates))


def _nothing(
    said: str, losses: Sequence[float], result: Result, settings: Settings | None
) -> Advice:
    """Why nothing was learnt, by what the loss did."""
    if result.privacy is not None:
        said += "; noise of this size hides everything: `confide privacy plan` shows what ε and how"
        return Advice(f"{said} many units it takes")
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < len(losses) or (len(finite) > 1 and finite[-1] > finite[0]):
        last = f"{losses[-1]:.3g}"
        said += f", and the loss rose from {losses[0]:.3g} to {last}: the steps are too large"
        return Advice(said, {} if settings is None else _rate(settings, 1 / 3))
    if len(finite) > 1:
        said += f", with a loss of {finite[0]:.3g} in the first round and {finite[-1]:.3g} in the"
        said += " last: the steps are too small or too few"
    if settings is None:
        return Advice(said)
    own = settings.training
    if own.optimiser == "sgd" and settings.kind == "tagger":
        return Advice(said, FASTER)
    changes = _rate(settings, 3.0) | _more(result, settings)
    if own.decay ** len(result.history) < 0.1:
        changes["training.decay"] = 1.0
    return Advice(said, changes)


def _rate(settings: Settings, factor: float) -> dict[str, object]:
    return {"training.learning_rate": float(f"{factor * settings.training.learning_rate:.2g}")}


def _more(result: Result, settings: Settings | None) -> dict[str, object]:
    """Twice the rounds; twice the bytes, if these ended the run."""
    done = len(result.history)
    if settings is None:
        return {}
    changes: dict[str, object] = {"rounds": 2 * done}
    bound = settings.federation.megabytes
    if bound and settings.method not in REFERENCES:
        changes["federation.megabytes"] = 2 * bound
    return changes


def _still(result: Result, task: Task, losses: Sequence[float]) -> str | None:
    """Why the model was still learning in the last rounds; None if it was not."""
    kind = task.kinds[0]
    scored = [
        (turn.round, value)
        for turn in result.history
        if turn.dev is not None and (value := turn.dev.get(kind)) is not None
    ]
    if any(value > 0 for _, value in scored):
        late = max(1, len(scored) // 5)
        before, after = scored[:-late], scored[-late:]
        if not before:
            return None
        best = max(value for _, value in before)
        round, reached = max(after, key=lambda one: one[1])
        if reached - best < GAIN:
            return None
        return (
            f"{task.words.full(kind)} on development text rose from {100 * best:.1f} to"
            f" {100 * reached:.1f} in the last {_rounds(after[-1][0] - before[-1][0])}"
            f" (best round: {round} of {len(result.history)})"
        )
    late = max(1, len(losses) // 5)
    if len(losses) <= late + 1 or not all(map(math.isfinite, losses)):
        return None
    whole, last = losses[0] - losses[-1], losses[-late - 1] - losses[-1]
    if whole <= 0 or last <= FALL * whole:
        return None
    return (
        f"the loss fell from {losses[-late - 1]:.3g} to {losses[-1]:.3g} in the last"
        f" {_rounds(late)}, {100 * last / whole:.0f} % of its whole fall"
    )


def _rounds(count: int) -> str:
    return "round" if count == 1 else f"{count} rounds"
