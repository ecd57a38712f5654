"""A run: settings in, a folder with a model, scores, ledger and history out.

A method such as `fedavg` makes one federation of all sites. `pooled` is a federation of one site
with all text, `public-only` of one site with the public set, and `alone` is one federation for each
site. All take the same path.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide import methods
from confide.errors import KeyFileError, RunError, SettingsError, Waiting
from confide.federation.broadcast import Broadcast
from confide.federation.combining import NEEDED, Combining
from confide.federation.engines import Hosting, SequentialEngine, WorkerEngine
from confide.federation.events import Event, Watcher, unwatched
from confide.federation.federation import Federation
from confide.federation.keys import read_key, unlock
from confide.federation.ledger import Ledger
from confide.federation.memory import MemoryStore
from confide.federation.secure.messages import threshold
from confide.federation.secure.server import LostSites, Summing
from confide.federation.secure.steps import Sums
from confide.federation.site import Site
from confide.federation.steps import Engine
from confide.files import Tree, for_the_owner, write_of_run
from confide.kinds.protocol import Report
from confide.kinds.steps import Start
from confide.methods.method import Method, Pair
from confide.methods.noise import budget_of
from confide.recipes import settings_file
from confide.runs import folder as run_folder
from confide.runs import result as run_result
from confide.runs.folder import RunFolder
from confide.runs.result import Result
from confide.runs.rounds import ALL_THERE, Attendance, Rounds, Selected, checkpointed_ledger
from confide.runs.sites import Gathered, gather, pooled, public_only
from confide.runs.status import ended, started
from confide.scoring import calibration
from confide.settings import SIMULATED, Settings, anchored, load_settings
from confide.tasks import TASKS, Counts
from confide.training.devices import Place, computing_at, place_of
from confide.version import __version__

if TYPE_CHECKING:
    from confide.kinds import Extractor

# --- From a federation to a result
#
# Train it, score it, and put together what result.json says.
#
# Both engines take this path: `run` with all sites on one machine, `flare` with real ones.


@dataclass(frozen=True)
class RunPlan:
    """The common parts of the federations of one run.

    `binding` is a digest of everything that decides the numbers (`binding_of`); `called` is the
    run's name, if sites know it by one. Where the engine carries files, `ahead` is given the
    selected state while test counts are waited for, so that more can be asked in the same files.
    `repeats`: the code runs again and again up to the same place (`Summing`).
    """

    settings: Settings
    method: Method
    engine: Engine
    folder: RunFolder
    binding: str
    watch: Watcher
    called: str = ""
    ahead: Callable[[Selected], None] | None = None
    repeats: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of one federation: the selected state, test counts, and its ledger.

    `broadcast` knows which weights its sites have.
    """

    name: str
    sites: tuple[str, ...]
    trained: Selected
    counts: Mapping[str, Counts]
    ledger: Ledger
    broadcast: Broadcast


def open_ledger(folder: RunFolder, name: str) -> Ledger:
    """The ledger of one federation of a run, continued from its newest checkpoint."""
    path = ledger_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    round, length = checkpointed_ledger(folder.store(name))
    return Ledger.resumed(path, length=length, round=round)


def ledger_path(folder: RunFolder, name: str) -> Path:
    """The ledger file of one federation of a run."""
    return folder.part(name) / "ledger.jsonl"


