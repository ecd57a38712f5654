"""Privacy audit of a run's model and ledger: each site for itself; text stays where it lies.

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

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, RunError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays
from confide.federation.site import Scratch, Site
from confide.files import for_the_owner
from confide.jobs.personalise import alone_configs
from confide.kinds.protocol import ModelSpec, SiteModel, TrainConfig
from confide.methods.noise import budget_of
from confide.report.sections import audit_svg
from confide.runs import folder as run_folder
from confide.runs.loading import LocalRun
from confide.runs.run import computing_as
from confide.runs.sites import COINS, Canaries, has_coins
from confide.scoring.intervals import Side, exposures, guessed, membership_auc
from confide.seeds import derive_seed
from confide.settings import SIMULATED, Settings
from confide.tasks import TASKS
from confide.text.document import Document

# --- The attacks on one site's text
#
# By losses, beside references, and on canaries.
#
# Shapes: U units, R references.


FEWEST = 20
"""Units of each side below which nothing is said."""
DELTA = 1e-5
"""The δ of a measured ε where nothing is promised."""

Places = NDArray[np.int64]


@dataclass(frozen=True)
class _Pool:
    """The documents that the attacker is shown. `canaries` are the places of these, in order."""

    documents: list[Document]
    members: Places
    others: Places
    canaries: Places


@dataclass(frozen=True)
class _Reference:
    """A model of the attacker's own, and the places in the pool of what it was trained on."""

    weights: Arrays
    trained_on: frozenset[int]


@dataclass(frozen=True)
class _Units:
    """Units by how likely they are members; `at_U` are the places of their documents."""

    called: str
    scores_U: NDArray[np.float64]
    at_U: Places
    marks: Sequence[Hashable]

    def without(self, marks: set[Hashable]) -> Side:
        """The units, but those of these texts."""
        kept = np.array([mark not in marks for mark in self.marks], bool)
        return Side(self.scores_U[kept], self.at_U[kept])

    def by_document(self, places: Places) -> list[float | None]:
        """The mean score of each document's units; None without any."""
        found = (self.scores_U[self.at_U == place] for place in places)
        return [float(one.mean()) if len(one) else None for one in found]


