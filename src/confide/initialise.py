"""From a user's own files to settings that run: what is in them, whose they are, what does not fit.

One corpus is dealt to simulated sites; several files or folders are sites of their own. Files whose
names say train, dev or test and otherwise agree belong to one site. Formats that are about nothing
but relations give settings of a relation extractor.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from confide.errors import DataError, SettingsError
from confide.settings import load
from confide.text.checking import CheckReport, check
from confide.text.document import Problem
from confide.text.files import likely_encoding, read_bytes
from confide.text.formats import FORMATS, detect
from confide.text.parts import BRAT, PARTS, grouped

_SITES, _LINES = 3, 30
_OF_BAGS = frozenset(("nyt10", "opennre", "pgr"))
_OF_RELATIONS = _OF_BAGS | {"biobert", "chemprot", "ddi", "semeval"}
"""Formats that are published to learn relations; of others one learns entities, if nobody says."""
_OF_TAGGERS = frozenset((
    "crosses-sentence", "discontinuous", "nested", "no-token", "not-on-token-border", "overlapping",
))  # fmt: skip
"""What does not fit a flat tagger, and is nothing to a relation extractor."""


@dataclass(frozen=True, slots=True)
class InitReport:
    """What `init` found and wrote.

    Attributes:
        found: for a person: each file's format, scheme, types and counts, and what does not fit.
        problems: every annotation that was lost, changed or doubtful, and what else to look at.
        settings: the settings file's text.
        path: where it was written.
    """

    found: str
    problems: list[Problem]
    settings: str
    path: Path


@dataclass(slots=True)
class _Site:
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
        """The types of all parts: of relations, if it is these that are learned, or of entities."""
        every = [r.relations if self.about_relations else r.types for r in self.reports]
        return {kind for types in every for kind in types}

    @property
    def about_relations(self) -> bool:
        """Whether relations are what these files are for."""
        return all(report.format in _OF_RELATIONS for report in self.reports)

    def agreed(self, key: str) -> str | None:
        """The format or the scheme of all the files with entities, if they have the same."""
        seen = {
            report.format if key == "format" else _scheme(report)
            for report in self.reports
            if key == "format" or report.types
        }
        return seen.pop() if len(seen) == 1 else None


def init(
    files: Sequence[Path | str], *, out: Path | str = Path("confide.toml"), force: bool = False
) -> InitReport:
    """Look at annotated files, and write a short commented settings file that runs.

    Args:
        files: files and folders. One corpus is dealt to three simulated sites; otherwise each
            file or folder is a site, but for those that are parts (train, dev, test) of one.
        out: the settings file.
        force: overwrite it.

    Raises:
        SettingsError: no file was named, or `out` is there already.
        DataError: a file holds raw text without annotation.
        ConfideError: a file cannot be read; where and why.
    """
    out = Path(out)
    if out.exists() and not force:
        raise SettingsError(
            "the settings file is there already",
            where=str(out),
            fix="choose another name, or remove it",
        )
    sites = _sites([Path(path) for path in files])
    problems: list[Problem] = []
    lines: list[str] = []
    for site in sites:
        lines += _look(site, problems)
    lines += _verdict(sites, problems)
    text = _settings(sites, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    load(out)
    return InitReport("\n".join(lines), problems, text, out)


def _sites(paths: Sequence[Path]) -> list[_Site]:
    """The files grouped into sites, in the order in which they were given."""
    found = grouped(paths)
    if not found:
        raise SettingsError("no file was named", expected="at least one file or folder")
    return [_Site(name, parts) for name, parts in found.items()]


# --- what is in them ----------------------------------------------------------------------


def _look(site: _Site, problems: list[Problem]) -> list[str]:
    """Check every file of a site; a line about each."""
    lines = []
    for _, path in site.files():
        if detect(path, _encoding(path)) == "text":
            raise DataError(
                "raw text without annotation: nothing can be learned from it",
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


def _described(report: CheckReport, site: _Site) -> list[str]:
    """How a file was read and what it holds, in lines of words."""
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


def _verdict(sites: Sequence[_Site], problems: list[Problem]) -> list[str]:
    """What follows for the settings, in lines of words; tag names that differ become problems."""
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
        share = _shares(sites[0])
        lines.append(f"one corpus: dealt to {share} simulated site{'s' * (share > 1)} at random")
    else:
        lines.append(f"{len(sites)} sites: {', '.join(site.name for site in sites)}")
    return lines


def _shares(site: _Site) -> int:
    """To how many sites one corpus can be dealt."""
    parts = [part for part, _ in site.files()]
    counts = Counter[str]()
    for part, report in zip(parts, site.reports, strict=True):
        counts[part] += report.counts["documents"]
    return max(1, min(_SITES, *counts.values())) if counts else 1


# --- the settings -------------------------------------------------------------------------


def _quoted(value: str | Sequence[str]) -> str:
    """A string, or a list of them, in TOML."""
    if isinstance(value, str):
        return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
    return _quoted(value[0]) if len(value) == 1 else f"[{', '.join(map(_quoted, value))}]"


def _settings(sites: Sequence[_Site], out: Path) -> str:
    """The settings file; sites are one line each where tables would make it too long."""
    head = [
        f"# What confide found; train with: confide run {out.name}",
        f"name = {_quoted(re.sub(r'[^A-Za-z0-9_.-]+', '-', out.stem))}",
        *_task(sites),
        "seed = 1",
        "rounds = 20",
    ]
    common = {key: _common(sites, key) for key in ("format", "scheme", "encoding")}
    data = [f"{key} = {_quoted(value)}" for key, value in common.items() if value]
    data = [*(["", "[data]", *data] if data else []), *_pairs(sites)]
    tail = ["", "[training]", "local_epochs = 2     # passes over a site's text in a round"]
    if len(sites) == 1:
        public = _PUBLIC if sites[0].about_relations and 'task = "bags"' not in head else []
        return _joined([*head, *data, "", *_split(sites[0], out), *public, *tail])
    tables: list[str] = []
    for site in sites:
        pairs, note = _table(site, sites, common, out)
        tables += ["", "[[site]]", *(f"{key} = {value}" for key, value in pairs), *note]
    whole = [*head, *data, *tables, *tail]
    if len(whole) <= _LINES:
        return _joined(whole)
    rows, notes = [], []
    for site in sites:
        pairs, note = _table(site, sites, common, out)
        rows.append(f"  {{ {', '.join(f'{key} = {value}' for key, value in pairs)} }},")
        notes += [
            f"# {site.name}: {line[2:]}" for line in note if line.startswith(("# tags", "# rel"))
        ]
    whole = [*head, "", "site = [", *rows, "]", *data, *tail]
    return _joined([*whole, *notes[: max(0, _LINES - len(whole))]])


_PUBLIC = [
    "",
    "[public]             # text that the server and all sites may read",
    "share = 0.2          # of the training documents; or files = ... of its own",
]


def _task(sites: Sequence[_Site]) -> list[str]:
    """What is learned, and by which method."""
    if not all(site.about_relations for site in sites):
        others = 'references: "pooled" (all text in one place), "alone" (by itself)'
        linked = any(report.counts["relations"] for site in sites for report in site.reports)
        task = 'task = "ner"         # entities; "re": the relations between them'
        return [*([task] if linked else []), f'method = "fedavg"    # {others}']
    if all(report.format in _OF_BAGS for site in sites for report in site.reports):
        others = '"chain"; references: "pooled", "alone"'
        return ['task = "bags"', f'method = "lazy-mil"  # or "fedavg", {others}']
    others = 'references: "pooled", "alone", "public-only"'
    if len(sites) == 1:
        return ['task = "re"', f'method = "feded"     # or "fedavg", "fedatt"; {others}']
    others = f'or "fedatt"; "feded" with [public] files; {others}'
    return ['task = "re"', f'method = "fedavg"    # {others}']


def _pairs(sites: Sequence[_Site]) -> list[str]:
    """How pairs are looked at, where the format says that their order means nothing."""
    if not any(report.format == "ddi" for site in sites for report in site.reports):
        return []
    return ["", "[pairs]", 'direction = "undirected"     # a before b is the same as b before a']


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _common(sites: Sequence[_Site], key: str) -> str | None:
    """The format, scheme or encoding that every site's files have."""
    found = {_own(site, key) for site in sites}
    return found.pop() if len(found) == 1 else None


