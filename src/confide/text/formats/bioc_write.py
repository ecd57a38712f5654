"""Documents to BioC's JSON: one passage each, mentions with a location for every fragment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from confide.text.document import Document, Entity, Problem, Relation
from confide.text.files import write_parts
from confide.text.formats.keeping import Keeps, cut_down
from confide.userfiles import Tree

_KEEPS = Keeps(
    fragments=True, relations=True, concept_relations=True, concepts=True, attributes=True
)


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents as one BioC collection, and return what it cannot hold.

    BioC's JSON holds every fragment of a mention, its concepts, and relations between mentions or
    between concepts. A concept with a comma in it cannot be told from two: it is lost, and named.
    `scheme` is not used. Raises DataError if the file cannot be written.
    """
    cut, problems = cut_down(documents, _KEEPS, path)
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
