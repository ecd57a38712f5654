"""Corpora for distant supervision as they were published: a sentence, two names, a relation."""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from html.entities import html5
from pathlib import Path
from typing import Any

from confide.errors import ConfideError, DataError, FormatError
from confide.files import Tree, json_of
from confide.text.document import PAIR, Document, Problem, Sentence, Span
from confide.text.draft import Draft, Source, one_sentence, open_source, read_documents
from confide.text.files import LONGEST_LINE, archive_member, lines_of, read_text
from confide.text.places import LONGEST_NAME, WAYS, Effort, place_mentions
from confide.text.reading import (
    Options,
    Reading,
    clean,
    malformed,
    mend_surrogates,
    quoted,
    whole_number,
)
from confide.text.rows import json_objects, literal_value

# --- Common parts ---------------------------------------------------------------------------------
#
# For formats whose lines hold a sentence, two entities by name, and their relation.

MAPS = re.compile(r"relation2id\.txt|(.*_)?rel2id\.json")
"""Names of files beside bag data that number its relations."""
_MAP_LINE = re.compile(r"(\S.*?)\s+(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PairEnd:
    """An end of a pair: what the file calls it, its type and its identifier ("": none).

    `fragments` is its place in the text, None if it was not found.
    """

    name: str
    type: str
    concept: str = ""
    fragments: tuple[Span, ...] | None = None


@dataclass(frozen=True, slots=True)
class PairLine:
    """A line of such a format. `label` is the relation; None if nobody says whether there is one.

    `sentences` is empty if the file gives no tokens. `paired` is false if the pair must not be
    looked at, whether or not its ends were found.
    """

    id: str
    where: str
    text: str
    ends: tuple[PairEnd, PairEnd]
    label: str | None
    attributes: tuple[tuple[str, str], ...] = ()
    sentences: tuple[Sentence, ...] = ()
    paired: bool = True


def pair_document(line: PairLine, options: Options, problems: list[Problem]) -> Document:
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
    ways 1 to 3 of `places`, away from the names already found and from what is taken. Reports what
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
            what = f"{quoted(name)} is not in the sentence: its pair is left out"
            problems.append(Problem("mention-not-found", where, what, lost=True))
            continue
        found[number] = place.fragments
        _doubt(name, place.places, where, problems)
        if place.way == WAYS[2]:
            what = f"{quoted(name)} is read {place.way}"
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
        what = f"{quoted(name)} may stand at {places} places; read at the first"
        problems.append(Problem("ambiguous-mention", where, what))


# --- relations that have numbers ----------------------------------------------------------


def map_problems(path: Path, labels: Iterable[tuple[str, str]]) -> list[Problem]:
    """Problems for labels that the maps of relations beside a file (`MAPS`) do not know.

    Reading does not need a map; one that cannot be read, or that gives two relations one number, is
    a problem too.
    """
    if archive_member(path) is not None or not path.parent.is_dir():
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


# --- NYT10's lines (Riedel et al. 2010; GIDS too) -------------------------------------------------
#
# A sentence, two entities in it, and a relation.
#
# ``id1 id2 name1 name2 relation sentence ###END###``, separated by tabs; the end mark is a seventh
# column or ends the sixth. The words of a name are joined by ``_``, in its column and in the text.

END = "###END###"
_NYT10_SAMPLE = 20


def read_nyt10(path: Path, options: Options) -> Reading:
    """Read the lines: each becomes a document of one sentence that asks about its pair.

    A name is looked up as a word of the sentence; the first of several places counts. Its ``_``
    become blanks, which leaves offsets alone and gives ordinary words. Entities have the file's
    identifiers as concepts and the type `options.bare_type`; ``NA`` is no relation.

    Raises:
        FormatError: a line does not have six or seven columns, or one is empty.
        DataError: there is no line, or the type was not declared.
    """
    source, effort = open_source(path, options, longest=LONGEST_LINE), Effort(str(path))
    labels: list[tuple[str, str]] = []
    open_ended: list[str] = []

    def one(where: str, name: str, row: str) -> Document:
        *ends, label, sentence = _columns(row, where)
        open_ended.extend([] if _ended(row) else [where])
        sentence, places = _placed(ends[2:], sentence, (where, effort), source.problems)
        labels.append((label, where))
        head, tail = (
            PairEnd(name, options.bare_type, clean(concept), place)
            for name, concept, place in zip(ends[2:], ends, places, strict=False)
        )
        line = PairLine(name, where, sentence, (head, tail), clean(label))
        return pair_document(line, options, source.problems)

    reading = read_documents(source, source.lines(), one, format="nyt10")
    if open_ended:
        count = f"{len(open_ended)} of {len(reading.documents)}"
        what = f"{count} lines do not end with {END}: are they whole?"
        source.problems.append(Problem("no-end", open_ended[0], what))
    source.problems.extend(map_problems(path, labels))
    return reading


def is_nyt10(lines: Sequence[str]) -> bool:
    """Return whether the first lines of a file are such lines."""
    first = [line for line in lines if line.strip()][:_NYT10_SAMPLE]
    return bool(first) and all(_ended(line) and line.count("\t") in (5, 6) for line in first)


def _ended(row: str) -> bool:
    return row.rstrip().endswith(END)


def _columns(row: str, where: str) -> list[str]:
    """Two identifiers, two names, the relation and the sentence."""
    columns = [column.strip() for column in row.split("\t")]
    if len(columns) > 6 and columns[-1] in (END, ""):
        columns.pop()
    columns[-1] = columns[-1].removesuffix(END).rstrip()
    if len(columns) != 6 or not all(columns):
        raise FormatError(
            f"a line of {len(columns)} columns, or an empty one among them",
            expected=f"id1, id2, name1, name2, relation, sentence {END}, cut by tabs",
            where=where,
        )
    return columns


def _placed(
    names: Sequence[str], sentence: str, context: tuple[str, Effort], problems: list[Problem]
) -> tuple[str, list[tuple[Span, ...] | None]]:
    """The sentence with the names as they are read, and their places."""
    where, effort = context
    places = find_names(sentence, names, where=where, problems=problems, effort=effort)
    if "_" not in sentence:
        return sentence, places
    spans = [span for fragments in places for span in fragments or ()]
    known = [name for name in names if len(name) <= LONGEST_NAME]
    spans += [span for name in known for span in whole_words(sentence, name)]
    letters = list(sentence)
    for start, end in spans:
        letters[start:end] = _apart("".join(letters[start:end]))
    return "".join(letters), places


def _apart(name: str) -> str:
    """A name with blanks for its ``_``; one that begins or ends with them keeps those."""
    inner = name.strip("_")
    start = name.find(inner) if inner else 0
    return name[:start] + inner.replace("_", " ") + name[start + len(inner) :] if inner else name


# --- OpenNRE's JSON Lines (Han et al. 2019) -------------------------------------------------------
#
# A text or its tokens, head, tail, and a relation.
#
# ``{"text": ..., "h": {"name": ..., "id": ..., "pos": [0, 4]}, "t": {...}, "relation": ...}``. With
# "text", positions are characters; with "token", a list of strings, they are tokens; their ends are
# exclusive. Lines that are Python's dicts, in single quotes, are read, too, and never evaluated.

NOTHING = "NA"
"""The written label of a pair without a relation."""
_KNOWN = frozenset(("id", "text", "token", "h", "t", "relation"))
_OF_END = frozenset(("name", "id", "pos", "type"))
_SAMPLE = 5


def read_opennre(path: Path, options: Options) -> Reading:
    """Read the lines: a document for each, of one sentence, that asks about its pair.

    An end without a type has `options.bare_type`; its id becomes its concept. An end without a
    position is looked for by its name. ``NA`` is no relation. Other keys with a plain value are
    attributes. The given tokens are kept; a text gets its own.

    Raises:
        FormatError: a line is neither JSON nor a Python dict, or a part of it is not of its form.
        DataError: there is no line, or a type was not declared.
    """
    source = open_source(path, options)
    reader = _Reader(source, Effort(str(path)))
    reading = read_documents(source, _rows(source), reader.document, format="opennre")
    if reader.bare:
        count = f"{len(reader.bare)} of {len(reading.documents)}"
        what = f"{count} lines have no relation: read without one"
        source.problems.append(Problem("no-label", reader.bare[0], what))
    source.problems.extend(map_problems(path, reader.labels))
    return reading


def is_opennre(lines: Sequence[str]) -> bool:
    """Return whether the first lines of a file are such lines."""
    first = [line.strip() for line in lines if line.strip()][:_SAMPLE]
    return bool(first) and all(map(_is_row, first))


def _is_row(line: str) -> bool:
    if not line.startswith("{") or not line.endswith("}"):
        return False
    try:
        row = _load(line, "")
    except FormatError:
        return False
    return isinstance(row.get("h"), dict) and isinstance(row.get("t"), dict)


def _rows(source: Source) -> Iterator[tuple[str, str, Tree | str]]:
    """Every object or line of a file, where it stands, and a name for it."""
    if source.text.lstrip()[:1] == "[":
        yield from json_objects(
            source.text, source.path, options=source.options, problems=source.problems
        )
        return
    yield from ((where, name, line.strip()) for where, name, line in source.lines())


def _load(line: str, where: str) -> Tree:
    """A line as a dict, from JSON or else from a Python literal."""
    try:
        row = literal_value(line)
    except ValueError as error:
        raise FormatError(
            "a line that is neither JSON nor a Python dict",
            expected='{"text": ..., "h": {...}, "t": {...}, "relation": ...}',
            got=quoted(line),
            where=where,
        ) from error
    if not isinstance(row, dict):
        raise FormatError("not an object", expected='{"text": ...}', where=where)
    return row


class _Reader:
    """Makes documents of the objects of one file."""

    def __init__(self, source: Source, effort: Effort) -> None:
        self.options, self.problems, self.effort = source.options, source.problems, effort
        self.labels: list[tuple[str, str]] = []
        self.bare: list[str] = []
        self._ignored: set[str] = set()

    def document(self, where: str, name: str, given: Tree | str) -> Document:
        """One document; `name` stands in where the object has no id."""
        row = _load(given, where) if isinstance(given, str) else given
        text, tokens = self._text(row, where)
        ends = self._ends(row, text, tokens, where=where)
        label = row.get("relation")
        if label is None:
            self.bare.append(where)
        elif not isinstance(label, str) or not label.strip():
            raise malformed("the relation", "a string that is not empty", label, where=where)
        else:
            label = clean(label.strip())
            self.labels.append((label, where))
        own = row.get("id")
        line = PairLine(
            clean(str(own)) if isinstance(own, str | int) else name,
            where,
            text,
            ends,
            label,
            attributes=tuple(self._attributes(row, where)),
            sentences=_sentence(text, tokens),
        )
        return pair_document(line, self.options, self.problems)

    def _text(self, row: Tree, where: str) -> tuple[str, list[Span] | None]:
        """The text, and where its tokens stand if the file has them."""
        if "text" in row:
            if not isinstance(row["text"], str):
                raise malformed("the text", "a string", row["text"], where=where)
            return mend_surrogates(row["text"], where, self.problems), None
        tokens = row.get("token")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise malformed("a line without text", '"text" or a list "token"', tokens, where=where)
        tokens = [mend_surrogates(token, where, self.problems) for token in tokens]
        spans: list[Span] = []
        for token in tokens:
            start = spans[-1][1] + 1 if spans else 0
            spans.append((start, start + len(token)))
        return " ".join(tokens), spans

    def _ends(
        self, row: Tree, text: str, tokens: list[Span] | None, *, where: str
    ) -> tuple[PairEnd, PairEnd]:
        ends: list[PairEnd] = []
        for side in ("h", "t"):
            item = row.get(side)
            if not isinstance(item, dict):
                raise malformed(f"{side!r}, an end of the pair", "an object", item, where=where)
            self._note_keys((f"{side}.{key}" for key in item.keys() - _OF_END), where)
            taken = ends[0].fragments if ends else None
            ends.append(self._end(item, text, tokens, taken=taken or (), where=where))
        return ends[0], ends[1]

    def _end(
        self, item: Tree, text: str, tokens: list[Span] | None, *, taken: Sequence[Span], where: str
    ) -> PairEnd:
        name, kind, given = item.get("name"), item.get("type"), item.get("id")
        if not isinstance(name, str | None) or not isinstance(kind, str | None):
            raise malformed("name or type of an end", "strings", item, where=where)
        concept = clean(str(given).strip()) if isinstance(given, str | int) else ""
        wanted = clean(name or "")
        fragments: tuple[Span, ...] | None
        if item.get("pos") is None:
            (fragments,) = find_names(
                text, [wanted], where=where, problems=self.problems, effort=self.effort, taken=taken
            )
        else:
            fragments = self._position(item["pos"], text, tokens, name=wanted, where=where)
        return PairEnd(wanted, clean(kind or "") or self.options.bare_type, concept, fragments)

    def _position(
        self, given: Any, text: str, tokens: list[Span] | None, *, name: str, where: str
    ) -> tuple[Span, ...] | None:
        """The characters of the text, or None and a problem if there are none."""
        whole = isinstance(given, list | tuple) and len(given) == 2
        if not whole or not all(type(place) is int for place in given):
            raise malformed('"pos"', "[start, end], whole numbers", given, where=where)
        start, end = given
        known = len(text) if tokens is None else len(tokens)
        unit = "characters" if tokens is None else "tokens"
        if not 0 <= start < end <= known:
            slug = "empty-span" if start >= end else "beyond-text"
            what = f"{quoted(name)} {start}-{end} points nowhere in {known} {unit}"
            self.problems.append(Problem(slug, where, what, lost=True))
            return None
        if tokens is not None:
            start, end = tokens[start][0], tokens[end - 1][1]
        start += len(text[start:end]) - len(text[start:end].lstrip())
        found = text[start:end].strip()
        if not found:
            what = f"{quoted(name)} is white space in the text"
            self.problems.append(Problem("empty-span", where, what, lost=True))
            return None
        if name and _letters(name) != _letters(found):
            what = f"{quoted(name)} is {quoted(found)} in the text"
            self.problems.append(Problem("text-mismatch", where, what))
        return ((start, start + len(found)),)

    def _attributes(self, row: Tree, where: str) -> Iterator[tuple[str, str]]:
        for key, value in row.items():
            if key in _KNOWN or value is None:
                continue
            if key != PAIR and isinstance(value, str | int | float):
                yield clean(str(key)), clean(str(value))
            else:
                self._note_keys([str(key)], where)

    def _note_keys(self, keys: Iterator[str] | Sequence[str], where: str) -> None:
        """Report keys that are not read, each once."""
        for key in sorted(set(keys) - self._ignored):
            self._ignored.add(key)
            what = f"{quoted(key)} is not read, here and further on"
            self.problems.append(Problem("key-ignored", where, what, lost=True))


def _letters(text: str) -> str:
    """Letters and digits in lower case: names are written with other blanks than the text."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _sentence(text: str, tokens: list[Span] | None) -> tuple[Sentence, ...]:
    """The given tokens as one sentence; a token with blanks in it is several, an empty one none."""
    if tokens is None:
        return ()
    spans: list[Span] = []
    for start, end in tokens:
        for word in text[start:end].split():
            start = text.index(word, start)
            spans.append((start, start + len(word)))
            start += len(word)
    return (Sentence(spans[0][0], spans[-1][1], tuple(spans)),) if spans else ()


# --- PGR (Sousa, Lamurias & Couto 2019) -----------------------------------------------------------
#
# A gene and a phenotype in a sentence, labelled from the HPO.
#
# A table with a header and tabs. The training part has the labels of the knowledge base; in the
# curated test part, a last column says whether each is Correct, Incorrect or Uncertain.

RELATION = "gene-phenotype"
FILE = "file"
"""The attribute that names the abstract of a sentence."""
_ENDS = ("GENE", "PHENOTYPE")
_COLUMNS = (
    "FILE_ID", "SENTENCE", *_ENDS, "GENE_ID", "PHENOTYPE_ID", "GENE_START_POSITION",
    "GENE_END_POSITION", "PHENOTYPE_START_POSITION", "PHENOTYPE_END_POSITION", "RELATION",
)  # fmt: skip
_CONFIRMATION = "CONFIRMATION"
_LABELS = {"true": True, "false": False}
_VERDICTS = {"C": False, "I": True}
"""True for a verdict that reverses the label."""
_ESCAPE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]*);")


def read_pgr(path: Path, options: Options) -> Reading:
    """Read the table: a document for each row, of one sentence, that asks about its pair.

    The gene is the head, the phenotype the tail; what holds between them is `RELATION`, where the
    label is true and nobody calls it incorrect, or false and called so. A pair whose label is
    uncertain is left out and named. The abstract's number is the attribute "file".

    HTML escapes are read as what they stand for; offsets, which count them, are moved. Where the
    text at the offsets is not the name, the name is looked for in the sentence.

    Raises:
        FormatError: a column is missing, a row has other columns, or a value is invalid.
        DataError: there is no row, or a type was not declared.
    """
    source, effort = open_source(path, options, longest=LONGEST_LINE), Effort(str(path))
    lines = list(source.lines())
    if len(lines) < 2:
        raise DataError("the table has no rows", where=str(path))
    header = _header(lines[0][2], lines[0][0])

    def one(where: str, name: str, line: str) -> Document:
        row = _row(header, line, where)
        found = _line(row, name, where, source.problems, effort=effort)
        return pair_document(found, options, source.problems)

    curated = "yes" if _CONFIRMATION in header else "no"
    return read_documents(source, lines[1:], one, format="pgr", curated=curated)


def is_pgr(lines: Sequence[str]) -> bool:
    """Return whether a file begins with such a header."""
    first = next((line for line in lines if line.strip()), "")
    return set(_COLUMNS) <= {name.strip() for name in first.split("\t")}


def _header(line: str, where: str) -> list[str]:
    names = [name.strip() for name in line.split("\t")]
    names = [_CONFIRMATION if name.startswith(_CONFIRMATION) else name for name in names]
    missing = [name for name in _COLUMNS if name not in names]
    if missing or len(set(names)) != len(names):
        raise FormatError(
            "the header is not that of PGR",
            expected=f"each column once, {', '.join(missing) or 'and no other twice'} among them",
            where=where,
        )
    return names


def _row(header: Sequence[str], line: str, where: str) -> dict[str, str]:
    cells = line.split("\t")
    if len(cells) != len(header):
        raise FormatError(
            "a row of other columns than the header",
            expected=str(len(header)),
            got=str(len(cells)),
            where=where,
        )
    return dict(zip(header, cells, strict=True))


def _line(
    row: dict[str, str], name: str, where: str, problems: list[Problem], *, effort: Effort
) -> PairLine:
    raw = row["SENTENCE"]
    text, shifts = unescaped(raw)
    names = [unescaped(row[end])[0].strip() for end in _ENDS]
    places: list[tuple[Span, ...] | None] = []
    for end, wanted in zip(_ENDS, names, strict=True):
        start, stop = (_offset(row, f"{end}_{side}_POSITION", where) for side in ("START", "END"))
        span = _moved(start, shifts), _moved(stop, shifts)
        fits = bool(wanted) and text[slice(*span)].casefold() == wanted.casefold()
        places.append((span,) if fits else None)
        if not fits:
            what = f"{end.lower()} {quoted(wanted)} is {quoted(raw[start:stop])} at its offsets"
            problems.append(Problem("offset-mismatch", where, what))
    for number, place in enumerate(places):
        if place is None:
            taken = places[1 - number] or ()
            (places[number],) = find_names(
                text, [names[number]], where=where, problems=problems, effort=effort, taken=taken
            )
    gene, phenotype = (
        PairEnd(wanted, end.capitalize(), clean(row[f"{end}_ID"].strip()), place)
        for end, wanted, place in zip(_ENDS, names, places, strict=True)
    )
    label = _label(row, where)
    if label is None:
        what = "nobody knows whether the label is right: the pair is left out"
        problems.append(Problem("uncertain-label", where, what, lost=True))
    return PairLine(
        name,
        where,
        text,
        (gene, phenotype),
        RELATION if label else "NA",
        attributes=((FILE, clean(row["FILE_ID"].strip())),),
        paired=label is not None,
    )


def _label(row: dict[str, str], where: str) -> bool | None:
    """Return whether the relation holds; None if that is uncertain."""
    label = _LABELS.get(row["RELATION"].strip().lower())
    verdict = row.get(_CONFIRMATION, "C").strip().upper()
    if label is None or verdict not in (*_VERDICTS, "U"):
        raise FormatError(
            "a label or its confirmation",
            expected="True or False; C, I or U",
            got=f"{quoted(row['RELATION'])} {quoted(row.get(_CONFIRMATION, ''))}",
            where=where,
        )
    return None if verdict == "U" else label is not _VERDICTS[verdict]


def _offset(row: dict[str, str], column: str, where: str) -> int:
    value = whole_number(row[column])
    if value is None:
        got = quoted(row[column])
        raise FormatError(f"{column} is no offset", expected="a whole number", got=got, where=where)
    return value


def unescaped(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without HTML escapes; for each the offset behind it, and by how much it has shrunk.

    >>> unescaped("p &lt; 0.1 &amp; q")
    ('p < 0.1 & q', [(6, 3), (16, 7)])
    """
    pieces: list[str] = []
    shifts: list[tuple[int, int]] = []
    last = shrunk = 0
    for match in _ESCAPE.finditer(text):
        name = match[0][1:]
        plain = html.unescape(match[0]) if name.startswith("#") else html5.get(name)
        if plain is None:
            continue  # it stands for nothing
        pieces += (text[last : match.start()], plain)
        last = match.end()
        shrunk += len(match[0]) - len(plain)
        shifts.append((last, shrunk))
    return "".join((*pieces, text[last:])), shifts


def _moved(offset: int, shifts: Sequence[tuple[int, int]]) -> int:
    """An offset of a text with escapes as one of the text without."""
    before = bisect_right(shifts, offset, key=lambda shift: shift[0])
    return offset - (shifts[before - 1][1] if before else 0)
