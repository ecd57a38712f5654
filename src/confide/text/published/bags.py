"""Corpora for distant supervision as they were published: a sentence, two names, a relation."""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from html.entities import html5
from pathlib import Path
from typing import NamedTuple

from confide.errors import ConfideError, DataError, FormatError
from confide.files import Tree, decode_json
from confide.text import files, reading, rows
from confide.text.document import PAIR, Document, Sentence, Span
from confide.text.places import LONGEST_NAME, WAYS, place_mentions
from confide.text.reading import Draft, Format, Options, Reading, Sample, Source
from confide.text.rows import Row, clean, malformed, mend_surrogates, quoted
from confide.text.segment import one_sentence, words_with_gaps

# --- Common parts ---------------------------------------------------------------------------------
#
# For formats whose lines hold a sentence, two entities by name, and their relation.

MAPS = re.compile(r"relation2id\.txt|(.*_)?rel2id\.json")
"""Names of files beside bag data that number its relations."""
_MAP_LINE = re.compile(r"(\S.*?)\s+(\d+)", re.ASCII)
Place = tuple[Span, ...] | None
"""The fragments of a name in the text; None if it was not found."""


class PairEnd(NamedTuple):
    """An end of a pair: its type, its place, and its identifier ("": none)."""

    type: str
    place: Place
    concept: str = ""


def pair_document(
    draft: Draft, ends: Sequence[PairEnd], label: str | None, *, paired: bool = True
) -> Document:
    """The document of a line: one sentence that asks about its pair, head T1 and tail T2.

    If an end was not found, or if not `paired`, the document has no pair and its relation is lost;
    the caller reports that. A label that is negative is no relation; None: nobody says whether
    there is one.
    """
    draft.sentences = draft.sentences or one_sentence(draft.text)
    draft.keep = True
    for name, end in zip(("T1", "T2"), ends, strict=True):
        if end.place is not None:
            concepts = (end.concept,) if end.concept else ()
            draft.entity(end.type, end.place, given=name, concepts=concepts)
    draft.pair("T1", "T2" if paired else "", label)
    return draft.document()


def _find_names(draft: Draft, names: Sequence[str], *, taken: Sequence[Span] = ()) -> list[Place]:
    """The places of names in a sentence, each at a place of its own; None if one is missing.

    A name is first looked up as a whole word between blanks (the first of several), then in the
    ways 1 to 3 of `places`, away from the names already found and from what is taken. Reports what
    is doubtful or lost. Raises FormatError if the effort for the file is spent.
    """
    found: dict[int, Place] = {}
    effort, used = draft.source.effort, list(taken)
    for number, name in enumerate(names):
        known = len(name) <= LONGEST_NAME
        spans = list(_whole_words(draft.text, name, taken=used)) if known else []
        effort.spend(len(spans) >> 3)
        if spans:
            found[number] = (spans[0],)
            used.append(spans[0])
            _doubt(draft, name, len(spans))
    missing = [number for number in range(len(names)) if number not in found]
    if missing:
        masked = list(draft.text)
        for start, end in used:
            masked[start:end] = "\0" * (end - start)
        wanted = [names[number] for number in missing]
        placed = place_mentions("".join(masked), wanted, effort=effort)
        for number, place in zip(missing, placed, strict=True):
            name = names[number]
            if place is None or place.way not in WAYS[:3]:
                what = f"{quoted(name)} is not in the sentence: its pair is left out"
                draft.lost("mention-not-found", what)
                continue
            found[number] = place.fragments
            _doubt(draft, name, place.places)
            if place.way == WAYS[2]:
                draft.note("text-mismatch", f"{quoted(name)} is read {place.way}")
    return [found.get(number) for number in range(len(names))]


def _whole_words(text: str, name: str, *, taken: Sequence[Span] = ()) -> Iterator[Span]:
    """The places of a name between blanks that share no character with those that are taken."""
    start = text.find(name) if name else -1
    while start >= 0:
        end = start + len(name)
        whole = not text[start - 1 : start].strip() and not text[end : end + 1].strip()
        if whole and all(end <= one or other <= start for one, other in taken):
            yield start, end
        start = text.find(name, start + 1)


