"""spaCy's DocBin (`.spacy`): tokens, sentences, entities and span groups; needs the extra `spacy`.

The bytes are read here and checked, not handed to spaCy, whose strings turn its numbers into words.
A model is never needed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from confide.errors import DataError, FormatError, SettingsError, os_errors_as
from confide.files import Tree, write_whole
from confide.text import reading
from confide.text.document import Document, Sentence, Span
from confide.text.files import Meter, read_bytes
from confide.text.reading import Draft, Format, Options, Output, Reading, Source, Supports
from confide.text.rows import clean
from confide.text.segment import segmented, words_with_gaps

GROUP = "sc"
"""The span group that holds what `ents` cannot: spaCy's own name for it."""
_NO, _INSIDE, _OUTSIDE, _BEGINS = range(4)
_SPAN = struct.Struct(">QQQllll")
_WANTED = ("ORTH", "ENT_IOB", "ENT_TYPE", "SENT_START", "ENT_KB_ID")


def _library(module: str, where: object) -> Any:
    return reading.extra(module, "spacy", where=where, what="DocBin files")


class _Found(NamedTuple):
    """An entity by its tokens: first, one past the last, type, concept, span group."""

    first: int
    last: int
    type: str
    concept: str = ""
    group: str = ""


def _is_docbin(path: Path, raw: bytes) -> bool:
    """Return whether bytes are zlib's, and begin with the parts of a DocBin."""
    if not raw.startswith(b"\x78"):
        return False
    try:
        head = zlib.decompressobj().decompress(raw, 64)
    except zlib.error:
        return False
    return b"version" in head or b"attrs" in head


def _read(path: Path, options: Options) -> Reading:
    """Read the documents. White space is text, never a token.

    Spans of groups are entities too; those that are no entity have the attribute "span_group".

    Raises:
        SettingsError: spaCy is not installed.
        FormatError: the file is damaged, or holds far more than it weighs.
        DataError: there is no document.
    """
    packed = read_bytes(path)
    try:  # numbers pack better than text
        raw = Meter(str(path), 2 * len(packed)).read(_Zlib(packed))
    except zlib.error as error:
        raise FormatError(f"not a DocBin ({error})", where=str(path)) from error
    try:
        opened = _Bin(raw, path)
    except (FormatError, SettingsError):
        raise
    except Exception as error:  # damaged bytes fail anywhere in msgpack and numpy
        raise _damaged(error, path) from error

    def _one(source: Source, where: str, name: str, place: tuple[int, int]) -> Document:
        try:
            return _document(source, opened, place, where=where, name=name)
        except (KeyError, ValueError, IndexError, TypeError, struct.error) as error:
            raise _damaged(error, where) from error

    starts = accumulate(opened.lengths, initial=0)
    rows = (
        (f"{path}#{number + 1}", f"{path.stem}:{number + 1}", (number, start))
        for number, start in zip(range(len(opened.lengths)), starts, strict=False)
    )
    return Source(path, options).read(rows, _one, format="docbin")


def _damaged(error: Exception, where: object) -> FormatError:
    return FormatError(f"the DocBin is damaged ({type(error).__name__})", where=str(where))


class _Zlib(BytesIO):
    """Packed bytes that are unpacked piece by piece."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self._packed = zlib.decompressobj()

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes, `size` at most."""
        while fed := self._packed.unconsumed_tail or super().read(1 << 16):
            if found := self._packed.decompress(fed, max(1, size or 0)):
                return found
        return b""


class _Bin:
    """The parts of a DocBin, each checked to be as long as the others say.

    `columns` says where an attribute stands.
    """

    def __init__(self, raw: bytes, path: Path) -> None:
        numpy = _library("numpy", path)
        self.parts: Tree = _library("srsly", path).msgpack_loads(raw)
        known: dict[str, int] = _library("spacy.attrs", path).IDS
        attrs = [int(one) for one in self.parts["attrs"]]
        self.rows = numpy.frombuffer(self.parts["tokens"], dtype="<u8").reshape(-1, len(attrs))
        self.lengths = [int(n) for n in numpy.frombuffer(self.parts["lengths"], dtype="<i4")]
        self.spaces = bytes(self.parts["spaces"])
        self.columns = {name: attrs.index(known[name]) for name in _WANTED if known[name] in attrs}
        rows = len(self.rows)
        if "ORTH" not in self.columns or sum(self.lengths) != rows or len(self.spaces) != rows:
            raise FormatError("the parts of the DocBin do not fit each other", where=str(path))
        if min(self.lengths, default=0) < 0:
            raise FormatError("a document of fewer than no tokens", where=str(path))
        words = [str(word) for word in self.parts["strings"]]
        self._strings = _library("spacy.strings", path).StringStore(words)

    def string(self, number: int) -> str:
        """The word of a number; raises KeyError if nobody knows it."""
        return clean(str(self._strings[number])) if number else ""

    def part(self, key: str, number: int) -> Any:
        """A part's value for one document; None if it says nothing."""
        values = self.parts.get(key)
        return values[number] if isinstance(values, list) and number < len(values) else None


