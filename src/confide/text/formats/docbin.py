"""spaCy's DocBin (`.spacy`): tokens, sentences, entities and span groups; needs the extra `spacy`.

The bytes are read here and checked, not handed to spaCy, whose strings turn its numbers into words.
A model is never needed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from confide.errors import DataError, FormatError, SettingsError, os_errors_as
from confide.files import Tree, write_whole
from confide.text.document import Document, Problem, Sentence, Span
from confide.text.draft import (
    Source,
    TokenDocument,
    TokenMention,
    read_documents,
    tokens_of_document,
)
from confide.text.files import Meter, Stream, read_bytes
from confide.text.reading import Options, Reading, Supports, clean, extra, reduce_to, unheld
from confide.text.segment import segmented

GROUP = "sc"
"""The span group that holds what `ents` cannot: spaCy's own name for it."""
_NO, _INSIDE, _OUTSIDE, _BEGINS = range(4)
_SPAN = struct.Struct(">QQQllll")
_WANTED = ("ORTH", "ENT_IOB", "ENT_TYPE", "SENT_START", "ENT_KB_ID")


class _Found(NamedTuple):
    """An entity by its tokens: first, one past the last, type, concept, span group."""

    first: int
    last: int
    type: str
    concept: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class _Bin:
    """The parts of a DocBin; `columns` says where an attribute stands."""

    columns: dict[str, int]
    strings: Any
    rows: Any
    lengths: list[int]
    spaces: bytes
    parts: Tree

    def string(self, number: int) -> str:
        """The word of a number; raises KeyError if nobody knows it."""
        return clean(str(self.strings[number])) if number else ""


def is_docbin(raw: bytes) -> bool:
    """Return whether bytes are zlib's, and begin with the parts of a DocBin."""
    if not raw.startswith(b"\x78"):
        return False
    try:
        head = zlib.decompressobj().decompress(raw, 64)
    except zlib.error:
        return False
    return b"version" in head or b"attrs" in head


def read_docbin(path: Path, options: Options) -> Reading:
    """Read the documents. White space is text, never a token.

    Spans of groups are entities too; those that are no entity have the attribute "span_group".

    Raises:
        SettingsError: spaCy is not installed.
        FormatError: the file is damaged, or holds far more than it weighs.
        DataError: there is no document, or a type was not declared.
    """
    raw = _unpacked(read_bytes(path), path)
    source = Source(path, options, "", "")
    try:
        opened = _opened(raw, path)
    except (FormatError, SettingsError):
        raise
    except Exception as error:  # damaged bytes fail anywhere in msgpack and numpy
        raise _damaged(error, path) from error

    def one(where: str, name: str, place: tuple[int, int]) -> Document:
        try:
            return _document(source, opened, place, where=where, name=name)
        except (KeyError, ValueError, IndexError, TypeError, struct.error) as error:
            raise _damaged(error, where) from error

    starts = accumulate(opened.lengths, initial=0)
    rows = (
        (f"{path}#{number + 1}", f"{path.stem}:{number + 1}", (number, start))
        for number, start in zip(range(len(opened.lengths)), starts, strict=False)
    )
    return read_documents(source, rows, one, format="docbin")


def _damaged(error: Exception, where: object) -> FormatError:
    return FormatError(f"the DocBin is damaged ({type(error).__name__})", where=str(where))


class _Zlib(BytesIO):
    """Packed bytes that are unpacked piece by piece."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self._packed = zlib.decompressobj()

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes, `size` at most."""
        fed = self._packed.unconsumed_tail or super().read(1 << 16)
        while fed:
            found = self._packed.decompress(fed, max(1, size or 0))
            if found:
                return found
            fed = self._packed.unconsumed_tail or super().read(1 << 16)
        return b""


def _unpacked(raw: bytes, path: Path) -> bytes:
    stream: Stream = _Zlib(raw)
    try:
        return Meter(str(path), 2 * len(raw)).read(stream)  # numbers pack better than text
    except zlib.error as error:
        raise FormatError(f"not a DocBin ({error})", where=str(path)) from error


def _opened(raw: bytes, path: Path) -> _Bin:
    """The parts, each checked to be as long as the others say."""
    numpy: Any = extra("numpy", "spacy", where=path, what="DocBin files")
    srsly: Any = extra("srsly", "spacy", where=path, what="DocBin files")
    known: dict[str, int] = extra("spacy.attrs", "spacy", where=path, what="DocBin files").IDS
    store: Any = extra("spacy.strings", "spacy", where=path, what="DocBin files").StringStore
    parts = srsly.msgpack_loads(raw)
    attrs = [int(one) for one in parts["attrs"]]
    rows = numpy.frombuffer(parts["tokens"], dtype="<u8").reshape(-1, len(attrs))
    lengths = [int(one) for one in numpy.frombuffer(parts["lengths"], dtype="<i4")]
    spaces = bytes(parts["spaces"])
    columns = {name: attrs.index(known[name]) for name in _WANTED if known[name] in attrs}
    if "ORTH" not in columns or sum(lengths) != len(rows) or len(spaces) != len(rows):
        raise FormatError("the parts of the DocBin do not fit each other", where=str(path))
    if min(lengths, default=0) < 0:
        raise FormatError("a document of fewer than no tokens", where=str(path))
    words = [str(word) for word in parts["strings"]]
    return _Bin(columns, store(words), rows, lengths, spaces, parts)


