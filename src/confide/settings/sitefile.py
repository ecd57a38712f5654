"""A real site's own file: where its text is, what it consents to, its limits. It never leaves.

name = "north"
format = "conll"
train = "notes/train.conll"
test = "notes/test.conll"
key = "shared.key"
memory = "memory"

[consent.fedavg]
wire = "0f3a..."
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from confide.errors import SettingsError
from confide.settings.base import Table
from confide.settings.reading import anchored_table, explained, read_tree
from confide.settings.tables import SCHEMA, GuardsTable, SiteTable


class ConsentTable(Table):
    """What a site agreed to: the digest of a method's wire table, and which of its steps.

    Without `steps` it is all of them.
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
    guards: GuardsTable = GuardsTable()
    consent: Annotated[dict[str, ConsentTable], Field(default_factory=dict)]


def load_site(path: Path) -> SiteFile:
    """Read a site's file; relative paths are taken from its folder.

    Raises MissingDataError, SettingsError.
    """
    try:
        return anchored_table(parse_site(read_tree(path)), path.parent.resolve())
    except SettingsError as error:
        raise SettingsError(
            error.what, expected=error.expected, got=error.got, where=str(path), fix=error.fix
        ) from error.__cause__


def parse_site(tree: Mapping[str, Any]) -> SiteFile:
    """A site's file from plain values. Raises SettingsError."""
    try:
        site = SiteFile.model_validate(dict(tree))
    except ValidationError as error:
        raise explained(error, SiteFile, tables={"guards": GuardsTable}) from error
    if site.schema_ > SCHEMA:
        raise SettingsError(
            "the site's file was written for a newer confide",
            expected=f"schema {SCHEMA} or older",
            got=f"schema {site.schema_}",
        )
    return site


def dump_site(site: SiteFile) -> str:
    """The file as TOML."""
    import tomli_w

    tree = site.model_dump(mode="json", by_alias=True, exclude_none=True)
    return tomli_w.dumps({key: value for key, value in tree.items() if value not in ({}, [])})