def outcome_of(
    plan: RunPlan,
    name: str,
    sites: Sequence[str],
    *,
    ledger: Ledger | None = None,
    attendance: Attendance = ALL_THERE,
) -> Outcome:
    """Train the federation of these sites from its last checkpoint, and score their test text.

    `name` is its part of the run's folder; `attendance` says who of real sites is missing. Raises
    FederationError, CheckpointError.
    """
    settings = plan.settings
    methods.check_enough(settings, len(sites) - len(attendance.missing))
    ledger = ledger or open_ledger(plan.folder, name)
    federation = federation_of(
        plan.settings,
        plan.engine,
        ledger,
        sites=sites,
        watch=plan.watch,
        summing=summing_of(
            settings,
            run=plan.called or plan.binding,
            sites=sites,
            lost=LostSites(plan.folder.part(name) / run_folder.LOST),
            repeats=plan.repeats,
            greetings=plan.folder.part(name) / run_folder.GREETINGS if plan.called else None,
        ),
    )
    rounds = Rounds(
        plan.method,
        federation,
        settings=settings,
        store=plan.folder.store(name),
        ledger=ledger,
        binding=plan.binding,
        watch=plan.watch,
        attendance=attendance,
    )
    trained = rounds.run()
    try:
        counts = rounds.score(trained.state, "test", trained.progress.history[-1]["round"])
    except Waiting:
        if plan.ahead is not None:
            plan.ahead(trained)
        raise
    ledger.flush()
    return Outcome(name, tuple(sites), trained, counts, ledger, federation.broadcast)


def federation_of(
    settings: Settings,
    engine: Engine,
    ledger: Ledger,
    *,
    sites: Sequence[str],
    watch: Watcher,
    summing: Summing | None = None,
) -> Federation:
    """These sites as the server sees them.

    Raises SettingsError if they are too few for the way in which updates are combined.
    """
    methods.check_enough(settings, len(sites))
    own = settings.sharing
    federation = Federation(
        engine,
        seed=settings.seed,
        ledger=ledger,
        at_least=settings.federation.at_least,
        timeout=settings.federation.timeout,
        sites=sites,
        watch=watch,
        combining=Combining(how=own.combine, trim=own.trim, max_norm_ratio=own.limit),
    )
    federation.summing, federation.broadcast = summing, Broadcast(own.down, share=own.top)
    return federation


def sums_of(settings: Settings) -> Sums:
    """Choose how replies are summed."""
    return settings.sharing.sums or "plain"


def hosting_of(settings: Settings) -> Hosting:
    """Say how sites answer the steps of these settings."""
    return Hosting(
        methods.answered_in(settings),
        methods.method_named(settings.trained_by).Memory,
        settings.seed,
        every=settings.select.every,
        last=settings.rounds,
        sums=sums_of(settings),
        up=settings.sharing.up,
        top=settings.federation.top,
        expects=methods.Expecting(settings),
    )


LANES = {"rows": 0, "float16": 2, "int8": 1}
"""The bytes of a lane for changes of weights, by how they travel where sums are secure."""


def summing_of(
    settings: Settings,
    *,
    run: str,
    sites: Sequence[str],
    lost: LostSites | None = None,
    repeats: bool = False,
    greetings: Path | None = None,
) -> Summing | None:
    """Make the secure sum of replies; None if they are summed plainly.

    Raises SettingsError if there are too few sites to hide one among them.
    """
    if sums_of(settings) == "plain":
        return None
    own = settings.federation
    summing = Summing(
        run=run,
        sites=sites,
        colluding=own.colluding,
        group=own.groups,
        lost=lost,
        greetings=greetings,
        lane_width=LANES[own.up],
        repeats=repeats,
    )
    for members in (sites, *summing.groups):
        threshold(len(members), summing.colluding)
    if own.groups and len(summing.groups) < NEEDED:
        raise SettingsError(
            f"federation.groups = {own.groups} makes too few groups to compare",
            expected=f"at least {NEEDED} groups",
            got=f"{len(summing.groups)} of {len(sites)} sites",
            fix="make smaller groups, bring more sites together, or leave groups out",
        )
    return summing


