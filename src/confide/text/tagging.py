"""Entities as tags of tokens, and back: tag schemes, and what a flat tagger can learn."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from confide.errors import DataError, SettingsError
from confide.text.document import Document, Entity, Problem, Spans
from confide.text.segment import tokenise, tokens_covered

# --- Tag schemes ----------------------------------------------------------------------------------
#
# Sequences of tags to token spans and back, and which scheme a file follows.
#
# Every scheme is read by one rule, that of conlleval and of seqeval's default mode: a tag continues
# the entity before it if it is an inside or end tag of the same type and that entity is still open;
# any other tag but ``O`` begins an entity. So a malformed sequence still yields its entities; the
# tags that are malformed under the scheme at hand are returned beside them.
#
# ``L`` and ``U`` (BILOU) are read as ``E`` and ``S``, ``M`` (BMES) as ``I``. A bare ``B`` or ``I``
# has the type ``""``. A tag without a prefix (``PERSON``) is an inside tag of the scheme ``io``.

SCHEMES = ("iob1", "iob2", "iobes", "bilou", "io")
TokenSpan = tuple[int, int, str]
_USUAL = 200
"""The most characters of a tag whose parse is cached; a hostile file may have any."""

_ALIASES = {
    "bio": "iob2",
    "bio2": "iob2",
    "bioes": "iobes",
    "bieso": "iobes",
    "bmes": "iobes",
    "bmeso": "iobes",
    "bmewo": "iobes",
    "bilou": "bilou",
    "bioul": "bilou",
}
_PREFIXES = frozenset("BIESLUMW")
_SEPARATORS = frozenset("-_:")
_ROLE = {"L": "E", "U": "S", "W": "S", "M": "I", "": "I"}
_LETTERS = {
    "iob1": frozenset("BI"),
    "iob2": frozenset("BI"),
    "iobes": frozenset("BIESMW"),
    "bilou": frozenset("BILU"),
    "io": frozenset(("I", "")),
}
_SINGLE_AND_LAST = {"iobes": ("S", "E"), "bilou": ("U", "L")}


class Malformed(NamedTuple):
    """A tag that its scheme does not allow at its place: token position, tag, why."""

    position: int
    tag: str
    why: str


@dataclass(frozen=True, slots=True)
class SchemeGuess:
    """The scheme that tags follow best.

    `evidence` counts prefixes ("B", "I", ..., "plain") and, for each possible scheme, the tags that
    would break it ("breaks iob2"). `certain` is false if two schemes fit equally well, if none fits
    completely, or if there is no entity.
    """

    scheme: str
    evidence: dict[str, int]
    certain: bool


def scheme_named(name: str) -> str:
    """The scheme of that name; other common names are known too ("bio", "bioes", "bmes", ...).

    Raises:
        SettingsError: there is no such scheme, or the name is ambiguous ("iob").
    """
    plain = name.strip().lower().replace("-", "").replace("_", "")
    plain = _ALIASES.get(plain, plain)
    if plain not in SCHEMES:
        raise SettingsError(
            "the tag scheme is not known",
            expected=" or ".join(SCHEMES),
            got=repr(name),
            fix="leave the scheme out and let it be detected",
        )
    return plain


def parse_tag(tag: str) -> tuple[str, str]:
    """The prefix letter and the type of a tag: ``B-AE`` is ("B", "AE"), ``PERSON`` ("", "PERSON").

    ``O`` is ("O", ""); a bare ``B`` is ("B", ""). ``B_AE`` and ``B:AE`` are read like ``B-AE``.
    """
    return _parsed(tag) if len(tag) <= _USUAL else _parsed.__wrapped__(tag)


@lru_cache(maxsize=65536)
def _parsed(tag: str) -> tuple[str, str]:
    if tag == "O":
        return "O", ""
    if tag[:1] in _PREFIXES and (len(tag) == 1 or tag[1] in _SEPARATORS):
        return tag[0], tag[2:]
    return "", tag


def spans_from_tags(tags: Sequence[str], scheme: str) -> tuple[list[TokenSpan], list[Malformed]]:
    """The entities of one sentence, and the tags that break `scheme`.

    Args:
        tags: one tag per token.
        scheme: one of `SCHEMES`; decides what is malformed, never what is an entity.

    Returns:
        Spans (first token, one past the last token, type) in order, not overlapping; and the
        malformed tags. The spans are those of seqeval's ``get_entities`` in default mode.
    """
    spans: list[TokenSpan] = []
    malformed: list[Malformed] = []
    start, previous, kind = 0, "O", ""
    for position, tag in enumerate((*tags, "O")):
        if tag == "O" == previous:
            continue
        usual = len(tag) <= _USUAL and len(previous) <= _USUAL
        step = (_step if usual else _step.__wrapped__)(previous, tag, scheme)
        if step.faults:
            malformed += [Malformed(position + by, which, why) for by, which, why in step.faults]
        if not step.goes_on:
            if previous != "O":
                spans.append((start, position, kind))
            start, kind = position, step.type
        previous = tag
    return spans, malformed


class _Step(NamedTuple):
    """From one tag to the next: whether the entity goes on, and the type of the second tag.

    `faults` are what the scheme forbids: how many tokens from the second tag, the tag, and why.
    """

    goes_on: bool
    type: str
    faults: tuple[tuple[int, str, str], ...]


@lru_cache(maxsize=65536)
def _step(previous: str, tag: str, scheme: str) -> _Step:
    before, now = parse_tag(previous), parse_tag(tag)
    letter = now[0]
    goes_on = _continues(before, now)
    faults = []
    if scheme in _SINGLE_AND_LAST and not goes_on and before[0] in _LETTERS[scheme]:
        single, last = _SINGLE_AND_LAST[scheme]
        if before[0] in "BIM":
            faults.append((-1, previous, f"the entity ends here without {last}- or {single}-"))
    if letter == "O":
        return _Step(goes_on, now[1], tuple(faults))
    if letter not in _LETTERS[scheme]:
        what = f"{letter}-" if letter else "a tag without a prefix"
        faults.append((0, tag, f"{what} is not part of {scheme.upper()}"))
    elif scheme == "iob1" and letter == "B":
        if not _continues(before, ("I", now[1])):
            faults.append((0, tag, "B- is only for an entity right after another of its type"))
    elif scheme not in ("iob1", "io") and not goes_on and _ROLE.get(letter, letter) in "IE":
        why = "no open entity of this type before it: read as the first token of one"
        faults.append((0, tag, why))
    return _Step(goes_on, now[1], tuple(faults))


def _continues(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Return whether a tag belongs to the entity of the tag before it."""
    return (
        _ROLE.get(now[0], now[0]) in "IE"
        and _ROLE.get(before[0], before[0]) in "BI"
        and now[1] == before[1]
    )


