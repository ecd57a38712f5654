"""A dossier for the data protection officer: what a run's files say, in the order of three forms.

The forms are a data protection impact assessment (GDPR, art. 35), the technical documentation of
the AI Act (Annex IV) and an application for an EHDS data permit (art. 67(2)); their questions are
in dossier.toml. Each answer names the file that it is from; what no file says is for a person to
write. It holds names of sites and types, settings and numbers: no text of notes, no path, no digest
of text.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from confide import words
from confide.errors import KitError, RunError, printable
from confide.federation.ledger import MET, OPENED, LedgerLine, ledger_files, read_lines
from confide.files import Tree, write_of_run
from confide.flare import status
from confide.flare.kit import SERVER, Kit, open_kit
from confide.report.folder import FinishedRun, load_run, totals
from confide.report.page import range_text
from confide.report.sections import ALL_SITES, intervals
from confide.runs.card import MOST_NAMES, safe, settings_of_model
from confide.runs.folder import (
    AUDIT,
    Crossed,
    RunFolder,
    audit_sentence,
    crossed,
    epsilon_sentence,
    noise_sentence,
    smallest_sentence,
)
from confide.runs.result import RESULT
from confide.settings import REFERENCES, SIMULATED, Settings
from confide.settings.sitefile import BOUNDS, Agreement
from confide.version import __version__

MARKDOWN, PAGE = "dossier.md", "dossier.html"
SETTINGS, LEDGER, ENVIRONMENT = "settings.toml", "ledger.jsonl", "environment.json"
CONSENT, SITE, PEERS = "KIT/local/consent.toml", "KIT/local/site.toml", "KIT/identity/peers.json"
ACCOUNT, SECURITY = "MEMORY/privacy/account.jsonl", "docs/security.md"
JOIN, OTHER = "join", "(other)"
"""The step with which a real site's run begins; what masked counts call types of no name. Their
own modules import torch."""
AT_THE_SITE = "confide dossier MEMORY/runs/RUN --kit KIT"


class Answer(NamedTuple):
    """A sentence of evidence and its file; or what no file says, and the command that would."""

    text: str
    source: str = ""
    command: str = ""


class Field(NamedTuple):
    """A question of a form, its answers, the tables beside them, and what is left to write."""

    point: str
    asks: str
    answers: tuple[Answer, ...]
    tables: tuple[str, ...]
    yours: str

    @property
    def has_evidence(self) -> bool:
        """True if a file of the run or the kit says something."""
        return any(one.source and not one.source.startswith("docs/") for one in self.answers)


class Form(NamedTuple):
    """A form: its title, the law that asks, and its questions."""

    title: str
    law: str
    fields: tuple[Field, ...]


class Grid(NamedTuple):
    """A table of evidence, by whose `id` questions point to it."""

    id: str
    title: str
    source: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def dossier(
    run: Path | str, *, out: Path | str | None = None, kit: Path | str | None = None
) -> tuple[Path, Path]:
    """Write the dossier of a finished run as Markdown, to fill in, and as a page. Gives both paths.

    They go into the folder `out`, or into the run's. A simulated run, the lead's or server's folder
    and a site's own (`MEMORY/runs/RUN`) each tell what they hold; the site's `kit` adds its
    agreement, guards, peers and privacy account. Raises RunError, also for a kit beside another
    folder; KitError for the kit of another site; SettingsError and GuardError for damaged files.
    """
    facts = _Facts.of(Path(run), None if kit is None else open_kit(Path(kit), "site"))
    forms, grids = tuple(_forms(facts)), tuple(_grids(facts))
    fields = [field for form in forms for field in form.fields]
    shown = {
        "name": _name(facts.run.result.name or f"{facts.run.method} run"),
        "version": __version__,
        "place": next(facts.place()),
        "forms": forms,
        "grids": grids,
        "numbers": {grid.id: number for number, grid in enumerate(grids, 1)},
        "unknown": list(dict.fromkeys(one for f in fields for one in f.answers if one.command)),
        "questions": len(fields),
        "evidence": sum(field.has_evidence for field in fields),
    }
    environment = words.templates("confide.report")
    environment.filters["plain"] = _plain
    folder = Path(run if out is None else out)
    for file in (MARKDOWN, PAGE):
        text = environment.get_template(f"{file}.j2").render(shown)
        write_of_run(folder / file, (text.rstrip() + "\n").encode())
    return folder / MARKDOWN, folder / PAGE


def _plain(text: object) -> str:
    return safe(text, most=2000)


def _name(text: object) -> str:
    """A name from elsewhere, on one line and not too long."""
    return printable(text, 100)


def _names(found: Iterable[object]) -> str:
    return ", ".join(map(_name, found)) or "none"


def _forms(facts: _Facts) -> Iterator[Form]:
    """The forms, filled in as far as the files go."""
    text = files("confide.jobs").joinpath("dossier.toml").read_text(encoding="utf-8")

    def field(own: dict[str, Any]) -> Field:
        said = chain.from_iterable(getattr(facts, name)() for name in own.get("from", ()))
        docs = (Answer(text, page) for page, text in own.get("docs", {}).items())
        tables = tuple(own.get("tables", ()))
        return Field(own["point"], own["asks"], (*said, *docs), tables, own["yours"])

    for form in tomllib.loads(text)["form"]:
        yield Form(form["title"], form["law"], tuple(map(field, form["field"])))


# --- What the files say


@dataclass(frozen=True)
class _Facts:
    """The files of a run, and a site's kit if one is named, as sentences of evidence.

    `here`: the machine of a simulation, the server (or lead), or one real site.
    """

    run: FinishedRun
    settings: Settings
    lines: tuple[LedgerLine, ...]
    here: Literal["simulated", "server", "site"]
    kit: Kit | None

    @staticmethod
    def of(path: Path, kit: Kit | None) -> _Facts:
        """Read them. Raises RunError, KitError."""
        run, settings = load_run(path, text=False), RunFolder(path).settings(as_written=True)
        lines = tuple(line for file in ledger_files(path) for line in read_lines(file))
        if not lines:
            raise RunError(
                "this folder holds no ledger, so nobody can say what left the sites",
                where=str(path),
                expected=LEDGER,
                fix="restore the file",
            )
        joined = any(entry.step == JOIN for entry in run.ledger)
        simulated = not joined and bool(settings.site or settings.split)
        own = settings.site[0].name if joined and settings.site else ""
        if kit is not None and not own:
            raise RunError(
                "a kit belongs to a site's own folder of a run, and this is none",
                where=str(path),
                expected="MEMORY/runs/RUN at the site",
                fix="leave out --kit",
            )
        if kit is not None and kit.name != own:
            raise KitError(
                "the kit and the run belong to different sites",
                where=str(kit.path),
                expected=f"the kit of {printable(own)}",
                got=printable(kit.name),
            )
        here: Literal["site", "server"] = "site" if own else "server"
        return _Facts(run, settings, lines, "simulated" if simulated else here, kit)

    @property
    def federated(self) -> bool:
        """True if several places had text, and messages took the place of it."""
        return self.settings.method not in REFERENCES

    @cached_property
    def opened(self) -> Tree:
        """The first line of a signed ledger: run, sites, lead; empty of a simulation."""
        return next((line.tree for line in self.lines if line.tree.get("note") == OPENED), {})

    @cached_property
    def sites(self) -> list[str]:
        """All sites of the run."""
        return sorted({*map(str, self.opened.get("sites", ())), *self.run.there})

    @cached_property
    def crossed(self) -> Crossed:
        """The ledger's sums, digests and asks."""
        return crossed(self.run.path, group=self.settings.federation.groups)

    @cached_property
    def types(self) -> list[str]:
        """The names of what the model learns, as far as the result tells."""
        result, scoring = self.run.result, self.run.scoring
        counted = (getattr(one, scoring.learns) for one in result.data.sites.values())
        scored = result.scores.overall.get(scoring.typed[0], {}).get("types", {})
        return sorted({*chain.from_iterable(counted), *scored} - {OTHER})

    @cached_property
    def agreement(self) -> Agreement | None:
        """The site's present agreement to the method, as its kit has it."""
        held = {} if self.kit is None else status.read_agreements(self.kit)
        found = held.get(self.settings.trained_by)
        return None if found is None else found.agreement

    def place(self) -> Iterator[Answer]:
        """The place that the folder belongs to."""
        own = _names(one.name for one in self.settings.site)
        text = {
            "simulated": "A simulated run: one machine read the text of all sites. It shows what"
            " would leave a site, and protects nothing.",
            "server": "The folder of the lead or the server, who hold numbers and messages, and no"
            " text. Agreements, guards and audits lie at each site.",
            "site": f"The folder of one site, {own}: its own ledger, scores and audit.",
        }
        yield Answer(text[self.here], LEDGER)

    def what(self) -> Iterator[Answer]:
        """The model: how it was trained and by whom."""
        run, federated = self.run, f"by {len(self.sites)} sites with the method {self.run.method}"
        how = {
            "pooled": "on the text of all sites in one place: nothing was federated",
            "alone": "at each site by itself: nothing of one site reached another",
            "public-only": "on public text alone",
        }.get(run.method, f"{_name(federated)}, by messages and without sharing text")
        model = "Models that" if run.result.personal else "A model that"
        yield Answer(f"{model} can {run.scoring.words.does}, trained {how}.", RESULT)
        planned, kept = self.settings.rounds, run.result.best_round
        took = f"At most {planned}" if self.here == "site" else f"{run.result.rounds}"
        best = "" if kept is None else f"; the model of round {kept} was kept"
        yield Answer(f"{took} rounds{best}.", RESULT)

    def text(self) -> Iterator[Answer]:
        """The sites' text, in numbers."""
        data, called = self.run.result.data, self.run.scoring.words
        if data.sites:
            sizes = ([getattr(one, part) for one in data.sites.values()] for part in _PARTS)
            train, dev, test = (words.count(sum(size)) for size in sizes)
            at = f"at {len(data.sites)} sites" if len(data.sites) > 1 else "at one site"
            said = f"{train} sentences of training, {dev} of development, {test} of test text {at}."
            yield Answer(said, RESULT)
            lost = Counter[str]()
            for one in data.sites.values():
                lost.update(one.problems)
            told = ", ".join(f"{_name(kind)} {words.count(n)}" for kind, n in sorted(lost.items()))
            yield Answer(f"Lost or changed in reading: {told or 'nothing'}.", RESULT)
        else:
            said = "No file here says how much text each site has; its own folder does."
            yield Answer(said, command=AT_THE_SITE)
        if data.apart is not None:
            left, by = words.count(data.apart.left_out), _name(data.apart.by)
            said = f"{left} training documents were left out: they share {by} with held-out ones."
            yield Answer(said, RESULT)
        if data.public is not None:
            count = words.count(data.public.documents)
            yield Answer(f"{count} public documents, which all sites may read, took part.", RESULT)
        if self.types:
            learnt = _names(self.types[:MOST_NAMES])
            yield Answer(f"The model learns, by {called.type}: {learnt}.", RESULT)

    def recipients(self) -> Iterator[Answer]:
        """Those who took part."""
        yield Answer(f"Sites: {_names(self.sites)}.", LEDGER if self.opened else RESULT)
        if self.opened:
            lead = _name(self.opened["lead"])
            said = (
                f"Lead: {lead}, who ordered the run, and gets scores, bytes and the common model."
            )
            yield Answer(said, LEDGER)

    def left(self) -> Iterator[Answer]:
        """The bytes that left."""
        if not self.federated:
            yield Answer("Nothing was federated: no message of a site is in the ledger.", SETTINGS)
        else:
            sent = words.size(sum(e.bytes for e in self.run.ledger if e.direction == "up"))
            whose = "this site" if self.here == "site" else "the sites"
            asks = words.count(self.crossed.asks)
            yield Answer(
                f"{sent} left {whose} in the whole run, in answers to {asks} asks.", LEDGER
            )
            said = "No field is for text of notes; tests look for planted words in every message."
            yield Answer(said, f"{SECURITY}#how-to-verify")

    def masks(self) -> Iterator[Answer]:
        """The numbers that the server could read."""
        if not self.federated:
            yield from self.left()
            return
        if self.crossed.masked:
            said = "What is only wanted as a sum left under masks: the server cannot read what one"
            yield Answer(f"{said} site added.", LEDGER)
        else:
            said = "No sum was masked: the server received each site's numbers, and only its code"
            yield Answer(f"{said} kept them apart.", LEDGER)
        yield Answer(f"{smallest_sentence(self.crossed)}.", LEDGER)
        if self.crossed.digests:
            said = f"{words.count(self.crossed.digests)} keyed digests of words or characters left;"
            yield Answer(f"{said} whoever has the sites' key can test guesses at them.", LEDGER)

    def noise(self) -> Iterator[Answer]:
        """The promise of differential privacy, or that there is none."""
        spent = self.run.result.privacy
        yield Answer(noise_sentence(self.settings, spent), SETTINGS if spent is None else RESULT)
        if self.kit is not None:
            account, limit = status.budget_status(self.kit)
            said = f"Over all its runs the site spent ε = {account.epsilon:.2f} in"
            said += f" {words.count(account.charges)} sums under noise; it allows"
            yield Answer(f"{said} {limit.epsilon:g} at δ = {limit.delta:g}.", ACCOUNT)

    def attacked(self) -> Iterator[Answer]:
        """The finds of a trial attack, or that none was made."""
        found, what = self.run.audit, "what the model tells of its training text"
        if found is None and self.here == "server":
            said = f"Not measured here, for want of text: {what}. Each site can."
            yield Answer(said, command="confide audit MEMORY/runs/RUN")
        elif found is None:
            yield Answer(f"Not measured: {what}.", command="confide audit RUN")
        else:
            for name, one in found.sites.items():
                yield Answer(f"{_name(name)}: {audit_sentence(one)} (95 % interval).", AUDIT)
            yield Answer(f"{epsilon_sentence(found)}.", AUDIT)
            if found.measured is None:
                said = "No ε was measured: the run had no canaries."
                yield Answer(said, command="confide run SETTINGS --canaries N")

    def guards(self) -> Iterator[Answer]:
        """The limits of the sites, whatever they are asked."""
        if self.kit is not None:
            own = [one.name for one in status.guard_values(self.kit) if one.source == "own file"]
            said = f"The site's own file sets the guards {_names(own)}; the others are the defaults"
            yield Answer(f"{said} of a real site.", SITE)
        elif self.here == "simulated":
            changed = sorted(self.settings.guards.model_dump(exclude_defaults=True).items())
            told = ", ".join(f"{key} {_value(value)}" for key, value in changed)
            said = told or "the defaults of a simulation, which refuse nothing"
            yield Answer(f"Guards of the run: {said}.", SETTINGS)
        else:
            yield Answer("No file here holds a site's guards; its kit does.", command=AT_THE_SITE)

    def agreed(self) -> Iterator[Answer]:
        """The agreement of a site."""
        method = self.settings.trained_by
        if self.here == "simulated":
            said = (
                "Simulated sites agree to nothing; real ones refuse what is outside an agreement."
            )
            yield Answer(said, f"{SECURITY}#what-a-malicious-lead-can-do")
        elif self.kit is None:
            yield Answer(
                "No file here holds a site's agreement; its kit does.", command=AT_THE_SITE
            )
        elif self.agreement is None:
            yield Answer(f"The site agrees to no run of {_name(method)} now.", CONSENT)
        else:
            own = {one.method: one for one in status.agreement_status(self.kit)}[method]
            used = "an unknown number" if own.used is None else own.used
            said = f"The site agreed to {_name(method)} on {self.agreement.agreed:%Y-%m-%d}, until"
            said += f" {own.until}, for {own.runs} runs, of which {used} began"
            yield Answer(f"{said}{f'; it {own.warning}' if own.warning else ''}.", CONSENT)

    def signed(self) -> Iterator[Answer]:
        """The signatures, and the chain of the ledger."""
        broken = next((line.number for line in self.lines if line.chained is False), None)
        if broken is not None:
            said = f"The ledger was changed: line {broken}, or the one before it, does not fit."
            yield Answer(said, LEDGER)
        elif all(line.chained for line in self.lines):
            count = words.count(len(self.lines))
            yield Answer(f"The {count} lines of the ledger form an unbroken chain.", LEDGER)
        if not self.opened:
            yield Answer("Nothing in the ledger is signed.", LEDGER)
            return
        yield Answer("Server and sites signed asks and replies, by identity keys that the ledger"
                   " names.", LEDGER)  # fmt: skip
        yield from self.compared()
        said = "No file says whether the ledgers of lead and sites agree."
        yield Answer(said, command="confide ledger LEADS-RUN --against MEMORY/runs/RUN")

    def compared(self) -> Iterator[Answer]:
        """The fingerprints that people have compared."""
        met = {
            str(line.tree.get("peer")): line.tree.get("compared") is True
            for line in self.lines
            if line.tree.get("note") == MET and line.tree.get("peer") != SERVER
        }
        said = "were compared by telephone"
        if self.here == "server" and met:
            yield Answer(f"Of {len(met)} sites' fingerprints {sum(met.values())} {said}.", LEDGER)
        if self.kit is not None:
            sums = status.secure_sum_status(self.kit)
            pinned = f"Of {sums.pinned} peers' fingerprints that the site has pinned"
            yield Answer(f"{pinned} {sums.compared} {said}.", PEERS)

    def scores(self) -> Iterator[Answer]:
        """The first score on held-out text."""
        run, task = self.run, self.run.scoring
        score = run.score(task.kinds[0])
        if score is None:
            said = "Not measured: nothing was held out for testing."
            yield Answer(said, command="confide evaluate RUN FILE")
            return
        sure = range_text(intervals(run).get(ALL_SITES))
        said = f"{task.words.full(task.kinds[0])}: {words.points(score)} of 100 on held-out text"
        yield Answer(f"{said}{f', {sure}' if sure else ''}.", RESULT)
        if wrong := run.overall.get("malformed"):
            said = f"{words.count(wrong)} predicted tag sequences were malformed and repaired."
            yield Answer(said, RESULT)

    def confidences(self) -> Iterator[Answer]:
        """The reliability of confidences."""
        found = self.run.result.calibration
        yield Answer("Each find comes with a confidence.", "docs/prediction.md")
        if found is None or found.after.error is None:
            yield Answer("No file here says how often confidences are right.")
        else:
            error = words.points(found.after.error)
            yield Answer(f"On test text confidences are off by {error} points in the mean.", RESULT)

    def failures(self) -> Iterator[Answer]:
        """Sites that failed, as the server saw them."""
        if self.here != "site":
            rounds = {name: f" in {n} rounds" for name, n in self.run.failed.items()}
            failed = {**dict.fromkeys(self.run.result.left_out, " at the start or end"), **rounds}
            told = ", ".join(f"{_name(name)}{when}" for name, when in sorted(failed.items()))
            yield Answer(f"Sites that failed or were left out: {told or 'none'}.", RESULT)

    def software(self) -> Iterator[Answer]:
        """Versions."""
        found, packages = self.run.environment, self.run.environment.get("packages")
        told = {"Python": found.get("python"), **(packages if isinstance(packages, dict) else {})}
        listed = "".join(f", {_name(key)} {_name(value)}" for key, value in told.items() if value)
        version = _name(self.run.result.confide or "of an unknown version")
        yield Answer(f"confide {version}{listed}.", ENVIRONMENT if listed else RESULT)

    def machine(self) -> Iterator[Answer]:
        """The hardware, and what it did."""
        found, result = self.run.environment.get("machine"), self.run.result
        if isinstance(found, dict):
            told = ", ".join(f"{_name(key)} {_name(value)}" for key, value in found.items())
            yield Answer(f"Machine: {told}.", ENVIRONMENT)
        else:
            yield Answer("No file here describes the machine.")
        work = {
            f"{words.count(result.parameters)} parameters": result.parameters,
            f"{words.duration(result.compute_seconds)} of computing": result.compute_seconds,
            f"{words.count(result.peak_rss_mb)} MB of memory": result.peak_rss_mb,
        }
        if any(work.values()):
            yield Answer(f"{', '.join(one for one, value in work.items() if value)}.", RESULT)

    def pretrained(self) -> Iterator[Answer]:
        """Models and vectors of others that training began with."""
        own, told = self.settings, []
        encoder = {
            "tagger": own.model.context if own.model.context != "none" else "",
            "lightner": own.lightner.bart,
            "bags": own.classifier.encoder if own.bags.reader == "encoder" else "",
            "linear": "",
        }.get(own.kind, own.classifier.encoder)
        vectors = {"tagger": own.model.vectors, "bags": own.pcnn.vectors}.get(own.kind)
        for what, named in (("an encoder", encoder), ("word vectors", vectors)):
            if named:
                is_path = "/" in named or "\\" in named
                told.append(f"{what} ({'from disk' if is_path else _name(named)})")
        told += ["the model of an earlier run"] * bool(own.start_from)
        yield Answer(f"Training began with {' and '.join(told) or 'random weights'}.", SETTINGS)

    def design(self) -> Iterator[Answer]:
        """The method, the kind of model, what is optimised."""
        own, score = self.settings, self.run.scoring.words.full(self.settings.select.by)
        best = f"of its rounds the one with the best {score} on development text"
        kept = "its last round" if own.select.by == "last" else best
        said = (
            f"A model of the kind {own.kind}, trained by {_name(own.trained_by)}; {kept} is kept."
        )
        yield Answer(said, SETTINGS)

    def less(self) -> Iterator[Answer]:
        """The need for all of the text."""
        if self.here == "simulated":
            said = "Not measured: whether less text would do."
            yield Answer(said, command="confide capacity SETTINGS")

    def later(self) -> Iterator[Answer]:
        """The scores on later text, which no run has."""
        said = "Not measured: how the model does on later text."
        yield Answer(said, command="confide evaluate RUN FILE")