def _document(
    source: Source, opened: _Bin, place: tuple[int, int], *, where: str, name: str
) -> Document:
    number, start = place
    rows = opened.rows[start : start + opened.lengths[number]].tolist()
    spaces = opened.spaces[start : start + len(rows)]
    flags = _part(opened.parts, "flags", number)
    if isinstance(flags, dict) and flags.get("has_unknown_spaces"):
        spaces = b"\1" * len(rows)
    text, spans = "", []
    pieces: list[str] = []
    length = 0
    for row, space in zip(rows, spaces, strict=True):
        word = opened.string(row[opened.columns["ORTH"]])
        spans.append((length, length + len(word)))
        pieces += [word, " "] if space else [word]
        length += len(word) + bool(space)
    text = "".join(pieces)
    said, own = _user_data(_part(opened.parts, "user_data", number), source.problems, where)
    sentences = tuple(_sentences(opened, rows, spans, text))
    draft = source.draft(own or name, text, where, sentences=sentences, attributes=said)
    if _part(opened.parts, "cats", number):
        draft.note("key-ignored", "categories of a whole document are not read")
    seen: set[tuple[int, int, str]] = set()
    for one in [*_entities(opened, rows), *_groups(opened, number, len(rows))]:
        fragment = (0, 0)
        if one.first < one.last:
            fragment = spans[one.first][0], spans[one.last - 1][1]
        if fragment[0] >= fragment[1]:
            draft.note("empty-span", f"{one.type} covers no character")
            continue
        if (*fragment, one.type) in seen:  # a span that an entity is already is none of its own
            continue
        seen.add((*fragment, one.type))
        draft.entity(
            one.type,
            [fragment],
            concepts=(one.concept,) if one.concept else (),
            attributes=(("span_group", one.group),) if one.group not in ("", GROUP) else (),
        )
    return draft.document()


def _part(parts: Tree, key: str, number: int) -> Any:
    """Return a part's value for one document; None if it says nothing."""
    values = parts.get(key)
    return values[number] if isinstance(values, list) and number < len(values) else None


def _user_data(
    raw: object, problems: list[Problem], where: str
) -> tuple[tuple[tuple[str, str], ...], str]:
    """Plain values of a document's own data as attributes, and its "id"."""
    if not isinstance(raw, bytes) or len(raw) < 2:
        return (), ""
    found = extra("srsly", "spacy", where=where, what="DocBin files").msgpack_loads(
        raw, use_list=False
    )
    pairs: list[tuple[str, str]] = []
    ignored = False
    for key, value in found.items() if isinstance(found, dict) else ():
        several = value if isinstance(value, tuple) else (value,)
        if isinstance(key, str) and all(isinstance(one, str | int | float) for one in several):
            pairs += [(clean(key), clean(str(one))) for one in several]
        else:
            ignored = True
    if ignored:
        what = "extension attributes are not read"
        problems.append(Problem("key-ignored", where, what, lost=True))
    name = next((value for key, value in pairs if key == "id"), "")
    return tuple(pair for pair in pairs if pair[0] != "id"), name


def _entities(opened: _Bin, rows: Sequence[Sequence[int]]) -> Iterator[_Found]:
    """The runs of tokens that their ENT_IOB marks: B begins one, I continues it."""
    columns = opened.columns
    if "ENT_IOB" not in columns or "ENT_TYPE" not in columns:
        return
    first, kind, concept = -1, "", ""
    for place, row in enumerate([*rows, None]):
        mark = _OUTSIDE if row is None else row[columns["ENT_IOB"]]
        if first >= 0 and mark != _INSIDE:
            yield _Found(first, place, kind, concept)
            first = -1
        if row is not None and (mark == _BEGINS or (mark == _INSIDE and first < 0)):
            kind = opened.string(row[columns["ENT_TYPE"]])
            concept = opened.string(row[columns["ENT_KB_ID"]]) if "ENT_KB_ID" in columns else ""
            first = place if kind else -1


