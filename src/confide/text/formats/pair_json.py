"""TACRED and FewRel: JSON with the tokens of one sentence, and one pair of entities in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from confide.errors import DataError
from confide.text.document import Document, Problem, Relation, Sentence, Span
from confide.text.files import write_text
from confide.text.formats.base import Options, Reading, merged_fragments, unheld
from confide.text.formats.draft import Source, gathered, opened
from confide.text.formats.jsonl import rows_of
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.marked import Marked, by_sentence, laid_out, marked_of, respaced
from confide.text.formats.one_pair import End, Line, document_of
from confide.text.formats.records import clean
from confide.text.formats.rows import Row
from confide.text.pairs import NO_RELATION, PAIR, stated_pairs
from confide.userfiles import Tree

NOTHING = "no_relation"
_TACRED = frozenset((
    "id", "docid", "relation", "token", "subj_start", "subj_end", "obj_start", "obj_end",
    "subj_type", "obj_type",
))  # fmt: skip
_LAYERS = frozenset(("stanford_pos", "stanford_ner", "stanford_head", "stanford_deprel"))
"""What a parser said of the tokens: not annotation, and not read."""
_MOST_PLACES = 1000


def is_tacred(keys: Sequence[str]) -> bool:
    """Whether the keys of a record are TACRED's."""
    return {"token", "subj_start", "obj_start"} <= set(keys)


def is_fewrel(keys: Sequence[str], inner: Sequence[str]) -> bool:
    """Whether the keys of a file's object, and of the first record in it, are FewRel's."""
    return bool(keys) and {"tokens", "h", "t"} <= set(inner)


def read_tacred(path: Path, options: Options) -> Reading:
    """Read a document for each line: subject and object, T1 and T2, and their relation.

    ``no_relation`` is none. The places of subject and object include their last tokens.

    Raises:
        FormatError: a record does not have TACRED's form.
        DataError: there is no record, or a type was not declared.
    """
    source = opened(path, options)
    rows = rows_of(source.text, path, options=options, problems=source.problems)
    return gathered(source, rows, partial(_tacred, source), format="tacred")


def _tacred(source: Source, where: str, name: str, tree: Tree) -> Document:
    row, options, problems = Row(tree, where), source.options, source.problems
    text, spans = _sentence(row, "token", problems)
    ends = []
    for side in ("subj", "obj"):
        places = range(row.number(f"{side}_start"), row.number(f"{side}_end") + 1)
        fragments = _stretch(places[:_MOST_PLACES], spans)
        kind = row.name((f"{side}_type",), options.bare_type)
        ends.append(_end(text, kind, fragments, row=row, problems=problems))
    label = row.tree.get("relation")
    pairs = [
        (key, str(value))
        for key, value in row.tree.items()
        if key not in _TACRED | _LAYERS and isinstance(value, str | int | float)
    ]
    if isinstance(row.tree.get("docid"), str):
        pairs.append(("docid", row.string("docid")))
    line = Line(
        row.name(("id",), name),
        row.where,
        text,
        (ends[0], ends[1]),
        None if label is None else row.type(label, '"relation"'),
        attributes=tuple((clean(key), clean(value)) for key, value in pairs),
        sentences=_one(spans),
    )
    return document_of(line, options, problems)


def _one(spans: Sequence[Span]) -> tuple[Sentence, ...]:
    return (Sentence(spans[0][0], spans[-1][1], tuple(spans)),)


def _sentence(row: Row, key: str, problems: list[Problem]) -> tuple[str, tuple[Span, ...]]:
    text, spans = laid_out([row.words(key)], row.where, problems)
    if not spans:
        raise DataError("a record without a token", where=row.where)
    return text, spans[0]


def _stretch(places: Sequence[int], spans: Sequence[Span]) -> tuple[Span, ...] | None:
    """The characters of some tokens, neighbours in one fragment; None if one is not there."""
    if not places or min(places) < 0 or max(places) >= len(spans):
        return None
    fragments: list[Span] = []
    last = -2
    for place in sorted(set(places)):
        start = fragments.pop()[0] if place == last + 1 and fragments else spans[place][0]
        fragments.append((start, spans[place][1]))
        last = place
    return merged_fragments(fragments)


def _end(
    text: str,
    kind: str,
    fragments: tuple[Span, ...] | None,
    *,
    row: Row,
    problems: list[Problem],
    concept: str = "",
) -> End:
    if fragments is None:
        what = f"{kind} is not among the tokens: its pair is left out"
        problems.append(Problem("beyond-text", row.where, what, lost=True))
        return End("", kind, concept)
    name = " ".join(text[start:end] for start, end in fragments)
    return End(name, kind, concept, fragments)


# --- FewRel -------------------------------------------------------------------------------


def read_fewrel(path: Path, options: Options) -> Reading:
    """Read a document for each instance: head and tail, T1 and T2, with the key as relation.

    Of several places of an entity the first is read. An entity has `options.bare_type`, and its
    identifier as concept.

    Raises:
        FormatError: the file or an instance does not have FewRel's form.
        DataError: there is no instance, or the type was not declared.
    """
    source, more = opened(path, options), 0

    def one(where: str, label: str, row: Row) -> Document:
        nonlocal more
        document, places = _fewrel(row, label, options, source.problems)
        more += places
        return document

    rows = (
        (f"{path}#{clean(label)}:{number}", clean(label), row)
        for where, _, tree in rows_of(source.text, path, options=options, problems=source.problems)
        for label in tree
        for number, row in enumerate(Row(tree, where).rows(label), 1)
    )
    named = ((where, label, Row(row.tree, where)) for where, label, row in rows)
    reading = gathered(source, named, one, format="fewrel")
    if more:
        what = f"{more} entities stand at several places: the first is read"
        source.problems.append(Problem("ambiguous-mention", str(path), what))
    return reading