def _doubt(draft: Draft, name: str, places: int) -> None:
    if places > 1:
        what = f"{quoted(name)} may stand at {places} places; read at the first"
        draft.note("ambiguous-mention", what)


def _check_maps(source: Source, labels: Mapping[str, Sequence[str]]) -> None:
    """Report labels that are missing from the relation-id files beside the data (`MAPS`).

    `labels` has the places of each. Reading does not need a map; one that cannot be read, or that
    gives two relations one number, is a problem too.
    """
    path = source.path
    if files.archive_member(path) is not None or not path.parent.is_dir():
        return
    found: list[tuple[str, str, str]] = []
    for file in sorted(one for one in path.parent.iterdir() if MAPS.fullmatch(one.name)):
        try:
            known = _relation_map(file)
        except (ConfideError, ValueError) as error:
            what = f"this map of relations cannot be read: {error}"
            found.append(("map-unread", what, str(file)))
            continue
        by_number: defaultdict[int, list[str]] = defaultdict(list)
        for name, number in known.items():
            by_number[number].append(name)
        for number, names in by_number.items():
            if len(names) > 1:
                what = f"{' and '.join(names)} are all number {number}"
                found.append(("map-number", what, str(file)))
        for label in labels.keys() - known.keys():
            near = get_close_matches(label, known, n=1)
            hint = f"; the nearest that is there: {near[0]}" if near else ""
            what = f"{label} ({len(labels[label])} lines) is not in {file.name}{hint}"
            found.append(("not-in-map", what, labels[label][0]))
    for kind, what, where in sorted(found):
        source.problems.note(kind, where, what)


def _relation_map(file: Path) -> Mapping[str, int]:
    """The relations of a map and their numbers. Raises ValueError if it is not a map."""
    text, _ = files.read_text(file)
    if file.suffix == ".json":
        found = decode_json(text)
        if not isinstance(found, dict) or not all(isinstance(n, int) for n in found.values()):
            raise ValueError("not an object of names and numbers")
        return found
    lines = [line.strip() for line in files.lines_of(text) if line.strip()]
    if lines and lines[0].isdigit():
        lines = lines[1:]  # how many there are
    matches = [_MAP_LINE.fullmatch(line) for line in lines]
    if not all(matches):
        raise ValueError("a line that is not a name and a number")
    return {match[1]: int(match[2]) for match in matches if match}


# --- NYT10's lines (Riedel et al. 2010; GIDS too) -------------------------------------------------
#
# A sentence, two entities in it, and a relation.
#
# ``id1 id2 name1 name2 relation sentence ###END###``, separated by tabs; the end mark is a seventh
# column or ends the sixth. The words of a name are joined by ``_``, in its column and in the text.

END = "###END###"
_NYT10_SAMPLE = 20


