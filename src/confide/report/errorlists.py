"""sites/NAME/errors.json: what the model gets wrong and right at a site, with the site's text.

A run has it only if the site's text lay in the same process. docs/result.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from confide.runs.result import read_record
from confide.tasks import USUAL
from confide.userfiles import json_of

Place = Annotated[int, Field(ge=0, lt=1 << 63)]
Fragment = tuple[Place, Place]
Span = tuple[Place, Place, str] | tuple[Place, Place, str, float | None]
"""Start, end and type; what a model found also has its confidence."""
Confusion = dict[str, dict[str, Place]]
"""Counts by gold and predicted name; "" is no entity, or a pair that was not looked at."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a sentence: one entity's text, or text outside entities (`type` empty)."""

    text: str
    type: str = ""
    confidence: float | None = None
    right: bool = True


class _List(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class SentenceCase(_List):
    """A sentence as it was marked and as the model reads it."""

    text: str
    gold: list[Span]
    predicted: list[Span]
    where: str = ""

    @property
    def marked(self) -> tuple[Piece, ...]:
        """The sentence as its annotators marked it; what the model found too is right."""
        return pieces(self.text, self.gold, right=[span[:3] for span in self.predicted])

    @property
    def found(self) -> tuple[Piece, ...]:
        """The sentence as the model marked it."""
        return pieces(self.text, self.predicted, right=[span[:3] for span in self.gold])


class PairText(_List):
    """A text with the fragments of head and tail; `score`: how strongly it supports a relation."""

    text: str
    head: list[Fragment]
    tail: list[Fragment]
    head_type: str | None = None
    tail_type: str | None = None
    where: str = ""
    score: float | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The text with its head and tail marked."""
        roles = (("head", self.head_type, self.head), ("tail", self.tail_type, self.tail))
        ends = [
            (start, end, " ".join(filter(None, (role, type))))
            for role, type, fragments in roles
            for start, end in fragments
        ]
        return tuple(_marked(self.text, ends))


class PairCase(PairText):
    """A pair, the relation that is marked and the one that the model gives it, or none."""

    gold: str
    predicted: str
    confidence: float | None = None


class BagCase(_List):
    """A bag and its likeliest label; its sentences are scored for `relation`."""

    head: str
    tail: str
    names: tuple[str, str]
    gold: list[str]
    predicted: str
    confidence: float
    relation: str
    sentences: list[PairText]
    more: Place


class _Errors(_List):
    site: str
    confusion: Confusion = {}


class EntityErrors(_Errors):
    """Errors of a site that finds entities."""

    worst: list[SentenceCase] = []
    right: list[SentenceCase] = []


class RelationErrors(_Errors):
    """Errors of a site that finds relations."""

    worst: list[PairCase] = []
    right: list[PairCase] = []


class BagErrors(_Errors):
    """Errors of a site that finds facts in bags."""

    worst: list[BagCase] = []
    right: list[BagCase] = []


def _task(tree: object) -> str:
    task = tree.get("task") if isinstance(tree, dict) else None
    return str(task) if str(task) in _TAGS else USUAL


Errors = EntityErrors | RelationErrors | BagErrors
_TAGS = frozenset({"ner", "re", "bags"})
"""Tasks with a list of errors; a file that names none of them belongs to the usual task."""
_ERRORS: TypeAdapter[Errors] = TypeAdapter(
    Annotated[
        Annotated[EntityErrors, Tag("ner")]
        | Annotated[RelationErrors, Tag("re")]
        | Annotated[BagErrors, Tag("bags")],
        Discriminator(_task),
    ]
)


def read_errors(file: Path) -> Errors:
    """One site's errors. Raises RunError, which names the first wrong value."""
    return read_record(
        file, lambda text: errors_of(json_of(text), site=file.parent.name), _WHAT, fix=_FIX
    )


def errors_of(tree: object, *, site: str = "") -> Errors:
    """The errors in one errors.json; `site` owns them if the file does not name its site.

    Raises ValidationError.
    """
    return _ERRORS.validate_python({"site": site, **tree} if isinstance(tree, dict) else tree)


def _marked(text: str, ends: Sequence[tuple[int, int, str]]) -> Iterator[Piece]:
    """The text cut at every border of its ends; a piece where head and tail overlap names both."""
    borders = {min(max(place, 0), len(text)) for start, end, _ in ends for place in (start, end)}
    for start, end in pairwise(sorted({0, *borders, len(text)})):
        names = [name for low, high, name in ends if low <= start and end <= high]
        yield Piece(text[start:end], ", ".join(names))


def pieces(
    text: str, spans: Sequence[Span], *, right: Sequence[tuple[int, int, str]]
) -> tuple[Piece, ...]:
    """The text cut at its spans (start, end, type[, confidence]); those in `right` are right.

    Where spans overlap, the first and longest is shown.
    """
    cut, at = list[Piece](), 0
    for start, end, type, *rest in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start < at or end > len(text) or start >= end:
            continue
        if start > at:
            cut.append(Piece(text[at:start]))
        sure = rest[0] if rest else None
        cut.append(Piece(text[start:end], type, sure, (start, end, type) in right))
        at = end
    if at < len(text):
        cut.append(Piece(text[at:]))
    return tuple(cut)


_WHAT = "a site's errors.json is damaged"
_FIX = "leave the sites' text out of the page, or repeat the run"
