"""CoNLL columns, one token per line and a tag beside it; and CoNLL-U with entities in MISC.

The text of a document is its tokens joined by spaces and its sentences joined by newlines. Without
document marks, every sentence is a document of its own, named "<file stem>:<line>".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, islice
from operator import attrgetter
from pathlib import Path

from confide.errors import ConfideError, DataError, FormatError, SchemeError
from confide.text import document as internal
from confide.text import files, reading, tagging
from confide.text.document import Document, Entity, Sentence, SpacedWords, Span, Spans
from confide.text.reading import Draft, Format, Options, Output, Reading, Sample, Source, Supports
from confide.text.rows import quoted
from confide.text.segment import PLACEHOLDER, segmented, text_of_tokens, words_with_gaps

# --- Columns of a CoNLL file ----------------------------------------------------------------------
#
# The columns of tokens and of tags are found by evidence.

_COMMENT = re.compile(r"#($|\s|\w+\s*=|newdoc|newpar|begin |end )")
_BLANKS = re.compile(r"[ \t]+")
_AFFIX = re.compile(r"(^[bieslumo][-_:])|([-_:][BIESLUM]$)")
_SAMPLE, _WIDEST = 5000, 64
_CELL = r"[^\t\n]*+"
_VALUE = (  # all characters but white space and byte order marks; \S would take thrice as long
    r"[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]++"
)
_STRETCH, _STRETCHES = 1 << 13, 64


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The layout of one file's lines: split at tabs or blanks, into how many columns, and which."""

    tabs: bool
    width: int
    token: int
    tag: int | None
    doubt: str = ""

    def fields(self, line: str) -> list[str]:
        """The columns of a line."""
        if self.tabs:
            return line.split("\t")
        line = line.strip(" \t")
        return _BLANKS.split(line) if "  " in line or "\t" in line else line.split(" ")

    def plain_rows(self) -> re.Pattern[str]:
        """A pattern of lines of these columns and nothing else: no comment, mark or odd value.

        Tokens and tags are not empty and have no white space in them.
        """
        columns = [_CELL if self.tabs else _VALUE] * self.width
        for column in (self.token, self.tag):
            if column is not None:
                columns[column] = _VALUE
        row = "(?!#|-DOCSTART-)" + ("\t" if self.tabs else " ").join(columns)
        return re.compile(f"(?:{row}\n)*+{row}")

    def describe(self) -> str:
        """The layout in words, with columns counted from 0 as in the option."""
        cut = "tab" if self.tabs else "space"
        tag = "no tag" if self.tag is None else f"tag {self.tag}"
        return f"{self.width} by {cut}: token {self.token}, {tag}"


def _is_comment(line: str) -> bool:
    """Return whether a line may be a comment; a token that begins with # may look like one, too."""
    return line.startswith("#") and _COMMENT.match(line) is not None


def _is_document_mark(line: str) -> bool:
    """Return whether a line is CoNLL's mark of a new document."""
    return line.startswith("-DOCSTART-")


def _is_affixed(value: str) -> bool:
    """Return whether a value looks like a tag without being one: empty, ``b-per``, ``PER-B``."""
    return not value or _AFFIX.search(value) is not None


def sample_lines(text: str) -> list[str]:
    """The lines of a text; of a long one, those of stretches of it, from its beginning on."""
    if len(text) <= 4 * _STRETCH * _STRETCHES:
        return text.split("\n")
    lines: list[str] = []
    for number in range(_STRETCHES):
        start = number * len(text) // _STRETCHES
        whole = text[start : start + _STRETCH].split("\n")
        lines += whole[1 if start else 0 : -1] if len(whole) > 2 else whole
    return lines


