"""Libraries that only some formats need: imported when used, and named where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from confide.errors import SettingsError


def extra(module: str, extra: str, *, where: object, what: str) -> Any:
    """A module of an optional library.

    Raises:
        SettingsError: it is not installed; the error says which extra of confide brings it.

    >>> extra("json", "none", where="a.json", what="JSON").__name__
    'json'
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise SettingsError(
            f"{what} can be read and written only with {library}, which is not installed",
            where=str(where),
            fix=f"install confide with its extra {extra}: pip install 'confide[{extra}]'",
        ) from error
