"""What a user's files hold: whose they are, how they are read, what does not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from confide.data.corpus.labelling import FILE
from confide.errors import DataError
from confide.runs.holding import blocks
from confide.text.checking import CheckReport, check
from confide.text.document import Document, Problem, stated_pairs
from confide.text.files import likely_encoding, read_bytes
from confide.text.formats import Options, detect
from confide.text.formats.sniff import BRAT, PARTS
from confide.text.segment import AUTO, language_of

SITES = 3
"""The most simulated sites that one corpus is dealt to."""
RARE = 0.01
"""The share of entities or relations below which a type is rare."""
BY_CHANCE = 0.01
"""The probability below which a site does not lack a type by chance."""
FEW_DOCUMENTS = 10
"""So few documents tell too little of chance; then mentions are counted."""
_OF_BAGS = frozenset(("nyt10", "opennre", "pgr"))
_OF_RELATIONS = _OF_BAGS | {
    "biobert", "chemprot", "ddi", "fewrel", "semeval", "table", "tacred",
}  # fmt: skip
"""Formats published for learning relations; from all others, entities are learnt by default."""
_OF_TAGGERS = frozenset((
    "crosses-sentence", "discontinuous", "nested", "no-token", "not-on-token-border", "overlapping",
))  # fmt: skip
"""Problems that concern a flat tagger but not a relation extractor."""


@dataclass(frozen=True, slots=True)
class Read:
    """A file or folder: the part it is, what `check` says of it, and the encoding it needs."""

    part: str
    path: Path
    report: CheckReport
    encoding: str = ""


def _of_bags(report: CheckReport) -> bool:
    """Whether a file holds bags: by its format, or as `confide data label` writes them."""
    if report.format != "jsonl" or not report.documents:
        return report.format in _OF_BAGS
    return all(
        len(one.entities) == 2
        and len(stated_pairs(one) or ()) == 1
        and any(key == FILE for key, _ in one.attributes)
        for one in report.documents
    )


@dataclass
class SiteFiles:
    """The files of one site, what they hold, and common names of its types where they differ.

    What a site annotates is what its training text holds: `types`, `sentences`, `documents`.
    `format` and `options` are what was stated about reading.
    """

    name: str
    parts: dict[str, list[Path]] = field(default_factory=lambda: {part: [] for part in PARTS})
    format: str | None = None
    options: Options = field(default_factory=Options)
    read: list[Read] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    @cached_property
    def training(self) -> list[CheckReport]:
        """What `check` says of each training file."""
        return [one.report for one in self.read if one.part == "train"]

    @cached_property
    def about_relations(self) -> bool:
        """Whether relations are what these files are for."""
        return all(one.report.format in _OF_RELATIONS or _of_bags(one.report) for one in self.read)

    @cached_property
    def about_bags(self) -> bool:
        """Whether relations that hold of bags are what these files are for."""
        return all(_of_bags(one.report) for one in self.read)

    @cached_property
    def documents(self) -> list[Document]:
        """The training documents."""
        return [document for report in self.training for document in report.documents]

    @cached_property
    def sentences(self) -> int:
        """The number of training sentences."""
        return sum(report.counts["sentences"] for report in self.training)

    @cached_property
    def language(self) -> str:
        """The language of the training text: stated, or found ("" if it cannot be told)."""
        if self.options.language != AUTO:
            return self.options.language
        return language_of(document.text for document in self.documents)

    @cached_property
    def formats(self) -> set[str]:
        """The formats of all files."""
        return {one.report.format for one in self.read}

    @cached_property
    def encodings(self) -> set[str]:
        """The encodings that must be stated; "" stands for UTF-8."""
        return {one.encoding for one in self.read}

    @cached_property
    def types(self) -> Counter[str]:
        """How often each type occurs in training text: of relations, if these are learnt."""
        return sum((self._held(report) for report in self.training), Counter[str]())

    @cached_property
    def units(self) -> list[list[Document]]:
        """The training documents or, where a file marks none, blocks of neighbouring sentences."""
        return blocks(self.documents)

    @cached_property
    def units_with(self) -> Counter[str]:
        """In how many units of training text each type occurs."""
        found = Counter[str]()
        for unit in self.units:
            held = (one.relations if self.about_relations else one.entities for one in unit)
            found.update({one.type for each in held for one in each})
        return found

    @property
    def common(self) -> dict[str, str]:
        """Each common name of the site's types, with the site's own."""
        return {self.names.get(kind, kind): kind for kind in self.types}

    @cached_property
    def only_held_out(self) -> list[str]:
        """The types of dev and test text that no training text of this site has."""
        held = sum((self._held(one.report) for one in self.read), Counter[str]())
        return sorted(held.keys() - self.types)

    def _held(self, report: CheckReport) -> Counter[str]:
        return Counter(report.relations if self.about_relations else report.types)

    def agreed(self, key: str) -> str | None:
        """The format or scheme of all files with entities, if they share it."""
        reports = [one.report for one in self.read]
        if key == "format":
            seen: set[str | None] = {report.format for report in reports}
        else:
            seen = {_scheme(report) for report in reports if report.types}
        return seen.pop() if len(seen) == 1 else None


def look(site: SiteFiles, problems: list[Problem]) -> list[str]:
    """Check every file of a site; a line about each."""
    lines = []
    every = [(part, path) for part, paths in site.parts.items() for path in paths]
    encodings = {path: None if site.options.encoding else _encoding(path) for _, path in every}
    for _, path in every:
        if (site.format or detect(path, site.options.encoding or encodings[path])) == "text":
            raise DataError(
                "raw text without annotation: nothing can be learnt from it",
                expected="annotated text: CoNLL columns, brat, JSON Lines or PubTator",
                where=str(path),
            )
    for part, path in every:
        encoding = encodings[path]
        how = replace(site.options, encoding=encoding) if encoding else site.options
        report = check(path, format=site.format, options=how)
        if report.format in _OF_RELATIONS:
            report.problems[:] = [one for one in report.problems if one.kind not in _OF_TAGGERS]
        site.read.append(Read(part, path, report, encoding or ""))
        if encoding:
            what = f"not UTF-8; read as {encoding}: look at its accents"
            report.problems.insert(0, Problem("encoding-guessed", str(path), what))
        if not report.types:
            report.problems.insert(0, Problem("no-entity", str(path), "there is no entity in it"))
        problems += report.problems
    for one in site.read:
        lines.append(f"{site.name}, {one.part}: {one.path}")
        lines += [f"  {line}" for line in _described(one.report, site)]
    return lines


def _encoding(path: Path) -> str | None:
    """An encoding that must be stated for a file or a folder of brat files."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (*BRAT, ".txt"))
    found = [likely_encoding(read_bytes(file)) for file in files if file.is_file()]
    return next((name for name in found if name), None)


