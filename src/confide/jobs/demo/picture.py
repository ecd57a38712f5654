"""The demonstration in one picture: scores, what the model finds, and what left the sites."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from confide.jobs.demo.examples import Example, Mark
from confide.jobs.demo.page import WORDS, templates
from confide.jobs.demo.parts import Part
from confide.report.words import points, size

WIDEST = 108
"""Signs in a line of an example."""
MOST_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Placed:
    """A marked piece of a line: its first sign and how many there are; and what is said below it.

    `right`: the model found what the data marks. A mark that goes on in the next line says nothing
    there.
    """

    at: int
    length: int
    said: str
    right: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an example, and its marked pieces."""

    text: str
    marks: tuple[Placed, ...]


def write_picture(picture: Path, part: Part, examples: Sequence[Example]) -> Path:
    """Write the first part and its examples as an SVG, and return its path."""
    left = [(_short(one.what), one.seen, size(one.bytes)) for one in part.left[:MOST_FIELDS]]
    if rest := part.left[MOST_FIELDS:]:
        small = f"{len(rest)} smaller fields"
        left.append((small, "", size(sum(one.bytes for one in rest))))
    svg = (
        templates()
        .get_template("demo.svg.j2")
        .render(
            scores=[
                (WORDS.get(name, "federated"), name == part.federated, score, points(score))
                for name, score in part.scores.items()
            ],
            score=part.score,
            left=left,
            total=size(sum(part.bytes.values())),
            examples=[(example.site, tuple(lines(example))) for example in examples],
        )
    )
    picture.write_text(svg, encoding="utf-8")
    return picture


def lines(example: Example) -> Iterator[Line]:
    """The sentence in lines of at most `WIDEST` signs, with its marks where they stand."""
    places = [(mark.start, mark.start + len(mark.words), mark) for mark in _shown(example.marks)]
    at = 0
    for text in textwrap.wrap(example.text, WIDEST, break_on_hyphens=False):
        at = example.text.index(text, at)
        inside = (
            (max(start, at), min(end, at + len(text)), start >= at, mark)
            for start, end, mark in places
        )
        marks = [
            Placed(start - at, end - start, _said(mark) if first else "", mark.found == mark.marked)
            for start, end, first, mark in inside
            if start < end
        ]
        yield Line(text, tuple(_apart(marks)))
        at += len(text)


def _apart(marks: Sequence[Placed]) -> Iterator[Placed]:
    """The marks of a line; where two stand close together, the first says only its type."""
    for mark, after in zip_longest(marks, marks[1:]):
        close = after is not None and after.at - mark.at < len(mark.said) + 1
        yield replace(mark, said=mark.said.partition(" ")[0]) if close and mark.right else mark


def _shown(marks: Sequence[Mark]) -> Iterator[Mark]:
    """What the model found, and what it missed where it found nothing else."""
    found = [(mark.start, mark.start + len(mark.words)) for mark in marks if mark.found]
    for mark in marks:
        end = mark.start + len(mark.words)
        if mark.found or not any(low < end and mark.start < high for low, high in found):
            yield mark


def _said(mark: Mark) -> str:
    """The type that the model found, and how sure it is in percent."""
    return f"{mark.found} {100 * (mark.confidence or 0):.0f}" if mark.found else "not found"


def _short(what: str) -> str:
    """The first words of what a field carries; of what is "right, predicted, …" the counts."""
    head, _, tail = what.partition(":")
    head = f"counts of {head}" if tail.startswith(" right") else re.split("[,;]", head)[0]
    return textwrap.shorten(head, 44, placeholder=" …")
