"""Corpora of adverse drug effects as they were published: ADE and PsyTAR."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from confide.errors import DataError, FormatError, MissingDataError
from confide.text import reading
from confide.text.document import Document, Span
from confide.text.files import ZIP, lines_of, read_bytes, read_text, zipped_files
from confide.text.places import WAYS, place_mentions
from confide.text.reading import Draft, Format, Options, Reading, Sample, Source
from confide.text.rows import clean, is_number, quoted
from confide.text.segment import join_sentences

# --- The ADE corpus (Gurulingappa et al. 2012): drugs, effects and doses in MEDLINE sentences -----
#
# Three files: `DRUG-AE.rel` and `DRUG-DOSE.rel`, one relation per line, and `ADE-NEG.txt`,
# sentences without an adverse effect. `DRUG-DOSE.rel` annotates sentences of `DRUG-AE.rel` a second
# time, so the two are always read as one: nothing here gives a sentence twice.
#
# Offsets in the files count from the start of an abstract, which the files do not contain. They
# still tell how far apart the mentions of one sentence are, and so which of several places is
# meant.

EFFECTS, DOSES, NEGATIVES = "DRUG-AE.rel", "DRUG-DOSE.rel", "ADE-NEG.txt"
_TYPES = {EFFECTS: "AE", DOSES: "Dose"}
_RELATIONS = {"AE": "adverse-effect", "Dose": "dose"}
_NEGATIVE = re.compile(r"([^|\s]+) NEG (.*\S.*)")
_CERTAIN = re.compile(r"\d+ NEG \S")
_SAMPLE = 50
_MOST_PLACES = 1000


class _Mention(NamedTuple):
    """A mention as given in a line: its offsets count from the start of the abstract."""

    type: str
    surface: str
    begin: int
    end: int


class _Row(NamedTuple):
    """A line of a `.rel` file: `drug` has the `other`, an effect or a dose."""

    where: str
    sentence: str
    other: _Mention
    drug: _Mention


@dataclass(slots=True)
class _Abstract:
    """Everything in the files about one abstract, in order."""

    where: str
    positive: dict[str, list[_Row]] = field(default_factory=dict)
    negative: dict[str, str] = field(default_factory=dict)


def corpus_file(path: Path) -> str | None:
    """The one of the three files (`EFFECTS`, `DOSES`, `NEGATIVES`) that a name means, if any."""
    name = path.name.lower().removesuffix(".gz")
    return next((known for known in (*_TYPES, NEGATIVES) if known.lower() == name), None)


def _is_ade(sample: Sample) -> bool:
    """Return whether a file begins with lines of the ADE corpus."""
    first = sample.rows[:_SAMPLE]
    return all(_columns(line) is not None for line in first) or all(map(_CERTAIN.match, first))


def _read_ade(path: Path, options: Options, name: str) -> Reading:
    """Read the corpus: all sentences of an abstract form one document, named by its PubMed id.

    From a folder, all of the three files that exist are read. `DRUG-AE.rel` is read with the
    `DRUG-DOSE.rel` beside it; `ADE-NEG.txt` gives the sentences without an adverse effect, unless
    the format is "ade-positive".

    Raises:
        MissingDataError: the folder holds none of the three files.
        FormatError: a line does not have its file's form, or the file is none of the three.
        DataError: `DRUG-DOSE.rel` is named without the `DRUG-AE.rel` beside it, or a file is empty.
    """
    files = _files(path, negatives=name == "ade")
    source = Source(path, options)
    abstracts: dict[str, _Abstract] = {}
    for part, file in files.items():
        text, encoding = read_text(file, options.encoding)
        source.encoding = source.encoding or encoding
        lines = [(f"{file}:{n}", line) for n, line in enumerate(lines_of(text), 1) if line.strip()]
        if not lines:
            raise DataError("the file is empty", where=str(file))
        for where, line in lines:
            with options.document(source.problems, where):
                if part == NEGATIVES:
                    _add_negative(where, line, abstracts, source)
                else:
                    _add_row(where, line, _TYPES[part], abstracts)
    if list(files) == [NEGATIVES] and _beside(path.parent).keys() & _TYPES.keys():
        what = f"the files beside it hold other sentences of the same abstracts: read {path.parent}"
        source.problems.note("abstracts-divided", path, what)
    rows = ((abstract.where, id, abstract) for id, abstract in abstracts.items())
    found = source.read(rows, _ade_document, format=name)
    return replace(found, details={"files": ", ".join(files), **found.details})


def _files(path: Path, *, negatives: bool) -> dict[str, Path]:
    """The files to read, the effects before the doses before the negatives."""
    if not path.exists():
        raise MissingDataError(
            "there is no such file or folder", where=str(path), fix="check the path"
        )
    if path.is_dir():
        chosen = _beside(path)
    else:
        part = corpus_file(path)
        if part is None:
            raise FormatError(
                "which file of the ADE corpus is this?",
                expected=f"the name {EFFECTS}, {DOSES} or {NEGATIVES}, or their folder",
                got=path.name,
                where=str(path),
                fix="give it the name that it has in the corpus",
            )
        beside = {} if part == NEGATIVES else _beside(path.parent)
        if part == DOSES and EFFECTS in beside:
            raise DataError(
                f"its sentences are sentences of the {EFFECTS} beside it, which has more of them",
                where=str(path),
                fix=f"read the folder, or {EFFECTS} alone: the doses are joined to it",
            )
        chosen = {part: path}
        if part == EFFECTS and DOSES in beside:
            chosen[DOSES] = beside[DOSES]
    if not negatives:
        chosen.pop(NEGATIVES, None)
    if not chosen:
        wanted = " or ".join((EFFECTS, DOSES, *([NEGATIVES] if negatives else [])))
        what = "there is no file of the ADE corpus"
        raise MissingDataError(what, expected=wanted, where=str(path))
    return chosen


def _beside(folder: Path) -> dict[str, Path]:
    """The files of the corpus in a folder."""
    try:
        inside = sorted(file for file in folder.iterdir() if file.is_file())
    except (OSError, ValueError) as error:
        raise MissingDataError(f"cannot be read ({error})", where=str(folder)) from error
    found: dict[str, Path] = {}
    for part in (EFFECTS, DOSES, NEGATIVES):
        files = [file for file in inside if corpus_file(file) == part]
        if len(files) > 1:
            raise DataError(
                f"the folder holds {part} twice",
                got=" and ".join(file.name for file in files),
                where=str(folder),
                fix="keep one of them",
            )
        if files:
            found[part] = files[0]
    return found


# --- Lines ----------------------------------------------------------------------------------------


def _columns(line: str) -> list[str] | None:
    """The eight columns of a line of a `.rel` file; the sentence itself may hold a bar."""
    id, _, rest = line.partition("|")
    columns = [id, *rest.rsplit("|", 6)]
    if len(columns) != 8 or not all(columns[place].strip() for place in (0, 1, 2, 5)):
        return None
    return columns if all(is_number(columns[place]) for place in (3, 4, 6, 7)) else None


def _add_row(where: str, line: str, type: str, abstracts: dict[str, _Abstract]) -> None:
    """Put a line of a `.rel` file to its abstract."""
    columns = _columns(line)
    if columns is None:
        raise FormatError(
            "not a relation of the ADE corpus",
            expected="PubMed id|sentence|effect or dose|begin|end|drug|begin|end",
        )
    id, sentence, surface, begin, end, drug, drug_begin, drug_end = columns
    other = _Mention(type, surface, int(begin), int(end))
    row = _Row(where, sentence, other, _Mention("Drug", drug, int(drug_begin), int(drug_end)))
    abstract = abstracts.setdefault(id, _Abstract(where))
    abstract.positive.setdefault(sentence, []).append(row)


def _add_negative(where: str, line: str, abstracts: dict[str, _Abstract], source: Source) -> None:
    """Put a sentence of `ADE-NEG.txt` to its abstract, once."""
    match = _NEGATIVE.fullmatch(line)
    if match is None:
        raise FormatError(
            "not a negative sentence of the ADE corpus",
            expected="PubMed id, NEG and a sentence, with one blank between them",
        )
    abstract = abstracts.setdefault(match[1], _Abstract(where))
    if match[2] in abstract.positive:
        what = f"the sentence has an adverse effect in {abstract.positive[match[2]][0].where}"
        source.problems.note("negative-and-positive", where, what)
    elif match[2] in abstract.negative:
        what = f"the sentence stands already in {abstract.negative[match[2]]}"
        source.problems.note("duplicate-sentence", where, what)
    else:
        abstract.negative[match[2]] = where


# --- From abstracts to documents ------------------------------------------------------------------


def _ade_document(source: Source, where: str, name: str, abstract: _Abstract) -> Document:
    """The positive sentences in the order of the abstract, then the negative ones in file order."""
    placed = {text: _place(text, rows, source) for text, rows in abstract.positive.items()}
    ordered = sorted(placed, key=lambda text: placed[text][0])
    whole = join_sentences([*ordered, *abstract.negative])
    draft = Draft(source, name, whole.text, where, sentences=whole.sentences)
    marked: dict[tuple[str, _Mention], tuple[int, int, str]] = {}
    for text, start in zip(ordered, whole.starts, strict=False):
        for mention, (begin, end) in placed[text][1].items():
            marked[text, mention] = (start + begin, start + end, mention.type)
    keys = {mark: draft.entity(mark[2], [mark[:2]]) for mark in sorted(set(marked.values()))}
    names = {key: keys[mark] for key, mark in marked.items()}
    _relate(draft, [row for text in ordered for row in abstract.positive[text]], names)
    return draft.document()


def _relate(draft: Draft, rows: Sequence[_Row], names: dict[tuple[str, _Mention], str]) -> None:
    """Link each drug to its effects and doses; `names` has the entities of placed mentions."""
    seen: dict[tuple[str, str, str], str] = {}
    for row in rows:
        type = _RELATIONS[row.other.type]
        head, tail = (names.get((row.sentence, end)) for end in (row.drug, row.other))
        if head is None or tail is None:
            what = f"{type} of {quoted(row.drug.surface)}: a mention is not in the sentence"
            draft.lost("dangling-relation", what, where=row.where)
            continue
        earlier = seen.setdefault((type, head, tail), row.where)
        if earlier != row.where:
            what = f"the same relation is in {earlier}"
            draft.note("duplicate-relation", what, where=row.where)
            continue
        draft.relation(type, head, tail, where=row.where)


def _place(text: str, rows: Sequence[_Row], source: Source) -> tuple[int, dict[_Mention, Span]]:
    """The start of a sentence in its abstract, and the places of its mentions in the sentence.

    Each place at which a mention's string occurs implies where the sentence would begin. The start
    that most mentions agree on is taken, and each mention gets the place nearest to it.
    """
    first = {mention: row.where for row in reversed(rows) for mention in (row.drug, row.other)}
    places: dict[_Mention, list[int]] = {}
    for mention in first:
        found = places.setdefault(mention, [])
        place = text.find(mention.surface)
        while place >= 0 and len(found) < _MOST_PLACES:
            found.append(place)
            place = text.find(mention.surface, place + 1)
    votes = Counter(mention.begin - place for mention in places for place in places[mention])
    most = max(votes.values(), default=0)
    begins = [begin for begin, count in votes.items() if count == most]
    begin = max(begins, default=min(mention.begin for mention in places))
    spans: dict[_Mention, Span] = {}
    for mention, where in first.items():
        named, count = f"{mention.type} {quoted(mention.surface)}", len(places[mention])
        if not count:
            source.problems.lost("not-in-sentence", where, f"{named} is not in the sentence")
            continue
        meant = mention.begin - begin
        place = min(places[mention], key=lambda place: abs(place - meant))
        spans[mention] = (place, place + len(mention.surface))
        if count > 1 and (len(begins) > 1 or place != meant):
            what = f"{named} may stand at {count} places of the sentence"
            source.problems.note("ambiguous-mention", where, what)
        elif place != meant or mention.end - mention.begin != len(mention.surface):
            what = f"{named} has offsets that contradict its length or the other mentions'"
            source.problems.note("offset-mismatch", where, what)
    return begin, spans


ADE = Format("ade", "ADE corpus", "", partial(_read_ade, name="ade"), by_text=_is_ade, whole=True)
ADE_POSITIVE = Format(
    "ade-positive",
    "ADE corpus without negatives",
    "",
    partial(_read_ade, name="ade-positive"),
    whole=True,
)

# --- PsyTAR (Zolnoori et al. 2019): patients' reviews of four psychiatric drugs, from the workbook
#
# The sheet `Sentence_Labeling` has all sentences, and the four sheets `*_Identified` have the
# mentions of each sentence as strings without offsets; `places` finds their places.

SENTENCES = "Sentence_Labeling"
MOST_CELLS = 250_000
"""Cells of all sheets that are read; the published workbook has half as many."""
_SHEETS = "xl/worksheets/"
KINDS = ("ADR", "WD", "DI", "SSI")
"""Nearly every indication (DI) is listed as a sign, symptom or illness (SSI) too. It comes first,
so that a tagger that can keep only one of the two keeps the narrower one."""
_KEYS = ("drug_id", "sentence_index", "sentences")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a sheet: its place, the sentence it is about, and its cells by heading."""

    where: str
    review: str
    index: int
    text: str
    cells: dict[str, str]


