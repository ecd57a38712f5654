"""The parts of a kit's or a consortium's description, looked at one by one before they are used."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from confide.errors import KitError, printable

_KINDS: dict[str, type | tuple[type, ...]] = {"port": int, "days": (int, float), "sites": tuple}
_LONGEST = 1000


def names_of(kind: type) -> list[str]:
    """The fields of a kit or a consortium that stand in its description."""
    return [field.name for field in dataclasses.fields(kind) if field.name != "path"]


def parts_of(kind: type, held: dict[str, Any], file: Path) -> dict[str, Any]:
    """What a description says of each field of a `kind`.

    Raises:
        KeyError: it does not say one.
        KitError: one is of another sort: no name, no port, no list of names.
    """
    parts = {name: held[name] for name in names_of(kind)}
    for name, value in parts.items():
        if not _fits(name, value):
            raise KitError(
                f"{name} is damaged in this description",
                got=printable(repr(value)),
                where=str(file),
                fix="bring the file back from a backup",
            )
    return parts


def _fits(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, _KINDS.get(name, str)):
        return False
    texts = value if isinstance(value, tuple) else [value] if isinstance(value, str) else []
    return all(
        isinstance(text, str) and text.isprintable() and len(text) <= _LONGEST for text in texts
    )


def check_schema(held: Any, file: Path, schema: int) -> None:
    """Raise KitError for a description without a schema, or of a newer one than `schema`."""
    found = held.get("schema") if isinstance(held, dict) else None
    if not isinstance(found, int):
        raise KitError("it does not say its schema", expected=f"schema {schema}", where=str(file))
    if found > schema:
        raise KitError(
            "a newer confide wrote this",
            expected=f"schema {schema}",
            got=printable(found),
            where=str(file),
            fix="upgrade confide",
        )
