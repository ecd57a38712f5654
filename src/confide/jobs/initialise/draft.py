"""The settings file that `init` proposes for a user's files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tomli_w

from confide.jobs.initialise.files import SiteFiles, shares
from confide.jobs.initialise.proposal import Proposal, Wishes
from confide.jobs.initialise.rule import Rule
from confide.text.formats import FORMATS, Options
from confide.text.segment import AUTO

_LINES = 32


def _quoted(value: str | Sequence[str]) -> str:
    """A string, or a list of them, in TOML."""
    if isinstance(value, str):
        return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
    return _quoted(value[0]) if len(value) == 1 else f"[{', '.join(map(_quoted, value))}]"


def draft(
    sites: Sequence[SiteFiles],
    out: Path,
    *,
    proposal: Proposal,
    rule: Rule | None,
    wishes: Wishes,
) -> str:
    """The settings file; if tables would make it too long, each site gets one line."""
    options = {**(rule.options if rule else {}), **proposal.options}
    head = [
        f"# What confide found; train with: confide run {out.name}",
        f"name = {_quoted(re.sub(r'[^A-Za-z0-9_.-]+', '-', out.stem))}",
        *proposal.lines,
        *([f"options = {_inline(options)}"] if options else []),
        "seed = 1",
        f"rounds = {rule.rounds if rule else proposal.rounds}",
        *([f"workers = {rule.workers}          # processes, at most the cores"] if rule else []),
        *([f"model = {_inline(rule.model)}"] if rule and rule.model else []),
        *_training(rule, proposal),
    ]
    common = {key: _common(sites, key) for key in ("format", "scheme", "encoding")}
    data = [f"{key} = {_quoted(value)}" for key, value in common.items() if value]
    data += _stated(sites[0].options)
    data = [*(["", "[data]", *data] if data else []), *_pairs(sites)]
    tail: list[str] = []
    if wishes.megabytes is not None:
        tail += ["", "[federation]", f"megabytes = {wishes.megabytes:g}     # that a site uploads"]
    if wishes.public:
        tail += ["", "[public]", f"files = {_paths(wishes.public, out)}"]
    if len(sites) == 1:
        return _joined([*head, *data, "", *_split(sites[0], out), *tail])
    tables = [
        ([*_table(site, common, out), *(_wanted(site) if proposal.outside else [])],
         _only_here(site, sites))
        for site in sites
    ]  # fmt: skip
    written = [["", "[[site]]", *pairs, *note] for pairs, note in tables]
    whole = [*head, *data, *(line for lines in written for line in lines), *tail]
    if len(whole) > _LINES:
        rows = [f"  {{ {', '.join(pairs)} }}," for pairs, _ in tables]
        whole = [*head, "", "site = [", *rows, "]", *data, *tail]
    return _joined(whole)


def _training(rule: Rule | None, proposal: Proposal) -> list[str]:
    """The line of [training], if there is one."""
    table = {**(rule.training if rule else {}), **({"outside": 1} if proposal.outside else {})}
    note = f"    # a site's text may have {proposal.outside} that it does not annotate"
    return [f"training = {_inline(table)}{note if proposal.outside else ''}"] if table else []


def _inline(table: Mapping[str, object]) -> str:
    """A table in one line."""
    pairs = (tomli_w.dumps({key: value}).strip() for key, value in table.items())
    return f"{{ {', '.join(pairs)} }}"


def _pairs(sites: Sequence[SiteFiles]) -> list[str]:
    """The table [pairs], if the order of a pair means nothing in this format."""
    if not any("ddi" in site.formats for site in sites):
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
        found = {site.options.encoding} if site.options.encoding else site.encodings
        return next(iter(found)) or None if len(found) == 1 else None
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


def _table(site: SiteFiles, common: dict[str, str | None], out: Path) -> list[str]:
    """The lines of one site's table."""
    lines = [f"name = {_quoted(site.name)}"]
    lines += [f"{part} = {_paths(paths, out)}" for part, paths in site.parts.items() if paths]
    for key in ("format", "scheme", "encoding"):
        own = _own(site, key)
        if own and not common[key]:
            lines.append(f"{key} = {_quoted(own)}")
    if site.names:
        named = ", ".join(f"{_key(kind)} = {_quoted(name)}" for kind, name in site.names.items())
        lines.append(f"{'relations' if site.about_relations else 'tags'} = {{ {named} }}")
    return lines


def _wanted(site: SiteFiles) -> list[str]:
    """The line with the types that a site wants among those of all sites: what it annotates."""
    return [f"types = [{', '.join(_quoted(kind) for kind in sorted(site.common))}]"]


def _only_here(site: SiteFiles, sites: Sequence[SiteFiles]) -> list[str]:
    """A comment on the types that only this site has."""
    others = {kind for other in sites if other is not site for kind in other.common}
    own = sorted(site.common.keys() - others)
    table = "relations" if site.about_relations else "tags"
    few = ", ".join(own[:4]) + (", ..." if len(own) > 4 else "")
    return [f'# only here: {few}; {table} = {{ theirs = "ours" }} renames, "" drops'] if own else []


def _stated(options: Options) -> list[str]:
    """The lines of [data] on what was stated of reading, apart from format, scheme, encoding."""
    lines = []
    if options.columns is not None:
        columns = ", ".join(_quoted(c) if isinstance(c, str) else str(c) for c in options.columns)
        lines.append(f"columns = [{columns}]")
    if options.annotators is not None:
        lines.append(f"annotators = {_quoted(options.annotators)}")
    if options.language != AUTO:
        lines.append(f"language = {_quoted(options.language)}")
    return [*lines, *(["skip_broken = true"] if options.skip_broken else [])]


def _key(name: str) -> str:
    """A key in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
