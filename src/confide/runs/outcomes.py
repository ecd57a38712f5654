"""From a federation to a result: train it, score it, and put together what result.json says.

Both engines take this path: `run` with all sites on one machine, `flare` with real ones.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide import __version__
from confide.errors import SettingsError
from confide.federation.combining import NEEDED, Combining
from confide.federation.engine import Engine
from confide.federation.events import Watcher
from confide.federation.federation import Federation
from confide.federation.giving import Giving
from confide.federation.ledger import Ledger
from confide.federation.secure.exchanges import Sums
from confide.federation.secure.losses import Losses
from confide.federation.secure.roster import threshold
from confide.federation.secure.summing import Summing
from confide.federation.uploading import Up
from confide.methods import Method, check_enough, method_named
from confide.methods.noised import budget_of
from confide.runs.folder import LOST, RunFolder, decisive
from confide.runs.histories import joined
from confide.runs.result import (
    SCHEMA,
    AllScores,
    Calibration,
    Data,
    Private,
    Reliability,
    Result,
    Scale,
    SureBin,
    Traffic,
    Turn,
)
from confide.runs.rounds import Rounds, Trained, checkpointed_ledger
from confide.scoring.calibration import AS_IS, Calibrator, Parts, calibration_error, reliability
from confide.settings import REFERENCES, SIMULATED, Settings
from confide.tasks import TASKS, Counts
from confide.userfiles import Tree


@dataclass(frozen=True)
class Plan:
    """What the federations of one run have in common.

    `binding` is a digest of everything that decides the numbers (`binding_of`); `called` is the
    run's name, if sites know it by one.
    """

    settings: Settings
    method: Method
    engine: Engine
    folder: RunFolder
    binding: str
    watch: Watcher
    called: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one federation: the selected state, test counts, and its ledger.

    `giving` knows which weights its sites have.
    """

    name: str
    sites: tuple[str, ...]
    trained: Trained
    counts: Mapping[str, Counts]
    ledger: Ledger
    giving: Giving


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
    plan: Plan, name: str, sites: Sequence[str], *, ledger: Ledger | None = None
) -> Outcome:
    """Train the federation of these sites from its last checkpoint, and score their test text.

    `name` is its part of the run's folder. Raises FederationError, CheckpointError.
    """
    settings = plan.settings
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
            losses=Losses(plan.folder.part(name) / LOST),
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
    )
    trained = rounds.run()
    counts = rounds.score(trained.state, "test", trained.progress.history[-1]["round"])
    ledger.flush()
    return Outcome(name, tuple(sites), trained, counts, ledger, federation.giving)


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
    check_enough(settings, len(sites))
    federation = Federation(
        engine,
        seed=settings.seed,
        ledger=ledger,
        at_least=settings.federation.at_least,
        timeout=settings.federation.timeout,
        sites=sites,
        watch=watch,
        combining=combining_of(settings),
    )
    federation.summing, federation.giving = summing, giving_of(settings)
    return federation


def sums_of(settings: Settings) -> Sums:
    """How replies are summed; the single site of a reference has nobody to hide behind."""
    return "plain" if settings.method in REFERENCES else settings.federation.sums or "plain"


LANES = {"rows": 0, "float16": 2, "int8": 1}
"""The bytes of a lane for changes of weights, by how they travel where sums are secure."""


def up_of(settings: Settings) -> Up:
    """How what sites learn travels; that of a reference goes nowhere."""
    return "rows" if settings.method in REFERENCES else settings.federation.up


def giving_of(settings: Settings) -> Giving:
    """What hands out the common weights; those of a reference go nowhere."""
    down = "whole" if settings.method in REFERENCES else settings.federation.down
    return Giving(down, share=settings.federation.top)


def summing_of(
    settings: Settings, *, run: str, sites: Sequence[str], losses: Losses | None = None
) -> Summing | None:
    """What sums replies unseen; None if they are summed plainly.

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
        losses=losses,
        lane=LANES[own.up],
    )
    for members in (sites, *summing.dealt):
        threshold(len(members), summing.colluding)
    if own.groups and len(summing.dealt) < NEEDED:
        raise SettingsError(
            f"federation.groups = {own.groups} makes too few groups to compare",
            expected=f"at least {NEEDED} groups",
            got=f"{len(summing.dealt)} of {len(sites)} sites",
            fix="make smaller groups, bring more sites together, or leave groups out",
        )
    return summing


def combining_of(settings: Settings) -> Combining:
    """How the sites' replies become one; the single site of a reference leaves no choice."""
    own = settings.federation
    return Combining(
        how="mean" if settings.method in REFERENCES else own.combine,
        trim=own.trim,
        most_norm=own.limit,
    )


