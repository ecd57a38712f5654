"""No site worse off: each site keeps the best of three models, by its own development text.

A common model can be worse for a site than what the site could have trained by itself: its text
differs from the others', or it has enough of its own. So after a run each site compares, on its
own development text,

    federated   the model of the run: the common one, or the site's own where the method makes one
    tuned       that model, trained on at home for a few passes
    alone       a model of the same form, trained at home from its first weights

and keeps the best; between equals, the first. Passes over the training text stop when development
text has not improved for a while. Test text is scored for all three and decides nothing.

Nothing here is sent: it happens where the site's text lies, with the run's folder of that place,
and what is kept lies in the folder that the site owns.

This resembles the adaptation by fine-tuning of Yu, Bagdasaryan & Shmatikov 2020 ("Salvaging
Federated Learning by Local Adaptation").
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confide.errors import RunError
from confide.federation.files import for_the_owner, private_folder, write_of_run
from confide.federation.inprocess import SiteSpec, site_of
from confide.federation.messages import Arrays, encode
from confide.federation.site import Scratch
from confide.kinds.how import How
from confide.learning.devices import computing_at, place_of
from confide.methods import Method, method_of
from confide.runs.athome import (
    ALONE,
    FEDERATED,
    HOME,
    KEPT,
    TUNED,
    AtHome,
    Candidate,
    KeptAtHome,
    round_of,
)
from confide.runs.folder import RunFolder
from confide.runs.gathering import gather
from confide.scoring.calibration import AS_IS, Calibrator, fitted
from confide.seeds import derive_seed
from confide.settings import Settings
from confide.tasks import TASKS, Counts


@dataclass
class _Found:
    """The best weights so far on the way of one candidate."""

    weights: Arrays
    dev: float | None
    passes: int = 0
    seconds: float = 0.0


@for_the_owner()
def home(
    run: Path | str,
    *,
    site: str | None = None,
    passes: int = 10,
    alone: bool = True,
    key: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, AtHome]:
    """Let sites compare the run's model with what they can train at home, and keep the best.

    Args:
        run: the folder of a finished run: on one machine, or a real site's own (`runs/RUN` in its
            memory folder).
        site: only this one; by default every site whose text is here.
        passes: at most so many over the training text to tune the federated model; 0: none.
        alone: whether a model is trained from the start as well, for at most as many passes as the
            run's rounds come to. This takes as long as the site's part of the run did.
        key: the sites' shared key file; by default the one that the run's settings name.
        say: is told one sentence for each candidate.

    Returns:
        What each site keeps. `predict`, `evaluate` and `release` use it when they are told the
        site.

    Raises:
        RunError: there is no such run or site. DataError, KeyFileError: the text or key is not
        here.
    """
    folder = RunFolder(Path(run))
    settings = folder.settings()
    method = method_of(settings)
    gathered = gather(settings, folder.sites, key_file=key or folder.key_file(settings))
    specs = [spec for spec in gathered.specs if site in (None, spec.name)]
    if not specs:
        known = ", ".join(spec.name for spec in gathered.specs)
        raise RunError(f"the run has no site {site!r}", where=str(folder.path), expected=known)
    place = place_of(settings.device, settings.precision, at_once=settings.at_once)
    with computing_at(place, threads=settings.threads):
        scratch: Scratch = {}
        return {
            spec.name: _Bench(folder, settings, method, spec, scratch).kept(
                passes=passes, alone=alone, say=say or (lambda _: None)
            )
            for spec in specs
        }


def alone_hows(at_home: Callable[[int], How], settings: Settings, *, size: int) -> list[How]:
    """How a site of so many training examples trains alone: pass by pass, at the rates of a run.

    There are as many passes as the run's rounds come to, at least one; `at_home` is the method's.
    """
    own, a_pass = settings.training, math.ceil(size / settings.training.batch_size)
    batches = own.local_epochs * a_pass
    if own.local_steps:
        batches = min(batches, own.local_steps)
    whole = math.ceil(settings.rounds * batches / a_pass)
    return [
        replace(at_home(1 + n * settings.rounds // whole), vectors=n == 0) for n in range(whole)
    ]


class _Bench:
    """One site with its text, and the model of the run."""

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        method: type[Method],
        spec: SiteSpec,
        scratch: Scratch,
    ) -> None:
        self._settings = settings
        self._method = method
        self._spec = spec
        self._made = method(settings)
        own = spec.name if method.personal or "" not in folder.result().best_rounds else None
        self._form, self._weights = self._made.model(*folder.trained(method, own))
        self._desk = self._form.at(site_of(spec, scratch))
        self._store = folder.home(spec.name)
        self._round = round_of(folder, spec.name)
        self._run_calibrator = folder.calibrator(spec.name)
        by = settings.select.by
        self._by = TASKS[settings.task].kinds[0] if by == "last" else by

    def kept(self, *, passes: int, alone: bool, say: Callable[[str], None]) -> AtHome:
        """Make and compare the candidates, and keep the best."""
        found = {FEDERATED: _Found(self._weights, self._score(self._weights, "dev"))}
        last = self._settings.rounds
        if found[FEDERATED].dev is not None and self._spec.train:
            if passes:
                hows = [replace(self._made.at_home(last), vectors=False)] * passes
                found[TUNED] = self._trained(TUNED, self._weights, hows, patience=3)
            if alone:
                first = self._form.first(derive_seed(self._settings.seed, "home", "weights"))
                hows = alone_hows(self._made.at_home, self._settings, size=self._desk.size)
                found[ALONE] = self._trained(ALONE, first, hows, patience=10)
        candidates = {}
        for name, one in found.items():
            test = self._score(one.weights, "test")
            candidates[name] = Candidate(
                passes=one.passes, dev=one.dev, test=test, seconds=one.seconds
            )
            say(f"{self._spec.name}: {_said(name, candidates[name])}")
        best = FEDERATED
        for name, one in found.items():
            best = name if _better(one.dev, found[best].dev) else best
        why = f"best on its development text ({len(self._spec.dev)} documents)"
        if found[FEDERATED].dev is None or not self._spec.train:
            why = "it has no development text to compare models on, or no training text"
        made = AtHome(
            site=self._spec.name,
            kept=best,
            by=self._by,
            why=why,
            round=self._round,
            candidates=candidates,
        )
        self._write(made, found[best].weights)
        say(f"{self._spec.name}: keeps {best}, {why}")
        return made

    def _trained(self, name: str, start: Arrays, hows: Sequence[How], *, patience: int) -> _Found:
        """The best weights on the way, by development text.

        Training stops after `patience` passes without a better score; a model that begins with
        random weights may take as long as it likes for the first.
        """
        best = _Found(start, self._score(start, "dev"))
        began, weights = time.perf_counter(), start
        for number, how in enumerate(hows, start=1):
            seed = derive_seed(self._settings.seed, "home", self._spec.name, name, number)
            weights = self._desk.fit(weights, how, seed=seed).weights
            dev = self._score(weights, "dev")
            if _better(dev, best.dev):
                best = _Found(weights, dev, number)
            elif (best.passes or name == TUNED) and number - best.passes >= patience:
                break
        best.seconds = time.perf_counter() - began
        return best

    def _score(self, weights: Arrays, part: str) -> float | None:
        """The number that decides, of a part of the held-out text; None where there is none."""
        if not getattr(self._spec, part):
            return None
        task = TASKS[self._settings.task]
        return task.value(task.scores(self._counted(weights, part)), self._by)

    def _counted(self, weights: Arrays, part: str) -> Counts:
        """Counts of a part of the held-out text."""
        apart = {"apart": True} if self._method.apart else {}
        counts: Counts = self._method.kind.counts(self._desk.scored(weights, part, **apart))
        return counts

    def _calibrator(self, weights: Arrays) -> Calibrator:
        """What calibrates these weights' confidences; the run's if there is too little text."""
        if not self._settings.select.calibrate:
            return AS_IS
        return fitted(self._counted(weights, "dev").sure, otherwise=self._run_calibrator)

    def _write(self, made: AtHome, weights: Arrays) -> None:
        private_folder(self._store)
        if made.kept != FEDERATED:
            kept = KeptAtHome(made.kept, self._round, weights, *self._calibrator(weights))
            write_of_run(self._store / KEPT, encode(kept))
        else:
            (self._store / KEPT).unlink(missing_ok=True)
        write_of_run(self._store / HOME, made.model_dump_json(indent=1).encode())


def _better(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one > other


def _said(name: str, one: Candidate) -> str:
    said = [f"{name}:"]
    said += [
        f"{part} {100 * value:.1f}"
        for part, value in (("development", one.dev), ("test", one.test))
        if value is not None
    ]
    if one.passes or one.seconds:
        said.append(f"after {one.passes} passes")
    return " ".join(said)