def result_of(
    settings: Settings,
    outcomes: Sequence[Outcome],
    *,
    name: str,
    data: Tree,
    counts: Mapping[str, Counts] | None = None,
) -> Result:
    """Make the contents of result.json.

    `data` describes the sites' text in numbers; `counts` replaces the outcomes' own counts by site.
    """
    if counts is None:
        counts = {site: count for outcome in outcomes for site, count in outcome.counts.items()}
    progress = [outcome.trained.progress for outcome in outcomes]
    history = run_result.merge_histories([one.history for one in progress])
    done = sum(round.get("sentences", 0) for one in progress for round in one.history)
    training = sum(round["train_seconds"] for one in progress for round in one.history)
    weights = outcomes[0].trained.state.weights
    usage, scoring = resource.getrusage, TASKS[settings.task]
    up, down = (
        {site: n for o in outcomes for site, n in sorted(o.ledger.totals[way].items())}
        for way in ("up", "down")
    )
    return Result(
        schema=run_result.SCHEMA,
        confide=__version__,
        name=name,
        task=settings.task,
        method=settings.method,
        seed=settings.seed,
        rounds=len(history),
        personal=is_personal(settings),
        best_round=progress[0].best_round if len(outcomes) == 1 else None,
        best_rounds={o.name: o.trained.progress.best_round for o in outcomes},
        scores=run_result.AllScores(
            overall=scoring.scores(scoring.sum(counts.values())),
            sites={site: scoring.scores(count) for site, count in sorted(counts.items())},
        ),
        dev=progress[0].best_dev if len(outcomes) == 1 else None,
        history=[run_result.RoundRecord.model_validate(turn) for turn in history],
        left_out={site: code for one in progress for site, code in one.left_out.items()},
        calibration=_calibration(settings, outcomes, counts),
        bytes=run_result.Traffic(up=up, down=down),
        seconds=sum(one.seconds for one in progress),
        compute_seconds=sum(one.compute_seconds for one in progress),
        sentences_per_second=done / training if training else 0.0,
        data=run_result.Data.model_validate(data),
        **_private(settings, rounds=len(history)),
        parameters=sum(array.size for array in weights.values()),
        peak_rss_mb=usage(resource.RUSAGE_SELF).ru_maxrss / _RSS_PER_MB,
        peak_rss_mb_worker=usage(resource.RUSAGE_CHILDREN).ru_maxrss / _RSS_PER_MB,
    )


def _private(settings: Settings, *, rounds: int) -> dict[str, run_result.Private]:
    """The privacy budget that `rounds` rounds spent, if the run is private."""
    own = settings.privacy
    if own is None:
        return {}
    budget = budget_of(settings)
    private = run_result.Private(
        unit=own.unit,
        epsilon=budget.epsilon_after(rounds),
        delta=own.delta,
        noise=budget.noise,
        clip=own.clip,
        rate=budget.rate,
        rounds=rounds,
        units=own.units or 0,
        held_out="open" if own.holdout_scores == "sent" else "closed",
        simulated=settings.key == SIMULATED,
    )
    return {"privacy": private}


def _calibration(
    settings: Settings, outcomes: Sequence[Outcome], counts: Mapping[str, Counts]
) -> run_result.Calibration | None:
    """Work out the calibration on the test counts.

    If these hold none (nothing was found, or masks let only sums be seen), the calibrators alone,
    which the models need; None without any.
    """
    task = TASKS[settings.task]
    own = {
        one.name: calibration.Calibrator.read(one.trained.progress.calibrator) for one in outcomes
    }
    sure = [
        (task.sum(counts[site] for site in one.sites if site in counts).sure, own[one.name])
        for one in outcomes
    ]
    scales = {name: run_result.Scale(**one._asdict()) for name, one in own.items()}
    if not any(found for found, _ in sure):
        changed = any(one[:2] != calibration.AS_IS[:2] for one in own.values())
        return run_result.Calibration(calibrators=scales) if changed else None
    types = sorted({name for found, _ in sure for name, _ in found} - {""})
    plain = [(found, calibration.AS_IS) for found, _ in sure]
    return run_result.Calibration(
        calibrators=scales, before=_reliability(plain, types), after=_reliability(sure, types)
    )


