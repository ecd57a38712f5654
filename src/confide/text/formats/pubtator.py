"""PubTator: a title and an abstract, mentions with offsets, relations between concepts.

Offsets run over title + one character + abstract; that character is a newline in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from confide.errors import FormatError
from confide.text.document import Document, Entity, Problem, Relation
from confide.text.draft import Draft, Source, open_source, read_documents
from confide.text.files import LONGEST_LINE, lines_of, write_text
from confide.text.reading import Options, Reading, place, quoted, unheld, whole_number

_HEAD = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
_NO_CONCEPT = frozenset(("", "-", "-1"))


def read_pubtator(path: Path, options: Options) -> Reading:
    """Read a PubTator file (gzip or not).

    A mention's concepts are its identifiers, split at commas (at ``|`` if a seventh column names as
    many parts); ``-1`` and ``-`` are not concepts. Relations have level "concept", and a fifth
    column becomes the attribute "novelty".

    Raises:
        FormatError: a line is not one of PubTator's, or belongs to another document.
        DataError: there is no document, or a type was not declared.
    """
    source = open_source(path, options, longest=LONGEST_LINE)
    return read_documents(source, _blocks(source), partial(_document, source), format="pubtator")


_Lines = list[tuple[str, str]]


def _blocks(source: Source) -> Iterator[tuple[str, str, _Lines]]:
    """The lines of each document, with their places: up to a blank line, or the next title."""
    block: _Lines = []
    for number, line in enumerate([*lines_of(source.text), ""], 1):
        head = _HEAD.match(line)
        if block and (not line.strip() or (head and head[2] == "t")):
            yield block[0][0], "", block
            block = []
        if line.strip():
            block.append((f"{source.path}:{number}", line))


def _document(source: Source, where: str, name: str, block: _Lines) -> Document:
    title = _HEAD.match(block[0][1])
    if title is None or title[2] != "t":
        raise FormatError("a line before any title", expected="id|t|title", where=where)
    name, rest = title[1], block[1:]
    draft = source.draft(name, title[3], where)
    if rest and (head := _HEAD.match(rest[0][1])) and head[1] == name:
        draft.text += f"\n{head[3]}"
        rest = rest[1:]
    for at, line in rest:
        if _HEAD.match(line):
            raise FormatError(
                "an abstract without its title", expected=f"one abstract of {name}", where=at
            )
        fields = line.split("\t")
        if fields[0] != name:
            raise FormatError(
                "a line of another document", expected=f"the id {name!r} first", where=at
            )
        if (
            len(fields) >= 5
            and whole_number(fields[1]) is not None
            and whole_number(fields[2]) is not None
        ):
            _mention(draft, fields, at)
        elif len(fields) in (4, 5) and fields[1]:
            novelty = (("novelty", fields[4]),) if len(fields) == 5 else ()
            draft.relation(*fields[1:4], concepts=True, attributes=novelty)
        else:
            raise FormatError(
                f"a line of {len(fields)} columns that is neither a mention nor a relation",
                expected="id, start, end, text, type, concept; or id, type, concept, concept;"
                " cut by tabs",
                where=at,
            )
    return draft.document()


def _mention(draft: Draft, fields: list[str], where: str) -> None:
    start, end, surface, kind, raw, parts, *_ = *fields[1:], "", ""
    if not kind:
        raise FormatError(
            "a mention without a type", expected="a type in the fifth column", where=where
        )
    cut = "|" if parts and raw.count("|") == parts.count("|") else ","
    draft.entity(
        kind,
        [(whole_number(start) or 0, whole_number(end) or 0)],
        surface=surface,
        where=where,
        concepts=() if raw in _NO_CONCEPT else tuple(part for part in raw.split(cut) if part),
        attributes=(("parts", parts),) if parts else (),
    )


def write_pubtator(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents as PubTator, and return what it cannot hold; `scheme` is not used.

    The title is the text up to the first newline; later newlines are written as spaces.
    """
    problems: list[Problem] = []
    lines: list[str] = []
    for document in documents:
        name = re.sub(r"[|\s]+", "_", document.id) or "_"
        if name != document.id:
            what = f"the id {quoted(document.id)} is written as {name!r}"
            problems.append(Problem("id-changed", document.source or document.id, what))
        lines += _text_lines(name, document, problems)
        lines += [line for e in document.entities for line in _entity(name, document, e, problems)]
        for relation in document.relations:
            lines += _relation(name, document, relation, problems)
        lines.append("")
    write_text(path, "\n".join(lines) + "\n" if lines else "")
    return problems + _unheld(documents, path)


def _text_lines(name: str, document: Document, problems: list[Problem]) -> list[str]:
    title, newline, abstract = document.text.partition("\n")
    safe_title, safe_abstract = (re.sub(r"[\r\n\0]", " ", part) for part in (title, abstract))
    if (safe_title, safe_abstract) != (title, abstract):
        what = "line ends after the first are written as spaces"
        problems.append(Problem("line-ends-changed", document.source or document.id, what))
    lines = [f"{name}|t|{safe_title}"]
    return [*lines, f"{name}|a|{safe_abstract}"] if newline else lines


def _column(text: str) -> str:
    """Text in a form that fits a column."""
    return re.sub(r"[\t\r\n\0]", " ", text)


def _entity(name: str, document: Document, entity: Entity, problems: list[Problem]) -> list[str]:
    where = place(document, entity.start, entity.end)
    if len(entity.fragments) > 1:
        what = f"{entity.type} {entity.id} has {len(entity.fragments)} fragments"
        problems.append(Problem("discontinuous", where, what, lost=True))
        return []
    parts = dict(entity.attributes).get("parts", "")
    cut = "|" if parts else ","
    columns = [name, str(entity.start), str(entity.end), _column(document.surface(entity))]
    columns += [_column(entity.type), _column(cut.join(entity.concepts)) or "-1"]
    return ["\t".join([*columns, _column(parts)] if parts else columns)]


def _relation(
    name: str, document: Document, relation: Relation, problems: list[Problem]
) -> list[str]:
    """A relation's line; one between mentions is written only if each has a concept."""
    ends = [relation.head, relation.tail]
    if relation.level == "entity":
        concepts = {e.id: e.concepts[0] for e in document.entities if len(e.concepts) == 1}
        ends = [concepts.get(end, "") for end in ends]
        what = f"{relation.type} {relation.id} links mentions; PubTator links concepts"
        where = document.source or document.id
        lost = not all(ends)
        problems.append(Problem("relation-of-mentions", where, what, lost=lost))
        if lost:
            return []
    columns = [name, relation.type, *ends]
    columns += [value for key, value in relation.attributes if key == "novelty"][:1]
    return ["\t".join(map(_column, columns))]


def _unheld(documents: Sequence[Document], path: Path) -> list[Problem]:
    entities = [entity for document in documents for entity in document.entities]
    sure = sum(entity.confidence is not None for entity in entities)
    more = sum(any(key != "parts" for key, _ in entity.attributes) for entity in entities)
    cut = sum(bool(document.sentences) for document in documents)
    described = sum(bool(document.attributes) for document in documents)
    return [
        *unheld(path, "confidences of entities", sure, kind="confidences-unheld"),
        *unheld(path, "entities' attributes", more, kind="attributes-unheld"),
        *unheld(path, "documents lose sentences and tokens", cut, kind="segmentation-unheld"),
        *unheld(path, "documents lose attributes", described, kind="attributes-unheld"),
    ]