def _read_nyt10(path: Path, options: Options) -> Reading:
    """Read the lines: each becomes a document of one sentence that asks about its pair.

    A name is looked up as a word of the sentence; the first of several places counts. Its ``_``
    become blanks, which leaves offsets alone and gives ordinary words. Entities have the file's
    identifiers as concepts and the type `options.bare_type`; ``NA`` is no relation.

    Raises:
        FormatError: a line does not have six or seven columns, or one is empty.
        DataError: there is no line.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    labels: defaultdict[str, list[str]] = defaultdict(list)
    open_ended: list[str] = []

    def _one(source: Source, where: str, name: str, line: str) -> Document:
        *concepts, head, tail, label, sentence = _columns(line)
        open_ended.extend([] if line.rstrip().endswith(END) else [where])
        draft = Draft(source, name, sentence, where)
        places = _find_names(draft, (head, tail))
        draft.text = _without_underscores(sentence, (head, tail), places)
        labels[label].append(where)
        ends = [
            PairEnd(options.bare_type, place, clean(concept))
            for place, concept in zip(places, concepts, strict=True)
        ]
        return pair_document(draft, ends, clean(label))

    found = source.read(source.lines(), _one, format="nyt10")
    source.note_each("no-end", open_ended, f"lines do not end with {END}: are they whole?")
    _check_maps(source, labels)
    return found


def _is_nyt10(sample: Sample) -> bool:
    """Return whether the first lines of a file are such lines."""
    first = sample.rows[:_NYT10_SAMPLE]
    return all(line.rstrip().endswith(END) and line.count("\t") in (5, 6) for line in first)


def _columns(line: str) -> list[str]:
    """Two identifiers, two names, the relation and the sentence."""
    columns = [column.strip() for column in line.split("\t")]
    if len(columns) > 6 and columns[-1] in (END, ""):
        columns.pop()
    columns[-1] = columns[-1].removesuffix(END).rstrip()
    if len(columns) != 6 or not all(columns):
        raise FormatError(
            f"a line of {len(columns)} columns, or an empty one among them",
            expected=f"id1, id2, name1, name2, relation, sentence {END}, cut by tabs",
        )
    return columns


def _without_underscores(sentence: str, names: Sequence[str], places: Sequence[Place]) -> str:
    """The sentence with blanks for ``_`` in the names; one at the border of a name stays."""
    if "_" not in sentence:
        return sentence
    spans = [span for place in places for span in place or ()]
    known = [name for name in names if len(name) <= LONGEST_NAME]
    spans += [span for name in known for span in _whole_words(sentence, name)]
    letters = list(sentence)
    for start, end in spans:
        name = "".join(letters[start:end])
        inner = name.strip("_")
        first = name.find(inner)
        letters[start + first : start + first + len(inner)] = inner.replace("_", " ")
    return "".join(letters)


NYT10 = Format("nyt10", "NYT10's lines, and GIDS'", ".txt", _read_nyt10, by_text=_is_nyt10)


# --- OpenNRE's JSON Lines (Han et al. 2019) -------------------------------------------------------
#
# A text or its tokens, head, tail, and a relation.
#
# ``{"text": ..., "h": {"name": ..., "id": ..., "pos": [0, 4]}, "t": {...}, "relation": ...}``. With
# "text", positions are characters; with "token", a list of strings, they are tokens; their ends are
# exclusive. Lines that are Python's dicts, in single quotes, are read, too, and never evaluated.

_KNOWN = frozenset(("id", "text", "token", "h", "t", "relation", PAIR))
_OF_END = frozenset(("name", "id", "pos", "type"))
_SAMPLE = 5


def _read_opennre(path: Path, options: Options) -> Reading:
    """Read the lines: a document for each, of one sentence, that asks about its pair.

    An end without a type has `options.bare_type`; its id becomes its concept. An end without a
    position is looked for by its name. ``NA`` is no relation. Other keys with a plain value are
    attributes. The given tokens are kept; a text gets its own.

    Raises:
        FormatError: a line is neither JSON nor a Python dict, or a part of it is not of its form.
        DataError: there is no line.
    """
    source = reading.open_source(path, options)
    labels: defaultdict[str, list[str]] = defaultdict(list)
    bare: list[str] = []

    def _one(source: Source, where: str, name: str, given: Tree | str) -> Document:
        tree = _load(given) if isinstance(given, str) else given
        row = Row(tree, where)
        text, tokens = _text(row, source)
        draft = Draft(source, row.name(("id",), name), text, where)
        head = _pair_end(draft, row, "h", tokens)
        tail = _pair_end(draft, row, "t", tokens, taken=head.place or ())
        label = tree.get("relation")
        if label is None:
            bare.append(where)
        else:
            label = row.type(label, "the relation")
            labels[label].append(where)
        for key in {PAIR} & tree.keys():
            source.ignore(key, where)
        draft.attributes = source.attributes(tree, _KNOWN, where)
        if tokens is not None:  # a token with blanks in it is several, an empty one none
            spans = [(start + match.start(), start + match.end()) for start, end in tokens
                     for match in re.finditer(r"\S+", text[start:end])]  # fmt: skip
            if spans:
                draft.sentences = (Sentence(spans[0][0], spans[-1][1], tuple(spans)),)
        return pair_document(draft, (head, tail), label)

    lines: Iterable[tuple[str, str, Tree | str]] = source.lines()
    if source.text.lstrip()[:1] == "[":
        lines = source.objects()
    found = source.read(lines, _one, format="opennre")
    source.note_each("no-label", bare, "lines have no relation: read without one")
    _check_maps(source, labels)
    return found


def _is_opennre(sample: Sample) -> bool:
    """Return whether the first lines of a file are such lines."""
    for line in map(str.strip, sample.rows[:_SAMPLE]):
        if not line.startswith("{") or not line.endswith("}"):
            return False
        try:
            tree = _load(line)
        except FormatError:
            return False
        if not isinstance(tree.get("h"), dict) or not isinstance(tree.get("t"), dict):
            return False
    return True


def _load(line: str) -> Tree:
    """A line as a dict, from JSON or else from a Python literal."""
    try:
        tree = rows.literal_value(line.strip())
    except ValueError as error:
        raise FormatError(
            "a line that is neither JSON nor a Python dict",
            expected='{"text": ..., "h": {...}, "t": {...}, "relation": ...}',
            got=quoted(line),
        ) from error
    if not isinstance(tree, dict):
        raise FormatError("not an object", expected='{"text": ...}')
    return tree


def _text(row: Row, source: Source) -> tuple[str, list[Span] | None]:
    """The text, and where its tokens stand if the file has them."""
    if "text" in row.tree:
        return row.text("text", source.problems), None
    tokens = [mend_surrogates(token, row.where, source.problems) for token in row.words("token")]
    return " ".join(tokens), words_with_gaps((token, " ") for token in tokens)[1]


def _pair_end(
    draft: Draft, row: Row, side: str, tokens: list[Span] | None, *, taken: Sequence[Span] = ()
) -> PairEnd:
    """An end of the pair, at its position or, without one, where its name stands."""
    item = row.tree.get(side)
    if not isinstance(item, dict):
        raise row.malformed(f"{side!r}, an end of the pair", "an object", item)
    for key in sorted(item.keys() - _OF_END):
        draft.source.ignore(f"{side}.{key}", row.where)
    name, kind, given = item.get("name"), item.get("type"), item.get("id")
    if not isinstance(name, str | None) or not isinstance(kind, str | None):
        raise row.malformed("name or type of an end", "strings", item)
    concept = clean(str(given).strip()) if isinstance(given, str | int) else ""
    wanted = clean(name or "")
    if item.get("pos") is None:
        (place,) = _find_names(draft, [wanted], taken=taken)
    else:
        place = _position(draft, item["pos"], tokens, name=wanted)
    return PairEnd(clean(kind or "") or draft.source.options.bare_type, place, concept)


def _position(draft: Draft, given: object, tokens: list[Span] | None, *, name: str) -> Place:
    """The characters of the text, or None and a problem if there are none."""
    text = draft.text
    ends = given if isinstance(given, list | tuple) else ()
    if len(ends) != 2 or not all(type(place) is int for place in ends):
        raise malformed('"pos"', "[start, end], whole numbers", given, where=draft.where)
    start, end = ends
    known = len(text) if tokens is None else len(tokens)
    unit = "characters" if tokens is None else "tokens"
    if not 0 <= start < end <= known:
        slug = "empty-span" if start >= end else "beyond-text"
        what = f"{quoted(name)} {start}-{end} points nowhere in {known} {unit}"
        draft.lost(slug, what)
        return None
    if tokens is not None:
        start, end = tokens[start][0], tokens[end - 1][1]
    start += len(text[start:end]) - len(text[start:end].lstrip())
    found = text[start:end].strip()
    if not found:
        draft.lost("empty-span", f"{quoted(name)} is white space in the text")
        return None
    # names are written with other blanks than the text
    if name and len({"".join(filter(str.isalnum, one.casefold())) for one in (name, found)}) > 1:
        draft.note("text-mismatch", f"{quoted(name)} is {quoted(found)} in the text")
    return ((start, start + len(found)),)


OPENNRE = Format("opennre", "OpenNRE's JSON Lines", ".jsonl", _read_opennre, by_text=_is_opennre)


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


def _read_pgr(path: Path, options: Options) -> Reading:
    """Read the table: a document for each row, of one sentence, that asks about its pair.

    The gene is the head, the phenotype the tail; what holds between them is `RELATION`, where the
    label is true and nobody calls it incorrect, or false and called so. A pair whose label is
    uncertain is left out and named. The abstract's number is the attribute "file".

    HTML escapes are read as what they stand for; offsets, which count them, are moved. Where the
    text at the offsets is not the name, the name is looked for in the sentence.

    Raises:
        FormatError: a column is missing, a row has other columns, or a value is invalid.
        DataError: there is no row.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    lines = list(source.lines())
    if len(lines) < 2:
        raise DataError("the table has no rows", where=str(path))
    header = [name.strip() for name in lines[0][2].split("\t")]
    header = [_CONFIRMATION if name.startswith(_CONFIRMATION) else name for name in header]
    missing = [name for name in _COLUMNS if name not in header]
    if missing or len(set(header)) != len(header):
        raise FormatError(
            "the header is not that of PGR",
            expected=f"each column once, {', '.join(missing) or 'and no other twice'} among them",
            where=lines[0][0],
        )

    def _one(source: Source, where: str, name: str, line: str) -> Document:
        cells = line.split("\t")
        if len(cells) != len(header):
            raise FormatError(
                "a row of other columns than the header",
                expected=str(len(header)),
                got=str(len(cells)),
            )
        return _pgr_document(source, where, name, dict(zip(header, cells, strict=True)))

    curated = "yes" if _CONFIRMATION in header else "no"
    return source.read(lines[1:], _one, format="pgr", curated=curated)