def _document(
    source: Source, opened: _Bin, place: tuple[int, int], *, where: str, name: str
) -> Document:
    number, start = place
    rows = opened.rows[start : start + opened.lengths[number]].tolist()
    spaces = opened.spaces[start : start + len(rows)]
    flags = opened.part("flags", number)
    if isinstance(flags, dict) and flags.get("has_unknown_spaces"):
        spaces = b"\1" * len(rows)
    words = (opened.string(row[opened.columns["ORTH"]]) for row in rows)
    gaps = (" " if space else "" for space in spaces)
    text, spans = words_with_gaps(zip(words, gaps, strict=True))
    said = _user_data(opened.part("user_data", number), source, where)
    draft = Draft(source, dict(reversed(said)).get("id", name), text, where)
    draft.attributes = tuple(pair for pair in said if pair[0] != "id")
    draft.sentences = tuple(_sentences(opened, rows, spans, text))
    if opened.part("cats", number):
        draft.lost("key-ignored", "categories of a whole document are not read")
    seen: set[tuple[int, int, str]] = set()
    for one in [*_entities(opened, rows), *_groups(opened, number, len(rows))]:
        fragment = (0, 0)
        if one.first < one.last:
            fragment = spans[one.first][0], spans[one.last - 1][1]
        if fragment[0] >= fragment[1]:
            draft.lost("empty-span", f"{one.type} covers no character")
        elif (*fragment, one.type) not in seen:  # a span that is an entity already is no other
            seen.add((*fragment, one.type))
            draft.entity(
                one.type,
                [fragment],
                concepts=(one.concept,) if one.concept else (),
                attributes=(("span_group", one.group),) if one.group not in ("", GROUP) else (),
            )
    return draft.document()


def _user_data(raw: object, source: Source, where: str) -> list[tuple[str, str]]:
    """Plain values of a document's own data as attributes; its "id" is among them."""
    pairs: list[tuple[str, str]] = []
    if not isinstance(raw, bytes) or len(raw) < 2:
        return pairs
    found = _library("srsly", where).msgpack_loads(raw, use_list=False)
    ignored = False
    for key, value in found.items() if isinstance(found, dict) else ():
        several = value if isinstance(value, tuple) else (value,)
        if isinstance(key, str) and all(isinstance(one, str | int | float) for one in several):
            pairs += [(clean(key), clean(str(one))) for one in several]
        else:
            ignored = True
    if ignored:
        source.problems.lost("key-ignored", where, "extension attributes are not read")
    return pairs


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
    raw = opened.part("span_groups", number)
    if not isinstance(raw, bytes) or len(raw) < 2:
        return
    srsly = _library("srsly", "")
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


# --- Documents to spaCy's DocBin ------------------------------------------------------------------
#
# `ents` for what does not overlap, a span group for everything.


def _write(documents: Sequence[Document], out: Output) -> None:
    """Write a DocBin with the documents' text as it is.

    Entities are widened to tokens. `ents` holds the longest of those that overlap, and the span
    group "sc" all entities of a document where some do. The id and the attributes are user data.

    Raises:
        SettingsError: spaCy is not installed.
        DataError: the file cannot be written.
    """
    spacy, tokens = _library("spacy", out.path), _library("spacy.tokens", out.path)
    vocab = spacy.blank("xx").vocab
    held = tokens.DocBin(
        attrs=["ENT_IOB", "ENT_TYPE", "ENT_KB_ID", "SENT_START"], store_user_data=True
    )
    for document in documents:
        marked = reading.tokens_of_document(document, out.problems)
        if marked is not None:
            held.add(_doc(segmented(document), marked.mentions, vocab, tokens))
    with os_errors_as(DataError, "the file cannot be written", where=out.path):
        write_whole(out.path, held.to_bytes())


def _doc(
    document: Document, mentions: Sequence[reading.TokenMention], vocab: Any, library: Any
) -> Any:
    """A spaCy document of the same text: words and white space between them are its tokens."""
    words: list[str] = []
    spaces: list[bool] = []
    starts: list[bool] = []
    numbers: list[int] = []  # the number of the word of each of our tokens
    offset = 0
    tokens = [(place == 0, token) for sentence in document.sentences
              for place, token in enumerate(sentence.tokens)]  # fmt: skip
    end_of_text = len(document.text)
    for first, (start, end) in [*tokens, (False, (end_of_text, end_of_text))]:
        between = document.text[offset:start]
        if words and between[:1] == " ":
            spaces[-1], between = True, between[1:]
        for word, begins in ((between, False), (document.text[start:end], first)):
            if word:
                words.append(word)
                spaces.append(False)
                starts.append(begins)
        numbers.append(len(words) - 1)
        offset = end
    doc = library.Doc(vocab, words=words, spaces=spaces, sent_starts=starts)
    spans = []
    for one in mentions:
        first_word, last_word = numbers[one.start], numbers[one.end - 1] + 1
        spans.append(library.Span(doc, first_word, last_word, label=one.type, kb_id=one.concept))
    flat: list[int] = []  # of mentions that overlap the longest, then the first
    taken: set[int] = set()
    for number in sorted(range(len(spans)), key=lambda n: mentions[n].start - mentions[n].end):
        own = range(mentions[number].start, mentions[number].end)
        if taken.isdisjoint(own):
            taken.update(own)
            flat.append(number)
    doc.set_ents([spans[number] for number in flat], default="outside")
    if len(flat) < len(spans):
        doc.spans[GROUP] = spans
    said: Tree = {"id": document.id}
    for key, value in document.attributes:
        if key != "id":
            said[key] = [*said.get(key, []), value]
    doc.user_data.update(said)
    return doc


DOCBIN = Format(
    "docbin",
    "spaCy's DocBin",
    ".spacy",
    _read,
    _write,
    Supports(concepts="one", attributes=True, sentences=True),
    by_bytes=_is_docbin,
)
