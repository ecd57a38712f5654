"""One page of annotated documents for their owner: problems first, annotators side by side.

It reads files as `confide data check` does. The page holds the text; it is for whoever may read it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError, os_errors_as
from confide.files import for_the_owner, write_whole
from confide.text.checking import CheckReport, check
from confide.text.document import Document, Entity, Problem
from confide.text.formats import Options
from confide.text.reading import Version
from confide.version import __version__
from confide.words import templates

MOST_CHARACTERS = 20_000
"""Of one document; the rest of a longer one is not shown, which the page says."""
MOST_OPEN = 20
"""Documents that the page shows unfolded."""
HUES = 8
_LINE = re.compile(r"(.*?)[:#](\d{1,9})\b.*", re.DOTALL)
_PLACE = re.compile(r"(.*) \[\d+:\d+\]", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_MOST_LAYERS = 12
_MOST_PROBLEMS = 50


@dataclass(frozen=True, slots=True)
class EntityMark:
    """An entity over a stretch of text; `ends`: its type is written behind this stretch."""

    type: str
    hue: int
    ends: bool
    alone: bool
    """True unless every annotator has it."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of text with the entities over it, the outermost first."""

    text: str
    layers: tuple[EntityMark, ...] = ()


@dataclass(frozen=True, slots=True)
class AnnotatorVersion:
    """One annotator's version of a document."""

    annotator: str
    stretches: list[TextPiece]
    relations: list[str]


@dataclass(frozen=True, slots=True)
class AnnotatorDifference:
    """An entity that some annotators have and others have not."""

    surface: str
    type: str
    start: int
    who: list[str]
    not_who: list[str]