def _groups(opened: _Bin, number: int, length: int) -> Iterator[_Found]:
    """The spans of every group."""
    raw = _part(opened.parts, "span_groups", number)
    if not isinstance(raw, bytes) or len(raw) < 2:
        return
    srsly: Any = extra("srsly", "spacy", where="", what="DocBin files")
    groups = srsly.msgpack_loads(raw)
    for packed in groups if isinstance(groups, dict | list) else ():
        group = srsly.msgpack_loads(packed)
        keys = groups[packed] if isinstance(groups, dict) else [group["name"]]
        name = clean(str(keys[0] if isinstance(keys, list) and keys else group["name"]))
        for item in group["spans"]:
            _, concept, kind, first, last, *_ = _SPAN.unpack(item)
            if not 0 <= first <= last <= length:
                raise ValueError("a span outside its document")
            yield _Found(first, last, opened.string(kind) or name, opened.string(concept), name)


def _sentences(
    opened: _Bin, rows: Sequence[Sequence[int]], spans: Sequence[Span], text: str
) -> Iterator[Sentence]:
    """The sentences, if any token begins one; none in a text that was not cut."""
    column = opened.columns.get("SENT_START")
    if column is None or not any(row[column] for row in rows[1:]):
        return
    starts = [row[column] == 1 for row in rows]
    tokens: list[Span] = []
    for begins, span in zip([*starts, True], [*spans, (0, 0)], strict=True):
        if begins and tokens:
            yield Sentence(tokens[0][0], tokens[-1][1], tuple(tokens))
            tokens = []
        if text[span[0] : span[1]].strip():
            tokens.append(span)


# --- Documents to spaCy's DocBin
#
# `ents` for what does not overlap, a span group for everything.

_KEEPS = Supports(concepts=True, attributes=True, sentences=True)


def write_docbin(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a DocBin with the documents' text as it is; `scheme` is not used.

    Entities are widened to tokens. `ents` holds the longest of those that overlap, and the span
    group "sc" all entities of a document where some do. The id and the attributes are user data.

    Raises:
        SettingsError: spaCy is not installed.
        DataError: the file cannot be written.
    """
    spacy: Any = extra("spacy", "spacy", where=path, what="DocBin files")
    tokens: Any = extra("spacy.tokens", "spacy", where=path, what="DocBin files")
    cut, problems = reduce_to(documents, _KEEPS, path)
    vocab = spacy.blank("xx").vocab
    held = tokens.DocBin(
        attrs=["ENT_IOB", "ENT_TYPE", "ENT_KB_ID", "SENT_START"], store_user_data=True
    )
    several = 0
    for document in cut:
        marked = tokens_of_document(document, problems)
        if marked is not None:
            held.add(_doc(segmented(document), marked, vocab, tokens))
        several += sum(len(entity.concepts) > 1 for entity in document.entities)
    with os_errors_as(DataError, "the file cannot be written", where=path):
        write_whole(path, held.to_bytes())
    what = "entities have several concepts: the first is written"
    return [*problems, *unheld(path, what, several, kind="concepts-unheld")]


def _doc(document: Document, marked: TokenDocument, vocab: Any, library: Any) -> Any:
    """A spaCy document of the same text."""
    words, spaces, starts, numbers = _words(document)
    doc = library.Doc(vocab, words=words, spaces=spaces, sent_starts=starts)
    spans = []
    for mention in marked.mentions:
        first, last = numbers[mention.start], numbers[mention.end - 1] + 1
        spans.append(library.Span(doc, first, last, label=mention.type, kb_id=mention.concept))
    flat = [spans[number] for number in _flat(marked.mentions)]
    doc.set_ents(flat, default="outside")
    if len(flat) < len(spans):
        doc.spans[GROUP] = spans
    said: Tree = {"id": document.id}
    for key, value in document.attributes:
        if key != "id":
            said[key] = [*said.get(key, []), value]
    doc.user_data.update(said)
    return doc


def _flat(mentions: Sequence[TokenMention]) -> list[int]:
    """The numbers of mentions that do not overlap: of those that do the longest, then the first."""
    chosen: list[int] = []
    taken: set[int] = set()
    order = sorted(range(len(mentions)), key=lambda n: mentions[n].start - mentions[n].end)
    for number in order:
        own = range(mentions[number].start, mentions[number].end)
        if taken.isdisjoint(own):
            taken.update(own)
            chosen.append(number)
    return chosen


def _words(document: Document) -> tuple[list[str], list[bool], list[bool], list[int]]:
    """Words and white space that make up the text, whether a blank follows, sentence starts.

    Also the number of the word of each token.
    """
    words: list[str] = []
    spaces: list[bool] = []
    starts: list[bool] = []
    numbers: list[int] = []
    offset = 0

    def gap(end: int) -> None:
        between = document.text[offset:end]
        if between and words and between[0] == " ":
            spaces[-1], between = True, between[1:]
        if between:
            words.append(between)
            spaces.append(False)
            starts.append(False)

    for sentence in document.sentences:
        for place, (start, end) in enumerate(sentence.tokens):
            gap(start)
            numbers.append(len(words))
            words.append(document.text[start:end])
            spaces.append(False)
            starts.append(place == 0)
            offset = end
    gap(len(document.text))
    return words, spaces, starts, numbers