@dataclass(slots=True)
class _Sentence:
    """A labelled sentence and what was found in it: for each mention its type and fragments."""

    index: int
    text: str
    mentions: dict[tuple[str, tuple[Span, ...]], str] = field(default_factory=dict)


@dataclass(slots=True)
class _Review:
    """A review; `at` are its sentences by their index."""

    where: str
    sentences: list[_Sentence] = field(default_factory=list)
    at: dict[int, dict[str, _Sentence]] = field(default_factory=dict)


def _is_workbook(path: Path, raw: bytes) -> bool:
    return raw.startswith(ZIP) and (b"[Content_Types].xml" in raw or b"xl/" in raw)


def _read_psytar(path: Path, options: Options) -> Reading:
    """Read the workbook: each review becomes a document, named by its `drug_id`.

    Documents have the attributes "drug" and "domain", both the drug's name in lower case.

    Raises:
        SettingsError: openpyxl is not installed.
        FormatError: this is not a workbook, or it lacks PsyTAR's sheets and columns.
        DataError: there is no review.
    """
    book, source = _workbook(path), Source(path, options)
    reviews: dict[str, _Review] = {}
    for row in _rows(book, SENTENCES, source):
        review = reviews.setdefault(row.review, _Review(row.where))
        if not row.text:
            source.problems.note("empty-sentence", row.where, "there is no text in it")
            continue
        if row.index in review.at:
            what = f"{row.review} has two sentences {row.index}; both are kept"
            source.problems.note("duplicate-index", row.where, what)
        sentence = _Sentence(row.index, row.text)
        review.sentences.append(sentence)
        review.at.setdefault(row.index, {}).setdefault(row.text, sentence)
    if not reviews:
        raise DataError("there is no review in the workbook", where=f"{path}#{SENTENCES}")
    ways: Counter[str] = Counter()
    for type in KINDS:
        for row in _rows(book, f"{type}_Identified", source):
            _add_mentions(type, row, reviews.get(row.review), source, ways)
    counted = [f"{ways[way]:,} {way}" for way in (*WAYS, "not placed") if ways[way]]
    rows = ((review.where, id, review) for id, review in reviews.items())
    return source.read(
        rows, _review_document, format="psytar", mentions=", ".join(counted) or "none"
    )


