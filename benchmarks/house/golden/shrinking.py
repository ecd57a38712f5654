"""Published corpora, cut short: the first lines of each file that a recipe names."""

from __future__ import annotations

import shutil
from pathlib import Path

from confide.settings import Settings

LINES = 300
"""Of each file; of one with columns, up to the end of the sentence."""
_WHOLE = (".xlsx", ".zip", ".gz")


def shrink(settings: Settings, source: Path, target: Path) -> list[str]:
    """Cut what the settings name below `source` into `target`; what is missing is given back."""
    missing = []
    tables = settings.site or ((settings.split,) if settings.split else ())
    public = [settings.public] if settings.public.files else []
    for name in sorted({name for table in (*tables, *public) for name in _named(table)}):
        place = name.removeprefix("$CONFIDE_DATA/")
        if not (source / place).exists():
            missing.append(place)
        elif not (target / place).exists():
            _cut(source / place, target / place)
    return missing


def _named(table: object) -> list[str]:
    parts = ("train", "dev", "test", "files")
    return [str(name) for part in parts for name in getattr(table, part, ())]


def _cut(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.suffix in _WHOLE:
        shutil.copyfile(source, target)
    else:
        lines = source.read_bytes().splitlines(keepends=True)
        end = min(LINES, len(lines))
        spaced = any(not line.strip() for line in lines[:end])
        while spaced and end < len(lines) and lines[end - 1].strip():
            end += 1
        target.write_bytes(b"".join(lines[:end]))
