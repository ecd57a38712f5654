"""BioC, as XML or JSON: documents of passages, mentions with document offsets, relations.

Relations come in three forms: nodes that point to mentions; two infons with the concepts,
``entity1`` and ``entity2`` or ``role1`` and ``role2`` (BioRED, PubTator 3); or two infons of other
names that hold the concepts (BioCreative V CDR). XML and JSON files are first turned into the same
plain objects, those of BioC's JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from confide.errors import FormatError
from confide.files import Tree
from confide.text.document import Document, Entity, Problem, Relation, Sentence
from confide.text.draft import Draft, Source, head_first, join_sentences, read_documents
from confide.text.files import (
    LONGEST_JSON,
    Element,
    parse_xml,
    read_bytes,
    read_text,
    root_name,
    write_parts,
)
from confide.text.places import BYTES, CHARACTERS, TextPart
from confide.text.reading import (
    Options,
    Reading,
    Supports,
    clean,
    mend_surrogates,
    reduce_to,
    whole_number,
)
from confide.text.rows import json_objects

ROOT = "collection"
_COLLECTIONS = ("documents", "PubTator3")
_PASSAGES = re.compile(r'"passages"\s*:\s*\[')
_CONCEPTS = ("identifier", "MESH", "concept", "normalized_id")
_ENDS = (("entity1", "entity2"), ("role1", "role2"))
_NO_CONCEPT = frozenset(("", "-", "-1"))
_NOT_AN_END = frozenset(("type", "relation", "novel", "score"))


def read_bioc(path: Path, options: Options) -> Reading:
    """Read a BioC collection, XML or JSON (or JSON Lines of documents).

    A document's text is that of its passages, one newline between them. A mention's concepts are
    its infon "identifier" (or "MESH"), cut at commas.

    Raises:
        FormatError: it is neither XML nor JSON, or a part is not of BioC's form.
        DataError: there is no document, or a type was not declared.
    """
    source = Source(path, options, "", "")
    rows, source.encoding = _rows(path, options, source.problems)
    named = (
        (f"{path}#{row.get('id', n) if isinstance(row, dict) else n}", "", row)
        for n, row in enumerate(rows, 1)
    )
    return read_documents(source, named, partial(_document, source), format="bioc")


def is_bioc(row: object) -> bool:
    """Return whether a JSON object is a BioC collection or document."""
    return isinstance(row, dict) and any(
        isinstance(row.get(key), list) for key in ("passages", *_COLLECTIONS)
    )


def begins_bioc(text: str) -> bool:
    """Return whether the beginning of a JSON file is BioC's."""
    return _PASSAGES.search(text) is not None


def _rows(path: Path, options: Options, problems: list[Problem]) -> tuple[list[Any], str]:
    """The documents as BioC's JSON has them."""
    if root_name(read_bytes(path)):
        root, encoding = parse_xml(path, options.encoding)
        if root.tag != ROOT:
            raise FormatError("not BioC", expected=f"<{ROOT}>", where=str(path))
        return [_from_xml(item) for item in root.findall("document")], encoding
    text, encoding = read_text(path, options.encoding, longest=LONGEST_JSON)
    rows: list[Any] = []
    for where, _, row in json_objects(text, path, options=options, problems=problems):
        with options.document(problems, where):
            if not is_bioc(row):
                raise FormatError(
                    "neither a BioC collection nor a document", expected='"documents"', where=where
                )
            key = next((key for key in _COLLECTIONS if key in row), "")
            rows += [row] if "passages" in row else row[key]
    return rows, encoding


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
        raise FormatError(f'"{key}"', expected="a list of objects", where=where)
    return items


def _number(value: object, what: str, where: str) -> int:
    number = whole_number(value)
    if number is None or number < 0:
        raise FormatError(what, expected="a whole number", where=where)
    return number


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


