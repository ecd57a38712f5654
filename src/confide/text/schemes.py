"""Tag schemes: sequences of tags to token spans and back, and which scheme a file follows.

Every scheme is read by one rule, that of conlleval and of seqeval's default mode: a tag continues
the entity before it if it is an inside or end tag of the same type and that entity is still open;
any other tag but ``O`` begins an entity. So a malformed sequence still yields its entities; the
tags that are malformed under the scheme at hand are returned beside them.

``L`` and ``U`` (BILOU) are read as ``E`` and ``S``, ``M`` (BMES) as ``I``. A bare ``B`` or ``I``
has the type ``""``. A tag without a prefix (``PERSON``) is an inside tag of the scheme ``io``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from confide.errors import DataError, SettingsError

SCHEMES = ("iob1", "iob2", "iobes", "bilou", "io")
TokenSpan = tuple[int, int, str]
_USUAL = 200
"""What is found out about tags of no more characters is kept; a hostile file may have any."""

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
    """Whether a tag belongs to the entity of the tag before it."""
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


class Contradiction(NamedTuple):
    """A place where tags contradict the stated scheme: sequence, tag, and the scheme that fits."""

    sequence: int
    malformed: Malformed
    better: str


def contradiction(sequences: Sequence[Sequence[str]], scheme: str) -> Contradiction | None:
    """The first tag that shows that the tags follow another scheme than `scheme`, if any.

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
                return Contradiction(number, fault, guess.scheme)
    return None
