"""What a run's model and its ledger tell: each site for itself; text stays where it lies.

Members are documents of the training text, others the site's own held-out text. The attacker's
score is the negated loss. It comes from the kinds' own `fit` on a single document with a learning
rate of 0, so that every kind is served.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from confide.errors import DataError, RunError
from confide.federation.failures import Refusal
from confide.federation.guards import Guards
from confide.federation.inprocess import SiteSpec, site_of
from confide.federation.ledger import ledger_files, read_ledger
from confide.federation.messages import Arrays
from confide.federation.secure.messages import Offered, Shares
from confide.federation.site import Scratch
from confide.kinds.how import How
from confide.learning.devices import computing_at, place_of
from confide.methods import method_of
from confide.runs.folder import RunFolder
from confide.runs.gathering import gather
from confide.scoring.membership import Estimate, auc_between, found_at
from confide.seeds import derive_seed
from confide.tasks import TASKS
from confide.text.document import Document

AUDIT = "audit.json"
_SHARES = {one.name for kind in (Offered, Shares) for one in fields(kind)}
"""What sums exchange that nobody can open; it tells nothing of text."""
FEWEST = 20
"""Documents of each side below which nothing is said."""


@dataclass(frozen=True)
class Membership:
    """How well losses tell a site's training documents from its held-out ones."""

    members: int
    others: int
    auc: Estimate
    found: Estimate


@dataclass(frozen=True)
class Crossed:
    """What the ledger says: counts of what left the sites.

    `smallest` is the fewest sites in any sum of arrays that the server could read; None: there was
    none.
    """

    digests: int
    asks: int
    masked: bool
    smallest: int | None


@dataclass(frozen=True)
class Audit:
    """The audit of a run. It holds numbers only."""

    sites: dict[str, Membership]
    crossed: Crossed


def audit(run: Path | str, *, site: str | None = None, most: int = 1000) -> Audit:
    """Measure what a finished run tells, and write `audit.json` beside it.

    Args:
        run: the folder of a finished run, with the text of at least one site.
        site: only this one; by default every site whose text is here.
        most: at most so many documents of each side, drawn by the run's seed.

    Raises:
        RunError: there is no such run or site, or no text of a site is here. DataError: a site has
        too little held-out text, or the text has changed since the run.
    """
    folder = RunFolder(Path(run))
    settings, result = folder.settings(), folder.result()
    if not settings.site and settings.split is None:
        raise RunError(
            "there is no text of a site here", where=str(run), fix="audit the run at each site"
        )
    method = method_of(settings)
    gathered = gather(settings, folder.sites, key_file=folder.key_file(settings))
    known = [spec.name for spec in gathered.specs]
    if set(known) == set(result.data.sites) and gathered.fingerprint != result.data.fingerprint:
        raise DataError("the text has changed since the run", fix="restore the files of the run")
    specs = [spec for spec in gathered.specs if site in (None, spec.name)]
    if not specs:
        raise RunError(f"the run has no site {site!r}", expected=", ".join(known))
    made, found, scratch = method(settings), dict[str, Membership](), Scratch()
    how, words = _still(made.at_home(settings.rounds)), not TASKS[settings.task].pairs
    with computing_at(place_of(settings.device, settings.precision), threads=settings.threads):
        for spec in specs:
            own = spec.name if method.personal or "" not in result.best_rounds else None
            form, weights = made.model(*folder.trained(method, own))
            at = _Bench(spec, form, weights, how, words, scratch)
            found[spec.name] = at.membership(most, seed=derive_seed(settings.seed, "audit"))
    done = Audit(found, crossed(folder.path, group=settings.federation.groups))
    folder.write(AUDIT, {"schema": 1, **asdict(done)})
    return done