def tags_from_spans(length: int, spans: Iterable[TokenSpan], scheme: str) -> list[str]:
    """The tags of a sentence of `length` tokens; the inverse of `spans_from_tags`.

    The type ``""`` gives bare tags. In ``io`` neighbours of one type melt into one entity.

    Raises:
        DataError: spans overlap, are empty or leave the sentence.
    """
    tags = ["O"] * length
    single, last = _SINGLE_AND_LAST.get(scheme, ("B", "I"))
    end_before, type_before = -1, ""
    for start, end, kind in sorted(spans):
        if not max(end_before, 0) <= start < end <= length:
            raise DataError(
                "entities overlap or leave the sentence",
                expected=f"spans apart from each other within 0 and {length}",
                got=f"{start} to {end}",
            )
        touches = start == end_before and kind == type_before
        first = "B" if scheme == "iob2" or touches else "I"
        letters = ["I"] * (end - start)
        if scheme in ("iob1", "iob2"):
            letters[0] = first
        elif scheme in _SINGLE_AND_LAST:
            letters[0], letters[-1] = "B", last
            letters = [single] if len(letters) == 1 else letters
        tags[start:end] = [f"{letter}-{kind}" if kind else letter for letter in letters]
        end_before, type_before = end, kind
    return tags


def detect_scheme(sequences: Iterable[Sequence[str]]) -> SchemeGuess:
    """The scheme that the fewest tags break; among equals, the most common one.

    IOB1 differs from IOB2 in how an entity begins. The tags that break each of them are counted, so
    that one never passes for the other unnoticed.
    """
    tagged = Counter(_without_runs(tags) for tags in sequences if tags.count("O") < len(tags))
    evidence: dict[str, int] = {}
    for tags, times in tagged.items():
        for tag in tags:
            if tag != "O":
                letter = parse_tag(tag)[0] or "plain"
                evidence[letter] = evidence.get(letter, 0) + times
    candidates = _candidates(evidence.keys())
    breaks = {
        scheme: sum(times * len(spans_from_tags(tags, scheme)[1]) for tags, times in tagged.items())
        for scheme in candidates
    }
    best = min(candidates, key=lambda scheme: breaks[scheme])
    fits = [scheme for scheme in candidates if breaks[scheme] == 0]
    evidence |= {f"breaks {scheme}": count for scheme, count in breaks.items()}
    return SchemeGuess(best, evidence, bool(tagged) and fits == [best])


