"""The formats of biomedical abstracts: PubTator, and BioC as XML or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from confide.errors import FormatError
from confide.files import Tree
from confide.text import files, reading
from confide.text.document import Document, Entity, Relation
from confide.text.places import BYTES, CHARACTERS, TextPart
from confide.text.reading import Draft, Format, Options, Output, Reading, Source, Supports
from confide.text.rows import Row, clean, malformed, quoted, whole_number
from confide.text.segment import cut_at

_NO_CONCEPT = frozenset(("", "-", "-1"))

# --- PubTator -------------------------------------------------------------------------------------
#
# A title and an abstract, mentions with offsets, relations between concepts.
#
# Offsets run over title + one character + abstract; that character is a newline in the document.

_HEAD = re.compile(r"([^|\t\n]+)\|([ta])\|(.*)", re.DOTALL)
_Lines = list[tuple[str, str]]


def _read_pubtator(path: Path, options: Options) -> Reading:
    """Read a PubTator file (gzip or not).

    A mention's concepts are its identifiers, split at commas (at ``|`` if a seventh column names as
    many parts); ``-1`` and ``-`` are not concepts. Relations have level "concept", and a fifth
    column becomes the attribute "novelty".

    Raises:
        FormatError: a line is not one of PubTator's, or belongs to another document.
        DataError: there is no document.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    return source.read(_blocks(source), _abstract, format="pubtator")


def _blocks(source: Source) -> Iterator[tuple[str, str, _Lines]]:
    """The lines of each document, with their places: up to a blank line, or the next title."""
    block: _Lines = []
    for number, line in enumerate([*files.lines_of(source.text), ""], 1):
        head = _HEAD.match(line)
        if block and (not line.strip() or (head and head[2] == "t")):
            yield block[0][0], "", block
            block = []
        if line.strip():
            block.append((f"{source.path}:{number}", line))


def _abstract(source: Source, where: str, name: str, block: _Lines) -> Document:
    title = _HEAD.match(block[0][1])
    if title is None or title[2] != "t":
        raise FormatError("a line before any title", expected="id|t|title", where=where)
    name, rest = title[1], block[1:]
    draft = Draft(source, name, title[3], where)
    if rest and (head := _HEAD.match(rest[0][1])) and head[1] == name:
        draft.text += f"\n{head[3]}"
        rest = rest[1:]
    for at, line in rest:
        if _HEAD.match(line):
            one = f"one abstract of {name}"
            raise FormatError("an abstract without its title", expected=one, where=at)
        fields = line.split("\t")
        start, end = (whole_number(field) for field in [*fields, "", ""][1:3])
        if fields[0] != name:
            first = f"the id {name!r} first"
            raise FormatError("a line of another document", expected=first, where=at)
        if len(fields) >= 5 and start is not None and end is not None:
            surface, kind, raw, parts, *_ = *fields[3:], "", ""
            if not kind:
                fifth = "a type in the fifth column"
                raise FormatError("a mention without a type", expected=fifth, where=at)
            cut = "|" if parts and raw.count("|") == parts.count("|") else ","
            draft.entity(
                kind,
                [(start, end)],
                surface=surface,
                where=at,
                concepts=() if raw in _NO_CONCEPT else tuple(filter(None, raw.split(cut))),
                attributes=(("parts", parts),) if parts else (),
            )
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


def _write_pubtator(documents: Sequence[Document], out: Output) -> None:
    """Write documents as PubTator.

    The title is the text up to the first newline; later newlines are written as spaces. A relation
    between mentions is written only if each of them has one concept.
    """
    lines: list[str] = []
    more = 0
    for document in documents:
        where = document.where
        name = re.sub(r"[|\s]+", "_", document.id) or "_"
        if name != document.id:
            what = f"the id {quoted(document.id)} is written as {name!r}"
            out.problems.note("id-changed", where, what)
        title, newline, abstract = document.text.partition("\n")
        safe = [re.sub(r"[\r\n\0]", " ", part) for part in (title, abstract)]
        if safe != [title, abstract]:
            what = "line ends after the first are written as spaces"
            out.problems.note("line-ends-changed", where, what)
        lines.append(f"{name}|t|{safe[0]}")
        lines += [f"{name}|a|{safe[1]}"] if newline else []
        rows: list[list[str]] = []
        for entity in document.entities:
            parts = dict(entity.attributes).get("parts", "")
            concepts = ("|" if parts else ",").join(entity.concepts) or "-1"
            row = [str(entity.start), str(entity.end), document.surface(entity), entity.type]
            rows.append([*row, concepts, *([parts] if parts else [])])
            more += any(key != "parts" for key, _ in entity.attributes)
        concept_of = {e.id: e.concepts[0] for e in document.entities if len(e.concepts) == 1}
        for relation in document.relations:
            ends = [relation.head, relation.tail]
            if relation.level == "entity":
                ends = [concept_of.get(end, "") for end in ends]
                what = f"{relation.type} {relation.id} links mentions; PubTator links concepts"
                out.problems.note("relation-of-mentions", where, what, lost=not all(ends))
            novelty = [value for key, value in relation.attributes if key == "novelty"][:1]
            rows += [[relation.type, *ends, *novelty]] if all(ends) else []
        lines += [
            "\t".join(re.sub(r"[\t\r\n\0]", " ", cell) for cell in (name, *row)) for row in rows
        ]
        lines.append("")
    out.write("\n".join(lines) + "\n" if lines else "")
    out.unheld("attributes-unheld", more, "entities' attributes")


