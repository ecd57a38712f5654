"""The parts of a kit's or a consortium's description, each checked before it is used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from confide.errors import KitError, printable
from confide.userfiles import Tree

_KINDS: dict[str, type | tuple[type, ...]] = {"port": int, "days": (int, float), "sites": tuple}
_LONGEST = 1000


def names_of(kind: type) -> list[str]:
    """The fields of a kit or a consortium that its description holds."""
    return [field.name for field in dataclasses.fields(kind) if field.name != "path"]


def parts_of(kind: type, held: Tree, file: Path) -> Tree:
    """What a description says about each field of a `kind`.

    Raises:
        KeyError: a field is missing.
        KitError: a value has the wrong type, or is a text that cannot be a name.
    """
    parts = {name: held[name] for name in names_of(kind)}
    for name, value in parts.items():
        if not _fits(name, value):
            raise KitError(
                f"{name} is damaged in this description",
                got=printable(repr(value)),
                where=str(file),
                fix="restore the file from a backup",
            )
    return parts


def _fits(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, _KINDS.get(name, str)):
        return False
    texts = value if isinstance(value, tuple) else [value] if isinstance(value, str) else []
    return all(
        isinstance(text, str) and text.isprintable() and len(text) <= _LONGEST for text in texts
    )


def check_schema(held: object, file: Path, schema: int) -> None:
    """Raise KitError if a description has no schema, or a newer one than `schema`."""
    found = held.get("schema") if isinstance(held, dict) else None
    if not isinstance(found, int):
        raise KitError(
            "this file does not say its schema",
            expected=f"schema {schema}",
            where=str(file),
            fix="restore the file from a backup",
        )
    if found > schema:
        raise KitError(
            "a newer version of confide wrote this file",
            expected=f"schema {schema}",
            got=printable(found),
            where=str(file),
            fix="upgrade confide",
        )
