"""Distant supervision: a knowledge base of triples, and the labels that it gives to text.

A knowledge base is triples of head, relation and tail, as a table with tabs.

Rows are ``head relation tail``, or ``head relation tail head-type tail-type``; the line ``head
relation tail ...`` at the top is a header. A million rows are numbers in arrays, each name once.

Legend of shapes: T triples, each once, in the order of their pairs.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, FormatError, SettingsError
from confide.kinds.relations.batches import RelationExample, Rules, Types, candidates
from confide.text import document as internal
from confide.text.document import NO_RELATION, Document, Entity, Problem, Relation, is_negative
from confide.text.files import each_line, read_text, with_plain_ends, write_text
from confide.text.segment import one_sentence

T = TypeVar("T")

By = Literal["concept", "letters"]
Triple = tuple[str, str, str]
_Row = tuple[int, str, str, str, str, str]
"""The line, head, relation, tail, and the types of head and tail."""
_ANY = ("", "")
_HEADER = ["head", "relation", "tail"]
_NAMED = 100
"""The number of rows of each sort that are named one by one."""
_LEFT_OUT = {
    "duplicate-triple": ("stands in an earlier row, too", False),
    "triple-to-itself": ("has one thing at both ends", True),
    "triple-without-relation": ("says that nothing holds", True),
}
"""The rows that are left out: why, and whether something is lost with them."""


def letters(name: str) -> str:
    """A name in the form that ignores case and white space.

    >>> letters(" Acute  Renal FAILURE")
    'acute renal failure'
    """
    return " ".join(name.casefold().split())


class _Numbers(dict[T, int]):
    """A number for each thing, in the order in which they are first looked up."""

    def __missing__(self, thing: T) -> int:
        number = self[thing] = len(self)
        return number


@dataclass(frozen=True, slots=True, eq=False)
class KnowledgeBase:
    """Triples that can be asked for by the names of their ends.

    `by` is what the names are: identifiers ("concept"), or words as they stand in text ("letters"),
    which are compared by `letters`. `names` has a number for each, `relations` and `types` (of head
    and tail, "" for any) are in the order in which they first come, `problems` name the rows that
    were left out.
    """

    by: By
    names: dict[str, int]
    relations: tuple[str, ...]
    types: tuple[tuple[str, str], ...]
    head_T: NDArray[np.int64]
    tail_T: NDArray[np.int64]
    relation_T: NDArray[np.int64]
    types_T: NDArray[np.int64]
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.head_T)

    @property
    def typed(self) -> bool:
        """True if a row states the type of an end."""
        return len(self.types) > 1

    def between(self, head: str, tail: str, types: tuple[str, str]) -> list[int]:
        """The triples, by number, of a pair whose ends have these types (whatever their case)."""
        one, other = self.names.get(head), self.names.get(tail)
        if one is None or other is None:
            return []
        low, high = np.searchsorted(self.head_T, (one, one + 1))
        start, stop = low + np.searchsorted(self.tail_T[low:high], (other, other + 1))
        if not self.typed:
            return list(range(start, stop))
        wanted = [("", kind.casefold()) for kind in types]
        stated = [self.types[kinds] for kinds in self.types_T[start:stop]]
        return [
            number
            for number, (head_type, tail_type) in enumerate(stated, start)
            if head_type in wanted[0] and tail_type in wanted[1]
        ]

    def relation(self, number: int) -> str:
        """The relation of a triple."""
        return self.relations[int(self.relation_T[number])]


def read_knowledge(path: Path | str, *, by: By = "concept") -> KnowledgeBase:
    """Read a table of triples; gzip is unpacked.

    Rows that stand twice are read once; those whose ends are one, and those whose relation says
    that nothing holds (`NA`), are left out. All of them are in `problems`, by line.

    Raises:
        MissingDataError: there is no such file.
        FormatError: a row has other columns than the first, or an empty name; it is no regular
            file; or it is packed and holds far more than it weighs.
        DataError: there is no triple.
    """
    return _collected(_rows(Path(path)), by, str(path))


def knowledge_of(triples: Iterable[Triple], *, by: By = "concept") -> KnowledgeBase:
    """The knowledge base of triples that are at hand; raises DataError if there is none."""
    return _collected(((n, *triple, *_ANY) for n, triple in enumerate(triples, 1)), by, "triples")


def _collected(rows: Iterable[_Row], by: By, where: str) -> KnowledgeBase:
    names: _Numbers[str] = _Numbers()
    relations: _Numbers[str] = _Numbers()
    types: _Numbers[tuple[str, ...]] = _Numbers({_ANY: 0})
    heads, tails, kinds, pairs, lines = (array("q") for _ in range(5))
    for line, head, relation, tail, *ends in rows:
        heads.append(names[letters(head) if by == "letters" else head])
        tails.append(names[letters(tail) if by == "letters" else tail])
        kinds.append(relations[relation])
        pairs.append(types[tuple(ends)])
        lines.append(line)
    head_T, tail_T, relation_T, types_T, line_T = (
        np.frombuffer(column, np.int64) for column in (heads, tails, kinds, pairs, lines)
    )
    nothing = np.array([is_negative(name) for name in relations] or [False])
    left = {"triple-to-itself": head_T == tail_T, "triple-without-relation": nothing[relation_T]}
    order_T = np.lexsort((types_T, relation_T, tail_T, head_T))
    order_T = order_T[~(left["triple-to-itself"] | left["triple-without-relation"])[order_T]]
    sorted_parts = [part[order_T] for part in (head_T, tail_T, relation_T, types_T)]
    again_T = np.zeros(len(order_T), dtype=np.bool_)
    again_T[1:] = np.all([part[1:] == part[:-1] for part in sorted_parts], axis=0)
    if not len(order_T):
        raise DataError("there is no triple", expected="head, relation, tail", where=where)
    left["duplicate-triple"] = np.zeros(len(line_T), dtype=np.bool_)
    left["duplicate-triple"][order_T[again_T]] = True
    head_T, tail_T, relation_T, types_T = (part[~again_T] for part in sorted_parts)
    problems = [one for kind in _LEFT_OUT for one in _named(kind, line_T[left[kind]], where)]
    kinds_of = tuple((head.casefold(), tail.casefold()) for head, tail in types)
    return KnowledgeBase(
        by, dict(names), tuple(relations), kinds_of, head_T, tail_T, relation_T, types_T, problems
    )


def _named(kind: str, lines: NDArray[np.int64], where: str) -> Iterator[Problem]:
    """A problem for each of the first lines, and one for all others."""
    why, lost = _LEFT_OUT[kind]
    for line in lines[:_NAMED]:
        yield Problem(kind, f"{where}:{line}", f"the triple {why}", lost=lost)
    if len(lines) > _NAMED:
        what = f"from here on, the triples of {len(lines) - _NAMED} more rows: each {why}"
        yield Problem(kind, f"{where}:{lines[_NAMED]}", what, lost=lost)


# --- the table ----------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[_Row]:
    width = 0
    for number, line in enumerate(each_line(with_plain_ends(read_text(path)[0])), 1):
        if not line.strip():
            continue
        cells = [*map(str.strip, line.split("\t"))]
        if not width:
            width = len(cells)
            if [cell.casefold() for cell in cells[:3]] == _HEADER:
                continue
        if len(cells) != width or width not in (3, 5) or not all(cells[:3]):
            raise FormatError(
                f"a row of {len(cells)} columns, or an empty one among the first three",
                expected="head, relation, tail, and in all rows or none the types of head and tail,"
                " cut by tabs",
                where=f"{path}:{number}",
            )
        head, relation, tail, *ends = cells
        yield number, head, relation, tail, *(ends or _ANY)


# --- triples of annotated documents ----------------------------------------------------------


def triples_of(documents: Iterable[Document], *, by: By = "concept") -> list[Triple]:
    """The triples that documents' relations say, each once, in order.

    An end is its concept (of a mention the first), or by letters the words of every mention that
    has the concept. A relation whose end has no such name gives no triple.
    """
    found: dict[Triple, None] = {}
    for document in documents:
        names: dict[str, list[str]] = {}
        for entity in document.entities:
            words = letters(document.surface(entity))
            names[entity.id] = [words] if by == "letters" else list(entity.concepts[:1])
        concepts: dict[str, list[str]] = {}
        for entity in document.entities:
            for concept in entity.concepts:
                own = names[entity.id] if by == "letters" else [concept]
                concepts.setdefault(concept, []).extend(own)
        for relation in document.relations:
            known = concepts if relation.level == "concept" else names
            heads, tails = (known.get(end, []) for end in (relation.head, relation.tail))
            found |= {(head, relation.type, tail): None for head in heads for tail in tails}
    return [triple for triple in found if triple[0] != triple[2] and not is_negative(triple[1])]


def write_triples(triples: Sequence[Triple], path: Path | str) -> None:
    """Write triples as a table with a header; raises DataError if that cannot be."""
    rows = [_HEADER, *triples]
    text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    write_text(Path(path), text)


# --- Distant labels
#
# Documents with marked entities and a knowledge base become bags of sentences.
#
# Every stretch of text that mentions both ends of a triple is labelled with its relation, whether
# it says so or not (Mintz et al. 2009). A pair that the knowledge base does not know has no
# relation (NA); a share of these pairs is drawn. The draw depends only on the pair and the seed,
# so all sites that label their own text keep the same pairs.


FILE = "file"
"""The attribute of a labelled sentence that names its document."""
Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Labelled:
    """The result of `label`.

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
    """Draw whether a pair is kept, equally at every site."""
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
        """The names of a mention in the knowledge base, or the names it would have there."""
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
        """Draw whether a pair without a relation is kept."""
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
        mentions = {entity.id: entity for entity in document.entities}
        attributes = dict(pair for pair in document.attributes if pair[0] != internal.PAIR)
        attributes.setdefault(FILE, document.id)
        number = 0
        for match in matches:
            example = match.example
            ends = zip(example.pair, (example.head, example.tail), match.names, strict=True)
            entities = []
            for end, (name, fragments, concept) in enumerate(ends, 1):
                own = mentions[name]
                concepts = (concept,) if self.kb.by == "concept" else own.concepts
                entities.append(Entity(f"T{end}", own.type, fragments, concepts=concepts))
            kinds = dict.fromkeys(self.kb.relation(triple) for triple in match.triples)
            for kind in kinds or (NO_RELATION,):
                number += 1
                yield Document(
                    f"{document.id}:{number}",
                    example.text,
                    tuple(entities),
                    (Relation("R1", kind, "T1", "T2"),) if kind != NO_RELATION else (),
                    one_sentence(example.text),
                    (*internal.pair_attributes([("T1", "T2")]), *attributes.items()),
                    document.source,
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
