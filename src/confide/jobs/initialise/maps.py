"""Which types of two sites are one thing under two names, such as DRUG and Medication.

Sites that name one thing differently mark the same words. So only words and surfaces (the letters
of a mention) that both texts have can tell. Two types are one if

- at least two surfaces are marked with the one type here and with the other there;
- of the mentions of each whose surface the other text has too, most are marked there: a site that
  leaves them alone does not annotate that;
- most of what is marked with the one type, and marked at all at the other site, has the other type
  there, both ways: a part is not the whole, Cancer not Disease;
- of the words that either type marks, both mark a share of at least `LEAST` (Jaccard).

"fever" is a side effect after some words and a reason for treatment after others. So the last two
do not compare how often a word has a type, but every occurrence with what a naive Bayes model of
the other site's text makes of it there, from the word and three words on each side. Words weigh by
the logarithm of their occurrences; all numbers are one word. Names that differ in nothing but
case, blanks and a plural's s are one without more ado; relations have no other evidence.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add

from confide.jobs.initialise.files import SiteFiles
from confide.text.document import Document
from confide.text.segment import tokens_of

LEAST = 0.15
"""The least agreement of two types that are one."""
SURFACES = 2
"""The fewest surfaces that both sites mark."""
TOKENS = 30_000
"""How many tokens of a site are looked at, about: those of documents from all over its text."""
_WINDOW = 3
_CONTEXT = 0.5
"""The weight of what a neighbour says: neighbours depend on each other."""
_NUMBER = re.compile(r"\d+")
_UNMARKED = ""
_PAD = ""

Surface = tuple[str, ...]
Pair = tuple[str, str]
Weights = defaultdict[str, float]


@dataclass(frozen=True, slots=True)
class Match:
    """A type or relation of a site whose common name, that of a site before it, is another.

    `agreement` is the share of words that either marks which both mark; `next_best` is that of the
    best other pair with one of the two. `shared` are the surfaces that both mark, the commonest
    first. Without any, the two names say it.
    """

    site: str
    name: str
    common: str
    agreement: float = 0.0
    next_best: float = 0.0
    shared: tuple[str, ...] = ()


def matches(sites: Sequence[SiteFiles]) -> list[Match]:
    """What sites call otherwise than a site before them does, the surest first at each site."""
    found: list[Match] = []
    texts: dict[int, _Text] = {}
    names = [{kind: kind for kind in site.types} for site in sites]
    for here, site in enumerate(sites):
        for there in range(here):
            own, other = names[here], names[there]
            mine = {kind for kind, name in own.items() if name == kind} - {*other.values()}
            theirs = {kind: name for kind, name in other.items() if name not in own.values()}
            new = _by_name(site.name, mine, theirs)
            mine -= {match.name for match in new}
            theirs = {k: name for k, name in theirs.items() if name not in {m.common for m in new}}
            if mine and theirs and not site.about_relations:
                for number in (here, there):
                    if number not in texts:
                        texts[number] = _Text(sites[number].documents)
                new += _by_text(site.name, mine, theirs, (texts[here], texts[there]))
            own.update((match.name, match.common) for match in new)
            found += new
    return found


def _by_name(site: str, mine: Collection[str], theirs: Mapping[str, str]) -> list[Match]:
    """The types whose names differ in case, blanks or a plural's s only, if just one does."""

    def plain(name: str) -> str:
        return re.sub(r"[\W_]+", "", name.casefold()).removesuffix("s")

    here, there = Counter(map(plain, mine)), Counter(map(plain, theirs))
    return [
        Match(site, kind, name)
        for kind in sorted(mine)
        for other, name in theirs.items()
        if plain(kind) == plain(other) and here[plain(kind)] == there[plain(kind)] == 1
    ]