def find_layout(lines: Sequence[str], stated: reading.Columns | None, where: str) -> ColumnLayout:
    """The layout of a file's lines; `stated` columns win over evidence.

    At least half of the lines must have the same width. The tag column is the last one whose
    every value is a tag (or nearly every: the rest are errors to be named later), else the last
    that holds an ``O`` and few other values. The token column is the first that is not the tag's,
    not a running number and not all ``_`` or ``-``.

    Raises:
        FormatError: no column of tags can be told, or a stated column does not exist.
        DataError: there is no line.
    """
    content = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line
        and not line.isspace()
        and (line[0] not in "#-" or not (_is_comment(line) or _is_document_mark(line)))
    ]
    if not content:  # maybe every token is a "#"
        content = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not content:
        raise DataError("the file is empty", where=where)
    where = f"{where}:{content[0][0]}"
    tabs = 2 * sum("\t" in line for _, line in content) >= len(content)
    cut = ColumnLayout(tabs, 0, 0, None)
    step = max(1, len(content) // _SAMPLE)
    rows = [cut.fields(line) for _, line in content[::step]]
    width, usual = Counter(map(len, rows)).most_common(1)[0]
    columns_in_words = f"{width} column{'s' * (width != 1)}"
    if stated is not None:
        if not isinstance(stated[0], int) or isinstance(stated[1], str):
            raise FormatError(
                "the columns of a CoNLL file have no names",
                expected="numbers from 0, or from -1 at the end, such as 0,3 or 0,-1",
                got=f"{stated[0]},{stated[1]}",
                where=where,
            )
        token = stated[0] + width * (stated[0] < 0)
        tag = None if stated[1] is None else stated[1] + width * (stated[1] < 0)
        if tag == token or not all(0 <= one < width for one in (token, tag or 0)):
            raise FormatError(
                "the stated columns do not exist, or are the same",
                expected=f"columns from 0 to {width - 1}",
                got=f"token {stated[0]}, tag {stated[1]}; the lines have {columns_in_words}",
                where=where,
            )
        return ColumnLayout(tabs, width, token, tag)
    even = 2 * usual >= len(rows) and width <= _WIDEST
    rows = [row for row in rows if len(row) == width]
    columns = [[row[index] for row in rows] for index in range(width)] if even else []
    tag, doubt = _tag_column(columns)
    if tag is None:
        raise FormatError(
            "no column of tags",
            expected="CoNLL columns: a token, a tag such as B-Disease or O, cut by tab or space",
            got=f"{columns_in_words} on most lines",
            where=where,
            fix="state the columns of token and tag, counted from 0: --columns 0,3, or "
            "columns = [0, 3] under [data]",
        )
    rest = [index for index in range(width) if index != tag]
    wordy = [
        index
        for index in rest
        if not set(columns[index]) <= {"_", "-", ""}
        and not all(v[:1].isdigit() and not v.strip("0123456789.-") for v in columns[index])
    ]
    return ColumnLayout(tabs, width, (wordy or rest)[0], tag, doubt)


def _tag_column(columns: Sequence[Sequence[str]]) -> tuple[int | None, str]:
    """The column of tags, and a doubt in words if two qualify."""
    if len(columns) < 2:
        return None, ""
    counts = [Counter(value.strip() for value in column) for column in columns]
    tagged = [
        index
        for index, values in enumerate(counts)
        if all(map(_prefixed, values)) and any(v == "O" or len(v) > 1 for v in values)
    ]
    if not tagged:
        tagged = [
            index
            for index, values in enumerate(counts)
            if values["O"]
            and sum(n for value, n in values.items() if _prefixed(value)) * 5 > values.total() * 4
            and any(tagging.parse_tag(value)[0] not in ("", "O") for value in values)
        ]
    if not tagged:
        tagged = [index for index, values in enumerate(counts) if _plain_types(values)]
    others = [index for index in tagged[:-1] if counts[index].keys() - {"O"}]
    doubt = ""
    if others and len(columns) > 2:
        numbers = ", ".join(map(str, [*others, tagged[-1]]))
        doubt = f"columns {numbers} all hold tags; the last is read"
    return (tagged[-1] if tagged else None), doubt


def _prefixed(value: str) -> bool:
    return tagging.parse_tag(value)[0] != ""


def _plain_types(values: Counter[str]) -> bool:
    """Return whether values are types without prefixes: mostly O, few others, no punctuation."""
    others = [value for value in values if value != "O"]
    return (
        values["O"] > 0
        and len(others) <= min(500, max(2, values.total() // 5))
        and all(value[:1].isalpha() and not _is_affixed(value) for value in others)
    )


# --- Reading CoNLL --------------------------------------------------------------------------------

_NEW_DOCUMENT = re.compile(r"#\s*(?:newdoc(?:\s+id)?|doc_id|doc id|document)\s*(?:=\s*(.*))?$")
_DOCSTART = re.compile(r"-DOCSTART-\s*\(([^)]*)\)")
_BEGIN = re.compile(r"#\s*begin document\s*(.*)$")
_KEY_VALUE = re.compile(r"(?<![\w.-])([\w.-]+)[ \t]*=[ \t]*([^\t]*)")


@dataclass(slots=True)
class _Rows:
    """One sentence of the file: its tokens joined by blanks, their tags and line numbers.

    `spans` are the tokens' places in `text` if one of them has a blank in it. `tags` are empty if
    all are O. `lines` are the tokens' lines if they do not follow each other from `line` on.
    `document` is the number of the document mark above it; -1 before the first.
    """

    text: str
    tags: tuple[str, ...]
    line: int
    spans: Sequence[Span] | None = None
    lines: list[int] | None = None
    attributes: Sequence[tuple[str, str]] = ()
    document: int = -1

    def line_of(self, token: int) -> int:
        """The line of a token."""
        return self.line + token if self.lines is None else self.lines[token]


class _Scan:
    """One pass over the text of a file; `marks` are the documents' names and attributes."""

    def __init__(self, source: Source, layout: ColumnLayout) -> None:
        self.source, self.layout, self.problems = source, layout, source.problems
        self.file, self.stem = str(source.path), source.path.stem
        self.sentences: list[_Rows] = []
        self.marks: list[tuple[str, list[tuple[str, str]]]] = []
        self.broken: set[int] = set()
        self._names: dict[str, str] = {}
        self._attributes: list[tuple[str, str]] = []
        self._begin()

    def _begin(self) -> None:
        """Begin a sentence; the attributes of comments stay for it until it has a token."""
        self._tokens: list[str] = []
        self._tags: list[str] = []
        self._lines: list[int] = []
        self._left_out = False

    def run(self, text: str) -> None:
        """Sort everything into rows, marks and comments.

        Nearly all sentences are plain: rows of the usual columns and nothing else. They are cut all
        at once; any other is looked at line by line.
        """
        layout, number, plain = self.layout, 1, self.layout.plain_rows().fullmatch
        cut = "\t" if layout.tabs else " "
        for block in text.removesuffix("\n").split("\n\n"):
            if plain(block):
                values = block.replace("\n", cut).split(cut)
                tags = [] if layout.tag is None else values[layout.tag :: layout.width]
                words = " ".join(values[layout.token :: layout.width])
                self._add(_Rows(words, self._kept(tags), number))
            else:
                for line_number, line in enumerate(block.split("\n"), number):
                    self._line(line, line_number)
                self._close()
            number += block.count("\n") + 2

    def skip(self, error: FormatError, document: int) -> None:
        """Leave out the document (by its mark) of a broken sentence, or raise its error again."""
        self.source.options.skip(error, self.problems, error.where)
        self.broken.add(document)

    def _add(self, rows: _Rows) -> None:
        """Take a sentence, with the comments above it."""
        rows.document = len(self.marks) - 1
        if self._attributes:
            rows.attributes, self._attributes = self._attributes, []
        self.sentences.append(rows)

    def _kept(self, tags: Sequence[str]) -> tuple[str, ...]:
        """The tags, each distinct one stored once; none if all are O."""
        if not tags or tags.count("O") == len(tags):
            return ()
        return tuple(map(self._names.setdefault, tags, tags))

    def _line(self, line: str, number: int) -> None:
        if not line or line.isspace():
            self._close()
        elif line[0] == "-" and _is_document_mark(line):
            named = _DOCSTART.match(line)
            self._mark(named.group(1).strip() if named else "", number)
        elif line[0] == "#" and _is_comment(line) and not self._is_row(line):
            self._comment(line, number)
        elif not self._left_out:
            try:
                self._row(line, number)
            except FormatError as error:
                self.skip(error, len(self.marks) - 1)
                self._begin()
                self._left_out = True

    def _close(self) -> None:
        if not self._tokens:
            self._left_out = False
            return
        rows = _Rows(" ".join(self._tokens), self._kept(self._tags), self._lines[0])
        if any(" " in token for token in self._tokens):
            ends = list(accumulate(len(token) + 1 for token in self._tokens))
            rows.spans = internal.pack_spans(
                zip([0, *ends], [end - 1 for end in ends], strict=False)
            )
        if self._lines[-1] - self._lines[0] >= len(self._lines):
            rows.lines = self._lines
        self._add(rows)
        self._begin()

    def _mark(self, name: str, number: int) -> None:
        self._close()
        self.marks.append((name or f"{self.stem}:{number}", self._attributes))
        self._attributes = []

    def _is_row(self, line: str) -> bool:
        fields = self.layout.fields(line)
        if len(fields) != self.layout.width or not fields[self.layout.token]:
            return False
        tag = self.layout.tag
        if self.layout.tabs and not any(map(str.isspace, fields[0])):
            return True  # "#" and its tag: a comment has a blank after the #
        return tag is not None and _prefixed(fields[tag].strip())

    def _comment(self, line: str, number: int) -> None:
        begin, new = _BEGIN.match(line), _NEW_DOCUMENT.match(line)
        if found := begin or new:
            name = (found.group(1) or "").strip()
            if begin or "newdoc" in line or not self.marks or self.marks[-1][0] != name:
                self._mark(name, number)
            return
        if self._tokens:
            what = "a comment between the tokens of a sentence"
            self.problems.note("comment-in-sentence", f"{self.file}:{number}", what)
        words = line.lstrip("# \t")
        if words.startswith("id "):
            self._attributes.append(("id", words[3:].split("\t")[0].split(" ")[0]))
        self._attributes += [(key, value.strip()) for key, value in _KEY_VALUE.findall(words)]

    def _row(self, line: str, number: int) -> None:
        layout, where = self.layout, f"{self.file}:{number}"
        fields = layout.fields(line)
        needed = max(layout.token, layout.tag or 0)
        # a line of another width may be read only if nothing can have shifted
        shifted = len(fields) <= needed or not layout.tabs or layout.width == 2
        if len(fields) != layout.width and shifted:
            raise FormatError(
                f"a line of {len(fields)} column{'s' * (len(fields) != 1)}",
                expected=f"{layout.width} columns cut by {'tab' if layout.tabs else 'space'}",
                where=where,
                fix="repair the line, or state the columns",
            )
        token = fields[layout.token]
        if "\ufeff" in token:
            token = token.replace("\ufeff", "")
            self.problems.note("byte-order-mark", where, "U+FEFF was removed from the token")
        if not token or token.isspace():
            token = PLACEHOLDER
            self.problems.note("empty-token", where, "the token is empty; read as U+FFFD")
        self._tokens.append(token)
        self._tags.append("O" if layout.tag is None else fields[layout.tag].strip())
        self._lines.append(number)


def _is_conll(sample: Sample) -> bool:
    """Return whether columns of tokens and tags can be told."""
    try:
        find_layout(sample.lines, None, "")
        return True
    except ConfideError:
        return False


def _read_conll(path: Path, options: Options) -> Reading:
    """Read a CoNLL file.

    Raises:
        FormatError: a line's columns differ from the rest, or there is no column of tags.
        SchemeError: a value is not a tag, or the tags contradict the stated scheme.
        DataError: there is no token in the file.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    text, source.text = files.with_plain_ends(source.text), ""
    if not text or text.isspace():
        raise DataError("the file is empty", where=str(path))
    scan = _Scan(source, find_layout(sample_lines(text), options.columns, str(path)))
    scan.run(text)
    del text
    if scan.layout.doubt:
        scan.problems.note("doubtful-columns", path, scan.layout.doubt)
    guess = _scheme(scan, path)
    if scan.broken and scan.marks:  # without marks, each sentence is a document
        scan.sentences = [one for one in scan.sentences if one.document not in scan.broken]
    documents = _documents(scan, guess.scheme)
    if not documents:
        raise reading.no_document(path, scan.problems, "the file holds no token")
    details = {
        "scheme": guess.scheme,
        "encoding": source.encoding,
        "columns": scan.layout.describe(),
        "evidence": ", ".join(f"{key} {count}" for key, count in guess.evidence.items()),
    }
    return Reading(documents, scan.problems, "conll", details)


def _scheme(scan: _Scan, path: Path) -> tagging.SchemeGuess:
    """The scheme, stated or detected; values that are not tags, and contradictions, are errors."""
    stated = scan.source.options.scheme
    tagged = [rows for rows in scan.sentences if rows.tags]
    guess = tagging.detect_scheme([rows.tags for rows in tagged])
    prefixed = bool(guess.evidence.keys() & set("BIESLUMW"))
    distinct = {tag for rows in tagged for tag in rows.tags}
    wrong = {tag for tag in distinct if not _prefixed(tag) and (prefixed or _is_affixed(tag))}
    broken = [rows for rows in tagged if not wrong.isdisjoint(rows.tags)]
    for rows in broken:
        place = next(place for place, tag in enumerate(rows.tags) if tag in wrong)
        error = SchemeError(
            "not a tag",
            expected="O, or a prefix and a type as in B-Disease",
            got=repr(rows.tags[place]),
            where=f"{path}:{rows.line_of(place)}",
            fix="repair the line, or state the columns",
        )
        scan.skip(error, rows.document)
    if broken:
        left_out = set(map(id, broken))
        scan.sentences = [rows for rows in scan.sentences if id(rows) not in left_out]
        tagged = [rows for rows in tagged if id(rows) not in left_out]
    if stated is not None:
        scheme = tagging.scheme_named(stated)
        found = tagging.contradiction([rows.tags for rows in tagged], scheme)
        if found is not None:
            sequence, fault, better = found
            other = f"leave the scheme out or state {better!r}, which fits better"
            raise SchemeError(
                f"the tags are not {scheme.upper()}: {fault.why}",
                expected=scheme.upper(),
                got=repr(fault.tag),
                where=f"{path}:{tagged[sequence].line_of(fault.position)}",
                fix="repair the file, which mixes schemes" if better == scheme else other,
            )
        return tagging.SchemeGuess(scheme, guess.evidence, True)
    if not guess.certain and any(key != "breaks iob2" for key in guess.evidence):
        evidence = ", ".join(f"{key}: {count}" for key, count in guess.evidence.items())
        read_as = f"read as {guess.scheme.upper()}"
        doubt = (
            f"no B- tag: IOB1 or IO, {read_as}; in IO neighbours of one type cannot be told apart"
        )
        if guess.evidence[f"breaks {guess.scheme}"]:
            doubt = f"no scheme explains every tag; {read_as}"
        scan.problems.note("doubtful-scheme", path, f"{doubt} ({evidence})")
    return guess


def _documents(scan: _Scan, scheme: str) -> list[Document]:
    """Group sentences under their marks; without marks, each is one document."""
    documents: list[Document] = []
    groups = ([rows] for rows in scan.sentences)
    if scan.marks:
        by_mark = groupby(scan.sentences, key=attrgetter("document"))
        groups = (list(group) for _, group in by_mark)
    for group in groups:
        try:
            documents.append(_document(scan, group, scheme))
        except DataError as error:
            scan.source.options.skip(error, scan.problems, f"{scan.file}:{group[0].line}")
    return documents


def _document(scan: _Scan, group: Sequence[_Rows], scheme: str) -> Document:
    first = group[0]
    name, attributes = f"{scan.stem}:{first.line}", first.attributes if len(group) == 1 else ()
    if first.document >= 0:
        name, above = scan.marks[first.document]
        attributes = (*above, *attributes)
    text = "\n".join([rows.text for rows in group])
    sentences: list[Sentence] = []
    entities: list[Entity] = []
    start = 0
    for rows in group:
        end = start + len(rows.text)
        tokens: Spans = SpacedWords(text, start, end)
        if rows.spans is not None:
            tokens = internal.pack_spans((a + start, b + start) for a, b in rows.spans)
        sentences.append(Sentence(start, end, tokens))
        if rows.tags:
            _add_entities(scan, rows, tokens, scheme, entities)
        start = end + 1
    return Document(
        name,
        text,
        tuple(entities),
        (),
        tuple(sentences),
        tuple(attributes),
        f"{scan.file}:{first.line}",
        unmarked=not scan.marks,
    )


def _add_entities(
    scan: _Scan, rows: _Rows, tokens: Spans, scheme: str, entities: list[Entity]
) -> None:
    """Add the entities of one sentence; malformed tags become problems."""
    spans, malformed = tagging.spans_from_tags(rows.tags, scheme)
    for position, tag, why in malformed:
        where = f"{scan.file}:{rows.line_of(position)}"
        scan.problems.note("malformed-tag", where, f"{tag}: {why}")
    stretches = tokens.stretches((first, last) for first, last, _ in spans)
    for (_, _, named), stretch in zip(spans, stretches, strict=True):
        kind = named or scan.source.options.bare_type
        entities.append(Entity(reading.entity_id(len(entities) + 1), kind, (stretch,)))


# --- Writing CoNLL --------------------------------------------------------------------------------
#
# Two columns, the token and the tag, separated by a tab.

_BREAKS = re.compile(r"[\t\n\r\ufeff\0]")
_BLANK = re.compile(r"\s+")


def _write_conll(documents: Sequence[Document], out: Output) -> None:
    """Write documents as one CoNLL file.

    Documents without sentences are segmented first. Documents of several sentences follow a
    ``# newdoc id =`` line; attributes are comment lines ``# key = value``.

    Raises:
        SettingsError: there is no such scheme.
        DataError: the file cannot be written.
    """
    scheme = tagging.scheme_named(out.scheme)
    ready = [segmented(document) for document in documents]
    marked = any(len(document.sentences) > 1 for document in ready)
    files.write_parts(out.path, (_conll_part(one, marked, scheme, out) for one in ready))
    respaced = sum(document.text != text_of_tokens(document) for document in ready)
    what = "documents lose their white space: CoNLL holds tokens only"
    out.unheld("white-space-unheld", respaced, what)


def _conll_part(document: Document, marked: bool, scheme: str, out: Output) -> str:
    """A segmented document as lines."""
    if not document.sentences:
        what = "a document without a token has no line"
        out.problems.lost("empty-document", document.where, what)
        return ""
    pairs = [*([("newdoc id", document.id)] if marked else []), *document.attributes]
    lines = [f"# {key} = {_BLANK.sub(' ', value)}" for key, value in pairs]
    spans, lost = tagging.flat_spans(document)
    out.problems.extend(lost)
    for sentence, own in zip(document.sentences, spans, strict=True):
        where = document.at(sentence.start, sentence.start)
        tokens = [_column(token) for token in document.token_texts(sentence)]
        for token in document.token_texts(sentence):
            if _column(token) != token:
                what = "a token of this sentence cannot stand in a column as it is"
                out.problems.note("token-changed", where, what)
        named = [(start, end, _BLANK.sub("_", kind)) for start, end, kind in own]
        for kind in sorted({kind for _, _, kind in own if _BLANK.search(kind)}):
            out.problems.note("type-changed", where, f"{kind!r} has blanks: written with _")
        for before, now in zip(named, named[1:], strict=False) if scheme == "io" else ():
            if before[1] == now[0] and before[2] == now[2]:
                what = f"two {now[2]} next to each other are one in IO"
                out.problems.lost("neighbours-joined", where, what)
        tags = tagging.tags_from_spans(len(tokens), named, scheme)
        lines += [f"{token}\t{tag}" for token, tag in zip(tokens, tags, strict=True)]
        lines += [""] if tokens else []
    return "\n".join(lines) + "\n" if lines else ""


def _column(token: str) -> str:
    """A token in a form that fits a column."""
    safe = _BREAKS.sub(" ", token).strip(" ") if _BREAKS.search(token) else token
    if not safe or safe.isspace():
        safe = PLACEHOLDER
    return PLACEHOLDER + safe if _is_document_mark(safe) else safe


CONLL = Format(
    "conll",
    "CoNLL columns",
    ".conll",
    _read_conll,
    _write_conll,
    Supports(fragments=True, attributes=True, sentences=True),  # pieces are named by flat_spans
    by_text=_is_conll,
)


# --- CoNLL-U with entities in the tenth column, MISC
#
# As tags (``NER=B-PER``) or as brackets.
#
# Words that share a token of the text (ranges such as ``1-2``) are one token here, and empty nodes
# (``1.1``) none. ``SpaceAfter=No`` is kept. Brackets are those of GUM: ``Entity=(1-person-...``
# opens an entity that ``1)`` closes; the second part is its type.

COLUMNS = 10
_ID = re.compile(r"(\d{1,6})(?:-(\d{1,6})|(\.\d{1,6}))?", re.ASCII)
_TAGS = ("NER", "NE", "ner", "Entity", "NamedEntity", "ne")
_OPEN = re.compile(r"\(([^()\-]+)-([^()\-]+)[^()]*(\))?|([^()\-]+)\)")
_NEW = re.compile(r"#\s*newdoc(?:\s+id)?\s*(?:=\s*(.*))?$")


@dataclass(slots=True)
class _Sentence:
    """A sentence: tokens, whether a blank follows, tags, and entities in brackets.

    `last` is the last word that the range before covers; `untagged`: a word of that range has no
    tag. `broken`: one of its lines cannot be read, so that its document is left out.
    """

    where: str
    tokens: list[str] = field(default_factory=list)
    glued: list[bool] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    brackets: list[tuple[int, str]] = field(default_factory=list)
    new: str | None = None
    last: int = -1
    untagged: bool = False
    broken: bool = False


def _is_conllu(sample: Sample) -> bool:
    """Return whether the first lines have ten columns, the first of which numbers the words."""
    cells = [row.split("\t") for row in sample.rows[:200] if not row.startswith("#")]
    return bool(cells) and all(
        len(row) == COLUMNS and _ID.fullmatch(row[0]) is not None for row in cells
    )


def _read_conllu(path: Path, options: Options) -> Reading:
    """Read a document for each ``# newdoc``; without one, for each sentence.

    A range whose words are tagged differently has the tag of the first that has one; that is
    reported. Without any tag or bracket, the documents have no entities ("no-tags").

    Raises:
        FormatError: a line does not have ten columns, or no number.
        DataError: there is no word.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    sentences = [one for one in _sentences(source) if one.tokens or one.broken]
    if not sentences:
        raise DataError("the file holds no word", where=str(path))
    tagged = [one.tags for one in sentences if any(tag != "O" for tag in one.tags)]
    scheme = options.scheme or tagging.detect_scheme(tagged).scheme
    scheme = tagging.scheme_named(scheme)
    bracketed = any(one.brackets for one in sentences)
    if not tagged and not bracketed:
        what = "no entities in MISC: expected NER=B-TYPE, or Entity=(1-type ... 1)"
        source.problems.note("no-tags", path, what)
    marked = any(one.new is not None for one in sentences)
    groups: list[list[_Sentence]] = []
    for one in sentences:
        if not marked or one.new is not None or not groups:
            groups.append([one])
        else:
            groups[-1].append(one)

    def _one(source: Source, where: str, name: str, group: list[_Sentence]) -> Document | None:
        found = _conllu_document(source, where, name, group, scheme)
        return found if marked or found is None else replace(found, unmarked=True)

    rows = ((group[0].where, f"{path.stem}:{n}", group) for n, group in enumerate(groups, 1))
    details = {} if bracketed else {"scheme": scheme}
    return source.read(rows, _one, format="conllu", **details)


def _sentences(source: Source) -> Iterator[_Sentence]:
    now = _Sentence(f"{source.path}:1")
    waiting: str | None = None
    for number, line in enumerate(files.lines_of(source.text), 1):
        where = f"{source.path}:{number}"
        if not line.strip():
            yield now
            now = _Sentence(where)
        elif line.startswith("#"):
            new = _NEW.match(line)
            if new is not None:
                waiting = (new[1] or "").strip() or f"{source.path.stem}:{number}"
        else:
            if not now.tokens and not now.broken:
                now.where = where
                now.new, waiting = waiting, None
            try:
                _word(now, line.split("\t"), where, source)
            except FormatError as error:
                now.broken = True
                source.options.skip(error, source.problems, where)
    yield now


def _word(now: _Sentence, cells: Sequence[str], where: str, source: Source) -> None:
    number = _ID.fullmatch(cells[0])
    if number is None or len(cells) != COLUMNS:
        raise FormatError(
            f"a line of {len(cells)} columns",
            expected="ten, cut by tabs, the first a number",
            got=quoted("\t".join(cells)),
            where=where,
        )
    if number[3] is not None:
        return  # an empty node is no part of the text
    misc = dict(part.partition("=")[::2] for part in cells[9].split("|"))
    given = next((misc[key].strip() for key in _TAGS if misc.get(key, "").strip()), "O")
    inside = number[2] is None and int(number[1]) <= now.last
    if not inside:
        token = cells[1].replace("\ufeff", "")
        if not token.strip():
            token = PLACEHOLDER
            source.problems.note("empty-token", where, "the token is empty; read as U+FFFD")
        now.tokens.append(token)
        now.glued.append(misc.get("SpaceAfter") == "No")
        now.tags.append("O")
        now.last = int(number[2]) if number[2] is not None else -1
        now.untagged = False
    if "(" in given or ")" in given:
        now.brackets.append((len(now.tokens) - 1, given))
    elif given in ("O", "_"):
        now.untagged = now.untagged or inside
    else:
        tag = given if _prefixed(given) else f"I-{given}"
        if now.tags[-1] == "O":
            now.tags[-1] = tag
            if inside and now.untagged:
                what = f"{tag} begins inside {quoted(now.tokens[-1])}, which is one token"
                source.problems.note("range-widened", where, what)
        elif tagging.parse_tag(tag)[1] != tagging.parse_tag(now.tags[-1])[1]:
            what = f"a word of a range is {tag}, the range {now.tags[-1]}"
            source.problems.lost("range-tagged-twice", where, what)


def _conllu_document(
    source: Source, where: str, name: str, group: Sequence[_Sentence], scheme: str
) -> Document | None:
    if any(one.broken for one in group):
        return None
    parts: list[tuple[str, str]] = []
    for one in group:
        parts += zip(one.tokens, ("" if glued else " " for glued in one.glued), strict=True)
        parts[-1] = one.tokens[-1], "\n"
    text, spans = words_with_gaps(parts)
    rows: list[Sentence] = []
    mentions: list[tuple[str, Span]] = []
    places = iter(spans)
    for one in group:
        tokens = list(islice(places, len(one.tokens)))
        rows.append(Sentence(tokens[0][0], tokens[-1][1], tuple(tokens)))
        found, malformed = tagging.spans_from_tags(one.tags, scheme)
        for _, tag, why in malformed:
            source.problems.note("malformed-tag", one.where, f"{tag}: {why}")
        mentions += [
            (kind or source.options.bare_type, (tokens[first][0], tokens[last - 1][1]))
            for first, last, kind in found
        ]
    draft = Draft(source, group[0].new or name, text[:-1], where, sentences=tuple(rows))
    for kind, span in [*mentions, *_bracketed(group, rows, draft)]:
        draft.entity(kind, [span])
    return draft.document()


def _bracketed(
    group: Sequence[_Sentence], rows: Sequence[Sentence], draft: Draft
) -> Iterator[tuple[str, Span]]:
    """Entities in brackets, which may be nested and cross sentences."""
    open_ones: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for one, row in zip(group, rows, strict=True):
        for place, brackets in one.brackets:
            start, end = row.tokens[place]
            for match in _OPEN.finditer(brackets):
                if match[4] is None and match[3] is not None:
                    yield match[2], (start, end)
                elif match[4] is None:
                    open_ones[match[1]].append((start, match[2]))
                elif open_ones[match[4]]:
                    first, kind = open_ones[match[4]].pop()
                    yield kind, (first, end)
                else:
                    draft.lost("dangling-bracket", f"{match[4]}) closes nothing", where=one.where)
    for name, left in open_ones.items():
        if left:
            draft.lost("dangling-bracket", f"({name} is never closed")


CONLLU = Format(
    "conllu",
    "CoNLL-U with entities in MISC",
    ".conllu",
    _read_conllu,
    by_text=_is_conllu,
    instead="conll",
)
