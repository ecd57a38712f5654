"""A run: settings in, a folder with a model, scores, ledger and history out.

`fedavg` and its like are one federation of all sites; `pooled` is a federation of one site that
holds all text, `alone` is one federation for each site. All three walk the same path.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confide import __version__
from confide.federation.events import Event, Watcher, unwatched
from confide.federation.federation import Federation
from confide.federation.inprocess import Hosting, SequentialEngine, SiteSpec
from confide.federation.ledger import Ledger
from confide.federation.workers import WorkerEngine
from confide.gathering import Gathered, gather, pooled
from confide.methods import Method, method_named
from confide.recipes import recipe_path
from confide.runfolder import SCHEMA, RunFolder, decisive, environment, memory_of
from confide.running import Rounds, Trained, checkpointed_ledger_length
from confide.scoring import EntityCounts, scores, sum_counts
from confide.settings import Settings, anchored, load
from confide.sitereport import Home, site_reports

__all__ = ["Event", "RunResult", "run"]

ONE_AND_ALL = ""
"""The name of the part of a run that is one federation of everybody."""


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what result.json says."""

    folder: Path
    result: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One federation of a run: its name, its sites, and what it came to."""

    name: str
    specs: tuple[SiteSpec, ...]


@dataclass(frozen=True)
class Outcome:
    """What one federation came to: the selected state, test counts, and what it cost."""

    part: Part
    trained: Trained
    counts: dict[str, EntityCounts]
    ledger: Ledger


def run(
    settings: str | Path | Settings,
    *,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    resume: bool = False,
    on_event: Watcher | None = None,
) -> RunResult:
    """Train and score what the settings say.

    Args:
        settings: a TOML file, the name of a recipe, or settings.
        overrides: `key=value` texts that go before the file's values.
        out: the run's folder; by default `runs/NAME-METHOD-SEED`.
        resume: go on from the last checkpoint in the folder; the numbers are those of a run
            that was never interrupted.
        on_event: is told what happens.

    Raises:
        ConfideError: any of the errors of confide.errors; the folder keeps its last checkpoint.
    """
    watch = on_event or unwatched
    chosen = _chosen(settings, overrides)
    kind = method_named(chosen.trained_by)
    method = kind(chosen)
    name = chosen.name or (Path(settings).stem if not isinstance(settings, Settings) else "run")
    folder = RunFolder(out or Path("runs") / f"{name}-{chosen.method}-{chosen.seed}")
    folder.check(chosen, resume=resume)
    watch(Event("start", rounds=chosen.rounds, message=f"{name}: {chosen.method}"))
    gathered = gather(chosen, folder.sites, key_file=folder.key_file(chosen))
    folder.begin(chosen)
    folder.write("environment.json", environment(chosen, gathered.fingerprint))
    outcomes = _train(chosen, method, folder, gathered=gathered, watch=watch)
    watch(Event("scores", message="the sites look at their own errors"))
    by_site = site_reports(method, (_at_home(s, outcomes, method) for s in gathered.specs))
    result = _result(chosen, outcomes, gathered, by_site=by_site)
    result["name"] = name
    folder.write("result.json", result)
    watch(Event("end", message=str(folder.path)))
    return RunResult(folder.path, result)


def _chosen(settings: str | Path | Settings, overrides: Sequence[str]) -> Settings:
    if isinstance(settings, Settings):
        return anchored(settings, Path.cwd())
    path = Path(settings)
    if not path.suffix and not path.exists():
        path = recipe_path(str(settings))
    return load(path, overrides)


def _parts(settings: Settings, gathered: Gathered, folder: RunFolder) -> list[Part]:
    if settings.method == "pooled":
        return [Part(ONE_AND_ALL, (pooled(gathered, folder.sites),))]
    if settings.method == "alone":
        return [Part(spec.name, (spec,)) for spec in gathered.specs]
    return [Part(ONE_AND_ALL, gathered.specs)]


def _train(
    settings: Settings, method: Method, folder: RunFolder, *, gathered: Gathered, watch: Watcher
) -> list[Outcome]:
    """All federations of the run; those of `alone` side by side where there are workers."""
    import torch

    parts = _parts(settings, gathered, folder)
    specs = [spec for part in parts for spec in part.specs]
    hosting = Hosting(
        {step.name: step for step in method.steps},
        method.Memory,
        settings.seed,
        every=settings.select.every,
        last=settings.rounds,
    )
    workers = min(settings.workers, len(specs))
    binding = _binding(settings, gathered.fingerprint)

    def one(part: Part) -> Outcome:
        return _federate(part, settings, method, engine=engine, folder=folder, binding=binding,
                         watch=watch)  # fmt: skip

    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    engine: SequentialEngine | WorkerEngine
    try:
        engine = (
            WorkerEngine(specs, hosting, workers=workers, threads=settings.threads)
            if workers > 1
            else SequentialEngine(specs, hosting)
        )
        with closing(engine):
            if len(parts) == 1 or workers == 1:
                return [one(part) for part in parts]
            with ThreadPoolExecutor(len(parts)) as pool:  # they wait for each other's processes
                try:
                    return list(pool.map(one, parts))
                except BaseException:
                    engine.stop()  # Ctrl-C, or one that failed: the others need not go on
                    raise
    finally:
        torch.set_num_threads(threads)


def _federate(
    part: Part,
    settings: Settings,
    method: Method,
    *,
    engine: SequentialEngine | WorkerEngine,
    folder: RunFolder,
    binding: str,
    watch: Watcher,
) -> Outcome:
    """Train one federation and score its sites' test text."""
    path = folder.part(part.name) / "ledger.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    store = folder.store(part.name)
    Ledger.cut(path, checkpointed_ledger_length(store))
    ledger = Ledger(path)
    federation = Federation(
        engine,
        seed=settings.seed,
        ledger=ledger,
        at_least=settings.federation.at_least,
        timeout=settings.federation.timeout,
        sites=[spec.name for spec in part.specs],
        watch=watch,
    )
    rounds = Rounds(
        method,
        federation,
        settings=settings,
        store=store,
        ledger=ledger,
        binding=binding,
        watch=watch,
    )
    trained = rounds.run()
    counts = rounds.score(trained.state, "test", trained.progress.history[-1]["round"])
    ledger.flush()
    return Outcome(part, trained, counts, ledger)


