"""CoNLL-U with entities in the tenth column, MISC: as tags (``NER=B-PER``) or as brackets.

Words that share a token of the text (ranges such as ``1-2``) are one token here, and empty nodes
(``1.1``) none. ``SpaceAfter=No`` is kept. Brackets are those of GUM: ``Entity=(1-person-...`` opens
an entity that ``1)`` closes; the second part is its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem, Sentence, Span
from confide.text.draft import PLACEHOLDER, Draft, Source, read_documents
from confide.text.files import lines_of, read_text
from confide.text.reading import Options, Reading, quoted
from confide.text.tagging import detect_scheme, parse_tag, scheme_named, spans_from_tags

COLUMNS = 10
_ID = re.compile(r"(\d{1,6})(?:-(\d{1,6})|(\.\d{1,6}))?", re.ASCII)
_TAGS = ("NER", "NE", "ner", "Entity", "NamedEntity", "ne")
_OPEN = re.compile(r"\(([^()\-]+)-([^()\-]+)[^()]*(\))?|([^()\-]+)\)")
_NEW = re.compile(r"#\s*newdoc(?:\s+id)?\s*(?:=\s*(.*))?$")


@dataclass(slots=True)
class _Sentence:
    """A sentence: tokens, whether a blank follows, tags, and entities in brackets."""

    where: str
    tokens: list[str] = field(default_factory=list)
    glued: list[bool] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    brackets: list[tuple[int, str]] = field(default_factory=list)
    new: str | None = None
    last: int = -1
    """The last word that the range before covers."""
    untagged: bool = False
    """True if a word of that range has no tag."""
    broken: bool = False
    """True if one of its lines cannot be read, so that its document is left out."""


def is_conllu(lines: Sequence[str]) -> bool:
    """Return whether the first lines have ten columns, the first of which numbers the words."""
    rows = [line for line in lines[:200] if line.strip() and not line.startswith("#")]
    cells = [row.split("\t") for row in rows]
    return bool(cells) and all(
        len(row) == COLUMNS and _ID.fullmatch(row[0]) is not None for row in cells
    )


def read_conllu(path: Path, options: Options) -> Reading:
    """Read a document for each ``# newdoc``; without one, for each sentence.

    A range whose words are tagged differently has the tag of the first that has one; that is
    reported. Without any tag or bracket, the documents have no entities ("no-tags").

    Raises:
        FormatError: a line does not have ten columns, or no number.
        DataError: there is no word, or a type was not declared.
    """
    text, encoding = read_text(path, options.encoding)
    problems: list[Problem] = []
    lines = _sentences(lines_of(text), path, options, problems)
    sentences = [one for one in lines if one.tokens or one.broken]
    if not sentences:
        raise DataError("the file holds no word", where=str(path))
    tagged = [one.tags for one in sentences if any(tag != "O" for tag in one.tags)]
    scheme = scheme_named(options.scheme) if options.scheme else detect_scheme(tagged).scheme
    bracketed = any(one.brackets for one in sentences)
    if not tagged and not bracketed:
        what = "no entities in MISC: expected NER=B-TYPE, or Entity=(1-type ... 1)"
        problems.append(Problem("no-tags", str(path), what))
    source = Source(path, options, "", encoding, problems)
    rows = (
        (group[0].where, f"{path.stem}:{number}", group)
        for number, group in enumerate(_grouped(sentences), 1)
    )
    reading = read_documents(source, rows, partial(_document, source, scheme), format="conllu")
    documents = reading.documents
    if not any(one.new is not None for one in sentences):
        documents = [replace(document, unmarked=True) for document in documents]
    details = reading.details if bracketed else {"scheme": scheme, **reading.details}
    return replace(reading, documents=documents, details=details)


def _sentences(
    lines: Sequence[str], path: Path, options: Options, problems: list[Problem]
) -> Iterator[_Sentence]:
    now = _Sentence(f"{path}:1")
    waiting: str | None = None
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        if not line.strip():
            yield now
            now = _Sentence(where)
        elif line.startswith("#"):
            new = _NEW.match(line)
            if new is not None:
                waiting = (new[1] or "").strip() or f"{path.stem}:{number}"
        else:
            if not now.tokens and not now.broken:
                now.where = where
                now.new, waiting = waiting, None
            try:
                _word(now, line.split("\t"), where, problems)
            except FormatError as error:
                now.broken = True
                options.skip(error, problems, where)
    yield now


def _word(now: _Sentence, cells: Sequence[str], where: str, problems: list[Problem]) -> None:
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
    first = int(number[1])
    inside = number[2] is None and first <= now.last
    if not inside:
        token = cells[1].replace("\ufeff", "")
        if not token.strip():
            what = "the token is empty; read as U+FFFD"
            problems.append(Problem("empty-token", where, what))
            token = PLACEHOLDER
        now.tokens.append(token)
        now.glued.append(misc.get("SpaceAfter") == "No")
        now.tags.append("O")
        now.last = int(number[2]) if number[2] is not None else -1
        now.untagged = False
    place = len(now.tokens) - 1
    if "(" in given or ")" in given:
        now.brackets.append((place, given))
    elif given in ("O", "_"):
        now.untagged = now.untagged or inside
    else:
        tag = given if parse_tag(given)[0] else f"I-{given}"
        if now.tags[place] == "O":
            now.tags[place] = tag
            if inside and now.untagged:
                what = f"{tag} begins inside {quoted(now.tokens[place])}, which is one token"
                problems.append(Problem("range-widened", where, what))
        elif parse_tag(tag)[1] != parse_tag(now.tags[place])[1]:
            what = f"a word of a range is {tag}, the range {now.tags[place]}"
            problems.append(Problem("range-tagged-twice", where, what, lost=True))


def _grouped(sentences: Sequence[_Sentence]) -> list[list[_Sentence]]:
    """The sentences of each document."""
    marked = any(one.new is not None for one in sentences)
    groups: list[list[_Sentence]] = []
    for one in sentences:
        if not marked or one.new is not None or not groups:
            groups.append([one])
        else:
            groups[-1].append(one)
    return groups


def _document(
    source: Source, scheme: str, where: str, name: str, group: Sequence[_Sentence]
) -> Document | None:
    if any(one.broken for one in group):
        return None
    pieces: list[str] = []
    rows: list[Sentence] = []
    mentions: list[tuple[str, Span]] = []
    offset = 0
    for one in group:
        tokens: list[Span] = []
        for place, (token, glued) in enumerate(zip(one.tokens, one.glued, strict=True)):
            tokens.append((offset, offset + len(token)))
            final = place == len(one.tokens) - 1
            pieces += [token, "\n" if final else "" if glued else " "]
            offset += len(token) + (final or not glued)
        rows.append(Sentence(tokens[0][0], tokens[-1][1], tuple(tokens)))
        found, malformed = spans_from_tags(one.tags, scheme)
        for _, tag, why in malformed:
            source.problems.append(Problem("malformed-tag", one.where, f"{tag}: {why}"))
        mentions += [
            (kind or source.options.bare_type, (tokens[first][0], tokens[last - 1][1]))
            for first, last, kind in found
        ]
    text = "".join(pieces)[:-1]
    draft = source.draft(group[0].new or name, text, where, sentences=tuple(rows))
    for kind, span in [*mentions, *_bracketed(group, rows, draft)]:
        draft.entity(kind, [span])
    return draft.document()


def _bracketed(
    group: Sequence[_Sentence], rows: Sequence[Sentence], draft: Draft
) -> Iterator[tuple[str, Span]]:
    """Entities in brackets, which may be nested and cross sentences."""
    held: dict[str, list[tuple[int, str]]] = {}
    for one, row in zip(group, rows, strict=True):
        for place, brackets in one.brackets:
            start, end = row.tokens[place]
            for match in _OPEN.finditer(brackets):
                if match[4] is None and match[3] is not None:
                    yield match[2], (start, end)
                elif match[4] is None:
                    held.setdefault(match[1], []).append((start, match[2]))
                elif held.get(match[4]):
                    first, kind = held[match[4]].pop()
                    yield kind, (first, end)
                else:
                    draft.note("dangling-bracket", f"{match[4]}) closes nothing", where=one.where)
    for name, left in held.items():
        if left:
            draft.note("dangling-bracket", f"({name} is never closed")
