"""What a run's model and its ledger tell: each site for itself; text stays where it lies.

Members are units of the training text (sentences, pairs or bags), others those of the site's text
that no training saw. The attacker knows all of them but which is which, has the model, and judges
by its losses:

    by losses       a unit on which the model loses little is a member (Yeom et al. 2018)
    by references   one on which it loses less than models that never saw the unit, trained on
                    halves of the same text (Watson et al. 2022, "difficulty calibration")
    by canaries     documents that a coin let in or left out before the run; right guesses of the
                    coins refute small ε (Steinke, Nasr & Jagielski 2023)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from confide.errors import DataError, RunError
from confide.federation.failures import Refusal
from confide.federation.files import for_the_owner
from confide.federation.inprocess import SiteSpec
from confide.federation.ledger import ledger_files, read_ledger
from confide.federation.secure.messages import Offered, Shares
from confide.federation.site import Scratch
from confide.jobs.audit.attacking import Bench, Target
from confide.learning.devices import computing_at, place_of
from confide.methods import Method, method_of
from confide.methods.noised import budget_of
from confide.report.audits import picture
from confide.runs.audited import AUDIT, Audit, Crossed, Promised, SiteAudit, audited, told
from confide.runs.canaries import COINS, has_coins
from confide.runs.folder import RunFolder
from confide.runs.gathering import Gathered, gather
from confide.runs.result import Result
from confide.settings import SIMULATED, Settings

__all__ = ["AUDIT", "Audit", "audit", "audited", "crossed", "told"]

PICTURE = "audit.svg"
"""How many of a hundred are found at each site, as a drawing."""
_SHARES = {one.name for kind in (Offered, Shares) for one in fields(kind)}
"""What sums exchange that nobody can open; it tells nothing of text."""


@dataclass(frozen=True)
class _Run:
    """A finished run, with the text that is here."""

    folder: RunFolder
    settings: Settings
    result: Result
    method: type[Method]
    gathered: Gathered


@for_the_owner()
def audit(
    run: Path | str,
    *,
    site: str | None = None,
    most: int = 1000,
    references: int = 0,
    key: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Audit:
    """Measure what a finished run tells, and write `audit.json` and `audit.svg` into its folder.

    Args:
        run: the folder of a finished run: on one machine, or a real site's own (`runs/RUN` in its
            memory folder).
        site: only this one; by default every site whose text is here.
        most: at most so many documents of each side, drawn by the run's seed.
        references: how many models are trained on halves of the site's text, to know what is hard
            for a model that has not seen it. Each takes as long as training half the text alone.
        key: the sites' shared key file; by default the one that the run's settings name.
        say: is told one sentence for each step.

    Raises:
        RunError: there is no such run or site, or no text of a site is here. MissingDataError,
        DataError: a file is gone, the text has changed since the run, or a site holds too little
        text that no training saw. KeyFileError, CheckpointError: the key or model is not here.
    """
    found = _opened(Path(run), key)
    settings, known = found.settings, [spec.name for spec in found.gathered.specs]
    specs = [spec for spec in found.gathered.specs if site in (None, spec.name)]
    if not specs:
        raise RunError(f"the run has no site {site!r}", expected=", ".join(known))
    speak, scratch = say or (lambda _: None), Scratch()
    sites: dict[str, SiteAudit] = {}
    place = place_of(settings.device, settings.precision, at_once=settings.at_once)
    with computing_at(place, threads=settings.threads):
        for spec in specs:
            speak(f"{spec.name}: measuring")
            bench = replace(_bench(found, spec, scratch), looks=len(specs))
            try:
                sites[spec.name] = bench.audited(most=most, references=references, say=speak)
            except Refusal as error:
                raise DataError(
                    f"site {spec.name} cannot be audited: {error}", where=str(found.folder.path)
                ) from error
    done = Audit(
        rounds=found.result.best_rounds,
        sites=sites,
        crossed=crossed(found.folder.path, group=settings.federation.groups),
        promised=promised(settings),
    )
    done.write(found.folder)
    found.folder.write(PICTURE, picture(done))
    return done


def _opened(path: Path, key: Path | None) -> _Run:
    """The run with its text. Raises RunError, DataError and what `gather` raises."""
    folder = RunFolder(path)
    settings, result = folder.settings(), folder.result()
    if not settings.site and settings.split is None:
        raise RunError(
            "there is no text of a site here: this is the server's folder of the run",
            where=str(path),
            fix="audit the run at each site, in its own folder: MEMORY/runs/RUN",
        )
    for name in result.data.sites:
        if not has_coins(settings, name, folder.sites / name):
            raise RunError(
                f"nobody knows any more which canaries of {name} were let in",
                where=str(folder.sites / name / COINS),
                fix="restore the file: it was made when the run began",
            )
    method = method_of(settings)
    gathered = gather(settings, folder.sites, key_file=key or folder.key_file(settings))
    if gathered.fingerprint != result.data.fingerprint:
        raise DataError(
            "the text has changed since the run, so nobody can say what the run was trained on",
            where=str(path),
            fix="restore the files as they were, or run again and audit that",
        )
    return _Run(folder, settings, result, method, gathered)


def _bench(found: _Run, spec: SiteSpec, scratch: Scratch) -> Bench:
    """A site's text with the model that it ended with. Raises RunError, CheckpointError."""
    method, made = found.method, found.method(found.settings, found.gathered.public)
    own = spec.name if method.personal or "" not in found.result.best_rounds else None
    form, weights = made.model(*found.folder.trained(method, own))
    target = Target(form, weights, made.at_home, tuple(method.kind.labels(form)))
    return Bench(
        found.settings,
        spec,
        target,
        canaries=found.gathered.canaries[spec.name],
        promised=promised(found.settings),
        scratch=scratch,
    )


def promised(settings: Settings) -> Promised | None:
    """What the settings promise of one unit of text; None without `[privacy]`."""
    own = settings.privacy
    if own is None:
        return None
    epsilon = own.epsilon if own.epsilon is not None else budget_of(settings).epsilon
    simulated = settings.key == SIMULATED
    return Promised(unit=own.unit, epsilon=epsilon, delta=own.delta, simulated=simulated)


def crossed(run: Path, *, group: int = 0) -> Crossed:
    """What the ledger says of a run, whose sites sum in groups of this size (0: all together).

    Raises RunError if the ledger is damaged.
    """
    entries = [entry for file in ledger_files(run) for entry in read_ledger(file)]
    up = [entry for entry in entries if entry.direction == "up"]
    asks = {(one.round, one.step, one.site) for one in entries if one.direction == "down"}
    sizes, hidden = [], defaultdict(set)
    for one in up:
        if one.kind not in ("array", "arrays"):
            continue
        if one.seen == "masked":
            hidden[one.round, one.step].add(one.site)
        elif one.field not in _SHARES:
            sizes.append(1)
    sizes += [min(len(sites), group or len(sites)) for sites in hidden.values()]
    return Crossed(
        digests=sum(one.count for one in up if one.kind == "array" and "digest" in one.field),
        asks=len(asks),
        masked=any(entry.seen == "masked" for entry in up),
        smallest=min(sizes, default=None),
    )