def _document(source: Source, where: str, name: str, row: Tree) -> Document:
    if not isinstance(row, dict):
        raise FormatError("a document", expected="an object", where=where)
    passages = _list(row, "passages", where)
    groups = [list(_blocks(passage, where, source.problems)) for passage in passages]
    cut = [one for passage in passages for one in _list(passage, "sentences", where)]
    text, blocks = _laid_out(groups)
    about = tuple(_infons(row).items())
    draft = source.draft(clean(str(row.get("id", where))), text, where, attributes=about)
    draft.units = (CHARACTERS, BYTES)
    draft.sentences = _sentences(text, blocks) if cut else ()
    # of blocks that begin at one place the first of the file is the last here: looked at first
    draft.within = sorted(blocks, key=attrgetter("offset"), reverse=True)[::-1]
    levels = [row, *passages, *cut]
    for item in (one for level in levels for one in _list(level, "annotations", where)):
        _entity(draft, item)
    for item in (one for level in levels for one in _list(level, "relations", where)):
        _relation(draft, item, source.roles)
    return draft.document()


# --- text ---------------------------------------------------------------------------------


def _blocks(passage: Tree, where: str, problems: list[Problem]) -> Iterator[tuple[str, int]]:
    """A passage's text, in one piece or by sentences, and where the file says it begins."""
    parts = _list(passage, "sentences", where) or [passage]
    for part in parts:
        text = part.get("text")
        if text is None or text == "":
            continue
        if not isinstance(text, str):
            raise FormatError("a passage's text", expected="a string", where=where)
        offset = _number(part.get("offset", 0), "the offset of a passage", where)
        yield mend_surrogates(text, where, problems), offset


def _laid_out(groups: Sequence[Sequence[tuple[str, int]]]) -> tuple[str, list[TextPart]]:
    """The document's text, and all blocks with their places in it.

    Passages are separated by a newline; sentences of one passage by as many blanks as the file's
    offsets leave (at least one, at most eight).
    """
    text = ""
    blocks: list[TextPart] = []
    for group in groups:
        for number, (part, offset) in enumerate(group):
            if number:
                gap = offset - blocks[-1].offset - (blocks[-1].end - blocks[-1].start)
                text += " " * min(max(gap, 1), 8)
            elif blocks:
                text += "\n"
            blocks.append(TextPart(len(text), len(text) + len(part), offset))
            text += part
    return text, blocks


def _sentences(text: str, blocks: Sequence[TextPart]) -> tuple[Sentence, ...]:
    sentences = []
    for block in blocks:
        parts = join_sentences([text[block.start : block.end]]).sentences
        tokens = [token for part in parts for token in part.tokens]
        if tokens:
            moved = tuple((start + block.start, end + block.start) for start, end in tokens)
            sentences.append(Sentence(moved[0][0], moved[-1][1], moved))
    return tuple(sentences)


# --- annotation ---------------------------------------------------------------------------


def _entity(draft: Draft, item: Tree) -> None:
    infons = _infons(item)
    spans = []
    for place in _list(item, "locations", draft.where):
        start, length = (_number(place.get(key), f"a mention's {key}", draft.where)
                         for key in ("offset", "length"))  # fmt: skip
        spans.append((start, start + length))
    key = next((key for key in _CONCEPTS if key in infons), "")
    named = infons.pop(key, "")
    draft.entity(
        infons.pop("type", "") or draft.options.bare_type,
        spans,
        given=clean(str(item.get("id", ""))),
        surface=item.get("text"),
        concepts=tuple(p.strip() for p in named.split(",") if p.strip() not in _NO_CONCEPT),
        attributes=tuple(infons.items()),
    )


