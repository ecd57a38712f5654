"""The settings file that `init` proposes for a user's files."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tomli_w

from confide.jobs.initialise.files import SiteFiles, shares
from confide.jobs.initialise.proposal import Proposal, Wishes, of_bags
from confide.text.formats import FORMATS

_LINES = 32


def _quoted(value: str | Sequence[str]) -> str:
    """A string, or a list of them, in TOML."""
    if isinstance(value, str):
        return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
    return _quoted(value[0]) if len(value) == 1 else f"[{', '.join(map(_quoted, value))}]"


def draft(sites: Sequence[SiteFiles], out: Path, *, proposal: Proposal, wishes: Wishes) -> str:
    """The settings file; if tables would make it too long, each site gets one line."""
    head = [
        f"# What confide found; train with: confide run {out.name}",
        f"name = {_quoted(re.sub(r'[^A-Za-z0-9_.-]+', '-', out.stem))}",
        *proposal.lines,
        "seed = 1",
        "rounds = 20",
    ]
    common = {key: _common(sites, key) for key in ("format", "scheme", "encoding")}
    data = [f"{key} = {_quoted(value)}" for key, value in common.items() if value]
    data = [*(["", "[data]", *data] if data else []), *_pairs(sites)]
    tail = ["", "[training]", "local_epochs = 2     # passes over a site's text in a round"]
    if proposal.outside:
        what = proposal.outside
        tail.append(
            f"outside = 1          # its text may have the {what} that a site does not annotate"
        )
    if wishes.megabytes is not None:
        tail += ["", "[federation]", f"megabytes = {wishes.megabytes:g}     # that a site uploads"]
    if wishes.public:
        tail += ["", "[public]", f"files = {_paths(wishes.public, out)}"]
    if len(sites) == 1:
        dealt = sites[0].about_relations and not of_bags(sites) and not wishes.public
        public = _PUBLIC if dealt else []
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


def _pairs(sites: Sequence[SiteFiles]) -> list[str]:
    """The table [pairs], if the order of a pair means nothing in this format."""
    if not any(report.format == "ddi" for site in sites for report in site.reports):
        return []
    return ["", "[pairs]", 'direction = "undirected"     # a before b is the same as b before a']


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _common(sites: Sequence[SiteFiles], key: str) -> str | None:
    """The format, scheme or encoding that every site's files have."""
    found = {_own(site, key) for site in sites}
    return found.pop() if len(found) == 1 else None


def _own(site: SiteFiles, key: str) -> str | None:
    """The format, scheme or encoding of a site's files, if they agree on one."""
    if key == "encoding":
        return next(iter(site.encodings)) or None if len(site.encodings) == 1 else None
    value = site.agreed(key)
    return value if key == "scheme" or value in FORMATS else None


def _paths(paths: Sequence[Path], out: Path) -> str:
    """Paths as seen from the settings file."""
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


def _split(site: SiteFiles, out: Path) -> list[str]:
    """The table that deals one corpus to simulated sites."""
    lines = [
        "[split]              # one corpus; for real sites, write a [[site]] table for each",
        f"sites = {shares(site)}",
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
    site: SiteFiles, sites: Sequence[SiteFiles], common: dict[str, str | None], out: Path
) -> tuple[list[tuple[str, str]], list[str]]:
    """The keys of one site's table, and a commented tag map where its types are its own."""
    pairs = [("name", _quoted(site.name))]
    pairs += [(part, _paths(paths, out)) for part, paths in site.parts.items() if paths]
    for key in ("format", "scheme", "encoding"):
        own = _own(site, key)
        if own and not common[key]:
            pairs.append((key, _quoted(own)))
    return pairs, _tag_map(site, sites)


def _tag_map(site: SiteFiles, sites: Sequence[SiteFiles]) -> list[str]:
    """A comment on the types that only this site has, with a map to the names before it."""
    table = "relations" if site.about_relations else "tags"
    own, near = _own_types(site, sites)
    if near:
        tags = ", ".join(f"{_key(kind)} = {_quoted(name)}" for kind, name in near.items())
        return [f"# {table} = {{ {tags} }}    # other sites' names for the same?"]
    few = ", ".join(own[:4]) + (", ..." if len(own) > 4 else "")
    return [f'# only here: {few}; {table} = {{ theirs = "ours" }} renames, "" drops'] if own else []


def _own_types(site: SiteFiles, sites: Sequence[SiteFiles]) -> tuple[list[str], dict[str, str]]:
    """The types that only this site has, and similar names at the sites before it."""
    elsewhere = {kind for other in sites if other is not site for kind in other.types}
    before = {kind for other in sites[: sites.index(site)] for kind in other.types} - site.types
    own = sorted(site.types - elsewhere)
    return own, {kind: name for kind in own if (name := _nearest(kind, before))}


def finds_apart(sites: Sequence[SiteFiles]) -> bool:
    """Whether sites annotate different types or relations, even if similar names mean one."""
    if of_bags(sites):
        return False
    found = set()
    for site in (one for one in sites if one.types):
        _, near = _own_types(site, sites)
        found.add(frozenset(near.get(kind, kind) for kind in site.types))
    return len(found) > 1


def _key(name: str) -> str:
    """A key in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _nearest(kind: str, others: Iterable[str]) -> str | None:
    """The name at other sites that looks like a type's, if any."""
    by_lower = {other.lower(): other for other in sorted(others)}
    near = difflib.get_close_matches(kind.lower(), list(by_lower), n=1, cutoff=0.65)
    return by_lower[near[0]] if near else None
