"""BioC, as XML or JSON: documents of passages, mentions with document offsets, relations.

Relations come in three forms: nodes that point to mentions; two infons with the concepts,
``entity1`` and ``entity2`` or ``role1`` and ``role2`` (BioRED, PubTator 3); or two infons of other
names that hold the concepts (BioCreative V CDR). XML and JSON files are first turned into the same
plain objects, those of BioC's JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Problem, Relation, Sentence, Span
from confide.text.files import LONGEST_JSON, read_bytes, read_text
from confide.text.formats.base import (
    Options,
    Reading,
    merged_fragments,
    reads,
    shown,
    shown_at,
    whole_text,
)
from confide.text.formats.jsonl import rows_of
from confide.text.formats.markup import Element, parse, root_name
from confide.text.formats.records import clean
from confide.text.formats.sentences import joined
from confide.userfiles import Tree

ROOT = "collection"
_COLLECTIONS = ("documents", "PubTator3")
_PASSAGES = re.compile(r'"passages"\s*:\s*\[')
_CONCEPTS = ("identifier", "MESH", "concept", "normalized_id")
_ENDS = (("entity1", "entity2"), ("role1", "role2"))
_NO_CONCEPT = frozenset(("", "-", "-1"))
_NOT_AN_END = frozenset(("type", "relation", "novel", "score"))
_TRIED = 64
"""How many overlapping blocks are searched for a mention."""


@dataclass(slots=True)
class _Block:
    """A passage or a sentence: its text, where the file says it begins, and where it does here."""

    text: str
    offset: int
    start: int = 0


@dataclass(slots=True)
class _Draft:
    """A document in the making; `names` are the entities by the ids that the file gives them."""

    where: str
    text: str
    blocks: list[_Block]
    entities: list[Entity] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    by_offset: list[_Block] = field(init=False)
    offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        # of blocks that begin at one place the first of the file is the last here: looked at first
        self.by_offset = sorted(self.blocks, key=lambda block: block.offset, reverse=True)[::-1]
        self.offsets = [block.offset for block in self.by_offset]


def read(path: Path, options: Options) -> Reading:
    """Read a BioC collection, XML or JSON (or JSON Lines of documents).

    A document's text is that of its passages, one newline between them. A mention's concepts are
    its infon "identifier" (or "MESH"), cut at commas.

    Raises:
        FormatError: it is neither XML nor JSON, or a part is not of BioC's form.
        DataError: there is no document, or a type was not declared.
    """
    problems: list[Problem] = []
    rows, encoding = _rows(path, options)
    documents = [
        _document(row, f"{path}#{row.get('id', n)}", options, problems)
        for n, row in enumerate(rows, 1)
    ]
    if not documents:
        raise DataError("there is no document", where=str(path))
    return Reading(documents, problems, "bioc", {"encoding": encoding})


def is_bioc(row: object) -> bool:
    """Whether a JSON object is a BioC collection or document."""
    return isinstance(row, dict) and any(
        isinstance(row.get(key), list) for key in ("passages", *_COLLECTIONS)
    )


def begins_bioc(text: str) -> bool:
    """Whether the beginning of a JSON file is BioC's."""
    return _PASSAGES.search(text) is not None


def _rows(path: Path, options: Options) -> tuple[list[Tree], str]:
    """The documents as BioC's JSON has them."""
    if root_name(read_bytes(path)):
        root, encoding = parse(path, options.encoding)
        if root.tag != ROOT:
            raise _odd("not BioC", f"<{ROOT}>", str(path))
        return [_from_xml(item) for item in root.findall("document")], encoding
    text, encoding = read_text(path, options.encoding, longest=LONGEST_JSON)
    rows: list[Tree] = []
    for where, _, row in rows_of(text, path):
        if not is_bioc(row):
            raise _odd("neither a BioC collection nor a document", '"documents"', where)
        key = next((key for key in _COLLECTIONS if key in row), "")
        rows += [row] if "passages" in row else _list(row, key, where)
    return rows, encoding


def _odd(what: str, expected: str, where: str) -> FormatError:
    return FormatError(what, expected=expected, where=where)


