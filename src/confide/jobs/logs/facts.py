"""Facts of a run for logs: names and numbers of its events, and its settings without paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confide.federation.events import Event
from confide.runs.folder import RunFolder, shareable


def numbers(event: Event) -> dict[str, float]:
    """The numbers of an event as named curves; empty if it says nothing to draw.

    `loss`, `bytes/up`, `bytes/down`, `seconds`, `dev/KIND` and `dev_site/SITE` of a round;
    `test/KIND` and `test_site/SITE` at the end. Of a federation of one site, the site comes first.
    """
    found: dict[str, float | None] = {}
    if event.kind == "round":
        found = {
            "loss": event.loss,
            "bytes/up": event.bytes_up,
            "bytes/down": event.bytes_down,
            "seconds": event.seconds,
        }
        found |= _under("dev", event.dev) | _under("dev_site", event.dev_sites)
    elif event.kind == "end":
        found = _under("test", event.test) | _under("test_site", event.test_sites)
    start = f"{event.site}/" if event.site and event.kind == "round" else ""
    return {start + name: float(value) for name, value in found.items() if value is not None}


def settings_of(folder: Path) -> dict[str, str]:
    """The run's settings by dotted key, without those that hold a path or a site's names."""
    return shareable(RunFolder(folder).settings(as_written=True))


def _under(name: str, values: Mapping[str, float | None] | None) -> dict[str, float | None]:
    return {f"{name}/{key}": value for key, value in (values or {}).items()}
