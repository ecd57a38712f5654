"""The settings of a run that may be shown outside: none that says where text is, or names it."""

from __future__ import annotations

from collections.abc import Iterator

from confide.runs.folder import decisive
from confide.settings import Settings

_OWN = {"site", "split", "public", "key", "data", "types", "relations", "name", "tags", "knows"}
"""Tables and keys that hold paths, or names that come from a site's text or annotation."""


def shareable(settings: Settings) -> dict[str, str]:
    """The settings by dotted key, without paths, sites, and lists of names.

    Give settings as they are written: an absolute path is left out wherever it stands.
    """
    return dict(_shown(settings))


def _shown(settings: Settings) -> Iterator[tuple[str, str]]:
    for key, value in decisive(settings).items():
        is_path = isinstance(value, str) and ("/" in value or "\\" in value)
        if not set(key.split(".")) & _OWN and not is_path and not isinstance(value, (list, tuple)):
            yield key, str(value)
    yield "rounds", str(settings.rounds)
