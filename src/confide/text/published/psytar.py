"""PsyTAR (Zolnoori et al. 2019): patients' reviews of four psychiatric drugs, from the workbook.

The sheet `Sentence_Labeling` has all sentences, and the four sheets `*_Identified` have the
mentions of each sentence as strings without offsets; `places` finds their places.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text import reading
from confide.text.document import Document, Span
from confide.text.files import ZIP, read_bytes, zipped_files
from confide.text.places import WAYS, place_mentions
from confide.text.reading import Draft, Format, Options, Reading, Source
from confide.text.rows import clean, is_number, quoted
from confide.text.segment import join_sentences

SENTENCES = "Sentence_Labeling"
MOST_CELLS = 250_000
"""Cells of all sheets that are read; the published workbook has half as many."""
_SHEETS = "xl/worksheets/"
TYPES = ("ADR", "WD", "DI", "SSI")
"""Nearly every indication (DI) is listed as a sign, symptom or illness (SSI) too. It comes first,
so that a tagger that can keep only one of the two keeps the narrower one."""
_KEYS = ("drug_id", "sentence_index", "sentences")


@dataclass(frozen=True, slots=True)
class _Row:
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


def _read(path: Path, options: Options) -> Reading:
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
    for type in TYPES:
        for row in _rows(book, f"{type}_Identified", source):
            _add_mentions(type, row, reviews.get(row.review), source, ways)
    counted = [f"{ways[way]:,} {way}" for way in (*WAYS, "not placed") if ways[way]]
    rows = ((review.where, id, review) for id, review in reviews.items())
    return source.read(rows, _document, format="psytar", mentions=", ".join(counted) or "none")


# --- The workbook ---------------------------------------------------------------------------------


def _workbook(path: Path) -> dict[str, list[list[str]]]:
    """The cells of the sheets that we read, as strings without white space around them."""
    raw = read_bytes(path)
    if not raw.startswith(ZIP):
        raise FormatError("not a workbook", expected="an .xlsx file", where=str(path))
    openpyxl = reading.extra("openpyxl", "xlsx", where=path, what="a workbook")
    wanted = (SENTENCES, *(f"{type}_Identified" for type in TYPES))
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


def _rows(book: dict[str, list[list[str]]], name: str, source: Source) -> Iterator[_Row]:
    """The lines of a sheet that are about a sentence."""
    where = f"{source.path}#{name}"
    if name not in book:
        expected = f"the sheets of PsyTAR, {SENTENCES} and {', '.join(TYPES)} with _Identified"
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
            yield _Row(f"{where}:{number}", review, int(index), text, cells)
        elif review or text:  # the last line, of sums, has none
            what = f"no drug_id, or a sentence_index that is no number: {quoted(review)}"
            source.problems.lost("row-without-key", f"{where}:{number}", what)


# --- From lines to documents ----------------------------------------------------------------------


def _add_mentions(
    type: str, row: _Row, review: _Review | None, source: Source, ways: Counter[str]
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


def _document(source: Source, where: str, name: str, review: _Review) -> Document:
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


PSYTAR = Format("psytar", "PsyTAR workbook", ".xlsx", _read, by_bytes=_is_workbook)
