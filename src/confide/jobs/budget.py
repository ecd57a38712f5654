"""Planning how often sites talk: as often as the upload budget of a site allows.

The fewer batches between two means, the closer federated training comes to pooled training; every
mean costs an upload of the model. A run that was done, however short, says what one upload weighs
and how much text the sites have. From that and a budget follow the batches between two means for
the same passes over the text, and a learning rate that falls by as much over the whole run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from confide.errors import RunError, SettingsError
from confide.methods import method_of
from confide.runs.folder import RunFolder

SCORINGS = 20
"""The number of times that a proposed run scores development text."""


@dataclass(frozen=True)
class UploadPlan:
    """Settings that keep every site's uploads within a budget.

    Attributes:
        rounds, local_steps, optimiser_state, decay, every, average: the settings of these names.
        passes: over the text, the same as `asked`, or as near as whole batches allow.
        megabytes: what the site that uploads most will upload, about.
        each: the megabytes of its upload in one round, as measured.
    """

    rounds: int
    local_steps: int
    optimiser_state: str
    decay: float
    every: int
    average: int
    passes: float
    megabytes: float
    each: float

    def overrides(self) -> list[str]:
        """The settings as `key=value`."""
        return [
            f"rounds={self.rounds}",
            f"training.local_steps={self.local_steps}",
            f"training.optimiser_state={self.optimiser_state}",
            f"training.decay={self.decay:.6g}",
            f"select.every={self.every}",
            f"select.average={self.average}",
        ]


def budget(run: Path, *, megabytes: float, passes: float | None = None) -> UploadPlan:
    """Propose how often to talk, from a run and the megabytes that a site may upload.

    `passes` over the text are those of the run unless given. Raises RunError (not finished, no
    bytes, nothing trained) and SettingsError (a method without means to space out, a budget below
    one upload, a number that is not above 0).
    """
    folder = RunFolder(run)
    result, settings = folder.result(), folder.settings()
    for name, value in (("megabytes", megabytes), ("passes", passes)):
        if value is not None and not (0 < value < math.inf):
            raise SettingsError(f"{name} must be a number above 0", got=str(value))
    if method_of(settings).personal or len(result.best_rounds) != 1:
        raise SettingsError(
            f"a run of {result.method!r} has no means that could be taken less often",
            expected="a run of a method that averages models, such as fedavg",
            where=str(run),
        )
    sizes = [site.train for site in result.data.sites.values()]
    done = sum(turn.sentences for turn in result.history)
    sent = result.bytes.up if result.bytes else {}
    if not (any(sizes) and done and sent and result.history):
        raise RunError(
            "the run does not say what its sites uploaded, and on how much text they trained",
            expected="the folder of the whole run, as the lead has it",
            where=str(run),
        )
    own = settings.training
    each = max(sent.values()) / len(result.history) / 1e6
    most = int(megabytes / each)
    if most < 1:
        raise SettingsError(
            "a site cannot even upload the model once",
            expected=f"at least {each:.3g} MB",
            got=f"{megabytes:g} MB",
            fix='train less of the model, or use a method that sends less, such as "feded"',
        )
    wanted = passes or done / sum(sizes)
    a_pass = math.ceil(max(sizes) / own.batch_size)
    batches = max(1, round(wanted * a_pass))
    steps = math.ceil(batches / min(most, batches))
    rounds = math.ceil(batches / steps)
    fallen = own.decay ** len(result.history)
    return UploadPlan(
        rounds=rounds,
        local_steps=steps,
        optimiser_state="keep",
        decay=fallen ** (1 / rounds),
        every=max(1, rounds // SCORINGS),
        average=max(1, rounds // SCORINGS),
        passes=rounds * steps / a_pass,
        megabytes=rounds * each,
        each=each,
    )
