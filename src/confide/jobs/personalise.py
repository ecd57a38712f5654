"""No site worse off: each site keeps the best of three models that its development text can tell.

A common model can be worse for a site than what the site could have trained by itself: its text
differs from the others', or it has enough of its own. So after a run each site compares, on its
own development text,

    federated   the model of the run: the common one, or the site's own where the method makes one
    tuned       that model, trained on at home for a few passes
    alone       a model of the same form, trained at home from its first weights

and keeps the best. But of several models one always scores best on a little development text, and
the best pass of each is chosen on it too. So the model of the run stays unless another is better by
more than luck: there are at least `LEAST` entities (or relations, ...) in the development text, and
a randomisation test over its documents gives the gain a chance of at most `LEVEL`. Units of the
test are documents (of bags, pairs of entities), or blocks of ten neighbouring sentences where
documents are unknown. `benchmarks/papers/home` says what this does to worse and to better models.

Passes over the training text stop when development text has not improved for a while. Test text is
scored for all three and decides nothing.

Nothing here is sent: it happens where the site's text lies, with the run's folder of that place,
and what is kept lies in the folder that the site owns.

This resembles the adaptation by fine-tuning of Yu, Bagdasaryan & Shmatikov 2020 ("Salvaging
Federated Learning by Local Adaptation").
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from confide.corpora.dealing import group_by_pair
from confide.errors import RunError, os_errors_as
from confide.federation.messages import Arrays, encode
from confide.federation.site import Scratch, Site
from confide.files import for_the_owner, private_folder, write_of_run
from confide.kinds.protocol import SiteModel, TrainConfig
from confide.kinds.steps import SCORING
from confide.runs.folder import (
    FEDERATED,
    HOME,
    KEPT,
    TRAINED_ALONE,
    TUNED,
    AtHome,
    Candidate,
    KeptAtHome,
    RunFolder,
    round_of,
)
from confide.runs.loading import LocalRun
from confide.runs.run import computing_as
from confide.runs.sites import neighbour_blocks
from confide.scoring.calibration import AS_IS, USUAL, fitted
from confide.scoring.intervals import exchange_test
from confide.seeds import derive_seed
from confide.settings import Settings
from confide.tasks import TASKS, Counts

LEVEL = 0.01
"""The most that a gain may be luck, for each of the two other models."""
LEAST = 50
"""The fewest annotated entities, relations, facts or pieces of development text."""
MOST_UNITS = 32
"""Neighbouring documents are tested together if there are more of them."""


@dataclass
class _BestWeights:
    """The best weights so far on the way of one candidate."""

    weights: Arrays
    dev: float | None
    passes: int = 0
    seconds: float = 0.0


@for_the_owner()
def personalise(
    run: Path | str,
    *,
    site: str | None = None,
    passes: int = 10,
    alone: bool = True,
    key: Path | str | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, AtHome]:
    """Let sites compare the run's model with what they can train at home, and keep what is better.

    Args:
        run: the folder of a finished run: on one machine, or a real site's own (`runs/RUN` in its
            memory folder).
        site: only this one; by default every site whose text is here.
        passes: the most over the training text to tune the federated model; 0: none.
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
    opened = LocalRun.of(RunFolder(Path(run)), key)
    specs, scratch = opened.specs(site), Scratch()
    with computing_as(opened.settings):
        return {
            spec.name: _SiteChoice(opened, spec, scratch).kept(
                passes=passes, alone=alone, say=say or (lambda _: None)
            )
            for spec in specs
        }


