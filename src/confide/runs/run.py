"""A run: settings in, a folder with a model, scores, ledger and history out.

A method such as `fedavg` makes one federation of all sites. `pooled` is a federation of one site
with all text, `public-only` of one site with the public set, and `alone` is one federation for each
site. All take the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from confide.federation.events import Event, Watcher, unwatched
from confide.federation.files import for_the_owner
from confide.federation.inprocess import Hosting, SequentialEngine, SiteSpec, SumsWith
from confide.federation.keys import unlock
from confide.federation.workers import WorkerEngine
from confide.learning.devices import computing_at, place_of
from confide.methods import Expecting, Method, answered_in, method_of
from confide.recipes import settings_file
from confide.runs.folder import RunFolder, environment, memory_of
from confide.runs.gathering import Gathered, gather
from confide.runs.outcomes import Outcome, Plan, binding_of, outcome_of, result_of, sums_of, up_of
from confide.runs.references import pooled, public_only
from confide.runs.result import Result
from confide.runs.sitereport import Home, site_reports
from confide.runs.starting import start_of
from confide.runs.telling import ended, started
from confide.settings import SIMULATED, Settings, anchored, load
from confide.tasks import Counts

__all__ = ["Event", "RunResult", "run"]

ONE_AND_ALL = ""
"""The name of the part of a run that is one federation of everybody."""

ONE_SITE = {"pooled": pooled, "public-only": public_only}
"""References that are one site, and what makes that site."""


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what result.json says."""

    folder: Path
    result: Result


@dataclass(frozen=True)
class Part:
    """One federation of a run: its name and its sites."""

    name: str
    specs: tuple[SiteSpec, ...]


@for_the_owner()
def run(
    settings: str | Path | Settings,
    *,
    overrides: Sequence[str] = (),
    out: Path | str | None = None,
    resume: bool = False,
    on_event: Watcher | None = None,
) -> RunResult:
    """Train and score what the settings say.

    Args:
        settings: a TOML file, the name of a recipe, or settings.
        overrides: `key=value` texts that replace the file's values.
        out: the run's folder; by default `runs/NAME-METHOD-SEED`.
        resume: continue from the last checkpoint in the folder; the numbers are those of a run
            that was never interrupted.
        on_event: called with every event of the run.

    Raises:
        ConfideError: any error in `confide.errors`; the folder keeps its last checkpoint.
    """
    watch = on_event or unwatched
    chosen = _chosen(settings, overrides)
    kind = method_of(chosen)
    kind(chosen)  # reports wrong options before any text is read
    place = place_of(chosen.device, chosen.precision, at_once=chosen.at_once)
    name = chosen.name or (Path(settings).stem if not isinstance(settings, Settings) else "run")
    folder = RunFolder(Path(out or Path("runs") / f"{name}-{chosen.method}-{chosen.seed}"))
    folder.check(chosen, resume=resume)
    start = start_of(chosen)
    watch(started(chosen, name, folder.path))
    gathered = gather(chosen, folder.sites, key_file=folder.key_file(chosen))
    own_keys = (spec.key_file for spec in gathered.specs if spec.key_file)
    unlock(own_keys, ask=chosen.workers == 1)  # a worker cannot ask for a passphrase
    method = kind(chosen, gathered.public)
    method.begin_with(start)
    with folder.writing(chosen, resume=resume):
        folder.begin(chosen)
        folder.write("environment.json", environment(chosen, gathered.fingerprint))
        with computing_at(place, threads=chosen.threads):
            outcomes, by_site = _carried_out(chosen, method, folder, gathered=gathered, watch=watch)
        result = result_of(
            chosen,
            outcomes,
            name=name,
            data=gathered.facts(),
            counts=by_site if chosen.method in ONE_SITE else None,
        )
        result.write(folder.path)
    watch(ended(result, folder.path))
    return RunResult(folder.path, result)


def _chosen(settings: str | Path | Settings, overrides: Sequence[str]) -> Settings:
    if isinstance(settings, Settings):
        return anchored(settings, Path.cwd())
    return load(settings_file(settings), overrides)


def _parts(settings: Settings, gathered: Gathered, folder: RunFolder) -> list[Part]:
    if settings.method in ONE_SITE:
        return [Part(ONE_AND_ALL, (ONE_SITE[settings.method](gathered, folder.sites),))]
    if settings.method == "alone":
        return [Part(spec.name, (spec,)) for spec in gathered.specs]
    return [Part(ONE_AND_ALL, gathered.specs)]


def _carried_out(
    settings: Settings, method: Method, folder: RunFolder, *, gathered: Gathered, watch: Watcher
) -> tuple[list[Outcome], dict[str, Counts]]:
    """Train all federations of the run, then let the sites examine their own errors."""
    parts = _parts(settings, gathered, folder)
    outcomes = _train(settings, method, folder, parts=parts, gathered=gathered, watch=watch)
    watch(Event("scores", message="the sites examine their own errors"))
    whole = list(zip(parts, outcomes, strict=True))
    left_out = {site for outcome in outcomes for site in outcome.trained.progress.left_out}
    there = [spec for spec in gathered.specs if spec.name not in left_out]
    return outcomes, site_reports(method, (_at_home(spec, whole, method) for spec in there))


def _train(
    settings: Settings,
    method: Method,
    folder: RunFolder,
    *,
    parts: list[Part],
    gathered: Gathered,
    watch: Watcher,
) -> list[Outcome]:
    """Train all federations of the run; those of `alone` run side by side if there are workers."""
    specs = [spec for part in parts for spec in part.specs]
    binding = binding_of(settings, gathered.fingerprint)
    hosting = Hosting(
        answered_in(settings),
        method.Memory,
        settings.seed,
        every=settings.select.every,
        last=settings.rounds,
        sums=SumsWith(sums_of(settings), bytes.fromhex(binding), settings.federation.groups),
        simulated=settings.seed if settings.key == SIMULATED else None,
        up=up_of(settings),
        top=settings.federation.top,
        expects=Expecting(settings),
    )
    workers = min(settings.workers, len(specs))

    def one(part: Part) -> Outcome:
        plan = Plan(settings, method, engine, folder, binding, watch)
        return outcome_of(plan, part.name, [spec.name for spec in part.specs])

    engine: SequentialEngine | WorkerEngine
    engine = (
        WorkerEngine(specs, hosting, workers=workers, threads=settings.threads)
        if workers > 1
        else SequentialEngine(specs, hosting)
    )
    with closing(engine):
        if len(parts) == 1 or workers == 1:
            return [one(part) for part in parts]
        with ThreadPoolExecutor(len(parts)) as pool:  # threads that wait for processes
            try:
                return list(pool.map(one, parts))
            except BaseException:
                engine.stop()  # after Ctrl-C or a failure the others need not finish
                raise


def _at_home(spec: SiteSpec, ended: list[tuple[Part, Outcome]], method: Method) -> Home:
    """A site with the state and memory that it ends with, and the key that goes with them.

    They come from its own federation, or from the only one if all text is in one place.
    """
    part, outcome = next((one for one in ended if spec in one[0].specs), ended[0])
    owner = spec if spec in part.specs else part.specs[0]
    took_part = method.personal and owner.name in outcome.counts
    memory = memory_of(owner.folder, method.Memory) if took_part else None
    return Home(replace(spec, key_file=owner.key_file), outcome.trained.state, memory)
