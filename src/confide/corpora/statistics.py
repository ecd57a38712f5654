"""Statistics of `confide data stats`: documents, tokens, entities, relations, and duplicates."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

from confide.corpora.dealing import read_all
from confide.files import Tree
from confide.kinds.relations.batches import Rules, candidates
from confide.scoring.counts import shared_characters
from confide.text.document import Document, Entity, stated_pairs
from confide.text.segment import AUTO, Splitting, into_sentences, segmented, tokens_covered

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileStats:
    """One file, or all of them.

    `lengths` counts mentions by their number of tokens. `nested` counts entities inside another
    one, `overlapping` those that share only some characters with another, `discontinuous` those of
    several fragments. `repeated` counts sentences that occur earlier in the same file(s).
    `relations` counts relations by type, `pairs` the pairs of entities to look at for them: those
    that a document states, or else every two in a sentence. Both are empty if a corpus is not about
    relations.
    """

    documents: int
    sentences: int
    tokens: int
    distinct_tokens: int
    entities: dict[str, int]
    lengths: dict[int, int]
    nested: int
    overlapping: int
    discontinuous: int
    sentences_with_entities: int
    repeated: int
    relations: dict[str, int] = field(default_factory=dict)
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts by file (as its path was given) and in all.

    `shared` has, for each pair of files that share any, the number of distinct sentences (the same
    tokens) that stand in both: text that is trained on and tested on. `vocabulary` counts distinct
    tokens over all files, as they are and in lower case. Numbers only, no text.
    """

    files: dict[str, FileStats]
    total: FileStats
    shared: dict[tuple[str, str], int]
    vocabulary: dict[str, int]
    problems: dict[str, int]

    def to_json(self) -> Tree:
        """The counts as plain values; `shared` as a list of `{"files": [a, b], "sentences": n}`."""
        shared = [{"files": list(pair), "sentences": count} for pair, count in self.shared.items()]
        return {**asdict(self), "shared": shared}


def stats(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    scheme: str | None = None,
    language: str = AUTO,
) -> Stats:
    """Count what annotated files hold.

    Text without sentences is segmented first, as text of this `language` (`text.segment`).

    Raises DataError if there is no document, and what the readers raise.
    """
    readings = read_all(paths, format=format, scheme=scheme)
    splitting = Splitting(language)
    corpora = {
        path: [segmented(document) for document in into_sentences(reading.documents, splitting)]
        for path, reading in readings.items()
    }
    everything = [document for documents in corpora.values() for document in documents]
    words = {word for document in everything for tokens in _sentences(document) for word in tokens}
    problems = Counter(p.kind for reading in readings.values() for p in reading.problems)
    return Stats(
        files={path: count_documents(documents) for path, documents in corpora.items()},
        total=count_documents(everything),
        shared=_shared(corpora),
        vocabulary={"words": len(words), "lower_case": len({word.lower() for word in words})},
        problems=dict(sorted(problems.items())),
    )


def count_documents(documents: Sequence[Document]) -> FileStats:
    """The counts of segmented documents."""
    entities = [entity for document in documents for entity in document.entities]
    sentences = [tokens for document in documents for tokens in _sentences(document)]
    shapes = Counter(shape for document in documents for shape in _shapes(document.entities))
    lengths = Counter(length for document in documents for length in _lengths(document))
    links = Counter(relation.type for document in documents for relation in document.relations)
    return FileStats(
        documents=len(documents),
        sentences=len(sentences),
        tokens=sum(map(len, sentences)),
        distinct_tokens=len({word for tokens in sentences for word in tokens}),
        entities=dict(sorted(Counter(entity.type for entity in entities).items())),
        lengths=dict(sorted(lengths.items())),
        nested=shapes["nested"],
        overlapping=shapes["overlapping"],
        discontinuous=sum(len(entity.fragments) > 1 for entity in entities),
        sentences_with_entities=sum(map(_sentences_with_entities, documents)),
        repeated=len(sentences) - len(set(sentences)),
        relations=dict(sorted(links.items())),
        pairs=_pairs(documents) if links or any(map(stated_pairs, documents)) else 0,
    )


def _pairs(documents: Sequence[Document]) -> int:
    return len(candidates(documents, Rules(direction="undirected")).examples)


def _sentences(document: Document) -> list[Tokens]:
    return [document.token_texts(sentence) for sentence in document.sentences]


def _sentences_with_entities(document: Document) -> int:
    starts = [sentence.start for sentence in document.sentences]
    return len({bisect_right(starts, entity.start) for entity in document.entities})


def _lengths(document: Document) -> Iterator[int]:
    """For each entity the number of tokens that it touches."""
    tokens = [token for sentence in document.sentences for token in sentence.tokens]
    for entity in document.entities:
        touched = (tokens_covered(tokens, start, end) for start, end in entity.fragments)
        yield sum(last - first for first, last in touched)


def _shapes(entities: Sequence[Entity]) -> list[str]:
    """`nested` or `overlapping` for each entity that is; nothing for one that only holds others."""
    ordered = sorted(entities, key=lambda entity: entity.start)
    sizes = [sum(end - start for start, end in entity.fragments) for entity in ordered]
    nested, overlapping = set(), set()
    for i, one in enumerate(ordered):
        for j in range(i + 1, len(ordered)):
            if ordered[j].start >= one.end:
                break
            shared = shared_characters(one.fragments, ordered[j].fragments)
            inside = {place for place in (i, j) if sizes[place] == shared}
            nested |= inside
            if shared and not inside:
                overlapping |= {i, j}
    return ["nested"] * len(nested) + ["overlapping"] * len(overlapping - nested)


def _shared(corpora: dict[str, list[Document]]) -> dict[tuple[str, str], int]:
    distinct = {
        path: {tokens for document in documents for tokens in _sentences(document)}
        for path, documents in corpora.items()
    }
    counts = {
        (one, other): len(distinct[one] & distinct[other])
        for one, other in combinations(distinct, 2)
    }
    return {pair: count for pair, count in counts.items() if count}
