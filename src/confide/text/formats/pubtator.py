"""PubTator: a title and an abstract, mentions with offsets, relations between concepts.

Offsets run over title + one character + abstract; that character is a newline in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Problem, Relation
from confide.text.files import lines_of, read_text, write_text
from confide.text.formats.base import Options, Reading, is_number, place, shown, shown_at, unheld

_HEAD = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
_NO_CONCEPT = frozenset(("", "-", "-1"))
_BLANKS = re.compile(r"\s")


@dataclass(slots=True)
class _Block:
    """The lines of one document; `text` is made when all of it has been read."""

    id: str
    line: int
    title: str = ""
    abstract: str | None = None
    entities: list[Entity] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    _text: str | None = None

    @property
    def text(self) -> str:
        """Title, newline, abstract; the title alone if there is no abstract line."""
        if self._text is None:
            whole = self.title if self.abstract is None else f"{self.title}\n{self.abstract}"
            self._text = whole
        return self._text


def read(path: Path, options: Options) -> Reading:
    """Read a PubTator file (gzip or not).

    A mention's concepts are its identifiers, split at commas (at ``|`` if a seventh column names as
    many parts); ``-1`` and ``-`` are not concepts. Relations have level "concept", and a fifth
    column becomes the attribute "novelty".

    Raises:
        FormatError: a line is not one of PubTator's, or belongs to another document.
        DataError: there is no document, or a type was not declared.
    """
    text, encoding = read_text(path, options.encoding)
    problems: list[Problem] = []
    documents = [
        Document(
            block.id,
            block.text,
            entities=tuple(block.entities),
            relations=tuple(block.relations),
            source=f"{path}:{block.line}",
        )
        for block in _blocks(lines_of(text), path, options, problems)
    ]
    if not documents:
        raise DataError("the file is empty", where=str(path))
    return Reading(documents, problems, "pubtator", {"encoding": encoding})


def _blocks(
    lines: Sequence[str], path: Path, options: Options, problems: list[Problem]
) -> Iterator[_Block]:
    block: _Block | None = None
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        if not line.strip():
            if block is not None:
                yield block
            block = None
            continue
        head = _HEAD.match(line)
        if head and head.group(2) == "t":
            if block is not None:
                yield block
            block = _Block(head.group(1), number, head.group(3))
            continue
        if block is None:
            raise _odd("a line before any title", where, "id|t|title")
        if head:
            if head.group(1) != block.id or block.abstract is not None or block.entities:
                raise _odd("an abstract without its title", where, f"one abstract of {block.id}")
            block.abstract, block._text = head.group(3), None
        else:
            _annotation(block, line.split("\t"), where, options, problems)
    if block is not None:
        yield block


def _odd(what: str, where: str, expected: str) -> FormatError:
    return FormatError(what, where=where, expected=expected)


def _annotation(
    block: _Block, fields: list[str], where: str, options: Options, problems: list[Problem]
) -> None:
    """Add the mention or the relation of a line to its document."""
    if fields[0] != block.id:
        raise _odd("a line of another document", where, f"the id {block.id!r} first")
    if len(fields) >= 5 and is_number(fields[1]) and is_number(fields[2]):
        options.require(fields[4], where)
        entity = _mention(block, fields, where, problems)
        if entity is not None:
            block.entities.append(entity)
    elif len(fields) in (4, 5) and fields[1]:
        novelty = (("novelty", fields[4]),) if len(fields) == 5 else ()
        name = f"R{len(block.relations) + 1}"
        relation = Relation(
            name, fields[1], fields[2], fields[3], level="concept", attributes=novelty
        )
        block.relations.append(relation)
    else:
        raise _odd(
            f"a line of {len(fields)} columns that is neither a mention nor a relation",
            where,
            "id, start, end, text, type, concept; or id, type, concept, concept; cut by tabs",
        )


def _mention(
    block: _Block, fields: list[str], where: str, problems: list[Problem]
) -> Entity | None:
    """The entity of a line; None if its offsets point nowhere."""
    start, end, surface, kind = int(fields[1]), int(fields[2]), fields[3], fields[4]
    text = block.text
    if not kind:
        raise _odd("a mention without a type", where, "a type in the fifth column")
    if not start < end <= len(text):
        slug = "empty-span" if start >= end else "beyond-text"
        what = f"{kind} {start}-{end} points nowhere in a text of {len(text)} characters"
        problems.append(Problem(slug, where, what, lost=True))
        return None
    same = end - start == len(surface)
    if not same or _BLANKS.sub(" ", text[start:end]) != _BLANKS.sub(" ", surface):
        found = shown_at(text, [(start, end)])
        what = f"{kind} {start}-{end} is {shown(surface)} in the line but {found} in the text"
        problems.append(Problem("text-mismatch", where, what))
    raw = fields[5] if len(fields) > 5 else ""
    parts = fields[6] if len(fields) > 6 else ""
    cut = "|" if parts and raw.count("|") == parts.count("|") else ","
    concepts = () if raw in _NO_CONCEPT else tuple(part for part in raw.split(cut) if part)
    attributes = (("parts", parts),) if parts else ()
    name = f"T{len(block.entities) + 1}"
    return Entity(name, kind, ((start, end),), concepts=concepts, attributes=attributes)


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents as PubTator, and return what it cannot hold; `scheme` is not used.

    The title is the text up to the first newline; later newlines are written as spaces.
    """
    problems: list[Problem] = []
    lines: list[str] = []
    for document in documents:
        name = re.sub(r"[|\s]+", "_", document.id) or "_"
        if name != document.id:
            what = f"the id {shown(document.id)} is written as {name!r}"
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
