"""One tag set out of several: rename entity types, or drop them, and check what is left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from confide.errors import DataError
from confide.text.document import Document, Problem
from confide.text.formats.base import place


def retag(
    documents: Sequence[Document], tag_map: Mapping[str, str]
) -> tuple[list[Document], list[Problem]]:
    """Documents whose entity types are renamed by `tag_map`; ``""`` drops a type.

    Types that are not in the map keep their names. A relation of an entity that was dropped goes
    with it and is named ("relation-dropped"), as is a key of the map that no entity has
    ("tag-not-found": often a spelling mistake).
    """
    problems: list[Problem] = []
    if not tag_map:
        return list(documents), problems
    renamed = [_renamed(document, tag_map, problems) for document in documents]
    seen = {entity.type for document in documents for entity in document.entities}
    source = documents[0].source.rpartition(":")[0] or documents[0].id if documents else ""
    for kind in sorted(tag_map.keys() - seen):
        what = f"the tag map names {kind!r}, which no entity has"
        problems.append(Problem("tag-not-found", source, what))
    return renamed, problems


def _renamed(document: Document, tag_map: Mapping[str, str], problems: list[Problem]) -> Document:
    if not any(entity.type in tag_map for entity in document.entities):
        return document
    kept = [
        replace(entity, type=tag_map.get(entity.type, entity.type))
        for entity in document.entities
        if tag_map.get(entity.type, entity.type)
    ]
    dropped = {entity.id for entity in document.entities} - {entity.id for entity in kept}
    relations = []
    for relation in document.relations:
        if relation.level == "entity" and {relation.head, relation.tail} & dropped:
            what = f"{relation.type} {relation.id} links an entity that the tag map drops"
            where = document.source or document.id
            problems.append(Problem("relation-dropped", where, what, lost=True))
        else:
            relations.append(relation)
    return replace(document, entities=tuple(kept), relations=tuple(relations))


def check_types(documents: Sequence[Document], types: Collection[str]) -> None:
    """Check that no entity has a type outside `types`.

    Raises:
        DataError: naming the first type that was not declared, and where it is.
    """
    declared = frozenset(types)
    for document in documents:
        for entity in document.entities:
            if entity.type not in declared:
                raise DataError(
                    "an entity type that was not declared",
                    expected=" or ".join(sorted(declared)) or "none",
                    got=repr(entity.type),
                    where=place(document, entity.start, entity.end),
                    fix="declare it, or map it in the site's tags",
                )
