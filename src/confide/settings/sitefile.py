"""A real site's own file: where its text is, and its limits. It never leaves the site.

name = "north"
format = "conll"
train = "notes/train.conll"
test = "notes/test.conll"
key = "shared.key"
memory = "memory"

[guards]
min_sentences = 50

The site's agreements are in a file beside it (`confide.settings.consentfile`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from confide.errors import SettingsError
from confide.settings.base import Device, Norm, NotNegative, Positive, Precision, Table
from confide.settings.reading import anchored_table, check_schema, explained, read_tree
from confide.settings.tables import GuardsTable, SiteTable
from confide.settings.tomlfile import located

SCHEMA = 2
"""The schema of a site's file. In schema 1, guards at the defaults of that time count as unset,
because `confide site setup` then wrote all of them down."""


class SiteGuards(GuardsTable):
    """A real site's own limits. The defaults are strict; the site's file may relax them.

    `max_norm` is far above any change seen in honest training (docs/deployment.md).
    """

    min_sentences: Positive = 20
    min_batch: Positive = 8
    min_sites: Positive = 3
    max_norm: Norm | None = 1000.0
    masked: bool = True
    unit: Literal["any", "document", "sentence", "patient"] = "document"
    reply_every: Annotated[float, Field(ge=0, le=600)] = 2.0


class ConsentTable(Table):
    """An agreement from before agreements had bounds (`consentfile`): still read, never written.

    The digest of a method's wire table and the steps agreed to, or all of them if `steps` is empty.
    """

    wire: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    steps: tuple[str, ...] = ()


class SiteFile(SiteTable):
    """A site's own file. `memory` is the folder where it keeps its part of every run.

    `compared`: take part only if the fingerprints of server and lead have been compared.
    `colluding`: how many sites of a secure sum may be in league with the server, whatever the lead
    says; unless it is named, a third of them, rounded up, less one, and at least one. `device`,
    `precision` and `at_once` say where and how this site computes, whatever the run's settings say.
    """

    schema_: Annotated[int, Field(alias="schema")] = SCHEMA
    key: str
    memory: str = "memory"
    compared: bool = False
    colluding: Positive | None = None
    device: Device = "cpu"
    precision: Precision = "auto"
    at_once: NotNegative = 0
    guards: SiteGuards = SiteGuards()
    consent: Annotated[dict[str, ConsentTable], Field(default_factory=dict)]


def load_site(path: Path) -> SiteFile:
    """Read a site's file; relative paths start at its folder.

    Raises MissingDataError, SettingsError.
    """
    tree = read_tree(path)
    try:
        return anchored_table(parse_site(tree), path.parent.resolve())
    except SettingsError as error:
        raise located(error, str(path)) from error.__cause__


def parse_site(tree: Mapping[str, object]) -> SiteFile:
    """A site's file from plain values. Raises SettingsError."""
    plain = dict(tree)
    guards = plain.get("guards")
    if plain.get("schema") == 1 and isinstance(guards, Mapping):
        plain |= {"schema": SCHEMA, "guards": _without_old_defaults(guards)}
    try:
        site = SiteFile.model_validate(plain)
    except ValidationError as error:
        raise explained(error, SiteFile, tables={"guards": SiteGuards}) from error
    check_schema(site.schema_, SCHEMA, what="the site's file was written for a newer confide")
    return site


def dump_site(site: SiteFile) -> str:
    """The file as TOML, with only those guards that it sets itself: a default stays a default."""
    import tomli_w

    tree = site.model_dump(mode="json", by_alias=True, exclude_none=True)
    said = site.guards.model_dump(exclude_unset=True)
    tree["guards"] = {
        name: math.inf if value is None else list(value) if isinstance(value, tuple) else value
        for name, value in said.items()
    }
    return tomli_w.dumps({key: value for key, value in tree.items() if value not in ({}, [])})


def _without_old_defaults(guards: Mapping[str, object]) -> dict[str, object]:
    before = GuardsTable().model_dump(mode="json")
    return {
        name: value for name, value in guards.items() if name not in before or value != before[name]
    }
