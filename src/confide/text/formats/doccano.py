"""Documents to doccano's JSON Lines: entities by offsets, relations by number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from confide.text.document import Document, Problem
from confide.text.files import write_text
from confide.text.formats.base import place, unheld
from confide.userfiles import Tree


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents for doccano, and return what it cannot hold; `scheme` is not used."""
    problems: list[Problem] = []
    lines = [
        json.dumps(_record(document, problems), ensure_ascii=False) + "\n" for document in documents
    ]
    write_text(path, "".join(lines))
    entities = [entity for document in documents for entity in document.entities]
    sure = sum(entity.confidence is not None for entity in entities)
    more = sum(bool(entity.concepts or entity.attributes) for entity in entities)
    cut = sum(bool(document.sentences) for document in documents)
    return [
        *problems,
        *unheld(path, "confidences of entities", sure, kind="confidences-unheld"),
        *unheld(path, "entities' concepts or attributes", more, kind="attributes-unheld"),
        *unheld(path, "documents lose sentences and tokens", cut, kind="segmentation-unheld"),
    ]


def _record(document: Document, problems: list[Problem]) -> Tree:
    """One document; a discontinuous entity and its relations are left out."""
    numbers: dict[str, int] = {}
    entities = []
    for entity in document.entities:
        if len(entity.fragments) > 1:
            what = f"{entity.type} {entity.id} has {len(entity.fragments)} fragments"
            where = place(document, entity.start, entity.end)
            problems.append(Problem("discontinuous", where, what, lost=True))
            continue
        numbers[entity.id] = len(numbers) + 1
        entities.append(
            {
                "id": numbers[entity.id],
                "label": entity.type,
                "start_offset": entity.start,
                "end_offset": entity.end,
            }
        )
    relations: list[Tree] = []
    for relation in document.relations:
        ends = numbers.get(relation.head), numbers.get(relation.tail)
        if relation.level == "concept" or None in ends:
            what = f"{relation.type} {relation.id} does not link two written mentions"
            where = document.source or document.id
            problems.append(Problem("relation-unheld", where, what, lost=True))
            continue
        number = len(relations) + 1
        relations.append(
            {"id": number, "from_id": ends[0], "to_id": ends[1], "type": relation.type}
        )
    record = {"id": document.id, "text": document.text}
    record |= {key: value for key, value in document.attributes if key not in record}
    return {**record, "entities": entities, "relations": relations}