def result_of(
    settings: Settings,
    outcomes: Sequence[Outcome],
    *,
    name: str,
    data: Tree,
    counts: Mapping[str, Counts] | None = None,
) -> Result:
    """What result.json says.

    `data` describes the sites' text in numbers; `counts` replaces the outcomes' own counts by site.
    """
    if counts is None:
        counts = {site: count for outcome in outcomes for site, count in outcome.counts.items()}
    progress = [outcome.trained.progress for outcome in outcomes]
    history = joined([one.history for one in progress])
    done = sum(round.get("sentences", 0) for one in progress for round in one.history)
    training = sum(round["train_seconds"] for one in progress for round in one.history)
    weights = outcomes[0].trained.state.weights
    usage, scoring = resource.getrusage, TASKS[settings.task]
    up, down = (
        {site: n for o in outcomes for site, n in sorted(o.ledger.totals[way].items())}
        for way in ("up", "down")
    )
    return Result(
        schema=SCHEMA,
        confide=__version__,
        name=name,
        task=settings.task,
        method=settings.method,
        seed=settings.seed,
        rounds=len(history),
        personal=is_personal(settings),
        best_round=progress[0].best_round if len(outcomes) == 1 else None,
        best_rounds={o.name: o.trained.progress.best_round for o in outcomes},
        scores=AllScores(
            overall=scoring.scores(scoring.sum(counts.values())),
            sites={site: scoring.scores(count) for site, count in sorted(counts.items())},
        ),
        dev=progress[0].best_dev if len(outcomes) == 1 else None,
        history=[Turn.model_validate(turn) for turn in history],
        left_out={site: code for one in progress for site, code in one.left_out.items()},
        calibration=_calibration(settings, outcomes, counts),
        bytes=Traffic(up=up, down=down),
        seconds=sum(one.seconds for one in progress),
        compute_seconds=sum(one.compute_seconds for one in progress),
        sentences_per_second=done / training if training else 0.0,
        data=Data.model_validate(data),
        **_private(settings, rounds=len(history)),
        parameters=sum(array.size for array in weights.values()),
        peak_rss_mb=usage(resource.RUSAGE_SELF).ru_maxrss / _RSS_PER_MB,
        peak_rss_mb_worker=usage(resource.RUSAGE_CHILDREN).ru_maxrss / _RSS_PER_MB,
    )


def _private(settings: Settings, *, rounds: int) -> dict[str, Private]:
    """What so many rounds spent, if they were private."""
    own = settings.privacy
    if own is None:
        return {}
    budget = budget_of(settings)
    private = Private(
        unit=own.unit,
        epsilon=budget.epsilon_after(rounds),
        delta=own.delta,
        noise=budget.noise,
        clip=own.clip,
        rate=budget.rate,
        rounds=rounds,
        units=own.units or 0,
        held_out=own.held_out,
        simulated=settings.key == SIMULATED,
    )
    return {"privacy": private}


def _calibration(
    settings: Settings, outcomes: Sequence[Outcome], counts: Mapping[str, Counts]
) -> Calibration | None:
    """What the test counts say about confidences.

    If these hold none (nothing was found, or masks let only sums be seen), the calibrators alone,
    which the models need; None without any.
    """
    task = TASKS[settings.task]
    own = {one.name: Calibrator.read(one.trained.progress.calibrator) for one in outcomes}
    sure = [
        (task.sum(counts[site] for site in one.sites if site in counts).sure, own[one.name])
        for one in outcomes
    ]
    scales = {name: Scale(**one._asdict()) for name, one in own.items()}
    if not any(found for found, _ in sure):
        changed = any(one[:2] != AS_IS[:2] for one in own.values())
        return Calibration(calibrators=scales) if changed else None
    types = sorted({name for found, _ in sure for name, _ in found} - {""})
    plain = [(found, AS_IS) for found, _ in sure]
    return Calibration(
        calibrators=scales,
        before=_reliability(plain, types),
        after=_reliability(sure, types),
    )


def _reliability(parts: Parts, types: Sequence[str]) -> Reliability:
    parts = list(parts)
    bins = reliability(parts)
    by_type = {name: reliability(parts, type=name) for name in types}
    return Reliability(
        error=calibration_error(bins),
        types={name: calibration_error(own) for name, own in by_type.items()},
        bins=[SureBin(**vars(one)) for one in bins],
        type_bins={name: [SureBin(**vars(one)) for one in own] for name, own in by_type.items()},
    )


def own_result(
    settings: Settings,
    *,
    site: str,
    round: int,
    data: Tree,
    counts: Mapping[str, Counts],
    calibrator: Calibrator = AS_IS,
) -> Result:
    """What result.json says at a real site: its own scores, and where to find its model."""
    scores = {name: TASKS[settings.task].scores(count) for name, count in counts.items()}
    return Result(
        schema=SCHEMA,
        confide=__version__,
        name=settings.name,
        task=settings.task,
        method=settings.method,
        seed=settings.seed,
        rounds=round,
        personal=is_personal(settings),
        best_round=round,
        best_rounds={site if settings.method == "alone" else "": round},
        scores=AllScores(overall=next(iter(scores.values())), sites=scores),
        dev=None,
        history=[],
        left_out={},
        calibration=Calibration(calibrators={"": Scale(**calibrator._asdict())}),
        data=Data.model_validate(data),
    )


def is_personal(settings: Settings) -> bool:
    """Whether every site ends with a model of its own."""
    return settings.method == "alone" or method_named(settings.trained_by).personal


_RSS_PER_MB = 1024 * 1024 if sys.platform == "darwin" else 1024


def binding_of(settings: Settings, fingerprint: str) -> str:
    """A digest of everything that decides the numbers of a round."""
    chosen = json.dumps(decisive(settings), sort_keys=True)
    return hashlib.sha256((chosen + fingerprint).encode()).hexdigest()