def _without_runs(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags with every run of O as one: the same entities are malformed, and far more are alike."""
    before = chain(("",), tags)
    return tuple(
        [tag for tag, last in zip(tags, before, strict=False) if tag != "O" or last != "O"]
    )


def _candidates(letters: Iterable[str]) -> list[str]:
    """The schemes that could have these prefixes, the most common first; never empty."""
    seen = {"" if letter == "plain" else letter for letter in letters}
    order = [
        ("iob2", True),
        ("iobes", bool(seen & set("ESMW"))),
        ("bilou", bool(seen & set("LU"))),
        ("iob1", "I" in seen),
        ("io", bool(seen & {"I", ""})),
    ]
    fitting = [name for name, wanted in order if wanted and seen <= _LETTERS[name]]
    return fitting or [name for name, wanted in order if wanted]


def contradiction(
    sequences: Sequence[Sequence[str]], scheme: str
) -> tuple[int, Malformed, str] | None:
    """The first tag that shows that the tags follow another scheme than `scheme`, if any.

    It comes with the number of its sequence before it, and the scheme that fits better behind it.
    A tag with a prefix that the scheme lacks always shows it. A misplaced tag shows it only if some
    other scheme explains every tag; otherwise the tags are merely malformed here and there, and are
    repaired.
    """
    guess = detect_scheme(sequences)
    another_fits = guess.evidence.get(f"breaks {guess.scheme}") == 0 and guess.scheme != scheme
    for number, tags in enumerate(sequences):
        if all(tag == "O" for tag in tags):
            continue
        for fault in spans_from_tags(tags, scheme)[1]:
            foreign = parse_tag(fault.tag)[0] not in _LETTERS[scheme]
            if foreign or another_fits:
                return number, fault, guess.scheme
    return None


# --- Entities on tokens ---------------------------------------------------------------------------
#
# A document as a flat tagger learns it, and the tagger's answers as text.
#
# A flat tagger assigns each token to at most one entity, and an entity is a run of tokens inside
# one sentence. `flat_spans` keeps what fits and reports everything else; nothing is dropped
# silently.


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
    candidates, notes = _candidates_of(document)
    spans: list[list[TokenSpan]] = [[] for _ in document.sentences]
    kept: defaultdict[int, list[_Candidate]] = defaultdict(list)  # apart, in order

    def rank(number: int) -> tuple[int, int]:
        """The longest first (in tokens, then in characters); the first of equals stays so."""
        one = candidates[number]
        return one.first - one.last, one.entity.start - one.entity.end

    for number in sorted(candidates, key=rank):
        candidate = candidates[number]
        sentence, first, last, entity = candidate
        before = kept[sentence]
        place = bisect_right(before, first, key=attrgetter("last"))
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
    candidates, notes = _candidates_of(document)
    spans: list[dict[TokenSpan, _Candidate]] = [{} for _ in document.sentences]
    for number, found in candidates.items():
        span = (found.first, found.last, found.entity.type)
        same = spans[found.sentence].setdefault(span, found)
        if same is not found:
            notes[number] = _collision(document, found, same)
    return [sorted(own) for own in spans], [notes[number] for number in sorted(notes)]


def _candidates_of(document: Document) -> tuple[dict[int, _Candidate], dict[int, Problem]]:
    """The entities that have tokens of their own, and the problems with entities, by number.

    Raises DataError if the document was not segmented.
    """
    candidates: dict[int, _Candidate] = {}
    notes: dict[int, Problem] = {}
    if document.entities and not document.sentences and tokenise(document.text):
        raise DataError(
            "the document has no sentences",
            where=document.where,
            fix="segment it first (confide.text.segment.segmented)",
        )
    starts = [sentence.start for sentence in document.sentences]
    for number, entity in enumerate(document.entities):
        found = _locate(document, entity, starts)
        if isinstance(found, Problem):
            notes[number] = found
            continue
        candidates[number] = found
        tokens = document.sentences[found.sentence].tokens
        first, last = tokens[found.first][0], tokens[found.last - 1][1]
        if (entity.start, entity.end) != (first, last):
            what = f"{entity.type} {entity.id} taken to whole tokens, [{first}:{last}]"
            notes[number] = _problem(document, entity, "not-on-token-border", what, lost=False)
    return candidates, notes


def _problem(
    document: Document, entity: Entity, kind: str, what: str, *, lost: bool = True
) -> Problem:
    return Problem(kind, document.at(entity.start, entity.end), what, lost)


def _locate(document: Document, entity: Entity, starts: Sequence[int]) -> _Candidate | Problem:
    """The tokens of an entity, or why it has none of its own."""
    if not starts:
        what = f"{entity.type} {entity.id} covers no token: the document is blank"
        return _problem(document, entity, "no-token", what)
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
    first, last = tokens_covered(tokens, start, end)
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
    if len(spans_per_sentence) != len(document.sentences):
        raise DataError(
            "spans do not fit the document",
            expected=f"one list for each of {len(document.sentences)} sentences",
            got=str(len(spans_per_sentence)),
            where=document.where,
        )
    entities: list[Entity] = []
    for number, (sentence, spans) in enumerate(
        zip(document.sentences, spans_per_sentence, strict=True)
    ):
        if not spans:
            continue
        tokens = sentence.tokens
        one = tokens.one if isinstance(tokens, Spans) else tokens.__getitem__
        for place, (first, last, kind) in enumerate(spans):
            if not 0 <= first < last <= len(tokens):
                raise DataError(
                    "a span leaves its sentence",
                    expected=f"within 0 and {len(tokens)}",
                    got=f"{first} to {last}",
                    where=document.where,
                )
            fragment = (one(first)[0], one(last - 1)[1])
            confidence = None if confidences is None else float(confidences[number][place])
            entities.append(Entity(f"T{len(entities) + 1}", kind, (fragment,), confidence))
    return tuple(entities)