def _reliability(parts: calibration.Parts, types: Sequence[str]) -> run_result.ReliabilityScores:
    parts = list(parts)
    bins = calibration.reliability_bins(parts)
    by_type = {name: calibration.reliability_bins(parts, type=name) for name in types}
    return run_result.ReliabilityScores(
        error=calibration.calibration_error(bins),
        types={name: calibration.calibration_error(own) for name, own in by_type.items()},
        bins=[run_result.SureBin(**vars(one)) for one in bins],
        type_bins={
            name: [run_result.SureBin(**vars(one)) for one in own] for name, own in by_type.items()
        },
    )


def own_result(
    settings: Settings,
    *,
    site: str,
    round: int,
    data: Tree,
    counts: Mapping[str, Counts],
    calibrator: calibration.Calibrator = calibration.AS_IS,
) -> Result:
    """Make result.json at a real site: its own scores, and where to find its model."""
    scores = {name: TASKS[settings.task].scores(count) for name, count in counts.items()}
    return Result(
        schema=run_result.SCHEMA,
        confide=__version__,
        name=settings.name,
        task=settings.task,
        method=settings.method,
        seed=settings.seed,
        rounds=round,
        personal=is_personal(settings),
        best_round=round,
        best_rounds={site if settings.method == "alone" else "": round},
        scores=run_result.AllScores(overall=next(iter(scores.values())), sites=scores),
        dev=None,
        history=[],
        left_out={},
        calibration=run_result.Calibration(
            calibrators={"": run_result.Scale(**calibrator._asdict())}
        ),
        data=run_result.Data.model_validate(data),
    )


def is_personal(settings: Settings) -> bool:
    """Return whether every site ends with a model of its own."""
    return settings.method == "alone" or methods.method_named(settings.trained_by).personal


_RSS_PER_MB = 1024 * 1024 if sys.platform == "darwin" else 1024


def binding_of(settings: Settings, fingerprint: str) -> str:
    """A digest of everything that decides the numbers of a round."""
    chosen = json.dumps(run_folder.decisive(settings), sort_keys=True)
    return hashlib.sha256((chosen + fingerprint).encode()).hexdigest()


# --- The start of training
#
# A model, read from the folder of the run that trained it.


def start_of(settings: Settings, *, place: Path | None = None) -> Start | None:
    """Load the start that `start_from` names, at that run's selected round; None if none is named.

    `place` is the run's folder, if not the one that the settings name. Raises RunError (no such
    run, or one whose sites have a model each), SettingsError (a model of another kind).
    """
    if not settings.start_from:
        return None
    folder = run_folder.HeldFolder(place or Path(settings.start_from))
    trained = folder.settings()
    method, wanted = methods.method_of(trained), methods.method_of(settings).kind.name
    where = str(folder.path)
    if method.kind.name != wanted:
        raise SettingsError(
            "training cannot start from a model of another kind",
            where=where,
            expected=wanted,
            got=method.kind.name,
        )
    if method.personal or "" not in folder.result().best_rounds:
        raise RunError(
            "training starts from one model, and every site of this run has its own",
            where=where,
            fix="name a run that ended with a common model",
        )
    state, _ = folder.trained(method, None)
    form, weights = method.model(state, None)
    return Start(form, weights, where)


# --- Errors at a site
#
# A confusion table and the worst cases, with their text, for the site itself.
#
# Also the counts of each of its sentences (with relations, each document; with bags, each bag).
# Whoever holds the site's text writes both into the folder that the site owns; they are never
# sent. The kind decides what they contain.


WEIGHTS = "weights.json"


@dataclass(frozen=True)
class Home:
    """A site at the end of a run: the state, and the memory that goes with it, if any."""

    spec: Site
    state: object
    memory: object = None