def _by_text(
    site: str, mine: Collection[str], theirs: Mapping[str, str], texts: tuple[_Text, _Text]
) -> list[Match]:
    """The types that two texts mark alike; of those that share one, the pair that agrees most."""
    here, there = texts
    shared, left_alone = _surfaces(here, there)
    both, either = _words(here, there)
    pairs = [pair for pair in both if both[pair] > 0]
    agreement = {pair: both[pair] / (either[pair] or 1) for pair in pairs}
    found: list[Match] = []
    for pair in sorted(pairs, key=lambda one: (-agreement[one], one)):
        kind, other = pair
        rivals = [one for one in pairs if (one[0] == kind) != (one[1] == other)]
        if (
            kind in mine
            and other in theirs
            and len(shared[pair]) >= SURFACES
            and max(left_alone[0][kind], left_alone[1][other]) <= 0.5
            and agreement[pair] >= LEAST
            and all(
                both[pair] > sum(both[one] for one in rivals if one[side] == pair[side])
                for side in (0, 1)
            )
        ):
            best = max((agreement[one] for one in rivals), default=0.0)
            found.append(Match(site, kind, theirs[other], agreement[pair], best, shared[pair]))
    return found


def _surfaces(
    here: _Text, there: _Text
) -> tuple[dict[Pair, tuple[str, ...]], tuple[dict[str, float], dict[str, float]]]:
    """The surfaces that both sites mark, by the two types, the commonest first.

    And for each site by type: of the mentions whose surface the other text has, the share that is
    left unmarked there. A surface weighs by the logarithm of its mentions.
    """
    surfaces = {*here.surfaces, *there.surfaces}
    counts = here.occurrences(surfaces), there.occurrences(surfaces)
    shared: defaultdict[Pair, list[tuple[int, str]]] = defaultdict(list)
    alone: tuple[defaultdict[str, float], defaultdict[str, float]] = (
        defaultdict(float),
        defaultdict(float),
    )
    total: tuple[defaultdict[str, float], defaultdict[str, float]] = (
        defaultdict(float),
        defaultdict(float),
    )
    for surface in counts[0].keys() & counts[1].keys():
        own = counts[0][surface], counts[1][surface]
        for side in (0, 1):
            for kind, count in own[side].items():
                weight = math.log2(1 + count)
                other = own[1 - side]
                alone[side][kind] += weight * other[_UNMARKED] / other.total()
                total[side][kind] += weight
        for kind, count in own[0].items():
            for other_kind, other_count in own[1].items():
                if kind and other_kind:
                    seen = min(count, other_count), here.surfaces[surface]
                    shared[kind, other_kind].append(seen)
    named = defaultdict(
        tuple,
        {
            pair: tuple(words for _, words in sorted(found, key=lambda one: (-one[0], one[1])))
            for pair, found in shared.items()
        },
    )
    left = tuple(
        defaultdict(float, {kind: alone[side][kind] / total[side][kind] for kind in total[side]})
        for side in (0, 1)
    )
    return named, (left[0], left[1])


def _words(here: _Text, there: _Text) -> tuple[dict[Pair, float], dict[Pair, float]]:
    """How many words, by weight, both sites mark with two types, and how many either marks."""
    both: defaultdict[Pair, float] = defaultdict(float)
    one: defaultdict[str, float] = defaultdict(float)
    other: defaultdict[str, float] = defaultdict(float)
    for text, judge, swapped in ((here, there, False), (there, here, True)):
        for place, kind in text.occurring(judge):
            word = text.words[place]
            counts = text.by_word[word].total(), judge.by_word[word].total()
            weight = math.log2(1 + min(counts)) / counts[0] / 2
            said = judge.said(word, text.neighbours(place))
            gold, guessed = (other, one) if swapped else (one, other)
            if kind:
                gold[kind] += weight
            for guess, share in said:
                if guess:
                    guessed[guess] += weight * share
                    if kind:
                        both[(guess, kind) if swapped else (kind, guess)] += weight * share
    either = {pair: one[pair[0]] + other[pair[1]] - count for pair, count in both.items()}
    return both, either


