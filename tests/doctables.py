"""The tables of docs/settings.md and docs/cli.md, from the code: `make tables` writes them.

In a page, a table stands below its mark, `<!-- table: NAME -->`, up to the next blank line.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from confide.cli.verbs import PANELS, app
from confide.settings import Settings, parse
from confide.settings.reading import _table
from confide.settings.tables import SiteTable, Table

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = DOCS / "settings.md", DOCS / "cli.md"
TABLES = {
    name: table
    for name in Settings.model_fields
    if (table := _table((name, ""), Settings)) is not Settings
}
"""The tables of a settings file by their names."""
MARK = re.compile(r"(?<=<!-- table: )([\w ]+)( -->\n)(?:.+\n)*")
OWN = {
    "demo": "demo.md",
    "init": "defaults.md",
    "predict": "prediction.md",
    "evaluate": "prediction.md#scoring",
    "release": "prediction.md#releases",
    "compare": "scores.md#two-runs",
    "wire": "wire.md",
    "ledger": "security.md#how-to-verify",
    "budget": "methods/fedavg.md#how-often-to-talk",
    "serve": "serve.md",
    "personalise": "prediction.md#no-site-worse-off",
    "export": "export.md",
    "report": "report.md",
    "audit": "privacy-audit.md",
    "dossier": "security.md#a-dossier-for-the-data-protection-officer",
    "capacity": "capacity.md",
    "survey": "capacity.md#what-all-sites-have-together",
    "privacy plan": "differential-privacy.md#plan-before-you-run",
    "consortium init": "deployment.md#1-found-the-consortium",
    "consortium approve": "deployment.md#the-sites-own-keys",
    "consortium add": "deployment.md#the-sites-own-keys",
    "consortium adopt": "flare-consortium.md",
    "consortium submission": "flare-consortium.md",
    "consortium": "deployment.md#later",
    "server start": "deployment.md#3-start-server-and-sites",
    "server stop": "deployment.md#keep-it-running",
    "server tidy": "deployment.md#what-lies-where",
    "server": "deployment.md#later",
    "site start": "deployment.md#3-start-server-and-sites",
    "site request": "deployment.md#the-sites-own-keys",
    "site accept": "deployment.md#the-sites-own-keys",
    "site setup": "deployment.md#check-and-agree",
    "site consent": "deployment.md#check-and-agree",
    "site": "deployment.md#keep-it-running",
    "site status": "deployment.md#4-run",
    "peers": "deployment.md#compare-fingerprints-by-telephone",
    "coordinate": "deployment.md#4-run",
    "courier": "courier.md",
    "data formats": "formats/all.md",
    "data label": "labelling.md",
    "models": "encoders.md#public-models",
    "key new": "deployment.md#the-shared-key",
    "key protect": "deployment.md#keys-at-rest",
    "key unprotect": "deployment.md#keys-at-rest",
}
"""Where verbs and groups of verbs are explained, if not on the page of the command line."""


def words_of(table: type[Table]) -> dict[str, str]:
    """The words below each key of a table."""
    (shape,) = ast.parse(getsource(table)).body
    assert isinstance(shape, ast.ClassDef)
    found = {}
    for key, below in zip(shape.body, [*shape.body[1:], ast.Pass()], strict=True):
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            found[key.target.id] = (
                " ".join(str(text.value).split()) if isinstance(text, ast.Constant) else ""
            )
    return found


def of_settings(names: list[str]) -> Iterator[str]:
    """The rows of tables of settings: keys, defaults, meanings; of several tables, dotted keys.

    Keys without words are those of `[data]` or `[[site]]`, or tables.
    """
    chosen = parse({})
    yield "key | default | meaning"
    yield "--- | --- | ---"
    for name in names:
        table = TABLES.get(name, Settings)
        words, own = words_of(table), chosen if name == "top" else getattr(chosen, name)
        others_too, before = [], f"{name}." if len(names) > 1 else ""
        for key, field in table.model_fields.items():
            shown, text = f"`{before}{field.alias or key}`", words[key]
            own_default = field.get_default() if not field.is_required() else None
            value = getattr(own, key) if isinstance(own, Table) else own_default
            others = [one for one in _choices(field.annotation) if one != value]
            if left := ", ".join(f"`{one}`" for one in others if f"`{one}`" not in text):
                text = f"{text}; or {left}" if value else f"{text}: {left}"
            if words[key]:
                default = "required" if field.is_required() else _toml(value)
                yield f"{shown} | {default} | {text}"
            elif key in SiteTable.model_fields:
                others_too.append(f"`{key}`")
        if others_too:
            whose = "[data]" if table is SiteTable else "[[site]]"
            yield f"{before}… as in `{whose}` | | {', '.join(others_too)}"


def _choices(annotation: Any) -> list[str]:
    """The names that a value may be, in the order of the code."""
    if get_origin(annotation) is Literal:
        return [str(one) for one in get_args(annotation)]
    return [name for part in get_args(annotation) for name in _choices(part)]


def _toml(value: Any) -> str:
    if value in (None, "", (), {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "`inf`" if math.isinf(value) else f"{value:.12g}".replace("e-0", "e-")
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f'`"{value}"`' if isinstance(value, str) else str(value)


def place_of(verb: str) -> str:
    """The page, and its heading, that explains a verb, by its own words or its group's; or ""."""
    return OWN.get(verb) or OWN.get(verb.partition(" ")[0], "")


def of_panel(name: str, page: str) -> Iterator[str]:
    """The verbs of a panel of `confide --help`, each with the first sentence of its help.

    A verb is a link to its own page or to its heading, or its group's, in this one.
    """
    headed = set(re.findall("^### (.*)$", page, re.MULTILINE))
    yield "verb | what it does"
    yield "--- | ---"
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for verb in PANELS[name]:
        below = dict(getattr(verbs[verb], "commands", {"": verbs[verb]}))
        if getattr(verbs[verb], "invoke_without_command", False):
            below = {"": verbs[verb], **below}
        for own, command in below.items():
            full = f"{verb} {own}".strip()
            heading = next((one for one in (full, verb) if one in headed), "")
            place = place_of(full) or (heading and f"#{heading.replace(' ', '-')}")
            shown = f"[{full}]({place})" if place else f"`{full}`"
            yield f"{shown} | {command.get_short_help_str(300)}"


def written(page: Path) -> str:
    """A page with its tables as the code has them."""
    text = page.read_text(encoding="utf-8")

    def table(mark: re.Match[str]) -> str:
        name = mark[1]
        rows = of_panel(name, text) if name in PANELS else of_settings(name.split())
        return "".join([name, mark[2], *(f"{row}\n" for row in rows)])

    return MARK.sub(table, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")