def site_reports(pair: Pair, homes: Iterable[Home]) -> dict[str, Counts]:
    """Write every site's report and give its counts.

    Neighbours with one model and one key share the extractor; only one is held at a time.
    """
    counts: dict[str, Counts] = {}
    extract: Extractor | None = None
    made: tuple[object, object, bytes | None] = (None, None, None)
    for home in homes:
        spec, key = home.spec, _key_of(home.spec) if pair.keyed else None
        no_model = (pair.keyed and key is None) or (pair.personal and home.memory is None)
        if no_model or not spec.test or not pair.kind.trains:
            counts[spec.name] = TASKS[pair.task].nothing
            continue
        if extract is None or not (
            made[0] is home.state and made[1] is home.memory and made[2] == key
        ):
            extract = pair.extractor(home.state, home.memory, key=key, encoder=spec.context)
            made = (home.state, home.memory, key)
        some = spec.annotates or pair.apart
        looked_for = annotated_at(spec, TASKS[pair.task].learns) if some else None
        own = extract.only(spec.types) if spec.types else extract
        report = own.report(spec.test, looked_for)
        counts[spec.name] = report.counts
        keep(spec, report, task=pair.task)
        _keep_weights(pair, extract, spec)
    return counts


def annotated_at(spec: Site, learns: str) -> set[str]:
    """The types of what is learnt that a site annotates in training or test text."""
    seen = {found.type for one in spec.train for found in getattr(one, learns, ())}
    return {*(spec.annotates or seen), *spec.test_annotates}


def keep(spec: Site, report: Report, *, task: str) -> None:
    """Write a site's errors on its test text, and the counts of its sentences, into its own folder.

    (true, predicted, gold) of each sentence are only numbers, but still the site's own: they tell
    whether each sentence was understood.
    """
    if not report.errors:
        return
    errors = {"site": spec.name, "task": task, **report.errors}
    write_of_run(spec.folder / "errors.json", json.dumps(errors, indent=1).encode())
    body = {"schema": run_folder.SENTENCES_SCHEMA, "site": spec.name, **report.sentences}
    write_of_run(
        spec.folder / run_folder.SENTENCES, json.dumps(body, separators=(",", ":")).encode()
    )


def _keep_weights(pair: Pair, extract: Any, spec: Site) -> None:
    """Keep at the site how much each training sentence counts, if the method weighs them."""
    memory: Any = MemoryStore(spec.folder / "memory", pair.Memory).latest()
    found = memory.row_weights() if memory is not None else None
    if found is None:
        return
    round, weights_S = found
    body = {"site": spec.name, "round": round, **extract.weighted(spec.train, weights_S)}
    write_of_run(spec.folder / WEIGHTS, json.dumps(body, indent=1).encode())


def _key_of(spec: Site) -> bytes | None:
    """The key of a site with test text; None if it has no key and so took no part."""
    try:
        return read_key(spec.key_file) if spec.test and spec.key_file else None
    except KeyFileError:
        return None  # the history says so


ONE_AND_ALL = ""
"""The name of the part of a run that is one federation of everybody."""