PUBTATOR = Format(
    "pubtator",
    "PubTator",
    ".pubtator",
    _read_pubtator,
    _write_pubtator,
    Supports(relations=True, concept_relations=True, concepts="all", said=True),
    by_text=lambda sample: _HEAD.match(sample.rows[0]) is not None,
)

# --- BioC -----------------------------------------------------------------------------------------
#
# Documents of passages, mentions with document offsets, relations.
#
# Relations come in three forms: nodes that point to mentions; two infons with the concepts,
# ``entity1`` and ``entity2`` or ``role1`` and ``role2`` (BioRED, PubTator 3); or two infons of
# other names that hold the concepts (BioCreative V CDR). XML files are first turned into the
# objects of BioC's JSON.

_ROOT = "collection"
_COLLECTIONS = ("documents", "PubTator3")
_PASSAGES = re.compile(r'"passages"\s*:\s*\[')
_CONCEPTS = ("identifier", "MESH", "concept", "normalized_id")
_ENDS = (("entity1", "entity2"), ("role1", "role2"))
_NOT_AN_END = frozenset(("type", "relation", "novel", "score"))


def _read_bioc(path: Path, options: Options) -> Reading:
    """Read a BioC collection, XML or JSON (or JSON Lines of documents).

    A document's text is that of its passages, one newline between them. A mention's concepts are
    its infon "identifier" (or "MESH"), cut at commas.

    Raises:
        FormatError: it is neither XML nor JSON, or a part is not of BioC's form.
        DataError: there is no document.
    """
    if files.root_name(files.read_bytes(path)):
        root, encoding = files.parse_xml(path, options.encoding)
        if root.tag != _ROOT:
            raise FormatError("not BioC", expected=f"<{_ROOT}>", where=str(path))
        source = Source(path, options, encoding=encoding)
        rows: list[Any] = [_from_xml(item) for item in root.findall("document")]
    else:
        source = reading.open_source(path, options)
        rows = []
        for where, _, row in source.objects():
            key = next((key for key in ("passages", *_COLLECTIONS) if key in row), "")
            with options.document(source.problems, where):
                if not isinstance(row.get(key), list):
                    what = "neither a BioC collection nor a document"
                    raise FormatError(what, expected='"documents"', where=where)
                rows += [row] if key == "passages" else row[key]
    named = (
        (f"{path}#{row.get('id', n) if isinstance(row, dict) else n}", "", row)
        for n, row in enumerate(rows, 1)
    )
    return source.read(named, _document, format="bioc")


def _from_xml(item: files.Element) -> Tree:
    """Convert a BioC XML element to BioC JSON."""
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


def _infons(row: Row) -> dict[str, str]:
    """Infons as strings; for an object (PubTator 3), its identifier."""
    infons = row.tree.get("infons")
    found = {}
    for key, value in infons.items() if isinstance(infons, dict) else ():
        if isinstance(value, dict):
            value = value.get("identifier")
        if isinstance(value, str | int | float):
            found[clean(str(key))] = clean(str(value))
    return found


def _document(source: Source, where: str, name: str, tree: Tree) -> Document:
    if not isinstance(tree, dict):
        raise malformed("a document", "an object", tree, where=where)
    row = Row(tree, where)
    passages = row.rows("passages")
    sentences = [one for passage in passages for one in passage.rows("sentences")]
    text, blocks = _lay_out(passages, source)
    draft = Draft(source, clean(str(tree.get("id", where))), text, where)
    draft.attributes = tuple(_infons(row).items())
    draft.units = (CHARACTERS, BYTES)
    if sentences:
        draft.sentences = cut_at(text, [block.start for block in blocks[1:]])
    # of blocks that begin at one place the first of the file is the last here: looked at first
    draft.within = sorted(blocks, key=attrgetter("offset"), reverse=True)[::-1]
    levels = [row, *passages, *sentences]
    for item in (one for level in levels for one in level.rows("annotations")):
        _add_entity(draft, item)
    for item in (one for level in levels for one in level.rows("relations")):
        _add_relation(draft, item)
    return draft.document()