def _at_home(spec: SiteSpec, outcomes: list[Outcome], method: Method) -> Home:
    """The state and memory that a site ends with, and the site with the key that goes with them.

    They are those of its own federation; or of the only one, where all text is in one place.
    """
    outcome = next((one for one in outcomes if spec in one.part.specs), outcomes[0])
    owner = spec if spec in outcome.part.specs else outcome.part.specs[0]
    took_part = method.personal and owner.name in outcome.counts
    memory = memory_of(owner.folder, method.Memory) if took_part else None
    return Home(replace(spec, key_file=owner.key_file), outcome.trained.state, memory)


def _result(
    settings: Settings,
    outcomes: list[Outcome],
    gathered: Gathered,
    *,
    by_site: dict[str, EntityCounts],
) -> dict[str, Any]:
    """What result.json says: docs/result.md describes every key."""
    counts = {site: count for outcome in outcomes for site, count in outcome.counts.items()}
    if settings.method == "pooled":
        counts = by_site
    progress = [outcome.trained.progress for outcome in outcomes]
    history = _joined_history(outcomes)
    done = sum(round.get("sentences", 0) for one in progress for round in one.history)
    training = sum(round["train_seconds"] for one in progress for round in one.history)
    weights = outcomes[0].trained.state.weights
    usage = resource.getrusage
    return {
        "schema": SCHEMA,
        "confide": __version__,
        "name": settings.name,
        "method": settings.method,
        "seed": settings.seed,
        "rounds": len(history),
        "personal": settings.method == "alone" or method_named(settings.trained_by).personal,
        "best_round": progress[0].best_round if len(outcomes) == 1 else None,
        "best_rounds": {o.part.name: o.trained.progress.best_round for o in outcomes},
        "scores": {
            "overall": scores(sum_counts(counts.values())),
            "sites": {site: scores(count) for site, count in sorted(counts.items())},
        },
        "dev": progress[0].best_dev if len(outcomes) == 1 else None,
        "history": history,
        "left_out": {site: code for one in progress for site, code in one.left_out.items()},
        "bytes": {
            way: {site: n for o in outcomes for site, n in sorted(o.ledger.totals[way].items())}
            for way in ("up", "down")
        },
        "seconds": sum(one.seconds for one in progress),
        "compute_seconds": sum(one.compute_seconds for one in progress),
        "sentences_per_second": done / training if training else 0.0,
        "data": gathered.facts(),
        "parameters": sum(array.size for array in weights.values()),
        "peak_rss_mb": usage(resource.RUSAGE_SELF).ru_maxrss / _RSS_PER_MB,
        "peak_rss_mb_worker": usage(resource.RUSAGE_CHILDREN).ru_maxrss / _RSS_PER_MB,
    }


_RSS_PER_MB = 1024 * 1024 if sys.platform == "darwin" else 1024


def _joined_history(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The rounds of the run. Those of `alone` are joined: mean scores and losses over the sites."""
    if len(outcomes) == 1:
        return outcomes[0].trained.progress.history
    longest = max(len(o.trained.progress.history) for o in outcomes)
    joined = []
    for place in range(longest):
        at = [o.trained.progress.history[place] for o in outcomes
              if place < len(o.trained.progress.history)]  # fmt: skip
        scored = [one["dev"] for one in at if "dev" in one]
        record: dict[str, Any] = {
            "round": place + 1,
            "loss": _mean([one["loss"] for one in at]),
            "learning_rate": at[0]["learning_rate"],
            "sites": sorted(site for one in at for site in one["sites"]),
            "failed": {site: code for one in at for site, code in one["failed"].items()},
            "seconds": sum(one["seconds"] for one in at),
            "train_seconds": sum(one["train_seconds"] for one in at),
            "compute_seconds": sum(one["compute_seconds"] for one in at),
            "sentences": sum(one.get("sentences", 0) for one in at),
            "bytes": {way: sum(one["bytes"][way] for one in at) for way in ("up", "down")},
        }
        if scored:
            record["dev"] = {k: _mean([one[k] for one in scored]) for k in ("strict", "relaxed")}
            record["dev_sites"] = {s: f for one in at for s, f in one.get("dev_sites", {}).items()}
        joined.append(record)
    return joined


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _binding(settings: Settings, fingerprint: str) -> str:
    """A digest of all that decides the numbers of a round."""
    chosen = json.dumps(decisive(settings), sort_keys=True)
    return hashlib.sha256((chosen + fingerprint).encode()).hexdigest()