def _from_xml(item: Element) -> Tree:
    """An element, with everything in it, as the object that BioC's JSON has for it."""
    row: Tree = dict(item.attrib)
    row["infons"] = {infon.get("key", ""): infon.text or "" for infon in item.findall("infon")}
    for name in ("id", "offset", "text"):
        found = item.find(name)
        if found is not None:
            row[name] = found.text or ""
    for name in ("passage", "sentence", "annotation", "relation"):
        row[f"{name}s"] = [_from_xml(one) for one in item.findall(name)]
    row["locations"] = [dict(one.attrib) for one in item.findall("location")]
    row["nodes"] = [dict(one.attrib) for one in item.findall("node")]
    return row


def _list(row: Tree, key: str, where: str) -> list[Tree]:
    items = row.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _odd(f'"{key}"', "a list of objects", where)
    return items


def _number(value: object, what: str, where: str) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value) if len(value) < 16 else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _odd(what, "a whole number", where)
    return value


def _infons(row: Tree) -> dict[str, str]:
    """Infons as strings; for an object (PubTator 3), its identifier."""
    infons = row.get("infons")
    found = {}
    for key, value in infons.items() if isinstance(infons, dict) else ():
        if isinstance(value, dict):
            value = value.get("identifier")
        if isinstance(value, str | int | float):
            found[clean(str(key))] = clean(str(value))
    return found


def _document(row: Tree, where: str, options: Options, problems: list[Problem]) -> Document:
    passages = _list(row, "passages", where)
    groups = [list(_blocks(passage, where, problems)) for passage in passages]
    cut = any(_list(passage, "sentences", where) for passage in passages)
    draft = _Draft(where, *_laid_out(groups))
    sentences: tuple[Sentence, ...] = ()
    if cut:
        sentences = _sentences(draft.blocks)
    levels = [row, *passages]
    levels += [one for passage in passages for one in _list(passage, "sentences", where)]
    for level in levels:
        for item in _list(level, "annotations", where):
            _entity(draft, item, options, problems)
    for level in levels:
        for item in _list(level, "relations", where):
            _relation(draft, item, problems)
    attributes = tuple(_infons(row).items())
    return Document(
        clean(str(row.get("id", where))),
        draft.text,
        entities=tuple(draft.entities),
        relations=tuple(draft.relations),
        sentences=sentences,
        attributes=attributes,
        source=where,
    )


# --- text ---------------------------------------------------------------------------------


def _blocks(passage: Tree, where: str, problems: list[Problem]) -> Iterator[_Block]:
    """A passage's text, in one piece or by sentences."""
    parts = _list(passage, "sentences", where) or [passage]
    for part in parts:
        text = part.get("text")
        if text is None or text == "":
            continue
        if not isinstance(text, str):
            raise _odd("a passage's text", "a string", where)
        offset = _number(part.get("offset", 0), "the offset of a passage", where)
        yield _Block(whole_text(text, where, problems), offset)


def _laid_out(groups: Sequence[Sequence[_Block]]) -> tuple[str, list[_Block]]:
    """The document's text, and all blocks with their places in it.

    Passages are separated by a newline; sentences of one passage by as many blanks as the file's
    offsets leave (at least one, at most eight).
    """
    text = ""
    blocks: list[_Block] = []
    for group in groups:
        for number, block in enumerate(group):
            if number:
                last = group[number - 1]
                gap = block.offset - last.offset - len(last.text)
                text += " " * min(max(gap, 1), 8)
            elif blocks:
                text += "\n"
            block.start = len(text)
            text += block.text
            blocks.append(block)
    return text, blocks


def _sentences(blocks: Sequence[_Block]) -> tuple[Sentence, ...]:
    sentences = []
    for block in blocks:
        tokens = [token for part in joined([block.text]).sentences for token in part.tokens]
        if tokens:
            moved = tuple((start + block.start, end + block.start) for start, end in tokens)
            sentences.append(Sentence(moved[0][0], moved[-1][1], moved))
    return tuple(sentences)


