"""Removes what NVIDIA FLARE leaves in a kit: folders of runs, and a growing audit log.

To be called before any process of the kit runs, when every run has ended. The outcome of runs lies
in `runs`, `store` and a site's memory, which nothing here touches.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from pathlib import Path

KEPT = 5
"""How many folders of runs stay, the newest ones: they hold the logs of the runs' processes."""
AUDIT = Path("audit.log")
AUDIT_BYTES = 5_000_000
AUDITS_KEPT = 4
"""An audit log that grows longer than this is set aside; this many old ones are kept."""


def tidy(kit: Path) -> None:
    """Remove what old runs left in a kit, and set a long audit log aside; ignores failures."""
    for folder in _runs(kit)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in _runs(kit / "transfer"):
        with contextlib.suppress(OSError):  # removes only empty ones
            folder.rmdir()
    with contextlib.suppress(OSError):
        _set_aside(kit / AUDIT)


def _runs(folder: Path) -> list[Path]:
    """The folders with names that FLARE gives to runs and transfers, the newest first."""
    try:
        found = [path for path in folder.iterdir() if _is_of_a_run(path)]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []


def _is_of_a_run(path: Path) -> bool:
    try:
        named = str(uuid.UUID(path.name)) == path.name
    except ValueError:
        return False
    return named and path.is_dir() and not path.is_symlink()


def _set_aside(path: Path) -> None:
    if not path.is_file() or path.stat().st_size <= AUDIT_BYTES:
        return
    old = [path, *(path.with_name(f"{path.name}.{n + 1}") for n in range(AUDITS_KEPT))]
    for one, next in reversed(list(zip(old, old[1:], strict=False))):
        if one.exists():
            one.replace(next)
