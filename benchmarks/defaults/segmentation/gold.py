"""Texts with their sentences: one sentence a line, blocks apart by "%", entities as ⟦TYPE|words⟧.

A line that ends with ↵ is followed by a newline in the text, any other by a blank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TEXTS = Path(__file__).parent / "texts"
_ENTITY = re.compile(r"⟦([A-Z]+)\|([^⟧]*)⟧")


@dataclass(frozen=True)
class Gold:
    """A text, where its sentences end (one past the last character), and its entities."""

    text: str
    ends: frozenset[int]
    entities: tuple[tuple[int, int, str], ...]


def gold(language: str, *, unseen: bool = False) -> list[Gold]:
    """The documents of a language; `unseen` are those that no rule was written with in view."""
    folder = TEXTS / "unseen" if unseen else TEXTS
    blocks = (folder / f"{language}.txt").read_text(encoding="utf-8").split("%\n")
    return [_document(block) for block in blocks]


def _document(block: str) -> Gold:
    text, ends, entities = "", set(), []
    for line in block.splitlines():
        broken, line = line.endswith("↵"), line.removesuffix("↵")
        place = 0
        for found in _ENTITY.finditer(line):
            text += line[place : found.start()]
            entities.append((len(text), len(text) + len(found[2]), found[1]))
            text += found[2]
            place = found.end()
        text += line[place:]
        ends.add(len(text))
        text += "\n" if broken else " "
    return Gold(text.rstrip(" "), frozenset(ends), tuple(entities))