@dataclass(frozen=True)
class SiteAttack:
    """A site's text and what the attacker knows of it, and the model under attack.

    `at_home` says how a site trains at the rate of a round, and `labels` are the names by which the
    model's answers are counted. `looks`: sites whose ε are looked at together.
    """

    settings: Settings
    spec: Site
    form: ModelSpec
    weights: Arrays
    at_home: Callable[[int], TrainConfig]
    labels: tuple[str, ...]
    canaries: Canaries
    promised: run_folder.Promised | None
    scratch: Scratch
    looks: int = 1

    def audited(
        self, *, most: int, references: int, say: Callable[[str], None]
    ) -> run_folder.SiteAudit:
        """All attacks. Raises DataError if there is too little text, and Refusal."""
        pool = self._pool(most)
        made = self._references(pool, references, say)
        # one side at a time: a bag of members has no sentence of another document
        plain, beside = zip(
            *(self._scored(pool, side, made) for side in (pool.members, pool.others)), strict=True
        )
        canaries = self._guessed(pool, made) if self.canaries.documents else None
        if self.canaries.documents and canaries is None:
            say(f"{self.spec.name}: its few canaries fell alike, so they show nothing")
        return run_folder.SiteAudit(
            membership=self._membership(plain, references=0),
            referenced=self._membership(beside, references=len(made)) if made else None,
            canaries=canaries,
        )

    def _pool(self, most: int) -> _Pool:
        """Training text and text that no training saw: `most` of each, and all canaries."""
        spec, canaries = self.spec, self.canaries
        texts = {document.text for document in spec.train}
        others = [one for one in (*spec.dev, *spec.test) if one.text not in texts]
        seed = derive_seed(self.settings.seed, "audit", spec.name)
        sides = []
        for documents, let in ((spec.train, True), (others, False)):
            own = [d for d, w in zip(canaries.documents, canaries.within, strict=True) if w == let]
            chosen = {id(one) for one in own}
            rest = [one for one in documents if id(one) not in chosen]
            order = np.random.default_rng(seed).permutation(len(rest))
            sides.append([*own, *(rest[place] for place in order[: max(0, most - len(own))])])
        pool = [*sides[0], *sides[1]]
        at = {id(one): place for place, one in enumerate(pool)}
        places = np.arange(len(pool))
        marked = np.array([at[id(one)] for one in canaries.documents], np.int64)
        return _Pool(pool, places[: len(sides[0])], places[len(sides[0]) :], marked)

    # --- losses ---------------------------------------------------------------------------

    @cached_property
    def _site_model(self) -> SiteModel:
        return self.form.at(self.spec.in_process(self.scratch))

    def _scored(
        self, pool: _Pool, places: Places, made: Sequence[_Reference]
    ) -> tuple[_Units, _Units]:
        """The units of these documents, by losses alone and beside references.

        A unit counts against references that have not seen its document; one without any is left
        out.
        """
        documents = [pool.documents[place] for place in places]
        config = self.at_home(self.settings.rounds)
        own = self._site_model.losses(self.weights, config, documents)
        at_U, size = places[own.documents_U], len(own.losses_U)
        plain = _Units(own.units, -own.losses_U, at_U, own.marks)
        sum_U, times_U = np.zeros(size), np.zeros(size)
        for one in made:
            blind_U = np.array([at not in one.trained_on for at in at_U.tolist()], bool)
            sum_U += blind_U * self._site_model.losses(one.weights, config, documents).losses_U
            times_U += blind_U
        kept = np.flatnonzero(times_U)
        scores_U = sum_U[kept] / times_U[kept] - own.losses_U[kept]
        return plain, _Units(own.units, scores_U, at_U[kept], [own.marks[n] for n in kept.tolist()])

    def _membership(self, seen: Sequence[_Units], *, references: int) -> run_folder.Membership:
        """Measure how well members are told from others; text on both sides is dropped.

        Raises DataError if there are too few.
        """
        first, second = (set(side.marks) for side in seen)
        members, others = (side.without(first & second) for side in seen)
        units = seen[0].called
        if min(len(members), len(others)) < FEWEST:
            raise DataError(
                f"site {self.spec.name} has too little text to audit",
                expected=f"at least {FEWEST} {units} of training text and {FEWEST} that no training"
                " saw",
                got=f"{len(members)} and {len(others)}",
                fix="hold text out before the run, as development or test text",
            )
        seed = derive_seed(self.settings.seed, "audit", "bootstrap") % 2**32
        auc, found = membership_auc(members, others, seed=seed)
        return run_folder.Membership(
            units=units,
            members=len(members),
            others=len(others),
            auc=run_folder.AuditInterval(**auc._asdict()),
            found=run_folder.AuditInterval(**found._asdict()),
            references=references,
        )

    # --- references -----------------------------------------------------------------------

    def _references(self, pool: _Pool, count: int, say: Callable[[str], None]) -> list[_Reference]:
        """Models trained on halves of the pool; the halves of two make up the whole."""
        learns, found = TASKS[self.settings.task].learns, list[_Reference]()
        known = {*(self.spec.annotates or self.labels)}
        texts = [_only(one, learns, known) for one in pool.documents]
        order = np.arange(len(texts))
        for number in range(count):
            seed = derive_seed(self.settings.seed, "audit", self.spec.name, "reference", number)
            if number % 2 == 0:
                order = np.random.default_rng(seed).permutation(len(texts))
            cut = len(order) // 2
            half = sorted((order[cut:] if number % 2 else order[:cut]).tolist())
            say(f"{self.spec.name}: reference {number + 1} of {count}, {len(half)} documents")
            own = replace(self.spec, train=[texts[place] for place in half], dev=(), test=())
            found.append(_Reference(self._trained(own, seed), frozenset(half)))
        return found

    def _trained(self, spec: Site, seed: int) -> Arrays:
        """Weights that this text alone gives, trained for as many passes as the run took."""
        site_model = self.form.at(spec.in_process(self.scratch))
        weights = self.form.first(derive_seed(seed, "weights"))
        configs = alone_configs(self.at_home, self.settings, size=site_model.size)
        for turn, config in enumerate(configs):
            weights = site_model.fit(weights, config, seed=derive_seed(seed, "pass", turn)).weights
        return weights

    # --- canaries -------------------------------------------------------------------------

    def _guessed(self, pool: _Pool, made: Sequence[_Reference]) -> run_folder.Canaried | None:
        """Work out the ε that guesses refute. All canaries are scored alike, whatever their coin.

        With references there are two ways to score. They share the level, as all sites do whose
        largest ε is told.
        """
        plain, beside = self._scored(pool, pool.canaries, made)
        ways = []  # the scores of the canaries that have any, and their coins
        for units in (plain, *([beside] if made else [])):
            scored = zip(units.by_document(pool.canaries), self.canaries.within, strict=True)
            pairs = [(score, let) for score, let in scored if score is not None]
            ways.append(([score for score, _ in pairs], [let for _, let in pairs]))
        delta = self.promised.delta if self.promised else DELTA
        level = 1 - 0.05 / (len(ways) * self.looks)
        found = [self._refuted(*way, delta=delta, level=level) for way in ways]
        said = [one for one in found if one is not None]
        return max(said, key=lambda one: one.epsilon, default=None)

    def _refuted(
        self, scores: list[float], coins: list[bool], *, delta: float, level: float
    ) -> run_folder.Canaried | None:
        """Work out the ε that these scores refute; None if all of these coins fell alike."""
        inside = [score for score, let in zip(scores, coins, strict=True) if let]
        outside = [score for score, let in zip(scores, coins, strict=True) if not let]
        if not inside or not outside:
            return None
        best = guessed(scores, coins, delta=delta, level=level)
        sides = (Side(np.array(one), np.arange(len(one))) for one in (inside, outside))
        auc, _ = membership_auc(
            *sides, seed=derive_seed(self.settings.seed, "audit", "coins") % 2**32
        )
        return run_folder.Canaried(
            canaries=len(scores),
            guesses=best.guesses,
            right=best.right,
            epsilon=best.epsilon,
            delta=delta,
            auc=run_folder.AuditInterval(**auc._asdict()),
            exposure=float(np.median(exposures(inside, outside))),
            most=float(np.log2(len(outside) + 1)),
        )