class _Text:
    """A site's training text as words, each with the type it is marked with or `_UNMARKED`."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.words: list[str] = [_PAD] * _WINDOW
        self.kinds: list[str] = [_UNMARKED] * _WINDOW
        self.borders: list[tuple[int, int]] = [(place, place + 1) for place in range(_WINDOW)]
        """The first word of the mention that a word lies in, and one past its last."""
        self.mentions: dict[tuple[int, int], str] = {}
        self.surfaces: dict[Surface, str] = {}
        """Each surface, and how it was written where it came first."""
        for document in _spread(documents):
            self._add(document)
        self.by_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._by_neighbour: defaultdict[tuple[int, str], Counter[str]] = defaultdict(Counter)
        kinds: Counter[str] = Counter()
        for place, (word, kind) in enumerate(zip(self.words, self.kinds, strict=True)):
            if word != _PAD:
                kinds[kind] += 1
                self.by_word[word][kind] += 1
                for neighbour in self.neighbours(place):
                    self._by_neighbour[neighbour][kind] += 1
        self._priors = {kind: count / kinds.total() for kind, count in kinds.items()}
        self._evidences: dict[tuple[int, str], list[float]] = {}

    def _add(self, document: Document) -> None:
        """The words of a document, and some padding."""
        start, spans = len(self.words), tokens_of(document.text)
        self.words += [_NUMBER.sub("0", document.text[a:b].casefold()) for a, b in spans]
        self.kinds += [_UNMARKED] * len(spans)
        self.borders += [(place, place + 1) for place in range(start, start + len(spans))]
        firsts = {a: start + n for n, (a, _) in enumerate(spans)}
        lasts = {b: start + n + 1 for n, (_, b) in enumerate(spans)}
        for entity in document.entities:
            first, last = firsts.get(entity.start), lasts.get(entity.end)
            if first is None or last is None or len(entity.fragments) > 1:
                continue
            self.mentions[first, last] = entity.type
            self.surfaces.setdefault(tuple(self.words[first:last]), document.surface(entity))
            for place in range(first, last):
                self.kinds[place], self.borders[place] = entity.type, (first, last)
        self.words += [_PAD] * _WINDOW
        self.kinds += [_UNMARKED] * _WINDOW
        self.borders += [(n, n + 1) for n in range(len(self.borders), len(self.words))]

    def neighbours(self, place: int) -> Iterator[tuple[int, str]]:
        """The words around a word's mention: before or behind, and whether next to it."""
        first, last = self.borders[place]
        for step in range(1, _WINDOW + 1):
            side = 1 if step == 1 else 2
            yield -side, self.words[first - step]
            yield side, self.words[last - 1 + step]

    def occurring(self, other: _Text) -> Iterator[tuple[int, str]]:
        """The places of words that both texts have and one of them marks, with their types."""
        for place, word in enumerate(self.words):
            if word in other.by_word and (self._marks(word) or other._marks(word)):
                yield place, self.kinds[place]

    def _marks(self, word: str) -> bool:
        kinds = self.by_word[word]
        return kinds[_UNMARKED] < kinds.total()

    def said(self, word: str, neighbours: Iterable[tuple[int, str]]) -> Iterator[tuple[str, float]]:
        """Each type and how probable it is for a word with these neighbours, by naive Bayes."""
        counts = self.by_word[word]
        whole = counts.total() + 1
        logs = [math.log((counts[kind] + prior) / whole) for kind, prior in self._priors.items()]
        for neighbour in neighbours:
            if neighbour in self._by_neighbour:
                logs = list(map(add, logs, self._evidence(neighbour)))
        most = max(logs)
        odds = [math.exp(log - most) for log in logs]
        total = sum(odds)
        return zip(self._priors, (value / total for value in odds), strict=True)

    def _evidence(self, neighbour: tuple[int, str]) -> list[float]:
        """What a neighbour adds to the logarithm of each type's probability."""
        found = self._evidences.get(neighbour)
        if found is None:
            seen = self._by_neighbour[neighbour]
            total = seen.total() + 1
            found = self._evidences[neighbour] = [
                _CONTEXT * math.log((seen[kind] + prior) / total / prior)
                for kind, prior in self._priors.items()
            ]
        return found

    def occurrences(self, surfaces: Collection[Surface]) -> dict[Surface, Counter[str]]:
        """What each surface that occurs is marked with, apart from parts of other mentions."""
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for surface in surfaces:
            lengths[surface[0]].add(len(surface))
        found: defaultdict[Surface, Counter[str]] = defaultdict(Counter)
        for place, word in enumerate(self.words):
            for length in lengths.get(word, ()):
                surface = tuple(self.words[place : place + length])
                if surface in surfaces:
                    kind = self.mentions.get((place, place + length))
                    if kind or not any(self.kinds[place : place + length]):
                        found[surface][kind or _UNMARKED] += 1
        return found


def _spread(documents: Sequence[Document]) -> Sequence[Document]:
    """Documents from all over a text, of `TOKENS` in all if a token is six characters."""
    size = sum(len(document.text) for document in documents)
    return documents[:: max(1, math.ceil(size / (6 * TOKENS)))]
