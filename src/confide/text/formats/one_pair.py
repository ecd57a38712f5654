"""Shared by formats whose lines hold a sentence, two entities by name, and their relation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from confide.errors import ConfideError
from confide.text.archives import inside
from confide.text.document import Document, Problem, Sentence, Span
from confide.text.files import lines_of, read_text
from confide.text.formats.base import Options, shown
from confide.text.formats.draft import Draft
from confide.text.formats.placing import LONGEST_NAME, WAYS, Effort, place_mentions
from confide.text.formats.sentences import one_sentence
from confide.userfiles import json_of

MAPS = re.compile(r"relation2id\.txt|(.*_)?rel2id\.json")
"""Names of files beside bag data that number its relations."""
_MAP_LINE = re.compile(r"(\S.*?)\s+(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class End:
    """An end of a pair: what the file calls it, its type and its identifier ("": none).

    `fragments` is its place in the text, None if it was not found.
    """

    name: str
    type: str
    concept: str = ""
    fragments: tuple[Span, ...] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of such a format. `label` is the relation; None if nobody says whether there is one.

    `sentences` is empty if the file gives no tokens. `paired` is false if the pair must not be
    looked at, whether or not its ends were found.
    """

    id: str
    where: str
    text: str
    ends: tuple[End, End]
    label: str | None
    attributes: tuple[tuple[str, str], ...] = ()
    sentences: tuple[Sentence, ...] = ()
    paired: bool = True


def document_of(line: Line, options: Options, problems: list[Problem]) -> Document:
    """The line as a document of one sentence that asks about its pair, head T1 and tail T2.

    If an end was not found, the document has no pair and its relation is lost; the caller reports
    that. A label that `is_negative` is no relation.

    Raises DataError if a type was not declared.
    """
    sentences = line.sentences or one_sentence(line.text)
    draft = Draft(line.id, line.text, line.where, options, problems, sentences, line.attributes)
    draft.keep = True
    for name, end in zip(("T1", "T2"), line.ends, strict=True):
        options.require(end.type, line.where)
        concepts = (end.concept,) if end.concept else ()
        if end.fragments is not None:
            draft.entity(end.type, end.fragments, given=name, concepts=concepts)
    draft.pair("T1", "T2" if line.paired else "", line.label)
    return draft.document()


# --- where two names stand ----------------------------------------------------------------


def find_names(
    text: str,
    names: Sequence[str],
    *,
    where: str,
    problems: list[Problem],
    effort: Effort,
    taken: Sequence[Span] = (),
) -> list[tuple[Span, ...] | None]:
    """The places of names in a sentence, each at a place of its own; None if one is missing.

    A name is first looked up as a whole word between blanks (the first of several), then in the
    ways 1 to 3 of `placing`, away from the names already found and from what is taken. Reports what
    is doubtful or lost. Raises FormatError if the `effort` for the file is spent.
    """
    found: dict[int, tuple[Span, ...]] = {}
    used = list(taken)
    for number, name in enumerate(names):
        places = list(whole_words(text, name, taken=used)) if len(name) <= LONGEST_NAME else []
        effort.spend(len(places) >> 3)
        if places:
            found[number] = (places[0],)
            used.append(places[0])
            _doubt(name, len(places), where, problems)
    missing = [number for number in range(len(names)) if number not in found]
    if not missing:
        return [found[number] for number in range(len(names))]
    masked = list(text)
    for start, end in used:
        masked[start:end] = "\0" * (end - start)
    wanted = [names[number] for number in missing]
    placed = place_mentions("".join(masked), wanted, effort=effort)
    for number, place in zip(missing, placed, strict=True):
        name = names[number]
        if place is None or place.way not in WAYS[:3]:
            what = f"{shown(name)} is not in the sentence: its pair is left out"
            problems.append(Problem("mention-not-found", where, what, lost=True))
            continue
        found[number] = place.fragments
        _doubt(name, place.places, where, problems)
        if place.way == WAYS[2]:
            what = f"{shown(name)} is read {place.way}"
            problems.append(Problem("text-mismatch", where, what))
    return [found.get(number) for number in range(len(names))]


def whole_words(text: str, name: str, *, taken: Sequence[Span] = ()) -> Iterator[Span]:
    """The places of a name between blanks that share no character with those that are taken."""
    start = text.find(name) if name else -1
    while start >= 0:
        end = start + len(name)
        whole = not text[start - 1 : start].strip() and not text[end : end + 1].strip()
        if whole and all(end <= one or other <= start for one, other in taken):
            yield start, end
        start = text.find(name, start + 1)


def _doubt(name: str, places: int, where: str, problems: list[Problem]) -> None:
    if places > 1:
        what = f"{shown(name)} may stand at {places} places; read at the first"
        problems.append(Problem("ambiguous-mention", where, what))


# --- relations that have numbers ----------------------------------------------------------


def map_problems(path: Path, labels: Iterable[tuple[str, str]]) -> list[Problem]:
    """Problems for labels that the maps of relations beside a file (`MAPS`) do not know.

    Reading does not need a map; one that cannot be read, or that gives two relations one number, is
    a problem too.
    """
    if inside(path) is not None or not path.parent.is_dir():
        return []
    first: dict[str, str] = {}
    lines: Counter[str] = Counter()
    for label, where in labels:
        first.setdefault(label, where)
        lines[label] += 1
    problems: list[Problem] = []
    for file in sorted(one for one in path.parent.iterdir() if MAPS.fullmatch(one.name)):
        try:
            known = _relation_map(file)
        except (ConfideError, ValueError) as error:
            what = f"this map of relations cannot be read: {error}"
            problems.append(Problem("map-unread", str(file), what))
            continue
        problems += _shared_numbers(file, known)
        for label in first.keys() - known.keys():
            near = get_close_matches(label, known, n=1)
            hint = f"; the nearest that is there: {near[0]}" if near else ""
            what = f"{label} ({lines[label]} lines) is not in {file.name}{hint}"
            problems.append(Problem("not-in-map", first[label], what))
    return sorted(problems, key=lambda one: (one.kind, one.what))


def _relation_map(file: Path) -> Mapping[str, int]:
    """The relations of a map and their numbers. Raises ValueError if it is not a map."""
    text, _ = read_text(file)
    if file.suffix == ".json":
        found = json_of(text)
        if not isinstance(found, dict) or not all(isinstance(n, int) for n in found.values()):
            raise ValueError("not an object of names and numbers")
        return found
    lines = [line.strip() for line in lines_of(text) if line.strip()]
    if lines and lines[0].isdigit():
        lines = lines[1:]  # how many there are
    matches = [_MAP_LINE.fullmatch(line) for line in lines]
    if not all(matches):
        raise ValueError("a line that is not a name and a number")
    return {match[1]: int(match[2]) for match in matches if match}


def _shared_numbers(file: Path, known: Mapping[str, int]) -> Iterator[Problem]:
    names: dict[int, list[str]] = {}
    for name, number in known.items():
        names.setdefault(number, []).append(name)
    for number, same in names.items():
        if len(same) > 1:
            yield Problem("map-number", str(file), f"{' and '.join(same)} are all number {number}")
