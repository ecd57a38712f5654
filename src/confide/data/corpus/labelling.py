"""Distant labels: documents with marked entities and a knowledge base become bags of sentences.

Every stretch of text that mentions both ends of a triple is labelled with its relation, whether it
says so or not (Mintz et al. 2009). A pair that the knowledge base does not know has no relation
(NA); a share of these pairs is drawn. The draw depends only on the pair and the seed, so all sites
that label their own text keep the same pairs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from confide.data.batches.relations import RelationExample, Rules, Types, candidates
from confide.data.corpus.knowledge import By, KnowledgeBase, letters, read_knowledge
from confide.errors import DataError, SettingsError
from confide.text.document import (
    NO_RELATION,
    PAIR,
    Document,
    Entity,
    Problem,
    Relation,
    pair_attributes,
)
from confide.text.draft import joined

FILE = "file"
"""The attribute of a labelled sentence that names its document."""
Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Labelled:
    """What `label` made.

    Attributes:
        documents: one for each sentence, pair and relation; each asks about its one pair.
        relations: how many of them each relation has, `NO_RELATION` included.
        counts: "documents" and "mentions" that were given; "unidentified" mentions (without an
            identifier, where one matches by it); "ambiguous_forms", words that stand for several
            identifiers, and "ambiguous_mentions" of them; "pairs" with a relation, of them
            "several" with more than one; "repeated" mentions of a pair in one stretch of text, of
            types that match: the nearest are taken; "triples" that matched, of "known" ones; those
            that did not are "unmentioned" (an end is nowhere in the text) or "apart" (never close
            enough, or of other types); "na_pairs" that were kept, "na_left" by the draw, and
            "na_types", of types that no matched pair has.
        problems: rows of the knowledge base that were left out.
    """

    documents: list[Document]
    relations: dict[str, int]
    counts: dict[str, int]
    problems: list[Problem] = field(default_factory=list)


class _Match(NamedTuple):
    """A pair of mentions in the text: an example, what its ends are called, and its triples."""

    example: RelationExample
    names: Names
    triples: tuple[int, ...]

    @property
    def types(self) -> Types:
        return self.example.head_type, self.example.tail_type

    @property
    def gap(self) -> int:
        """The characters between head and tail."""
        head, tail = self.example.head, self.example.tail
        return max(head[0][0], tail[0][0]) - min(head[-1][1], tail[-1][1])


def label(
    documents: Sequence[Document],
    kb: KnowledgeBase | Path | str,
    *,
    by: By = "concept",
    types: Types | None = None,
    na: float = 1.0,
    max_sentences: int = 0,
    seed: int = 1,
) -> Labelled:
    """Label the sentences of documents by a knowledge base.

    Args:
        documents: documents with entities; their own relations are ignored.
        kb: triples, or a file of them (`read_knowledge`).
        by: what the file's names are: identifiers, as mentions have ("concept"), or words
            ("letters", in any case). A knowledge base that was already read says so itself.
        types: the types of head and tail; None: any that match, and NA pairs of the same types.
        na: the share of pairs without a relation to keep, from 0 to 1; a pair keeps all of its
            sentences or none.
        max_sentences: how many ends of sentences may lie between the two.
        seed: the seed for drawing NA pairs.

    A pair with several relations gives a document for each of them. A mention with several
    identifiers matches by each; in an NA pair, its first identifier counts. If one stretch of text
    mentions a pair several times, the mentions nearest to each other represent it. Raises as
    `read_knowledge`; SettingsError if `na` or `max_sentences` is out of range; DataError if no
    mention has a name that could match.
    """
    if not 0 <= na <= 1:
        raise SettingsError("na is not a share of pairs", expected="from 0 to 1", got=f"{na:g}")
    if max_sentences < 0:
        raise SettingsError(
            "max_sentences is negative", expected="a number from 0", got=str(max_sentences)
        )
    kb = kb if isinstance(kb, KnowledgeBase) else read_knowledge(kb, by=by)
    work = _Labelling(kb, Rules(frozenset([types]) if types else None, max_sentences=max_sentences))
    kept = [
        [one for one in work.matches(document) if one.triples or work.draws(one, na, seed)]
        for document in documents
    ]
    work.must_have_names()
    known = frozenset(one.types for matches in kept for one in matches if one.triples)
    allowed = frozenset([types]) if types else known
    kept = [[one for one in matches if one.types in allowed] for matches in kept]
    made = [
        one
        for document, matches in zip(documents, kept, strict=True)
        for one in work.labelled(document, matches)
    ]
    relations = Counter(one.relations[0].type if one.relations else NO_RELATION for one in made)
    counts = work.counts([one for matches in kept for one in matches], allowed)
    counts = {"documents": len(documents), **counts}
    return Labelled(made, dict(relations.most_common()), counts, list(kb.problems))


def _drawn(names: Names, share: float, seed: int) -> bool:
    """Whether a pair is kept: the same at every site."""
    pair = json.dumps([seed, *names]).encode()
    number = int.from_bytes(hashlib.blake2b(pair, digest_size=8).digest(), "big")
    return number < share * 2**64


class _Labelling:
    """One run of `label`, and what it counts on the way."""

    def __init__(self, kb: KnowledgeBase, rules: Rules) -> None:
        self.kb, self.rules = kb, rules
        self.mentions = self.unidentified = 0
        self.repeated: Counter[Types] = Counter()
        self.forms: dict[str, set[str]] = {}
        self.form_mentions: Counter[str] = Counter()
        self.seen = np.zeros(len(kb.names), dtype=np.bool_)
        self.without: dict[Names, tuple[bool, set[Types]]] = {}

    def matches(self, document: Document) -> list[_Match]:
        """The pairs of a document's mentions, each once in a stretch of text, in its order."""
        names = {entity.id: self._names(document, entity) for entity in document.entities}
        nearest: dict[tuple[Names, str], _Match] = {}
        for example in candidates([replace(document, relations=())], self.rules).examples:
            head, tail = example.pair
            for match in self._matched(example, names[head], names[tail]):
                place = (match.names, example.text)
                other = nearest.setdefault(place, match)
                self.repeated[match.types] += other is not match
                if match.gap < other.gap:
                    nearest[place] = match
        return list(nearest.values())

    def _names(self, document: Document, entity: Entity) -> tuple[str, ...]:
        """What a mention is called in the knowledge base, or would be."""
        words = letters(document.surface(entity))
        self.mentions += 1
        self.form_mentions[words] += 1
        self.forms.setdefault(words, set()).update(entity.concepts)
        names = entity.concepts if self.kb.by == "concept" else (words,)
        self.unidentified += not names
        for name in names:
            number = self.kb.names.get(name)
            if number is not None:
                self.seen[number] = True
        return names

    def _matched(
        self, example: RelationExample, heads: Sequence[str], tails: Sequence[str]
    ) -> Iterator[_Match]:
        """A match for every pair of names that the knowledge base has; else one of no relation."""
        if set(heads) & set(tails):
            return  # one thing, mentioned twice
        types = (example.head_type, example.tail_type)
        found = False
        for names in product(heads, tails):
            triples = self.kb.between(*names, types)
            if triples:
                found = True
                yield _Match(example, names, tuple(triples))
        if not found and heads and tails:
            yield _Match(example, (heads[0], tails[0]), ())

    def draws(self, match: _Match, share: float, seed: int) -> bool:
        """Whether a pair without a relation is kept."""
        if match.names not in self.without:
            self.without[match.names] = _drawn(match.names, share, seed), set()
        wanted, types = self.without[match.names]
        types.add(match.types)
        return wanted

    def must_have_names(self) -> None:
        """Raise DataError if no mention could match."""
        if not self.mentions:
            raise DataError(
                "there is no entity in these documents",
                fix="mark them first: `--recogniser RUN`, or files with annotations",
            )
        if self.unidentified == self.mentions:
            raise DataError(
                "no entity has an identifier that the knowledge base could contain",
                fix='match by words: by = "letters", and a knowledge base of words',
            )

    def labelled(self, document: Document, matches: Sequence[_Match]) -> Iterator[Document]:
        """The documents of a document's matches, one for each relation."""
        number = 0
        for match in matches:
            kinds = dict.fromkeys(self.kb.relation(triple) for triple in match.triples)
            for kind in kinds or (NO_RELATION,):
                number += 1
                yield self._document(document, match, (f"{document.id}:{number}", kind))

    def _document(self, document: Document, match: _Match, called: tuple[str, str]) -> Document:
        name, kind = called
        example = match.example
        mentions = {entity.id: entity for entity in document.entities}
        ends = zip(example.pair, (example.head, example.tail), match.names, strict=True)
        entities = []
        for number, (end, fragments, concept) in enumerate(ends, 1):
            own = mentions[end]
            concepts = (concept,) if self.kb.by == "concept" else own.concepts
            entities.append(Entity(f"T{number}", own.type, fragments, concepts=concepts))
        attributes = dict(pair for pair in document.attributes if pair[0] != PAIR)
        attributes.setdefault(FILE, document.id)
        related = (Relation("R1", kind, "T1", "T2"),) if kind != NO_RELATION else ()
        return Document(
            name,
            example.text,
            entities=tuple(entities),
            relations=related,
            sentences=joined([example.text]).sentences,
            attributes=(*pair_attributes([("T1", "T2")]), *attributes.items()),
            source=document.source,
        )

    def counts(self, matches: Sequence[_Match], allowed: frozenset[Types]) -> dict[str, int]:
        """The counts of `Labelled`; `matches` are those that are kept, of the types allowed."""
        kb = self.kb
        fit = [wanted for wanted, types in self.without.values() if types & allowed]
        relations: dict[Names, set[int]] = {}
        for match in matches:
            if match.triples:
                of_pair = relations.setdefault(match.names, set())
                of_pair.update(int(kb.relation_T[triple]) for triple in match.triples)
        triples = {triple for match in matches for triple in match.triples}
        mentioned = int((self.seen[kb.head_T] & self.seen[kb.tail_T]).sum())
        ambiguous = [form for form, concepts in self.forms.items() if len(concepts) > 1]
        return {
            "mentions": self.mentions,
            "unidentified": self.unidentified,
            "ambiguous_forms": len(ambiguous),
            "ambiguous_mentions": sum(self.form_mentions[form] for form in ambiguous),
            "pairs": len(relations),
            "several": sum(len(kinds) > 1 for kinds in relations.values()),
            "repeated": sum(self.repeated[types] for types in allowed),
            "triples": len(triples),
            "known": len(kb),
            "unmentioned": len(kb) - mentioned,
            "apart": mentioned - len(triples),
            "na_pairs": sum(fit),
            "na_left": len(fit) - sum(fit),
            "na_types": len(self.without) - len(fit),
        }
