"""Bags: all sentences that name one pair of entities (Riedel, Yao & McCallum 2010).

In training text, a bag is the sentences of one *triple* (head, tail, relation); a pair that is said
to have no relation has the triple of `NO_RELATION`. In held-out text, a bag is the sentences of one
pair, with the facts that are known about it. A pair has a direction: swapping head and tail gives
another pair.

Shapes: G bags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.relations import NO_RELATION, RelationExample
from confide.errors import DataError
from confide.text.document import Document, Entity

Rows = NDArray[np.int64]
Same = Literal["concept", "letters"]
Names = tuple[str, str]


@dataclass(frozen=True)
class Bags:
    """Examples grouped into bags: `groups[g]` are rows of `examples`, ascending.

    `pairs[g]` are the identities of head and tail. Training bags have labels, `relations[g]`;
    held-out pairs have facts, `facts[g]`, without `NO_RELATION`; the other of the two is empty.
    Bags are in the order in which the text first names them.
    """

    examples: list[RelationExample]
    groups: list[Rows]
    pairs: list[Names]
    relations: list[str]
    facts: list[frozenset[str]]

    def __len__(self) -> int:
        return len(self.groups)


def training_bags(
    examples: Sequence[RelationExample], documents: Sequence[Document], *, same: Same
) -> Bags:
    """The bags of triples. `documents` are those that the examples were made from.

    A sentence whose pair has several relations occurs in `examples` once for each.
    """
    found: list[RelationExample] = []
    rows: dict[tuple[Names, str], list[int]] = {}
    for example, names in _named(examples, documents, same):
        for relation in _relations(example, documents[example.document]):
            rows.setdefault((names, relation), []).append(len(found))
            one = example if relation == example.relation else replace(example, relation=relation)
            found.append(one)
    return Bags(
        examples=found,
        groups=[np.array(own, np.int64) for own in rows.values()],
        pairs=[names for names, _ in rows],
        relations=[relation for _, relation in rows],
        facts=[],
    )


def held_out_bags(
    examples: Sequence[RelationExample], documents: Sequence[Document], *, same: Same
) -> Bags:
    """The bags of pairs, each with all relations that any of its sentences is said to state."""
    rows: dict[Names, list[int]] = {}
    facts: dict[Names, set[str]] = {}
    for number, (example, names) in enumerate(_named(examples, documents, same)):
        rows.setdefault(names, []).append(number)
        facts.setdefault(names, set()).update(_relations(example, documents[example.document]))
    return Bags(
        examples=list(examples),
        groups=[np.array(own, np.int64) for own in rows.values()],
        pairs=list(rows),
        relations=[],
        facts=[frozenset(facts[names] - {NO_RELATION}) for names in rows],
    )


def identity(document: Document, entity_id: str, same: Same) -> str:
    """What makes two mentions one entity.

    With "concept", the first identifier of a knowledge base; without an identifier, or with
    "letters", the mention's letters in one case with single blanks. Raises DataError if the
    document has no such entity.
    """
    for entity in document.entities:
        if entity.id == entity_id:
            return _identity(document, entity, same)
    raise DataError(
        "a pair names no entity of its document",
        got=entity_id,
        where=document.source or document.id,
    )


def _identity(document: Document, entity: Entity, same: Same) -> str:
    if same not in ("concept", "letters"):
        raise DataError(
            "unknown way to tell entities apart", expected="concept or letters", got=repr(same)
        )
    if same == "concept" and entity.concepts:
        return entity.concepts[0]
    return " ".join(document.surface(entity).casefold().split())


def _named(
    examples: Sequence[RelationExample], documents: Sequence[Document], same: Same
) -> Iterator[tuple[RelationExample, Names]]:
    """Every example, and the identities of its head and tail."""
    for example in examples:
        document = documents[example.document]
        head, tail = example.pair
        yield example, (identity(document, head, same), identity(document, tail, same))


def _relations(example: RelationExample, document: Document) -> list[str]:
    """The example's own relation, then the others that its document states of the same pair."""
    found = {example.relation: None}
    if len(document.relations) > 1 and example.relation != NO_RELATION:
        concepts = {one.id: one.concepts for one in document.entities if one.id in example.pair}
        head, tail = example.pair
        for relation in document.relations:
            ends = relation.head, relation.tail
            of_mentions = relation.level == "entity" and ends == example.pair
            of_concepts = (
                relation.level == "concept"
                and ends[0] in concepts[head]
                and ends[1] in concepts[tail]
            )
            if relation.type != NO_RELATION and (of_mentions or of_concepts):
                found[relation.type] = None
    return list(found)