# --- The workbook ---------------------------------------------------------------------------------


def _workbook(path: Path) -> dict[str, list[list[str]]]:
    """The cells of the sheets that we read, as strings without white space around them."""
    raw = read_bytes(path)
    if not raw.startswith(ZIP):
        raise FormatError("not a workbook", expected="an .xlsx file", where=str(path))
    openpyxl = reading.extra("openpyxl", "xlsx", where=path, what="a workbook")
    wanted = (SENTENCES, *(f"{type}_Identified" for type in KINDS))
    try:
        at_once = 0  # openpyxl counts nothing: large parts would take it long to read
        for name, part in zipped_files(raw, str(path)):
            tags = part.count(b"<")
            at_once += 0 if name.startswith(_SHEETS) else tags
            if max(tags // 2, at_once) > MOST_CELLS:
                raise _too_large(path, f"more than {MOST_CELLS:,} tags in {quoted(name)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            book = openpyxl.load_workbook(BytesIO(raw), read_only=True, data_only=True)
            found = [name for name in wanted if name in book.sheetnames]
            for name in found:
                book[name].reset_dimensions()  # a sheet may state fewer rows than it has
            left = MOST_CELLS
            cells: dict[str, list[list[str]]] = {name: [] for name in found}
            for name in found:
                for row in book[name].values:  # as wide and as long as the last cell is far away
                    left -= len(row) + 1
                    if left < 0:
                        raise _too_large(path, f"more than {MOST_CELLS:,} cells")
                    cells[name].append([_string(cell) for cell in row])
            return cells
    except FormatError:
        raise
    except Exception as error:  # a damaged file fails anywhere in openpyxl, zipfile or expat
        raise FormatError(
            f"the workbook is damaged ({type(error).__name__})", where=str(path)
        ) from error


def _too_large(path: Path, what: str) -> FormatError:
    return FormatError(
        f"the workbook has {what}",
        expected="the sheets of PsyTAR as they are published, some 120,000 cells",
        where=str(path),
        fix="delete the rows and columns behind the last one with text in it, and save it again",
    )


def _string(cell: object) -> str:
    """A cell as a string; whole numbers without a point."""
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return clean(str(cell)).strip()


def _rows(book: dict[str, list[list[str]]], name: str, source: Source) -> Iterator[_Line]:
    """The lines of a sheet that are about a sentence."""
    where = f"{source.path}#{name}"
    if name not in book:
        expected = f"the sheets of PsyTAR, {SENTENCES} and {', '.join(KINDS)} with _Identified"
        raise FormatError(f"there is no sheet {name}", expected=expected, where=str(source.path))
    header, *rows = book[name] or [[]]
    missing = [key for key in _KEYS if key not in header]
    if missing:
        raise FormatError(
            f"there is no column {missing[0]}", expected=", ".join(_KEYS), where=f"{where}:1"
        )
    for number, row in enumerate(rows, 2):
        cells = dict(zip(header, row, strict=False))
        review, index, text = (cells.get(key, "") for key in _KEYS)
        if review and is_number(index):
            yield _Line(f"{where}:{number}", review, int(index), text, cells)
        elif review or text:  # the last line, of sums, has none
            what = f"no drug_id, or a sentence_index that is no number: {quoted(review)}"
            source.problems.lost("row-without-key", f"{where}:{number}", what)


# --- From lines to documents ----------------------------------------------------------------------


def _add_mentions(
    type: str, row: _Line, review: _Review | None, source: Source, ways: Counter[str]
) -> None:
    """Place the mentions of a line in its sentence; report those that cannot be placed."""
    column, problems = re.compile(rf"{type}\d+"), source.problems
    mentions = {name: cell for name, cell in row.cells.items() if cell and column.fullmatch(name)}
    same = review.at.get(row.index, {}) if review is not None else {}
    sentence = same.get(row.text, next(iter(same.values()), None))
    text = "" if sentence is None else sentence.text
    found = place_mentions(text, list(mentions.values()), effort=source.effort)
    for (name, mention), place in zip(mentions.items(), found, strict=True):
        ways["not placed" if place is None else place.way] += 1
        called = f"{name} {quoted(mention)}"
        if sentence is None or place is None:
            what = f"{called} is not in sentence {row.index} of {row.review}"
            problems.lost("mention-not-found", row.where, what)
            continue
        if place.places > 1:
            what = f"{called} may stand at {place.places} places; read at the first"
            problems.note("ambiguous-mention", row.where, what)
        if place.way == WAYS[4]:
            what = f"{called} is {quoted(text[slice(*place.fragments[0])])} in the sentence"
            problems.note("text-mismatch", row.where, what)
        key = (type, place.fragments)
        if key in sentence.mentions:
            what = f"{called} stands where {sentence.mentions[key]} does"
            problems.note("duplicate-mention", row.where, what)
        sentence.mentions.setdefault(key, name)


def _review_document(source: Source, where: str, name: str, review: _Review) -> Document:
    """A review as a document."""
    sentences = sorted(review.sentences, key=lambda sentence: sentence.index)
    whole = join_sentences(sentence.text for sentence in sentences)
    drug = (name.rpartition(".")[0] or name).lower()
    about = (("domain", drug), ("drug", drug))
    draft = Draft(source, name, whole.text, where, sentences=whole.sentences, attributes=about)
    for offset, sentence in zip(whole.starts, sentences, strict=True):
        for type, fragments in sentence.mentions:
            draft.entity(type, [(start + offset, end + offset) for start, end in fragments])
    return draft.document()


PSYTAR = Format("psytar", "PsyTAR workbook", ".xlsx", _read_psytar, by_bytes=_is_workbook)