@dataclass(slots=True)
class ReviewedDocument:
    """A document on the page."""

    number: int
    document: Document
    problems: list[Problem] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    sides: list[AnnotatorVersion] = field(default_factory=list)
    differences: list[AnnotatorDifference] = field(default_factory=list)
    cut: int = 0

    @property
    def lost(self) -> int:
        """The number of problems that lose something."""
        return sum(problem.lost for problem in self.problems)

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Its place on the page: what is lost first, then differences, then what was changed."""
        return -self.lost, -len(self.differences), -len(self.problems), self.number


def review(
    out: Path | str,
    paths: Path | str | Sequence[Path | str],
    *,
    format: str | None = None,
    options: Options | None = None,
    most: int = 500,
) -> Path:
    """Write a self-contained page without scripts, its owner's alone, and return its path.

    Args:
        out: the page.
        paths: a file or folder, or several.
        format: their format; None: detect it.
        options: how to read them, and whose annotation.
        most: how many documents are shown; the page says how many are not.

    Raises:
        DataError: the page cannot be written, or there is nothing to show.
        ConfideError: as `confide.api.read` does.
    """
    report = check(paths, format=format, options=options)
    page = Path(out)
    html = render_review(report, most=most)
    what = "the page cannot be written"
    with os_errors_as(DataError, what, where=page, fix="name another file"), for_the_owner():
        write_whole(page, html.encode())
    return page


def render_review(report: CheckReport, *, most: int = 500) -> str:
    """The page as HTML."""
    shown, elsewhere = _shown(report)
    # every type, the most frequent first; then those of other annotators only
    others = {one.type for version in report.versions for one in version.document.entities}
    types = [*report.types, *sorted(others - report.types.keys())]
    hues = {kind: number % HUES for number, kind in enumerate(types)}
    for one in shown:
        one.differences = _differences(one)
    shown.sort(key=lambda one: one.rank)
    for one in shown[:most]:
        one.cut = max(0, len(one.document.text) - MOST_CHARACTERS)
        alone = {(d.type, d.start, d.surface) for d in one.differences}
        versions = one.versions or [Version("", one.document)]
        one.sides = [_side(version, hues, alone) for version in versions]
    kinds = Counter((problem.kind, problem.lost) for problem in report.problems)
    return (
        templates("confide.report")
        .get_template("review.html.j2")
        .render(
            version=__version__,
            report=report,
            shown=shown[:most],
            left=len(shown) - len(shown[:most]),
            elsewhere=elsewhere[:_MOST_PROBLEMS],
            elsewhere_left=max(0, len(elsewhere) - _MOST_PROBLEMS),
            kinds=sorted(kinds.items(), key=lambda item: (not item[0][1], -item[1])),
            hues=hues,
            annotators=Counter(version.annotator for version in report.versions),
            most_open=MOST_OPEN,
            most_characters=MOST_CHARACTERS,
            most_problems=_MOST_PROBLEMS,
        )
    )


# --- which problem is whose ---------------------------------------------------------------


def _shown(report: CheckReport) -> tuple[list[ReviewedDocument], list[Problem]]:
    """The documents with their problems and versions, and the problems of no document."""
    shown = [ReviewedDocument(number, document) for number, document in enumerate(report.documents)]
    exact = {one.document.source: one for one in reversed(shown)}
    lines: dict[str, list[tuple[int, ReviewedDocument]]] = {}
    for one in shown:
        match = _LINE.fullmatch(one.document.source)
        if match is not None:
            lines.setdefault(match[1], []).append((int(match[2]), one))
    for placed in lines.values():
        placed.sort(key=lambda pair: pair[0])
    elsewhere = []
    for problem in report.problems:
        owner = _owner(problem, exact, lines)
        if owner is None:
            elsewhere.append(problem)
        else:
            owner.problems.append(problem)
    by_text = {(one.document.id, one.document.text): one for one in reversed(shown)}
    for version in report.versions:
        one_shown = by_text.get((version.document.id, version.document.text))
        if one_shown is not None:
            one_shown.versions.append(version)
    return shown, elsewhere


def _owner(
    problem: Problem,
    exact: Mapping[str, ReviewedDocument],
    lines: Mapping[str, Sequence[tuple[int, ReviewedDocument]]],
) -> ReviewedDocument | None:
    """The document that a problem is in: by its place, or the last that begins before its line."""
    place = _PLACE.fullmatch(problem.where)
    where = place[1] if place is not None else problem.where
    if where in exact:
        return exact[where]
    match = _LINE.fullmatch(where)
    if match is None:
        return None
    if match[1] in exact:
        return exact[match[1]]
    placed = lines.get(match[1], ())
    before = bisect_right(placed, int(match[2]), key=lambda pair: pair[0])
    return placed[before - 1][1] if before else None


# --- annotators side by side --------------------------------------------------------------


def _differences(one: ReviewedDocument) -> list[AnnotatorDifference]:
    """The entities that not every annotator of a document has, in the order of the text."""
    if len(one.versions) < 2:
        return []
    names = [version.annotator or "?" for version in one.versions]
    who: dict[tuple[str, tuple[tuple[int, int], ...]], list[int]] = {}
    for number, version in enumerate(one.versions):
        for key in {(entity.type, entity.fragments) for entity in version.document.entities}:
            who.setdefault(key, []).append(number)
    found = []
    for (kind, fragments), have in who.items():
        if len(have) < len(names):
            surface = one.document.surface(Entity("", kind, fragments))
            without = [name for number, name in enumerate(names) if number not in have]
            mine = [names[number] for number in have]
            found.append(AnnotatorDifference(surface, kind, fragments[0][0], mine, without))
    return sorted(found, key=lambda one: (one.start, one.surface, one.type))


def _side(
    version: Version, hues: Mapping[str, int], alone: set[tuple[str, int, str]]
) -> AnnotatorVersion:
    document = version.document
    surfaces = {one.id: document.surface(one) for one in document.entities}
    relations = [
        f"{_short(surfaces.get(one.head, one.head))} – {one.type} → "
        f"{_short(surfaces.get(one.tail, one.tail))}"
        for one in document.relations
    ]
    return AnnotatorVersion(version.annotator, list(_stretches(document, hues, alone)), relations)


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 60 else plain[:59] + "…"


def _stretches(
    document: Document, hues: Mapping[str, int], alone: set[tuple[str, int, str]]
) -> Iterator[TextPiece]:
    """The text cut where an entity begins or ends."""
    text = document.text[:MOST_CHARACTERS]
    parts = [
        (start, end, entity, number == len(entity.fragments) - 1)
        for entity in document.entities
        for number, (start, end) in enumerate(entity.fragments)
        if start < len(text)
    ]
    borders = {0, len(text)}
    for start, end, _, _ in parts:
        borders |= {start, min(end, len(text))}
    cuts = sorted(borders)
    opening: dict[int, list[int]] = {}
    for number, part in enumerate(parts):
        opening.setdefault(part[0], []).append(number)
    over: list[int] = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        over = [number for number in over if parts[number][1] > start]
        over += opening.get(start, ())
        over.sort(key=lambda number: parts[number][0] - parts[number][1])
        layers = tuple(
            EntityMark(
                parts[n][2].type,
                hues.get(parts[n][2].type, 0),
                ends=parts[n][3] and min(parts[n][1], len(text)) == end,
                alone=(parts[n][2].type, parts[n][2].start, document.surface(parts[n][2])) in alone,
            )
            for n in over[:_MOST_LAYERS]
        )
        yield TextPiece(_CONTROL.sub("\ufffd", text[start:end]), layers)
