"""What a format can hold, stated once, and documents cut down to it with every loss named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confide.text.document import Document, Entity, Problem, Relation
from confide.text.formats.base import place, unheld


@dataclass(frozen=True, slots=True)
class Keeps:
    """What a format can hold of a document besides its text and entities of one stretch.

    `fragments`: entities of several stretches. `relations`: links between two written mentions.
    `concept_relations`: links between concepts. `said`: attributes of entities and relations.
    `attributes`: those of the document. `sentences`: its sentences and tokens.
    """

    fragments: bool = False
    relations: bool = False
    concept_relations: bool = False
    confidences: bool = False
    concepts: bool = False
    said: bool = False
    attributes: bool = False
    sentences: bool = False


def cut_down(
    documents: Sequence[Document], keeps: Keeps, path: Path
) -> tuple[list[Document], list[Problem]]:
    """The documents with what a format can hold, and a problem for everything else."""
    problems: list[Problem] = []
    cut = [_cut(document, keeps, problems) for document in documents]
    return cut, [*problems, *_counted(documents, keeps, path)]


def _cut(document: Document, keeps: Keeps, problems: list[Problem]) -> Document:
    entities = []
    for entity in document.entities:
        if len(entity.fragments) > 1 and not keeps.fragments:
            what = f"{entity.type} {entity.id} has {len(entity.fragments)} fragments"
            where = place(document, entity.start, entity.end)
            problems.append(Problem("discontinuous", where, what, lost=True))
        else:
            entities.append(_entity(entity, keeps))
    known = {entity.id for entity in entities}
    relations = []
    for relation in document.relations if keeps.relations or keeps.concept_relations else ():
        concept = relation.level == "concept"
        linked = {relation.head, relation.tail} <= known
        if keeps.concept_relations if concept else keeps.relations and linked:
            relations.append(_relation(relation, keeps))
            continue
        what = f"{relation.type} {relation.id} does not link two written mentions"
        where = document.source or document.id
        problems.append(Problem("relation-unheld", where, what, lost=True))
    return replace(
        document,
        entities=tuple(entities),
        relations=tuple(relations),
        sentences=document.sentences if keeps.sentences else (),
        attributes=document.attributes if keeps.attributes else (),
    )


def _entity(entity: Entity, keeps: Keeps) -> Entity:
    return replace(
        entity,
        confidence=entity.confidence if keeps.confidences else None,
        concepts=entity.concepts if keeps.concepts else (),
        attributes=entity.attributes if keeps.said else (),
    )


def _relation(relation: Relation, keeps: Keeps) -> Relation:
    return replace(
        relation,
        confidence=relation.confidence if keeps.confidences else None,
        attributes=relation.attributes if keeps.said else (),
    )


def _counted(documents: Sequence[Document], keeps: Keeps, path: Path) -> list[Problem]:
    """A problem for each sort of thing that goes from all documents."""
    entities = [entity for document in documents for entity in document.entities]
    relations = [relation for document in documents for relation in document.relations]
    counts = {}
    if not keeps.confidences:
        sure = sum(one.confidence is not None for one in entities)
        sure += sum(one.confidence is not None for one in relations)
        counts["confidences-unheld"] = sure, "confidences of entities or relations"
    said = 0
    if not keeps.said:
        said += sum(bool(one.attributes) for one in entities)
        said += sum(bool(one.attributes) for one in relations)
    if not keeps.concepts:
        said += sum(bool(one.concepts) for one in entities if keeps.said or not one.attributes)
    counts["attributes-unheld"] = said, "entities or relations lose concepts or attributes"
    if not (keeps.relations or keeps.concept_relations):
        counts["relations-unheld"] = len(relations), "relations: the format has none"
    if not keeps.attributes:
        described = sum(bool(document.attributes) for document in documents)
        counts["document-attributes-unheld"] = described, "documents lose attributes"
    if not keeps.sentences:
        cut = sum(bool(document.sentences) for document in documents)
        counts["segmentation-unheld"] = cut, "documents lose sentences and tokens"
    return [
        problem
        for kind, (count, what) in counts.items()
        for problem in unheld(path, what, count, kind=kind)
    ]