def _only(document: Document, learns: str, known: set[str]) -> Document:
    """The document with only the annotation that a model of these names can learn."""
    kept: Any = {learns: tuple(one for one in getattr(document, learns) if one.type in known)}
    return replace(document, **kept)


PICTURE = "audit.svg"
"""A drawing of how many of a hundred are found at each site."""


@for_the_owner()
def audit(
    run: Path | str,
    *,
    site: str | None = None,
    most: int = 1000,
    references: int = 0,
    key: Path | str | None = None,
    say: Callable[[str], None] | None = None,
) -> run_folder.Audit:
    """Measure what a finished run tells, and write `audit.json` and `audit.svg` into its folder.

    Args:
        run: the folder of a finished run: on one machine, or a real site's own (`runs/RUN` in its
            memory folder).
        site: only this one; by default every site whose text is here.
        most: the most documents of each side, drawn by the run's seed.
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
    settings, specs = found.settings, found.specs(site)
    speak, scratch = say or (lambda _: None), Scratch()
    sites: dict[str, run_folder.SiteAudit] = {}
    with computing_as(settings):
        for spec in specs:
            speak(f"{spec.name}: measuring")
            attack = replace(_attack(found, spec, scratch), looks=len(specs))
            try:
                sites[spec.name] = attack.audited(most=most, references=references, say=speak)
            except Refusal as error:
                raise DataError(
                    f"site {spec.name} cannot be audited: {error}", where=str(found.folder.path)
                ) from error
    done = run_folder.Audit(
        rounds=found.folder.result().best_rounds,
        sites=sites,
        crossed=run_folder.crossed(found.folder.path, group=settings.federation.groups),
        promised=promised(settings),
    )
    done.write(found.folder)
    found.folder.write(PICTURE, audit_svg(done))
    return done


def _opened(path: Path, key: Path | str | None) -> LocalRun:
    """The run with its text. Raises RunError, DataError and what `gather` raises."""
    folder = run_folder.RunFolder(path)
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
    found = LocalRun.of(folder, key)
    if found.gathered.fingerprint != result.data.fingerprint:
        raise DataError(
            "the text has changed since the run, so nobody can say what the run was trained on",
            where=str(path),
            fix="restore the files as they were, or run again and audit that",
        )
    return found


def _attack(found: LocalRun, spec: Site, scratch: Scratch) -> SiteAttack:
    """A site's text with the model that it ended with. Raises RunError, CheckpointError."""
    made = found.method(found.settings, found.gathered.public)
    form, weights = found.model_of(spec)
    return SiteAttack(
        found.settings,
        spec,
        form,
        weights,
        made.config_alone,
        tuple(form.labels),
        canaries=found.gathered.canaries[spec.name],
        promised=promised(found.settings),
        scratch=scratch,
    )


def promised(settings: Settings) -> run_folder.Promised | None:
    """Read the promise that the settings make about one unit of text; None without `[privacy]`."""
    own = settings.privacy
    if own is None:
        return None
    epsilon = own.epsilon if own.epsilon is not None else budget_of(settings).epsilon
    simulated = settings.key == SIMULATED
    return run_folder.Promised(unit=own.unit, epsilon=epsilon, delta=own.delta, simulated=simulated)
