"""One tag set from several: rename or drop types of entities and relations, and check them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from confide.errors import DataError
from confide.text.document import Document, Problem
from confide.text.formats.base import place

_NONE: Mapping[str, str] = MappingProxyType({})


def retag(
    documents: Sequence[Document],
    tag_map: Mapping[str, str],
    *,
    relations: Mapping[str, str] = _NONE,
) -> tuple[list[Document], list[Problem]]:
    """Rename the entity types of documents by `tag_map`; ``""`` drops a type.

    Types that are not in the map keep their names. `relations` does the same for the types of
    relations; a pair whose relation is dropped becomes one without a relation. Reported are every
    dropped relation, whether by its own type or along with an entity ("relation-dropped"), and keys
    of a map that occur nowhere ("tag-not-found", "relation-not-found": often a spelling mistake).
    """
    problems: list[Problem] = []
    changed = list(documents)
    source = documents[0].source.rpartition(":")[0] or documents[0].id if documents else ""
    if tag_map:
        seen = {entity.type for document in documents for entity in document.entities}
        changed = [_renamed(document, tag_map, problems) for document in changed]
        for kind in sorted(tag_map.keys() - seen):
            what = f"the tag map names {kind!r}, which no entity has"
            problems.append(Problem("tag-not-found", source, what))
    if relations:
        seen = {relation.type for document in documents for relation in document.relations}
        changed = [_related(document, relations, problems) for document in changed]
        for kind in sorted(relations.keys() - seen):
            what = f"the map of relations names {kind!r}, which no relation has"
            problems.append(Problem("relation-not-found", source, what))
    return changed, problems


def _related(document: Document, names: Mapping[str, str], problems: list[Problem]) -> Document:
    """A document whose relations have their common names."""
    if not any(relation.type in names for relation in document.relations):
        return document
    kept = []
    for relation in document.relations:
        name = names.get(relation.type, relation.type)
        if name:
            kept.append(replace(relation, type=name))
        else:
            what = f"{relation.type} {relation.id} is of a type that the map of relations drops"
            where = document.source or document.id
            problems.append(Problem("relation-dropped", where, what, lost=True))
    return replace(document, relations=tuple(kept))


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
        DataError: a type was not declared; the error names the first one and its place.
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
