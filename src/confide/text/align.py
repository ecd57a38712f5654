"""Entities on tokens: what a flat tagger can learn from a document, and its answers back as text.

A flat tagger assigns each token to at most one entity, and an entity is a run of tokens inside one
sentence. `flat_spans` keeps what fits and reports everything else; nothing is dropped silently.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from confide.errors import DataError
from confide.text.document import Document, Entity, Problem
from confide.text.schemes import TokenSpan
from confide.text.segment import tokens_of

_FROM, _TO, _LAST = itemgetter(0), itemgetter(1), attrgetter("last")


class _Candidate(NamedTuple):
    """An entity as a run of tokens of one sentence."""

    sentence: int
    first: int
    last: int
    entity: Entity


def flat_spans(document: Document) -> tuple[list[list[TokenSpan]], list[Problem]]:
    """The entities of a segmented document as token spans, sentence by sentence.

    Left out (`Problem.lost`) are entities that are "discontinuous", that cross a sentence's end
    ("crosses-sentence") or cover no token ("no-token"). Of entities that share a token, only the
    longest (then the first) is kept; the others are "nested" if it covers them, "duplicate" if type
    and tokens are the same, "overlapping" otherwise. Changed is an entity that begins or ends
    inside a token or in white space ("not-on-token-border"): it is widened to whole tokens.

    Returns:
        For each sentence, its spans (first token, one past the last, type), ordered and without
        overlap; and the problems, in the order of the document's entities.

    Raises:
        DataError: the document has entities but no sentences.
    """
    spans: list[list[TokenSpan]] = [[] for _ in document.sentences]
    if not document.entities:
        return spans, []
    if not document.sentences:
        return spans, _in_a_blank(document)
    notes: dict[int, Problem] = {}
    candidates: dict[int, _Candidate] = {}
    starts = [sentence.start for sentence in document.sentences]
    for number, entity in enumerate(document.entities):
        found = _locate(document, entity, starts)
        if isinstance(found, Problem):
            notes[number] = found
            continue
        candidates[number] = found
        if (widened := _widened(document, found)) is not None:
            notes[number] = widened
    kept: defaultdict[int, list[_Candidate]] = defaultdict(list)  # apart, in order
    order = list(candidates)
    if len(order) > 1:
        order.sort(key=lambda number: _rank(number, candidates[number]))
    for number in order:
        candidate = candidates[number]
        sentence, first, last, entity = candidate
        before = kept[sentence]
        place = bisect_right(before, first, key=_LAST)
        if place < len(before) and before[place].first < last:
            notes[number] = _collision(document, candidate, before[place])
            continue
        before.insert(place, candidate)
        spans[sentence].append((first, last, entity.type))
    for sentence in kept:
        spans[sentence].sort()
    return spans, [notes[number] for number in sorted(notes)]


def all_spans(document: Document) -> tuple[list[list[TokenSpan]], list[Problem]]:
    """`flat_spans` for models whose entities may share tokens.

    Of entities that share some, only those of the same type and tokens as another are left out.
    """
    spans: list[dict[TokenSpan, _Candidate]] = [{} for _ in document.sentences]
    if document.entities and not spans:
        return [], _in_a_blank(document)
    problems: list[Problem | None] = []
    starts = [sentence.start for sentence in document.sentences]
    for entity in document.entities:
        found = _locate(document, entity, starts)
        if isinstance(found, Problem):
            problems.append(found)
            continue
        span = (found.first, found.last, entity.type)
        same = spans[found.sentence].setdefault(span, found)
        problems.append(
            _widened(document, found) if same is found else _collision(document, found, same)
        )
    return [sorted(own) for own in spans], [one for one in problems if one is not None]


def _widened(document: Document, found: _Candidate) -> Problem | None:
    """That an entity begins or ends within a token, if it does."""
    tokens, entity = document.sentences[found.sentence].tokens, found.entity
    first, last = tokens[found.first][0], tokens[found.last - 1][1]
    if (entity.start, entity.end) == (first, last):
        return None
    what = f"{entity.type} {entity.id} taken to whole tokens, [{first}:{last}]"
    return _problem(document, entity, "not-on-token-border", what, lost=False)


def _in_a_blank(document: Document) -> list[Problem]:
    """The entities of a document without a token. Raises DataError if it was not segmented."""
    if tokens_of(document.text):
        raise DataError(
            "the document has no sentences",
            where=document.source or document.id,
            fix="segment it first (confide.text.segment.segmented)",
        )
    what = "covers no token: the document is blank"
    return [
        _problem(document, one, "no-token", f"{one.type} {one.id} {what}")
        for one in document.entities
    ]


def _rank(number: int, candidate: _Candidate) -> tuple[int, int, int]:
    """The longest first (tokens, then characters), then the first."""
    length = candidate.last - candidate.first
    return -length, candidate.entity.start - candidate.entity.end, number


def _problem(
    document: Document, entity: Entity, kind: str, what: str, *, lost: bool = True
) -> Problem:
    where = f"{document.source or document.id} [{entity.start}:{entity.end}]"
    return Problem(kind, where, what, lost)


def _locate(document: Document, entity: Entity, starts: Sequence[int]) -> _Candidate | Problem:
    """The tokens of an entity, or why it has none of its own."""
    if len(entity.fragments) > 1:
        what = f"{entity.type} {entity.id} has {len(entity.fragments)} fragments"
        return _problem(document, entity, "discontinuous", what)
    ((start, end),) = entity.fragments
    number = max(bisect_right(starts, start) - 1, 0)
    if start >= document.sentences[number].end and number + 1 < len(starts):
        number += 1  # it begins in the white space between two sentences
    tokens = document.sentences[number].tokens
    if number + 1 < len(starts) and end > starts[number + 1]:
        what = f"{entity.type} {entity.id} crosses a sentence's end"
        return _problem(document, entity, "crosses-sentence", what)
    first = bisect_right(tokens, start, key=_TO)  # the tokens that share a character with it
    last = bisect_left(tokens, end, key=_FROM)
    if first >= last:
        what = f"{entity.type} {entity.id} covers no token"
        return _problem(document, entity, "no-token", what)
    return _Candidate(number, first, last, entity)


def _collision(document: Document, candidate: _Candidate, holder: _Candidate) -> Problem:
    """The problem of an entity that shares a token with another one."""
    entity, other = candidate.entity, holder.entity
    same_tokens = (candidate.first, candidate.last) == (holder.first, holder.last)
    if same_tokens and entity.type == other.type:
        kind, how = "duplicate", "has the tokens and type of"
    elif holder.first <= candidate.first and candidate.last <= holder.last:
        kind, how = "nested", "lies inside"
    else:
        kind, how = "overlapping", "overlaps"
    what = f"{entity.type} {entity.id} {how} {other.type} {other.id}"
    return _problem(document, entity, kind, what)


def entities_from_spans(
    document: Document,
    spans_per_sentence: Sequence[Sequence[TokenSpan]],
    *,
    confidences: Sequence[Sequence[float]] | None = None,
) -> tuple[Entity, ...]:
    """Token spans as entities of the document's text, called T1, T2, ...; inverse of `flat_spans`.

    Args:
        document: a segmented document.
        spans_per_sentence: for each of its sentences, spans (first token, one past the last,
            type).
        confidences: a number for each span, or None.

    Raises:
        DataError: there is not one list for each sentence, or a span leaves its sentence.
    """
    where = document.source or document.id
    if len(spans_per_sentence) != len(document.sentences):
        raise DataError(
            "spans do not fit the document",
            expected=f"one list for each of {len(document.sentences)} sentences",
            got=str(len(spans_per_sentence)),
            where=where,
        )
    entities: list[Entity] = []
    for number, (sentence, spans) in enumerate(
        zip(document.sentences, spans_per_sentence, strict=True)
    ):
        for place, (first, last, kind) in enumerate(spans):
            if not 0 <= first < last <= len(sentence.tokens):
                raise DataError(
                    "a span leaves its sentence",
                    expected=f"within 0 and {len(sentence.tokens)}",
                    got=f"{first} to {last}",
                    where=where,
                )
            fragment = (sentence.tokens[first][0], sentence.tokens[last - 1][1])
            confidence = None if confidences is None else float(confidences[number][place])
            entities.append(Entity(f"T{len(entities) + 1}", kind, (fragment,), confidence))
    return tuple(entities)