def _counted(types: dict[str, int]) -> str:
    """`: type count, ...` of the first types; nothing where there is none."""
    text = ", ".join(f"{kind} {count:,}" for kind, count in list(types.items())[:12])
    return f": {text}{', …' if len(types) > 12 else ''}" if text else ""


def _described(report: CheckReport, site: SiteFiles) -> list[str]:
    """How a file was read and what it holds, in words, line by line."""
    counts = report.counts
    held = f"{counts['sentences']:,} sentences, {counts['entities']:,} entities"
    lines = [next(iter(report.details.values())), held + _counted(report.types)]
    if counts["relations"]:
        unused = "" if site.about_relations else ' (a tagger does not use them; task = "re" does)'
        lines.append(f"{counts['relations']:,} relations{_counted(report.relations)}{unused}")
    if report.problems:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.kinds.items())
        lost = sum(problem.lost for problem in report.problems)
        lines.append(f"to look at: {len(report.problems):,} ({lost:,} lost): {kinds}")
        shown = report.problems[:3]
        lines += [f"  {problem.where}: {problem.what}" for problem in shown]
        if len(report.problems) > len(shown):
            lines.append("  … (all of them: confide data check FILE)")
    return lines


def _scheme(report: CheckReport) -> str | None:
    """The tag scheme that was found in a file, unless it is doubtful."""
    if "doubtful-scheme" in report.kinds:
        return None
    found = re.search(r"scheme (\w+)", next(iter(report.details.values())))
    return found.group(1) if found else None


def lacking(site: SiteFiles, sites: Sequence[SiteFiles]) -> dict[str, bool]:
    """The types that others annotate and a site lacks, by common name; True: not by chance.

    A site may lack a type by chance if the type is rare (`RARE`) at the sites that have it, if its
    own dev or test text has it, or if text like theirs, as much as this site has, would be without
    it with a probability of at least `BY_CHANCE`. Mentions gather in documents, so documents count;
    where these are few, mentions.
    """
    found = {}
    for kind in dict.fromkeys(kind for other in sites for kind in other.common):
        others = [other for other in sites if kind in other.common]
        if site in others:
            continue
        mentions = sum(other.types[other.common[kind]] for other in others)
        every = sum(other.types.total() for other in others)
        frequent = mentions >= RARE * every
        drawn = site.types.total()
        units = sum(len(other.units) for other in others)
        if min(units, len(site.units)) >= FEW_DOCUMENTS:
            mentions = sum(other.units_with[other.common[kind]] for other in others)
            every, drawn = units, len(site.units)
        chance = (1 - mentions / (every + 1)) ** drawn >= BY_CHANCE
        known = kind in {site.names.get(name, name) for name in site.only_held_out}
        found[kind] = frequent and not chance and not known
    return found


def verdict(sites: Sequence[SiteFiles], problems: list[Problem]) -> list[str]:
    """What follows for the settings, line by line; types that differ become problems."""
    lines = []
    lack = {site.name: lacking(site, sites) for site in sites}
    apart = {kind for found in lack.values() for kind, told in found.items() if told}
    for site in sites:
        what = "relations" if site.about_relations else "types"
        path = str(site.read[0].path)
        if only := sorted(apart & site.common.keys()):
            line = f"site {site.name} has {what} that not every site annotates: {', '.join(only)}"
            problems.append(Problem("types-differ", path, line))
            lines.append(line)
        if chance := sorted(kind for kind, told in lack[site.name].items() if not told):
            lines.append(
                f"site {site.name} has no {', '.join(chance)}, which may be chance: there are few"
                " elsewhere, or this site has little text"
            )
        if site.only_held_out:
            line = (
                f"site {site.name} has {what} in its dev or test text alone, of which its training"
                f" text teaches nothing: {', '.join(site.only_held_out)}"
            )
            problems.append(Problem("types-untrained", path, line))
            lines.append(line)
    if len(sites) == 1:
        share = shares(sites[0])
        lines.append(f"one corpus: dealt to {share} simulated site{'s' * (share > 1)} at random")
    else:
        lines.append(f"{len(sites)} sites: {', '.join(site.name for site in sites)}")
    return lines


def shares(site: SiteFiles) -> int:
    """How many sites one corpus can be dealt to."""
    counts = Counter[str]()
    for one in site.read:
        counts[one.part] += one.report.counts["documents"]
    return max(1, min(SITES, *counts.values())) if counts else 1