def _still(how: How) -> How:
    """One pass over the text that changes nothing."""
    none: dict[str, Any] = {"learning_rate": 0.0, "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
    none |= {"optimiser": "sgd", "epochs": 1, "batches": 0, "proximal": 0.0, "keep": False}
    return replace(how, **none, word_dropout=0.0, vectors=False, batch_size=1024)


@dataclass
class _Bench:
    """A site's text, and a model whose losses are asked for."""

    spec: SiteSpec
    form: Any
    weights: Arrays
    how: How
    words: bool
    scratch: Scratch

    def __post_init__(self) -> None:
        if any(one.name == "dropout" for one in fields(self.form)):
            self.form = replace(self.form, dropout=0.0)

    def membership(self, most: int, *, seed: int) -> Membership:
        held = [*self.spec.dev, *self.spec.test]
        seen = {document.text for document in self.spec.train}
        members = self.scores(_drawn(self.spec.train, most, seed))
        others = self.scores(_drawn([one for one in held if one.text not in seen], most, seed))
        if min(len(members), len(others)) < FEWEST:
            raise DataError(
                f"site {self.spec.name} has too little text to audit",
                expected=f"at least {FEWEST} training and {FEWEST} held-out documents",
                got=f"{len(members)} and {len(others)}",
                fix="hold more text out before the run",
            )
        between = auc_between(members, others, seed=seed % 2**32)
        return Membership(len(members), len(others), between, found_at(members, others))

    def scores(self, documents: Sequence[Document]) -> list[float]:
        """The negated loss of each document, by word or by example; none without examples."""
        knows = self.spec.knows
        if self.words and not knows:
            knows = tuple(sorted({e.type for one in self.spec.train for e in one.entities}))
        found = []
        for document in documents:
            one = replace(
                self.spec, train=(document,), dev=(), test=(), knows=knows, guards=Guards()
            )
            try:
                fitted = self.form.at(site_of(one, self.scratch)).fit(
                    self.weights, self.how, seed=0
                )
            except Refusal:
                continue
            total = fitted.loss * fitted.examples
            size = len(document.text.split()) if self.words else fitted.examples
            found.append(-total / max(size, 1))
        return found


def _drawn(documents: Sequence[Document], most: int, seed: int) -> list[Document]:
    order = np.random.default_rng(seed).permutation(len(documents))
    return [documents[place] for place in order[:most]]


def crossed(run: Path, *, group: int = 0) -> Crossed:
    """What the ledger says of a run, whose sites sum in groups of this size (0: all together).

    Raises RunError if the ledger is damaged.
    """
    entries = [entry for file in ledger_files(run) for entry in read_ledger(file)]
    up = [entry for entry in entries if entry.direction == "up"]
    masked = {entry.step for entry in up if entry.seen == "masked"}
    asks = {(one.round, one.step, one.site) for one in entries if one.direction == "down"}
    sizes, hidden = [], defaultdict(set)
    for one in up:
        if one.kind not in ("array", "arrays"):
            continue
        if one.seen == "masked":
            hidden[one.round].add(one.site)
        elif one.field not in _SHARES:
            sizes.append(1)
    sizes += [min(len(sites), group or len(sites)) for sites in hidden.values()]
    digests = sum(one.count for one in up if one.kind == "array" and "digest" in one.field)
    return Crossed(digests, len(asks), bool(masked), min(sizes, default=None))


def page(found: Audit) -> str:
    """The audit in plain words."""
    lines = []
    for name, one in found.sites.items():
        hits, low, high = (100 * value for value in one.found)
        lines.append(
            f"{name}: of 100 documents of ours an attacker allowed one false accusation in a"
            f" hundred finds {hits:.0f} ({low:.0f} to {high:.0f}); AUC {one.auc.value:.2f}"
            f" ({one.auc.low:.2f} to {one.auc.high:.2f})"
        )
    lines.append("ε promised: none; ε measured: not without canaries")
    few = found.crossed.smallest
    said = "no sum of arrays" if few is None else f"{few} site{'s' if few != 1 else ''}"
    lines.append(f"the smallest sum that the server could read: {said}")
    return "\n".join(lines) + "\n"