_PARTS = ("train", "dev", "test")


# --- The tables of evidence


def _grids(facts: _Facts) -> Iterator[Grid]:
    """All tables that the files fill, each with its source."""
    run, called, scoring = facts.run, facts.run.scoring.words, facts.run.scoring
    result, sites = run.result, run.result.data.sites
    seeded = facts.settings.split is not None or facts.settings.key == SIMULATED
    about = {
        "name": _name(result.name or "–"),
        "task": f"{scoring.name}: {called.does}",
        "method": _name(result.method),
        "sites": _names(facts.sites),
        "seed": str("–" if result.seed is None else result.seed),
        "keys": "from the seed: for published corpora only" if seeded else "the sites' own",
    }
    yield Grid("run", "The run", RESULT, ("fact", "value"), tuple(about.items()))
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    if sites:
        rows = tuple(
            (_name(name), *(words.count(getattr(one, part)) for part in _PARTS))
            for name, one in sorted(sites.items())
        )
        yield Grid("text", "Sentences of each site", RESULT, ("site", *_PARTS), rows)
    counts = Counter[str]()
    for site in sites.values():
        counts.update(getattr(site, scoring.learns))
    if facts.types:
        scored = run.overall.get(scoring.typed[0], {}).get("types", {})
        rates = ("f1", "precision", "recall")
        head = (called.type, "in training text", f"F1, {scoring.typed[0]}", "precision", "recall")
        rows = tuple(
            (
                _name(type),
                words.count(counts[type]) if sites else words.NOTHING,
                *(words.points(scored.get(type, {}).get(rate)) for rate in rates),
            )
            for type in facts.types[:MOST_NAMES]
        )
        title = f"{called.found.capitalize()}, and how well they are found"
        yield Grid("types", title, RESULT, head, rows)
    if facts.federated:
        yield _left(facts)
    if run.audit is not None:
        best = {_name(name): one.strongest for name, one in run.audit.sites.items()}
        rows = tuple(
            (name, one.found.in_a_hundred, str(one.auc), words.count(one.members),
             words.count(one.others), _name(one.units)) for name, one in best.items()
        )  # fmt: skip
        head = ("site", "found of 100", "AUC", "of training text", "others", "units")
        note = "One false accusation in a hundred is allowed; by chance 1 would be found."
        yield Grid("attack", "What a trial attack found", AUDIT, head, rows, note)
    if run.score(scoring.kinds[0]) is not None:
        ranges = intervals(run)
        places = [(name, run.site_scores(name), name) for name in run.sites]
        places += [("all", run.overall, ALL_SITES)] * (len(places) > 1)
        rows = tuple(
            (
                _name(name),
                *(words.points(scoring.value(own, kind)) for kind in scoring.kinds),
                range_text(ranges.get(key)) or words.NOTHING,
            )
            for name, own, key in places
            if not scoring.empty(own)
        )
        head = ("site", *map(called.full, scoring.kinds), "of the first")
        title = "Scores on held-out text, in points of 100"
        yield Grid("scores", title, RESULT, head, rows)
    if facts.kit is not None:
        guards = status.guard_values(facts.kit)
        rows = tuple((one.name, _value(one.value), one.source, one.says) for one in guards)
        yield Grid("guards", "Guards of the site", SITE, ("guard", "value", "from", "says"), rows)
    if facts.agreement is not None:
        rows = tuple((k, _value(getattr(facts.agreement, k)), says) for k, says in BOUNDS.items())
        head = ("line", "agreed", "says")
        yield Grid("agreement", "The site's agreement, as it is now", CONSENT, head, rows)
    head = ("threat", "in this run", "what remains")
    title = "Threats, what stands against them in this run, and what remains"
    yield Grid("threats", title, SECURITY, head, tuple(_threats(facts)))
    chosen = sorted(settings_of_model(facts.settings).items())
    rows = tuple((_name(key), _name(value)) for key, value in chosen)
    yield Grid("settings", "Settings that made the model", SETTINGS, ("setting", "value"), rows)