def _relation(draft: Draft, item: Tree, known: dict[frozenset[str], str]) -> None:
    infons = _infons(item)
    kind = infons.get("type") or infons.get("relation") or "relation"
    nodes = _list(item, "nodes", draft.where)
    concepts = None if nodes else _concept_ends(infons, known)
    if len(nodes) == 2:
        roles = ["_".join(clean(str(node.get("role", ""))).split()) for node in nodes]
        ends = [clean(str(node.get("refid", ""))) for node in nodes]
        if not head_first(roles, known):
            roles, ends = roles[::-1], ends[::-1]
        attributes = (("roles", " ".join(roles)),) if all(roles) else ()
        draft.relation(kind, *ends, attributes=attributes)
    elif concepts is not None:
        novelty = (("novelty", infons["novel"]),) if "novel" in infons else ()
        draft.relation(kind, *concepts, concepts=True, attributes=novelty)
    else:
        what = (
            f"{kind} {item.get('id')} has {len(nodes)} nodes: two mentions or concepts are needed"
        )
        draft.note("dangling-relation", what)


def _concept_ends(
    infons: dict[str, str], known: dict[frozenset[str], str]
) -> tuple[str, str] | None:
    """The two concepts that a relation's infons name."""
    for first, second in _ENDS:
        if first in infons and second in infons:
            head, tail = (infons[key].rpartition("|")[2] if first == "role1" else infons[key]
                          for key in (first, second))  # fmt: skip
            return (head, tail) if head and tail else None
    left = [key for key in infons if key not in _NOT_AN_END and infons[key]]
    if len(left) != 2:
        return None
    head, tail = left if head_first(left, known) else left[::-1]
    return infons[head], infons[tail]


# --- Documents to BioC's JSON ---------------------------------------------------------------------
#
# One passage each, mentions with a location for every fragment.

_KEEPS = Supports(
    fragments=True, relations=True, concept_relations=True, concepts=True, attributes=True
)


def write_bioc(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents as one BioC collection, and return what it cannot hold.

    BioC's JSON holds every fragment of a mention, its concepts, and relations between mentions or
    between concepts. A concept with a comma in it cannot be told from two: it is lost, and named.
    `scheme` is not used. Raises DataError if the file cannot be written.
    """
    cut, problems = reduce_to(documents, _KEEPS, path)
    for document in cut:
        problems += _commas(document)
    write_parts(path, _parts(cut))
    return problems


def _parts(documents: Sequence[Document]) -> list[str]:
    rows = [json.dumps(_record(document), ensure_ascii=False) for document in documents]
    return ['{\n"source": "confide", "documents": [\n', ",\n".join(rows), "\n]\n}\n"]


def _record(document: Document) -> Tree:
    annotations = [_annotation(document, entity) for entity in document.entities]
    passage = {"offset": 0, "infons": {}, "text": document.text, "annotations": annotations}
    return {
        "id": document.id,
        "passages": [passage],
        "infons": dict(document.attributes),
        "relations": [_link(relation) for relation in document.relations],
    }


def _annotation(document: Document, entity: Entity) -> Tree:
    infons = {"type": entity.type}
    kept = [concept for concept in entity.concepts if "," not in concept]
    if kept:
        infons["identifier"] = ",".join(kept)
    return {
        "id": entity.id,
        "infons": infons,
        "text": document.surface(entity),
        "locations": [{"offset": start, "length": end - start} for start, end in entity.fragments],
    }


def _link(relation: Relation) -> Tree:
    infons = {"type": relation.type}
    if relation.level == "concept":
        infons |= {"entity1": relation.head, "entity2": relation.tail}
        return {"id": relation.id, "infons": infons, "nodes": []}
    nodes = [{"refid": relation.head, "role": "head"}, {"refid": relation.tail, "role": "tail"}]
    return {"id": relation.id, "infons": infons, "nodes": nodes}


def _commas(document: Document) -> list[Problem]:
    """A problem for each mention one of whose concepts has a comma in it."""
    where = document.source or document.id
    return [
        Problem("concepts-unheld", where, f"{one.type} {one.id}: a concept with a comma", lost=True)
        for one in document.entities
        if any("," in concept for concept in one.concepts)
    ]