def alone_configs(
    at_home: Callable[[int], TrainConfig], settings: Settings, *, size: int
) -> list[TrainConfig]:
    """The training of a site by itself with `size` examples: pass by pass, at the rates of a run.

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


class _SiteChoice:
    """One site with its text, and the model of the run."""

    def __init__(self, opened: LocalRun, spec: Site, scratch: Scratch) -> None:
        folder, settings = opened.folder, opened.settings
        self._settings = settings
        self._method = opened.method
        self._spec = spec
        self._made = self._method(settings)
        self._form, self._weights = opened.model_of(spec)
        self._site = spec.in_process(scratch)
        self._site_model: SiteModel = self._form.at(self._site)
        self._store = folder.home(spec.name)
        self._round = round_of(folder, spec.name)
        self._run_calibrator = folder.calibrator(spec.name)
        by = settings.select.by
        self._by = TASKS[settings.task].kinds[0] if by == "last" else by

    def kept(self, *, passes: int, alone: bool, say: Callable[[str], None]) -> AtHome:
        """Make and compare the candidates, and keep one."""
        found = {FEDERATED: _BestWeights(self._weights, self._score(self._weights, "dev"))}
        last = self._settings.rounds
        if found[FEDERATED].dev is not None and self._spec.train:
            if passes:
                configs = [replace(self._made.config_alone(last), vectors=False)] * passes
                found[TUNED] = self._trained(TUNED, self._weights, configs, patience=3)
            if alone:
                first = self._form.first(derive_seed(self._settings.seed, "home", "weights"))
                configs = alone_configs(
                    self._made.config_alone, self._settings, size=self._site_model.size
                )
                found[TRAINED_ALONE] = self._trained(TRAINED_ALONE, first, configs, patience=10)
        candidates = {}
        for name, one in found.items():
            test = self._score(one.weights, "test")
            candidates[name] = Candidate(
                passes=one.passes, dev=one.dev, test=test, seconds=one.seconds
            )
            said = [
                f"{part} {100 * value:.1f}"
                for part, value in (("development", one.dev), ("test", test))
                if value is not None
            ]
            if one.passes or one.seconds:
                said.append(f"after {one.passes} passes")
            say(" ".join([f"{self._spec.name}: {name}:", *said]))
        best, why, undecided = self._decided(found)
        made = AtHome(
            site=self._spec.name,
            kept=best,
            by=self._by,
            why=why,
            undecided=undecided,
            round=self._round,
            candidates=candidates,
        )
        with os_errors_as(
            RunError,
            "what the site keeps cannot be written",
            where=self._store,
            fix="compare where the run's folder can be written",
        ):
            private_folder(self._store)
        if best == FEDERATED:
            (self._store / KEPT).unlink(missing_ok=True)
        else:
            weights, calibrator = found[best].weights, AS_IS
            if self._settings.select.calibrate:  # with few finds, close to the run's
                prior = USUAL if self._run_calibrator == AS_IS else self._run_calibrator
                calibrator = fitted(
                    self._counts(self._site_model, weights, "dev").sure, prior=prior
                )
            kept = KeptAtHome(best, self._round, weights, *calibrator)
            write_of_run(self._store / KEPT, encode(kept))
        write_of_run(self._store / HOME, made.model_dump_json(indent=1).encode())
        say(f"{self._spec.name}: keeps {best}: {why}")
        return made

    def _decided(self, found: Mapping[str, _BestWeights]) -> tuple[str, str, bool]:
        """The model to keep, why, and whether another looked better but may be so by luck."""
        if found[FEDERATED].dev is None or not self._spec.train:
            why = "it has no development text to compare models on, or no training text"
            return FEDERATED, why, False
        ahead = [name for name in found if _better(found[name].dev, found[FEDERATED].dev)]
        if not ahead:
            return FEDERATED, "no other is better on its development text", False
        ahead.sort(key=lambda name: -(found[name].dev or 0.0))
        task, site_models = TASKS[self._settings.task], self._units()
        counts = {
            name: [
                self._counts(site_model, found[name].weights, "dev") for site_model in site_models
            ]
            for name in (FEDERATED, *ahead)
        }

        def value(units: Sequence[Counts]) -> float:
            return task.value(task.scores(task.sum(units)), self._by) or 0.0

        scored = task.scores(task.sum(counts[FEDERATED]))
        rates = [scored.get(kind) for kind in (*task.kinds, *task.typed)]
        support = [one.get("support", 0) for one in rates if isinstance(one, Mapping)]
        many = max(support, default=scored[task.unit])
        held = f"{many:,} {task.words.found} in {len(site_models)} parts of its development text"
        if many < LEAST:
            return FEDERATED, f"too little to tell: {held}, at least {LEAST} needed", True
        lucky = {
            name: exchange_test(counts[FEDERATED], counts[name], value, seed=self._settings.seed)
            for name in ahead
        }
        for name in ahead:
            if lucky[name] <= LEVEL:
                return name, f"better on {held} (p = {lucky[name]:.3f})", False
        name = min(ahead, key=lambda one: lucky[one])
        why = f"too little to tell: {name} is better on {held}, by luck with p = {lucky[name]:.3f}"
        return FEDERATED, f"{why}, at most {LEVEL} needed", True

    def _units(self) -> list[SiteModel]:
        """Desks of the site with a part of its development text each, none of which shares a text.

        They score one after another with the one model of the process.
        """
        dev, bags = self._spec.dev, TASKS[self._settings.task].bags
        units = (
            group_by_pair(dev, self._settings.bags.same_entity) if bags else neighbour_blocks(dev)
        )
        together = math.ceil(len(units) / MOST_UNITS)
        parts = [
            list(chain.from_iterable(units[first : first + together]))
            for first in range(0, len(units), together)
        ]
        known = {place: made for place, made in self._site.cache.items() if place != "site_model"}
        return [self._form.at(replace(self._site, dev=part, cache=dict(known))) for part in parts]

    def _trained(
        self, name: str, start: Arrays, configs: Sequence[TrainConfig], *, patience: int
    ) -> _BestWeights:
        """The best weights on the way, by development text.

        Training stops after `patience` passes without a better score; a model that begins with
        random weights may take as long as it likes for the first.
        """
        best = _BestWeights(start, self._score(start, "dev"))
        began, weights = time.perf_counter(), start
        for number, config in enumerate(configs, start=1):
            seed = derive_seed(self._settings.seed, "home", self._spec.name, name, number)
            weights = self._site_model.fit(weights, config, seed=seed).weights
            dev = self._score(weights, "dev")
            if _better(dev, best.dev):
                best = _BestWeights(weights, dev, number)
            elif (best.passes or name == TUNED) and number - best.passes >= patience:
                break
        best.seconds = time.perf_counter() - began
        return best

    def _score(self, weights: Arrays, part: str) -> float | None:
        """The number that decides, of a part of the held-out text; None where there is none."""
        if not getattr(self._spec, part):
            return None
        task = TASKS[self._settings.task]
        return task.value(task.scores(self._counts(self._site_model, weights, part)), self._by)

    def _counts(self, site_model: SiteModel, weights: Arrays, part: str) -> Counts:
        """Counts of a part of the site model's held-out text."""
        apart = {"apart": True} if self._method.apart else {}
        counts: Counts = SCORING[self._method.kind.task].counts(
            site_model.scored(weights, part, **apart)
        )
        return counts


def _better(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one > other