def _own(site: _Site, key: str) -> str | None:
    """The format, scheme or encoding of a site's files, if they agree on one."""
    if key == "encoding":
        return next(iter(site.encodings)) or None if len(site.encodings) == 1 else None
    value = site.agreed(key)
    return value if key == "scheme" or value in FORMATS else None


def _paths(paths: Sequence[Path], out: Path) -> str:
    """Paths as they are seen from the settings file."""
    return _quoted([_seen_from(path, out) for path in paths])


def _seen_from(path: Path, out: Path) -> str:
    try:
        seen = os.path.relpath(path.resolve(), out.parent.resolve())
    except ValueError:  # another drive
        seen = str(path.resolve())
    if Path(seen).parts[:3] == ("..", "..", ".."):
        seen = str(path.resolve())
    if seen.startswith(("$", "~")):  # would be taken for a variable or a home
        seen = str(path.resolve())
    return Path(seen).as_posix()


def _split(site: _Site, out: Path) -> list[str]:
    """The table that deals one corpus to simulated sites."""
    lines = [
        "[split]              # one corpus; for real sites, write a [[site]] table for each",
        f"sites = {_shares(site)}",
        'by = "iid"           # or "file", "domain", "dirichlet", "quantity"',
    ]
    lines += [f"{part} = {_paths(paths, out)}" for part, paths in site.parts.items() if paths]
    missing = [part for part in ("dev", "test") if not site.parts[part]]
    if missing and site.about_relations:
        what = f"no {' and no '.join(missing)} file: a share of train is held out"
        lines.append(f'hold_out = "corpus"  # {what}')
    elif missing:
        lines.append(f"# no {' and no '.join(missing)} file: each site holds out a share of train")
    return lines


