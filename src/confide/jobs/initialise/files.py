"""What a user's files hold: whose they are, how they are read, what does not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError
from confide.text.checking import CheckReport, check
from confide.text.document import Problem
from confide.text.files import likely_encoding, read_bytes
from confide.text.formats import detect
from confide.text.parts import BRAT, PARTS

SITES = 3
"""The most simulated sites that one corpus is dealt to."""
OF_BAGS = frozenset(("nyt10", "opennre", "pgr"))
_OF_RELATIONS = OF_BAGS | {"biobert", "chemprot", "ddi", "semeval"}
"""Formats published for learning relations; from all others, entities are learnt by default."""
_OF_TAGGERS = frozenset((
    "crosses-sentence", "discontinuous", "nested", "no-token", "not-on-token-border", "overlapping",
))  # fmt: skip
"""Problems that concern a flat tagger but not a relation extractor."""


@dataclass(slots=True)
class SiteFiles:
    """The files of one site by part, and what `check` says of each."""

    name: str
    parts: dict[str, list[Path]] = field(default_factory=lambda: {part: [] for part in PARTS})
    reports: list[CheckReport] = field(default_factory=list)
    encodings: set[str] = field(default_factory=set)

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every file with its part."""
        for part, paths in self.parts.items():
            for path in paths:
                yield part, path

    @property
    def types(self) -> set[str]:
        """The types in all parts: of relations if these are learnt, otherwise of entities."""
        every = [r.relations if self.about_relations else r.types for r in self.reports]
        return {kind for types in every for kind in types}

    @property
    def about_relations(self) -> bool:
        """Whether relations are what these files are for."""
        return all(report.format in _OF_RELATIONS for report in self.reports)

    def agreed(self, key: str) -> str | None:
        """The format or scheme of all files with entities, if they share it."""
        seen = {
            report.format if key == "format" else _scheme(report)
            for report in self.reports
            if key == "format" or report.types
        }
        return seen.pop() if len(seen) == 1 else None


def look(site: SiteFiles, problems: list[Problem]) -> list[str]:
    """Check every file of a site; a line about each."""
    lines = []
    for _, path in site.files():
        if detect(path, _encoding(path)) == "text":
            raise DataError(
                "raw text without annotation: nothing can be learnt from it",
                expected="annotated text: CoNLL columns, brat, JSON Lines or PubTator",
                where=str(path),
            )
    for part, path in site.files():
        encoding = _encoding(path)
        report = check(path, encoding=encoding)
        if report.format in _OF_RELATIONS:
            report.problems[:] = [one for one in report.problems if one.kind not in _OF_TAGGERS]
        site.reports.append(report)
        site.encodings.add(encoding or "")
        if encoding:
            what = f"not UTF-8; read as {encoding}: look at its accents"
            report.problems.insert(0, Problem("encoding-guessed", str(path), what))
        if not report.types:
            report.problems.insert(0, Problem("no-entity", str(path), "there is no entity in it"))
        problems += report.problems
        lines.append(f"{site.name}, {part}: {path}")
        lines += [f"  {line}" for line in _described(report, site)]
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


def verdict(sites: Sequence[SiteFiles], problems: list[Problem]) -> list[str]:
    """What follows for the settings, line by line; tag names that differ become problems."""
    lines = []
    everywhere = set.intersection(*(site.types for site in sites))
    for site in sites:
        if site.types - everywhere:
            only = ", ".join(sorted(site.types - everywhere))
            kind = "relations" if site.about_relations else "types"
            what = f"site {site.name} has {kind} that not every site has: {only}"
            problems.append(Problem("types-differ", str(next(site.files())[1]), what))
            lines.append(what)
    if len(sites) == 1:
        share = shares(sites[0])
        lines.append(f"one corpus: dealt to {share} simulated site{'s' * (share > 1)} at random")
    else:
        lines.append(f"{len(sites)} sites: {', '.join(site.name for site in sites)}")
    return lines


def shares(site: SiteFiles) -> int:
    """How many sites one corpus can be dealt to."""
    parts = [part for part, _ in site.files()]
    counts = Counter[str]()
    for part, report in zip(parts, site.reports, strict=True):
        counts[part] += report.counts["documents"]
    return max(1, min(SITES, *counts.values())) if counts else 1
