"""What may be told about text without showing any: counts of its parts, and a fingerprint."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from confide.data.batches.bags import Same
from confide.data.corpus.pairing import pairs_of
from confide.text.document import NO_RELATION, Document, Problem, stated_pairs
from confide.text.segment import segmented, words_cut
from confide.userfiles import Tree

TRAIN = "train"


def part_facts(
    parts: Mapping[str, Sequence[Document]],
    problems: Sequence[Problem],
    *,
    relations: bool,
    bags: Same | None = None,
) -> Tree:
    """Sentences of each part, entities of the training text by type, and problems by kind.

    `words_cut`: the words in these entities, and how many of them raw text has otherwise.

    With `relations`, also the training text's relations by type. With `bags` (what makes two
    mentions one entity), also how many pairs of entities each part has (several in one document
    count as one).
    """
    train = parts[TRAIN]
    types = Counter(entity.type for document in train for entity in document.entities)
    facts: Tree = {part: _sentences(documents) for part, documents in parts.items()}
    facts["entities"] = dict(sorted(types.items()))
    facts["words_cut"] = asdict(words_cut(train))
    if bags is not None:
        facts["pairs"] = {part: len(set(pairs_of(of, bags))) for part, of in parts.items()}
    if relations:
        facts["relations"] = count_relations(train)
    return {**facts, "problems": kinds_of(problems)}


def count_entities(documents: Iterable[Document]) -> dict[str, int]:
    """How many entities of each type are annotated."""
    types = Counter(entity.type for document in documents for entity in document.entities)
    return dict(sorted(types.items()))


def count_relations(documents: Iterable[Document]) -> dict[str, int]:
    """How many relations of each type are annotated."""
    types = Counter(relation.type for document in documents for relation in document.relations)
    return {name: count for name, count in sorted(types.items()) if name != NO_RELATION}


def kinds_of(problems: Iterable[Problem]) -> dict[str, int]:
    """How many problems there are of each kind."""
    return dict(sorted(Counter(problem.kind for problem in problems).items()))


def fingerprint(texts: Iterable[tuple[str, str, Sequence[Document]]], *, relations: bool) -> str:
    """A digest of all text and entities (and `relations`), with their sites and parts."""
    digest = hashlib.sha256()
    for name, part, documents in texts:
        digest.update(f"\0{name}\0{part}".encode())
        for document in documents:
            digest.update(document.text.encode("utf-8", "surrogatepass"))
            marks = [(entity.type, entity.fragments) for entity in document.entities]
            digest.update(repr(marks).encode())
            if relations:
                digest.update(_related(document))
    return digest.hexdigest()


def _related(document: Document) -> bytes:
    """What a document says about relations, for a digest."""
    mentions = [(entity.id, entity.concepts) for entity in document.entities]
    links = [(one.level, one.type, one.head, one.tail) for one in document.relations]
    said = repr((mentions, links, stated_pairs(document)))
    return said.encode("utf-8", "surrogatepass")


def _sentences(documents: Sequence[Document]) -> int:
    return sum(bool(s.tokens) for document in documents for s in segmented(document).sentences)