def _is_pgr(sample: Sample) -> bool:
    """Return whether a file begins with such a header."""
    return set(_COLUMNS) <= {name.strip() for name in sample.rows[0].split("\t")}


def _pgr_document(source: Source, where: str, name: str, row: dict[str, str]) -> Document:
    raw, cells = row["SENTENCE"], Row(dict(row), where)
    text, shifts = unescaped(raw)
    draft = Draft(source, name, text, where)
    draft.attributes = ((FILE, clean(row["FILE_ID"].strip())),)
    names = [unescaped(row[end])[0].strip() for end in _ENDS]
    places: list[Place] = []
    for end, wanted in zip(_ENDS, names, strict=True):
        offsets = [cells.number(f"{end}_{side}_POSITION") for side in ("START", "END")]
        span = _moved(offsets[0], shifts), _moved(offsets[1], shifts)
        fits = bool(wanted) and text[slice(*span)].casefold() == wanted.casefold()
        places.append((span,) if fits else None)
        if not fits:
            found = quoted(raw[slice(*offsets)])
            what = f"{end.lower()} {quoted(wanted)} is {found} at its offsets"
            draft.note("offset-mismatch", what)
    for number, place in enumerate(places):
        if place is None:
            taken = places[1 - number] or ()
            (places[number],) = _find_names(draft, [names[number]], taken=taken)
    label = _LABELS.get(row["RELATION"].strip().lower())
    verdict = row.get(_CONFIRMATION, "C").strip().upper()
    if label is None or verdict not in (*_VERDICTS, "U"):
        raise FormatError(
            "a label or its confirmation",
            expected="True or False; C, I or U",
            got=f"{quoted(row['RELATION'])} {quoted(row.get(_CONFIRMATION, ''))}",
        )
    if verdict == "U":
        what = "nobody knows whether the label is right: the pair is left out"
        draft.lost("uncertain-label", what)
    holds = label is not _VERDICTS.get(verdict)
    ends = [
        PairEnd(end.capitalize(), place, clean(row[f"{end}_ID"].strip()))
        for end, place in zip(_ENDS, places, strict=True)
    ]
    return pair_document(draft, ends, RELATION if holds else "NA", paired=verdict != "U")


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


PGR = Format("pgr", "PGR's table", ".tsv", _read_pgr, by_text=_is_pgr)