def _placed(draft: _Draft, offset: int, length: int) -> Span | None:
    """The document's characters for a stretch given in the file's offsets; None without text."""
    last = bisect_right(draft.offsets, offset)
    for block in reversed(draft.by_offset[max(0, last - _TRIED) : last]):
        start = offset - block.offset
        if start >= 0 and length > 0 and start + length <= len(block.text):
            return block.start + start, block.start + start + length
    return None


# --- annotation ---------------------------------------------------------------------------


def _entity(draft: _Draft, item: Tree, options: Options, problems: list[Problem]) -> None:
    infons, given = _infons(item), clean(str(item.get("id", "")))
    kind = infons.get("type") or options.bare_type
    options.require(kind, draft.where)
    spans = []
    for place in _list(item, "locations", draft.where):
        numbers = [_number(place.get(key), f"a mention's {key}", draft.where)
                   for key in ("offset", "length")]  # fmt: skip
        span = _placed(draft, *numbers)
        if span is None:
            what = f"{kind} {given} at {numbers[0]}, {numbers[1]} long, is in no passage"
            problems.append(Problem("beyond-text", draft.where, what, lost=True))
            return
        spans.append(span)
    if not spans:
        what = f"{kind} {given} has no location"
        problems.append(Problem("empty-span", draft.where, what, lost=True))
        return
    fragments = merged_fragments(spans)
    if len(fragments) != len(spans):
        what = f"fragments of {kind} {given} touch or overlap: made one"
        problems.append(Problem("fragments-merged", draft.where, what))
    surface = item.get("text")
    if isinstance(surface, str) and surface and not reads(draft.text, spans, surface):
        found = shown_at(draft.text, spans)
        what = f"{kind} {given} is {shown(surface)} but {found} in the text"
        problems.append(Problem("text-mismatch", draft.where, what))
    if given in draft.names:
        problems.append(Problem("duplicate-id", draft.where, f"two mentions are called {given}"))
    name = f"T{len(draft.entities) + 1}"
    draft.names.setdefault(given, name)
    key = next((key for key in _CONCEPTS if key in infons), "")
    named = infons.pop(key, "")
    concepts = tuple(part.strip() for part in named.split(",") if part.strip() not in _NO_CONCEPT)
    infons.pop("type", None)
    draft.entities.append(
        Entity(name, kind, fragments, concepts=concepts, attributes=tuple(infons.items()))
    )


def _relation(draft: _Draft, item: Tree, problems: list[Problem]) -> None:
    infons = _infons(item)
    kind = infons.get("type") or infons.get("relation") or "relation"
    nodes = _list(item, "nodes", draft.where)
    name = f"R{len(draft.relations) + 1}"
    if nodes:
        ends = [draft.names.get(clean(str(node.get("refid", "")))) for node in nodes]
        if len(ends) != 2 or None in ends:
            what = (
                f"{kind} {item.get('id')} has {len(ends)} nodes, two that are mentions are needed"
            )
            problems.append(Problem("dangling-relation", draft.where, what, lost=True))
            return
        roles = " ".join("_".join(clean(str(node.get("role", ""))).split()) for node in nodes)
        attributes = (("roles", roles),) if len(roles.split()) == 2 else ()
        head, tail = map(str, ends)
        draft.relations.append(Relation(name, kind, head, tail, attributes=attributes))
        return
    concepts = _concept_ends(infons)
    if concepts is None:
        what = f"{kind} {item.get('id')} names neither two nodes nor two concepts"
        problems.append(Problem("dangling-relation", draft.where, what, lost=True))
        return
    novelty = (("novelty", infons["novel"]),) if "novel" in infons else ()
    draft.relations.append(Relation(name, kind, *concepts, level="concept", attributes=novelty))


def _concept_ends(infons: dict[str, str]) -> tuple[str, str] | None:
    """The two concepts that a relation's infons name."""
    for first, second in _ENDS:
        if first in infons and second in infons:
            head, tail = (infons[key].rpartition("|")[2] if first == "role1" else infons[key]
                          for key in (first, second))  # fmt: skip
            return (head, tail) if head and tail else None
    left = [value for key, value in infons.items() if key not in _NOT_AN_END]
    return (left[0], left[1]) if len(left) == 2 and all(left) else None