def _table(
    site: _Site, sites: Sequence[_Site], common: dict[str, str | None], out: Path
) -> tuple[list[tuple[str, str]], list[str]]:
    """The keys of one site's table, and a commented tag map where its types are its own."""
    pairs = [("name", _quoted(site.name))]
    pairs += [(part, _paths(paths, out)) for part, paths in site.parts.items() if paths]
    for key in ("format", "scheme", "encoding"):
        own = _own(site, key)
        if own and not common[key]:
            pairs.append((key, _quoted(own)))
    return pairs, _tag_map(site, sites)


def _tag_map(site: _Site, sites: Sequence[_Site]) -> list[str]:
    """A comment on the types that only this site has, with a map to the names before it."""
    table = "relations" if site.about_relations else "tags"
    elsewhere = {kind for other in sites if other is not site for kind in other.types}
    before = {kind for other in sites[: sites.index(site)] for kind in other.types} - site.types
    own = sorted(site.types - elsewhere)
    near = {kind: name for kind in own if (name := _nearest(kind, before))}
    if near:
        tags = ", ".join(f"{_key(kind)} = {_quoted(name)}" for kind, name in near.items())
        return [f"# {table} = {{ {tags} }}    # other sites' names for the same?"]
    few = ", ".join(own[:4]) + (", ..." if len(own) > 4 else "")
    return [f'# only here: {few}; {table} = {{ theirs = "ours" }} renames, "" drops'] if own else []


def _key(name: str) -> str:
    """A key in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _nearest(kind: str, others: Iterable[str]) -> str | None:
    """The other sites' name that looks like a type's, if one does."""
    by_lower = {other.lower(): other for other in sorted(others)}
    near = difflib.get_close_matches(kind.lower(), list(by_lower), n=1, cutoff=0.65)
    return by_lower[near[0]] if near else None
