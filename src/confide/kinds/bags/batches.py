"""Bags: all sentences that name one pair of entities (Riedel, Yao & McCallum 2010).

In training text, a bag is the sentences of one *triple* (head, tail, relation); a pair that is said
to have no relation has the triple of `NO_RELATION`. In held-out text, a bag is the sentences of one
pair, with the facts that are known about it. A pair has a direction: swapping head and tail gives
another pair.

Shapes: G bags.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.errors import DataError
from confide.kinds.pieces import EncodedPairs, relation_numbers, window
from confide.kinds.relations.batches import RelationExample
from confide.text.document import NO_RELATION, Document, Span
from confide.text.segment import tokenise
from confide.training.batches import Rows, offsets, places
from confide.training.vocabulary import PAD, UNK, Normalisation, Vocabulary, normalise

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
    """Return the identity by which two mentions are one entity.

    With "concept", the first identifier of a knowledge base; without an identifier, or with
    "letters", the mention's letters in one case with single blanks. Raises DataError if the
    document has no such entity.
    """
    entity = next((one for one in document.entities if one.id == entity_id), None)
    if entity is None:
        what = "a pair names no entity of its document"
        raise DataError(what, got=entity_id, where=document.where)
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


# --- Inputs of a piecewise CNN
#
# Relation examples become numbers: words, and the places of two entities.
#
# Nothing is padded: the words of all sentences follow one another. A sentence of more words than
# `longest` is cut to those around its entities, as in `kinds.pieces`: never through an entity,
# unless it is longer than half a window; if the two are too far apart, the middle is dropped.
#
# Shapes: N words of all sentences (of a batch: of the batch's), S sentences, B sentences of a
# batch, U distinct words of a batch.


Ints = NDArray[np.int32]

LEAST = 8
"""A window of fewer words cannot hold two entities and anything about them."""
PIECES = 3


@dataclass(frozen=True, eq=False)
class EncodedSentences(EncodedPairs):
    """Sentences as the ids of their words.

    A word further from an entity than `farthest` has the position of that distance.
    """

    words_N: Ints
    farthest: int

    def only(self, rows: Rows) -> Self:
        """These sentences, in this order."""
        return replace(super().only(rows), words_N=self.words_N[places(self.from_S1, rows)])


@dataclass(frozen=True, eq=False)
class SentenceBatch:
    """A batch for a piecewise CNN: sentences one after the other, without padding.

    `distinct_U` are the batch's words, `PAD` first. `ids_N3` holds for each word its place in
    `distinct_U` and its positions relative to head and tail: 0 is none, `farthest + 1` is inside
    the entity, less is before it. `pieces_N` is the sentence times three, plus 0 up to the end of
    the entity that ends first, 1 up to the end of the other, 2 behind. `rows_B` (numpy) are the
    positions in the `EncodedSentences`.
    """

    rows_B: Rows
    distinct_U: Tensor
    ids_N3: Tensor
    pieces_N: Tensor
    relations_B: Tensor

    def __len__(self) -> int:
        return len(self.rows_B)

    def part(self, start: int, end: int) -> SentenceBatch:
        """Some of its sentences."""
        edges = torch.tensor([PIECES * start, PIECES * end])
        begin, stop = torch.searchsorted(self.pieces_N, edges).tolist()
        return replace(
            self,
            rows_B=self.rows_B[start:end],
            ids_N3=self.ids_N3[begin:stop],
            pieces_N=self.pieces_N[begin:stop] - PIECES * start,
            relations_B=self.relations_B[start:end],
        )


def encode_sentences(
    examples: Sequence[RelationExample],
    *,
    words: Vocabulary,
    relations: Sequence[str],
    how: Normalisation,
    longest: int = 120,
    farthest: int = 60,
) -> EncodedSentences:
    """Every example as words, and its relation as its place in `relations`.

    Raises DataError if an example has another relation or the window is too small.
    """
    if longest < LEAST:
        raise DataError(
            "the window is too small for two entities",
            expected=f"at least {LEAST} words",
            got=str(longest),
        )
    relations_S = relation_numbers(examples, relations)
    rows = [_row(example, longest) for example in examples]
    forms: dict[str, int] = {}
    forms_N = np.array(
        [forms.setdefault(form, len(forms)) for row in rows for form in row.words], np.int32
    )
    ids_F = words.ids([normalise(form, how) if form else "" for form in forms])
    ids_F[[number for form, number in forms.items() if not form]] = UNK
    return EncodedSentences(
        words_N=ids_F[forms_N],
        from_S1=offsets([len(row.words) for row in rows]),
        heads_S2=np.array([row.head for row in rows], np.int32).reshape(-1, 2),
        tails_S2=np.array([row.tail for row in rows], np.int32).reshape(-1, 2),
        relations_S=relations_S,
        farthest=farthest,
    )


def sentence_batch(encoded: EncodedSentences, rows_B: Rows) -> SentenceBatch:
    """These sentences as one batch, in this order."""
    lengths_B = encoded.lengths_S[rows_B]
    starts_B = offsets(lengths_B)[:-1]
    words_N = encoded.words_N[places(encoded.from_S1, rows_B)]
    distinct_U, spread_N = np.unique(np.append(words_N, PAD), return_inverse=True)
    step_N = np.arange(len(words_N)) - np.repeat(starts_B, lengths_B)
    heads_B2 = encoded.heads_S2[rows_B].astype(np.int64)
    tails_B2 = encoded.tails_S2[rows_B].astype(np.int64)
    ids_N3 = np.empty((len(words_N), 3), np.int64)
    ids_N3[:, 0] = spread_N[:-1]
    for column, spans_B2 in enumerate((heads_B2, tails_B2), 1):
        first_N, last_N = np.repeat(spans_B2[:, 0], lengths_B), np.repeat(spans_B2[:, 1], lengths_B)
        away_N = step_N - np.minimum(np.maximum(step_N, first_N), last_N - 1)
        far = encoded.farthest
        ids_N3[:, column] = np.minimum(np.maximum(away_N, -far), far) + (far + 1)
    ends_2B = np.sort(np.stack((heads_B2[:, 1], tails_B2[:, 1])), 0)
    pieces_N = np.repeat(np.arange(0, PIECES * len(rows_B), PIECES), lengths_B)
    for ends_B in ends_2B:
        pieces_N += step_N >= np.repeat(ends_B, lengths_B)
    return SentenceBatch(
        rows_B=rows_B,
        distinct_U=torch.from_numpy(distinct_U.astype(np.int64)),
        ids_N3=torch.from_numpy(ids_N3),
        pieces_N=torch.from_numpy(pieces_N),
        relations_B=torch.from_numpy(encoded.relations_S[rows_B].astype(np.int64)),
    )


def predict_sentence_batches(
    encoded: EncodedSentences, *, words_per_batch: int = 32_768
) -> Iterator[SentenceBatch]:
    """Every sentence once, in order, about `words_per_batch` words in a batch."""
    batch_S = encoded.from_S1[:-1] // words_per_batch
    cuts = np.flatnonzero(np.diff(batch_S)) + 1
    for rows in np.split(np.arange(len(encoded)), cuts):
        if len(rows):
            yield sentence_batch(encoded, rows)


# --- one example ----------------------------------------------------------------------------


class _Row(NamedTuple):
    words: list[str]
    head: tuple[int, int]
    tail: tuple[int, int]


def _row(example: RelationExample, longest: int) -> _Row:
    """The words of an example and its entities among them; a text without a word has one."""
    spans = tokenise(example.text)
    if not spans:
        return _Row([""], (0, 1), (0, 1))
    words = [example.text[start:end] for start, end in spans]
    head, tail = _touched(spans, example.head), _touched(spans, example.tail)
    if len(words) <= longest:
        return _Row(words, head, tail)
    kept = window(len(words), [head, tail], longest)
    inner = [(bisect_left(kept, a), bisect_left(kept, b)) for a, b in (head, tail)]
    return _Row([words[old] for old in kept], inner[0], inner[1])


def _touched(spans: Sequence[Span], fragments: Sequence[Span]) -> tuple[int, int]:
    """The words from the first to the last that an entity touches; at least one."""
    start, end = fragments[0][0], fragments[-1][1]
    first = bisect_right(spans, start, key=lambda span: span[1])
    last = bisect_left(spans, end, key=lambda span: span[0])
    first = min(first, len(spans) - 1)
    return first, max(last, first + 1)