def _left(facts: _Facts) -> Grid:
    """The table of all that left the sites, by step and field."""
    up = [entry for entry in facts.run.ledger if entry.direction == "up"]
    sums = totals(up, lambda one: (one.step, one.field, one.kind, one.seen))
    envelopes = sum(bytes for key, bytes in sums.items() if key[1].startswith("("))
    rows = tuple(
        (*map(_name, key), words.size(bytes))
        for key, bytes in sums.items()
        if not key[1].startswith("(")
    )
    note = (
        "One by one: the server read it of each site. Sum: its code added it up, and could read"
        " each. Masked: it could read the sum alone. Headers and signatures are another"
        f" {words.size(envelopes)}."
    )
    head = ("step", "field", "kind", "seen by the server", "bytes")
    return Grid("left", "What left the sites", LEDGER, head, rows, note)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _names(value) if isinstance(value, (tuple, list)) else _name(value)


def _threats(facts: _Facts) -> Iterator[tuple[str, str, str]]:
    """The threats of docs/security.md, with what this run's files say of each."""

    def told(said: Iterable[Answer]) -> str:
        return " ".join(f"{one.text}{one.command and f' ({one.command})'}" for one in said)

    if facts.federated:
        own, fewest = facts.settings.federation, facts.settings.vocabulary.min_sites
        network = "All is under TLS, with certificates on both sides."
        yield (
            "Messages are listened to on the network",
            "Nothing crossed a network." if facts.here == "simulated" else network,
            "Who talks to whom, when and how much.",
        )
        yield (
            "The server, or who controls it, reads what one site sent",
            told(facts.masks()),
            "What sums, and the model made of them, tell; only noise bounds it.",
        )
        yield (
            "Another site learns of a site's text from what is common",
            f"Where there is a common vocabulary, a word is in it if {fewest} or more sites have it"
            " (vocabulary.min_sites).",
            "What the training of all others changed together; with two sites, the other's.",
        )
        yield (
            "The lead orders more than was agreed",
            told(facts.agreed()),
            "Whatever an agreement allows.",
        )
        bound = f"more than {own.limit:g} times the usual size is refused (max_norm_ratio)"
        yield (
            "A site poisons the model",
            f"Updates are combined by {own.combine}. An update"
            f" {bound if math.isfinite(own.limit) else 'of any size is taken (max_norm_ratio)'}.",
            "Swapped labels and backdoors are not found.",
        )
        yield (
            "The founder of the consortium invents sites or a server",
            told(facts.compared()) or "No file here says whose fingerprints were compared.",
            "Keys whose fingerprints nobody has compared by telephone.",
        )
    yield (
        "Whoever gets the model tells whose notes it was trained on",
        told(chain(facts.attacked(), facts.noise())),
        "An attack shows that a model tells at least so much, never that it tells no more.",
    )
    yield (
        "A released model shows words of its training text",
        "A release says in its model card what it reveals.",
        "A copy that needs no key shows words of the site that releases it; a decoder can repeat"
        " sentences.",
    )
    yield (
        "A machine or a kit is stolen",
        "For you to write: no file says whether disks are encrypted.",
        "Text, models and TLS keys lie in the clear on disk.",
    )