ONE_SITE = {"pooled": pooled, "public-only": public_only}
"""References that are one site, and what makes that site."""


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what result.json says."""

    folder: Path
    result: Result


FederationParts = dict[str, tuple[Site, ...]]
"""The federations of a run: their sites, by name."""


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
    kind = methods.method_of(chosen)
    kind(chosen)  # reports wrong options before any text is read
    computing = computing_as(chosen)  # reports a device that is not there
    name = chosen.name or (Path(settings).stem if not isinstance(settings, Settings) else "run")
    folder = RunFolder(Path(out or Path("runs") / f"{name}-{chosen.method}-{chosen.seed}"))
    folder.check(chosen, resume=resume)
    start = start_of(chosen)
    watch(started(chosen, name, folder.path))
    gathered = gather(chosen, folder.sites, key_file=folder.key_file(chosen))
    own_keys = (spec.key_file for spec in gathered.specs if spec.key_file)
    unlock(own_keys, ask=chosen.workers == 1)  # a worker cannot ask for a passphrase
    method = kind(chosen, gathered.public, start=start)
    with folder.writing(chosen, resume=resume):
        folder.begin(chosen)
        folder.write("environment.json", run_folder.environment(chosen, gathered.fingerprint))
        with computing:
            parts = _parts(chosen, gathered, folder)
            outcomes = _train(chosen, method, folder, parts=parts, gathered=gathered, watch=watch)
            watch(Event("scores", message="the sites examine their own errors"))
            left_out = {site for outcome in outcomes for site in outcome.trained.progress.left_out}
            there = [spec for spec in gathered.specs if spec.name not in left_out]
            by_site = site_reports(
                method.pair, (_at_home(one, parts, outcomes, method) for one in there)
            )
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


def computing_as(settings: Settings) -> AbstractContextManager[None]:
    """Compute as the settings say, for the duration. Raises SettingsError."""
    return computing_at(places_of(settings)[0], threads=settings.threads)


def places_of(settings: Settings) -> list[Place]:
    """Where a run's workers compute, in turn; its own process does in the first place.

    Raises SettingsError if a device is not there.
    """
    return [
        place_of(device, settings.precision, micro_batch_size=settings.micro_batch_size)
        for device in settings.devices or (settings.device,)
    ]


def _chosen(settings: str | Path | Settings, overrides: Sequence[str]) -> Settings:
    if isinstance(settings, Settings):
        return anchored(settings, Path.cwd())
    return load_settings(settings_file(settings), overrides)


def _parts(settings: Settings, gathered: Gathered, folder: RunFolder) -> FederationParts:
    if settings.method in ONE_SITE:
        return {ONE_AND_ALL: (ONE_SITE[settings.method](gathered, folder.sites),)}
    if settings.method == "alone":
        return {spec.name: (spec,) for spec in gathered.specs}
    return {ONE_AND_ALL: gathered.specs}


def _train(
    settings: Settings,
    method: Method,
    folder: RunFolder,
    *,
    parts: FederationParts,
    gathered: Gathered,
    watch: Watcher,
) -> list[Outcome]:
    """Train all federations of the run; those of `alone` run side by side if there are workers."""
    specs = [spec for part in parts.values() for spec in part]
    binding = binding_of(settings, gathered.fingerprint)
    hosting = replace(
        hosting_of(settings),
        binding=bytes.fromhex(binding),
        groups=settings.federation.groups,
        simulated=settings.seed if settings.key == SIMULATED else None,
    )
    workers = min(settings.workers, len(specs))
    engine: SequentialEngine | WorkerEngine
    engine = (
        WorkerEngine(
            specs, hosting, workers=workers, threads=settings.threads, places=places_of(settings)
        )
        if workers > 1
        else SequentialEngine(specs, hosting)
    )
    plan = RunPlan(settings, method, engine, folder, binding, watch)
    train = partial(outcome_of, plan)
    named = {name: [spec.name for spec in part] for name, part in parts.items()}
    with closing(engine):
        if len(parts) == 1 or workers == 1:
            return list(map(train, named, named.values()))
        with ThreadPoolExecutor(len(parts)) as pool:  # threads that wait for processes
            try:
                return list(pool.map(train, named, named.values()))
            except BaseException:
                engine.stop()  # after Ctrl-C or a failure the others need not finish
                raise


def _at_home(
    spec: Site, parts: FederationParts, outcomes: Sequence[Outcome], method: Method
) -> Home:
    """A site with the state and memory that it ends with, and the key that goes with them.

    They come from its own federation, or from the only one if all text is in one place.
    """
    outcome = next((one for one in outcomes if spec in parts[one.name]), outcomes[0])
    owner = spec if spec in parts[outcome.name] else parts[outcome.name][0]
    took_part = method.pair.personal and owner.name in outcome.counts
    memory = run_folder.memory_of(owner.folder, method.pair.Memory) if took_part else None
    return Home(replace(spec, key_file=owner.key_file), outcome.trained.state, memory)