def _lay_out(passages: Sequence[Row], source: Source) -> tuple[str, list[TextPart]]:
    """The document's text, and its passages or their sentences with their places in it.

    Passages are separated by a newline; sentences of one passage by as many blanks as the file's
    offsets leave (at least one, at most eight).
    """
    text = ""
    blocks: list[TextPart] = []
    for passage in passages:
        first = True
        for part in passage.rows("sentences") or [passage]:
            if part.tree.get("text") in (None, ""):
                continue
            own = part.text("text", source.problems)
            offset = part.whole(part.tree.get("offset", 0), "the offset of a passage")
            if not first:
                gap = offset - blocks[-1].offset - (blocks[-1].end - blocks[-1].start)
                text += " " * min(max(gap, 1), 8)
            elif blocks:
                text += "\n"
            first = False
            blocks.append(TextPart(len(text), len(text) + len(own), offset))
            text += own
    return text, blocks


def _add_entity(draft: Draft, item: Row) -> None:
    infons = _infons(item)
    places = [(one.number("offset"), one.number("length")) for one in item.rows("locations")]
    key = next((key for key in _CONCEPTS if key in infons), "")
    named = infons.pop(key, "")
    draft.entity(
        infons.pop("type", "") or draft.source.options.bare_type,
        [(start, start + length) for start, length in places],
        given=clean(str(item.tree.get("id", ""))),
        surface=item.tree.get("text"),
        concepts=tuple(p.strip() for p in named.split(",") if p.strip() not in _NO_CONCEPT),
        attributes=tuple(infons.items()),
    )


def _add_relation(draft: Draft, item: Row) -> None:
    infons = _infons(item)
    kind = infons.get("type") or infons.get("relation") or "relation"
    nodes = [node.tree for node in item.rows("nodes")]
    concepts = None if nodes else _concept_ends(infons, draft.source.roles)
    if len(nodes) == 2:
        roles = ["_".join(clean(str(node.get("role", ""))).split()) for node in nodes]
        ends = [clean(str(node.get("refid", ""))) for node in nodes]
        if not reading.head_first(roles, draft.source.roles):
            roles, ends = roles[::-1], ends[::-1]
        attributes = (("roles", " ".join(roles)),) if all(roles) else ()
        draft.relation(kind, *ends, attributes=attributes)
    elif concepts is not None:
        novelty = (("novelty", infons["novel"]),) if "novel" in infons else ()
        draft.relation(kind, *concepts, concepts=True, attributes=novelty)
    else:
        number = f"{kind} {item.tree.get('id')} has {len(nodes)} nodes"
        draft.lost("dangling-relation", f"{number}: two mentions or concepts are needed")


def _concept_ends(
    infons: dict[str, str], known: dict[frozenset[str], str]
) -> tuple[str, str] | None:
    """The two concepts that a relation's infons name."""
    for first, second in _ENDS:
        if first in infons and second in infons:
            head, tail = infons[first], infons[second]
            if first == "role1":  # Gene|1234
                head, tail = head.rpartition("|")[2], tail.rpartition("|")[2]
            return (head, tail) if head and tail else None
    left = [key for key in infons if key not in _NOT_AN_END and infons[key]]
    if len(left) != 2:
        return None
    head, tail = left if reading.head_first(left, known) else left[::-1]
    return infons[head], infons[tail]


def _write_bioc(documents: Sequence[Document], out: Output) -> None:
    """Write documents as one BioC collection: one passage each, mentions with their fragments.

    A concept with a comma in it cannot be told from two: it is lost, and named. Raises DataError if
    the file cannot be written.
    """
    for document in documents:
        for one in document.entities:
            if any("," in concept for concept in one.concepts):
                what = f"{one.type} {one.id}: a concept with a comma"
                out.problems.lost("concepts-unheld", document.where, what)
    around = '{\n"source": "confide", "documents": [\n', "\n]\n}\n"
    out.write_json(map(_record, documents), around=around)


def _record(document: Document) -> Tree:
    passage = {
        "offset": 0,
        "infons": {},
        "text": document.text,
        "annotations": [_annotation(document, entity) for entity in document.entities],
    }
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


BIOC = Format(
    "bioc",
    "BioC",
    ".json",
    _read_bioc,
    _write_bioc,
    Supports(
        fragments=True, relations=True, concept_relations=True, concepts="all", attributes=True
    ),
    by_bytes=lambda path, raw: files.root_name(raw) == _ROOT,
    by_text=lambda sample: sample.is_json and _PASSAGES.search(sample.text) is not None,
)