def _fewrel(
    row: Row, label: str, options: Options, problems: list[Problem]
) -> tuple[Document, int]:
    """The document of an instance, and how many of its two entities stand at several places."""
    text, spans = _sentence(row, "tokens", problems)
    ends, more = [], 0
    for side in ("h", "t"):
        item = row.tree.get(side)
        places = row.part(item, 2, f'"{side}"')
        if not isinstance(places, list) or not places or not isinstance(places[0], list):
            raise row.odd(f'the places of "{side}"', "[[token, ...], ...]", places)
        more += len(places) > 1
        first = [row.whole(place, f'a place of "{side}"') for place in places[0][:_MOST_PLACES]]
        concept = row.part(item, 1, f'"{side}"')
        ends.append(
            _end(
                text,
                options.bare_type,
                _stretch(first, spans),
                row=row,
                problems=problems,
                concept=clean(str(concept)) if isinstance(concept, str) else "",
            )
        )
    stem = row.where.rpartition("#")[2]
    line = Line(stem, row.where, text, (ends[0], ends[1]), label, sentences=_one(spans))
    return document_of(line, options, problems), more


# --- writing ------------------------------------------------------------------------------

_KEEPS = Keeps(relations=True, sentences=True, concepts=True)


def marked_pairs(
    documents: Sequence[Document], path: Path, problems: list[Problem]
) -> Iterator[tuple[Marked, tuple[int, int], str]]:
    """Every sentence with a pair that is asked about, and the pair's label."""
    alone = several = 0
    cut, losses = cut_down([_labelled(document) for document in documents], _KEEPS, path)
    problems += losses
    for document in cut:
        marked = marked_of(document, problems)
        for part in by_sentence(marked, problems) if marked is not None else ():
            linked = {end for link in part.links for end in (link.head, link.tail)}
            alone += len(part.mentions) - len(linked)
            for link in part.links:
                assert isinstance(link.head, int) and isinstance(link.tail, int)
                yield part, (link.head, link.tail), link.type
        several += sum(len(entity.concepts) > 1 for entity in document.entities)
    alone_words = "entities are in no pair of one sentence: they have no line"
    problems += unheld(path, alone_words, alone, kind="entities-unheld")
    more = "entities have several concepts: the first is written"
    problems += unheld(path, more, several, kind="concepts-unheld")
    problems += respaced(documents, path)


def _labelled(document: Document) -> Document:
    """The document with a relation "no-relation" for each stated pair that has none.

    The pairs are no attributes any more: each has a line of its own.
    """
    related = {(relation.head, relation.tail) for relation in document.relations}
    known = {entity.id for entity in document.entities}
    bare = [pair for pair in stated_pairs(document) or () if pair not in related]
    more = tuple(
        Relation(f"N{number}", NO_RELATION, *pair)
        for number, pair in enumerate(bare, 1)
        if set(pair) <= known
    )
    attributes = tuple(pair for pair in document.attributes if pair[0] != PAIR)
    return replace(document, relations=(*document.relations, *more), attributes=attributes)


def write_tacred(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a record for every pair of one sentence; `scheme` is not used.

    A pair without a relation is labelled ``no_relation``. Raises DataError if the file cannot be
    written.
    """
    problems: list[Problem] = []
    records = []
    concepts = sum(bool(entity.concepts) for document in documents for entity in document.entities)
    for number, (part, pair, label) in enumerate(marked_pairs(documents, path, problems), 1):
        record: Tree = {"id": f"{part.id}-{number}", "docid": part.id}
        record["relation"] = NOTHING if label == NO_RELATION else label
        record["token"] = list(chain.from_iterable(part.sentences))
        for side, end in zip(("subj", "obj"), pair, strict=True):
            mention = part.mentions[end]
            record[f"{side}_start"], record[f"{side}_end"] = mention.start, mention.end - 1
            record[f"{side}_type"] = mention.type
        records.append(json.dumps(record, ensure_ascii=False))
    write_text(path, "[" + ",\n".join(records) + "]\n")
    what = "entities lose their concepts"
    return [*problems, *unheld(path, what, concepts, kind="attributes-unheld")]


def write_fewrel(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write an instance for every relation in one sentence; `scheme` is not used.

    FewRel has no types, and no pairs without a relation; both are reported. Raises DataError if the
    file cannot be written.
    """
    problems: list[Problem] = []
    instances: dict[str, list[Tree]] = {}
    none, types = 0, set()
    for part, pair, label in marked_pairs(documents, path, problems):
        if label == NO_RELATION:
            none += 1
            continue
        record: Tree = {"tokens": list(chain.from_iterable(part.sentences))}
        for side, end in zip(("h", "t"), pair, strict=True):
            mention = part.mentions[end]
            types.add(mention.type)
            name = " ".join(record["tokens"][mention.start : mention.end])
            places = list(range(mention.start, mention.end))
            record[side] = [name, mention.concept, [places]]
        instances.setdefault(label, []).append(record)
    write_text(path, json.dumps(instances, ensure_ascii=False) + "\n")
    bare = types if len(types) > 1 else set()
    return [
        *problems,
        *unheld(path, "pairs without a relation have no instance", none, kind="pairs-unheld"),
        *unheld(path, "types of entities are not written", len(bare), kind="types-unheld"),
    ]
