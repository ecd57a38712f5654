"""A real site's own file: where its text is, what it consents to, its limits. It never leaves.

name = "north"
format = "conll"
train = "notes/train.conll"
test = "notes/test.conll"
key = "shared.key"
memory = "memory"

[guards]
min_sentences = 50

What it consents to stands in a file beside it (`confide.settings.consentfile`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from confide.errors import SettingsError
from confide.settings.base import Norm, Positive, Table
from confide.settings.reading import anchored_table, explained, read_tree
from confide.settings.tables import GuardsTable, SiteTable

SCHEMA = 2
"""Of a site's file. In one of schema 1, guards that say what refused nothing then count as not
said: an older `confide site setup` wrote all of them down."""


class SiteGuards(GuardsTable):
    """A real site's own limits. Its defaults refuse; whoever wants less says so in the site's file.

    `max_norm` is far above what honest training was seen to change (docs/deployment.md).
    """

    min_sentences: Positive = 20
    min_batch: Positive = 8
    min_sites: Positive = 3
    max_norm: Norm | None = 1000.0


class ConsentTable(Table):
    """What a site agreed to before agreements had bounds (`consentfile`): still read, not written.

    The digest of a method's wire table, and which of its steps; without `steps` it is all.
    """

    wire: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    steps: tuple[str, ...] = ()


class SiteFile(SiteTable):
    """A site by itself. `memory` is the folder of what it keeps of its runs.

    `compared`: it takes part only where the fingerprints of server and lead have been compared.
    """

    schema_: Annotated[int, Field(alias="schema")] = SCHEMA
    key: str
    memory: str = "memory"
    compared: bool = False
    guards: SiteGuards = SiteGuards()
    consent: Annotated[dict[str, ConsentTable], Field(default_factory=dict)]


def load_site(path: Path) -> SiteFile:
    """Read a site's file; relative paths are taken from its folder.

    Raises MissingDataError, SettingsError.
    """
    tree = read_tree(path)
    try:
        return anchored_table(parse_site(tree), path.parent.resolve())
    except SettingsError as error:
        raise SettingsError(
            error.what, expected=error.expected, got=error.got, where=str(path), fix=error.fix
        ) from error.__cause__


def parse_site(tree: Mapping[str, Any]) -> SiteFile:
    """A site's file from plain values. Raises SettingsError."""
    plain = dict(tree)
    if plain.get("schema") == 1 and isinstance(plain.get("guards"), Mapping):
        plain["schema"] = SCHEMA
        plain["guards"] = _without_old_defaults(plain["guards"])
    try:
        site = SiteFile.model_validate(plain)
    except ValidationError as error:
        raise explained(error, SiteFile, tables={"guards": SiteGuards}) from error
    if site.schema_ > SCHEMA:
        raise SettingsError(
            "the site's file was written for a newer confide",
            expected=f"schema {SCHEMA} or older",
            got=f"schema {site.schema_}",
        )
    return site


def dump_site(site: SiteFile) -> str:
    """The file as TOML. Of the guards those that it says itself: a default stays a default."""
    import tomli_w

    tree = site.model_dump(mode="json", by_alias=True, exclude_none=True)
    said = site.guards.model_dump(exclude_unset=True)
    tree["guards"] = {
        name: math.inf if value is None else list(value) if isinstance(value, tuple) else value
        for name, value in said.items()
    }
    return tomli_w.dumps({key: value for key, value in tree.items() if value not in ({}, [])})


def _without_old_defaults(guards: Mapping[str, Any]) -> dict[str, Any]:
    before = GuardsTable().model_dump(mode="json")
    return {
        name: value for name, value in guards.items() if name not in before or value != before[name]
    }
