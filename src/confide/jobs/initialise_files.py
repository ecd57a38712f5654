"""Inspection of a user's files: whose they are, how they are read, what does not fit."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from operator import add
from pathlib import Path

from confide.corpora.distant import FILE
from confide.errors import DataError
from confide.runs.sites import MOST_VALUES, neighbour_blocks, odd_values
from confide.text.checking import CheckReport, check
from confide.text.document import Document, Problem, attributes_as_relations, stated_pairs
from confide.text.files import likely_encoding, read_bytes
from confide.text.formats import FORMATS, PARTS, Options, detect
from confide.text.formats.brat import MARKS
from confide.text.segment import AUTO, language_of, tokenise

SITES = 3
"""The most simulated sites that one corpus is dealt to."""
RARE = 0.01
"""The share of entities or relations below which a type is rare."""
BY_CHANCE = 0.01
"""The probability below which a site does not lack a type by chance."""
REPEATED_SHARE, REPEATED_SENTENCES = 0.05, 20
"""From this share of a text's sentences, and this number, it is no chance that another has them.

In the published splits of eight corpora, at most 0.03 of the test text is in training text."""
REPEATED_WORDS = 5
"""The fewest words of a sentence that counts for this."""
FEW_DOCUMENTS = 10
"""So few documents tell too little of chance; then mentions are counted."""
_OF_BAGS = frozenset(("nyt10", "opennre", "pgr"))
_OF_RELATIONS = _OF_BAGS | {
    "biobert", "chemprot", "ddi", "fewrel", "semeval", "table", "tacred",
}  # fmt: skip
"""Formats published for learning relations; from all others, entities are learnt by default."""
_OF_TAGGERS = frozenset((
    "crosses-sentence", "discontinuous", "nested", "no-token", "not-on-token-border", "overlapping",
))  # fmt: skip
"""Problems that concern a flat tagger but not a relation extractor."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file or folder: the part it is, what `check` says of it, and the encoding it needs."""

    part: str
    path: Path
    report: CheckReport
    encoding: str = ""


def _of_bags(report: CheckReport) -> bool:
    """Return whether a file holds bags: by its format, or as `confide data label` writes them."""
    if report.format != "jsonl" or not report.documents:
        return report.format in _OF_BAGS
    return all(
        len(one.entities) == 2
        and len(stated_pairs(one) or ()) == 1
        and any(key == FILE for key, _ in one.attributes)
        for one in report.documents
    )


@dataclass
class SiteFiles:
    """The files of one site, what they hold, and common names of its types where they differ.

    What a site annotates is what its training text holds: `types`, `sentences`, `documents`.
    `format` and `options` are what was stated about reading. `attribute` is that of entities which
    is learnt: its values count as relations of entities with themselves.
    """

    name: str
    parts: dict[str, list[Path]] = field(default_factory=lambda: {part: [] for part in PARTS})
    format: str | None = None
    options: Options = field(default_factory=Options)
    read: list[ReadFile] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    attribute: str = ""

    @cached_property
    def training(self) -> list[CheckReport]:
        """The report of `check` on each training file."""
        return [one.report for one in self.read if one.part == "train"]

    @cached_property
    def about_relations(self) -> bool:
        """True if relations are what these files are for, or an attribute is learnt."""
        return self.attribute != "" or all(
            one.report.format in _OF_RELATIONS or _of_bags(one.report) for one in self.read
        )

    @cached_property
    def about_bags(self) -> bool:
        """True if relations that hold of bags are what these files are for."""
        return self.attribute == "" and all(_of_bags(one.report) for one in self.read)

    @cached_property
    def documents(self) -> list[Document]:
        """The training documents."""
        return [document for report in self.training for document in report.documents]

    @cached_property
    def attributes(self) -> dict[str, Counter[str]]:
        """The attributes of entities in training text whose values are labels, with counts."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for document in self.documents:
            for entity in document.entities:
                for name, value in dict(reversed(entity.attributes)).items():
                    found[name][value or name] += 1
        return {
            name: values
            for name, values in sorted(found.items())
            if len(values) <= MOST_VALUES and not odd_values((name, *values))
        }

    @cached_property
    def examples(self) -> int:
        """The number of training sentences or, where an attribute is learnt, of its values."""
        return self.types.total() if self.attribute else self.sentences

    @cached_property
    def sentences(self) -> int:
        """The number of training sentences."""
        return sum(report.counts["sentences"] for report in self.training)

    @cached_property
    def language(self) -> str:
        """The language of the training text: stated, or found ("" if it cannot be told)."""
        if self.options.language != AUTO:
            return self.options.language
        return language_of(document.text for document in self.documents)

    @cached_property
    def types(self) -> Counter[str]:
        """Counts of each type in training text: of relations, if these are learnt."""
        return sum((self._held(report) for report in self.training), Counter[str]())

    @cached_property
    def units(self) -> list[list[Document]]:
        """The training documents or, where a file marks none, blocks of neighbouring sentences."""
        return neighbour_blocks(self.documents)

    @cached_property
    def units_with(self) -> Counter[str]:
        """In how many units of training text each type occurs."""
        found = Counter[str]()
        for unit in self.units:
            held = (one.relations if self.about_relations else one.entities for one in unit)
            found.update({one.type for each in held for one in each})
        return found

    @property
    def common(self) -> dict[str, str]:
        """Each common name of the site's types, with the site's own."""
        return {self.names.get(kind, kind): kind for kind in self.types}

    @cached_property
    def only_held_out(self) -> list[str]:
        """The types of dev and test text that no training text of this site has."""
        held = sum((self._held(one.report) for one in self.read), Counter[str]())
        return sorted(held.keys() - self.types)

    def _held(self, report: CheckReport) -> Counter[str]:
        return Counter(report.relations if self.about_relations else report.types)

    def agreed(self, key: str) -> str | None:
        """The format, tag scheme or encoding of the site's files, if they agree on one."""
        if key == "encoding":
            found: set[str | None] = {self.options.encoding or one.encoding for one in self.read}
        elif key == "format":
            found = {one.report.format for one in self.read}
        else:
            found = {_scheme(one.report) for one in self.read if one.report.types}
        value = found.pop() if len(found) == 1 else None
        return value if key != "format" or value in FORMATS else None


def look(site: SiteFiles, problems: list[Problem]) -> list[str]:
    """Check every file of a site; a line about each."""
    lines = []
    every = [(part, path) for part, paths in site.parts.items() for path in paths]
    encodings = {path: None if site.options.encoding else _encoding(path) for _, path in every}
    for _, path in every:
        if (site.format or detect(path, site.options.encoding or encodings[path])) == "text":
            raise DataError(
                "raw text without annotation: nothing can be learnt from it",
                expected="annotated text: CoNLL columns, brat, JSON Lines or PubTator",
                where=str(path),
            )
    for part, path in every:
        encoding = encodings[path]
        how = replace(site.options, encoding=encoding) if encoding else site.options
        report = check(path, format=site.format, options=how)
        if site.attribute:
            report = _of_attribute(report, site.attribute)
        if site.attribute or report.format in _OF_RELATIONS:
            report.problems[:] = [one for one in report.problems if one.kind not in _OF_TAGGERS]
        site.read.append(ReadFile(part, path, report, encoding or ""))
        if encoding:
            what = f"not UTF-8; read as {encoding}: look at its accents"
            report.problems.insert(0, Problem("encoding-guessed", str(path), what))
        if not report.types:
            report.problems.insert(0, Problem("no-entity", str(path), "there is no entity in it"))
        problems += report.problems
    for one in site.read:
        lines.append(f"{site.name}, {one.part}: {one.path}")
        lines += [f"  {line}" for line in _described(one.report, site)]
    return lines


def _of_attribute(report: CheckReport, name: str) -> CheckReport:
    """The report with the values of that attribute of entities in place of relations."""
    documents = [attributes_as_relations(one, name) for one in report.documents]
    values = Counter(one.type for document in documents for one in document.relations)
    counts = {**report.counts, "relations": values.total()}
    return replace(report, documents=documents, relations=dict(values.most_common()), counts=counts)


def _encoding(path: Path) -> str | None:
    """An encoding that must be stated for a file or a folder of brat files."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (*MARKS, ".txt"))
    found = [likely_encoding(read_bytes(file)) for file in files if file.is_file()]
    return next((name for name in found if name), None)


def _counted(types: dict[str, int]) -> str:
    """`: type count, ...` of the first types; nothing where there is none."""
    text = ", ".join(f"{kind} {count:,}" for kind, count in list(types.items())[:12])
    return f": {text}{', …' if len(types) > 12 else ''}" if text else ""


def _described(report: CheckReport, site: SiteFiles) -> list[str]:
    """Lines on how a file was read and what it holds."""
    counts = report.counts
    held = f"{counts['sentences']:,} sentences, {counts['entities']:,} entities"
    lines = [next(iter(report.details.values())), held + _counted(report.types)]
    if site.attribute:
        said = f"{counts['relations']:,} entities with the attribute {site.attribute}"
        lines.append(said + _counted(report.relations))
    elif counts["relations"]:
        unused = "" if site.about_relations else ' (a tagger does not use them; task = "re" does)'
        lines.append(f"{counts['relations']:,} relations{_counted(report.relations)}{unused}")
    if report.problems:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.kinds.items())
        lost = sum(problem.lost for problem in report.problems)
        lines.append(f"to look at: {len(report.problems):,} ({lost:,} lost): {kinds}")
        shown = report.problems[:3]
        lines += [f"  {problem.where}: {problem.what}" for problem in shown]
        if len(report.problems) > len(shown):
            lines.append("  … (all of them: confide data check FILE)")
    return lines


def _scheme(report: CheckReport) -> str | None:
    """The tag scheme that was found in a file, unless it is doubtful."""
    if "doubtful-scheme" in report.kinds:
        return None
    found = re.search(r"scheme (\w+)", next(iter(report.details.values())))
    return found.group(1) if found else None


def lacking(site: SiteFiles, sites: Sequence[SiteFiles]) -> dict[str, bool]:
    """The types that others annotate and a site lacks, by common name; True: not by chance.

    A site may lack a type by chance if the type is rare (`RARE`) at the sites that have it, if its
    own dev or test text has it, or if text like theirs, as much as this site has, would be without
    it with a probability of at least `BY_CHANCE`. Mentions gather in documents, so documents count;
    where these are few, mentions.
    """
    found = {}
    for kind in dict.fromkeys(kind for other in sites for kind in other.common):
        others = [other for other in sites if kind in other.common]
        if site in others:
            continue
        mentions = sum(other.types[other.common[kind]] for other in others)
        every = sum(other.types.total() for other in others)
        frequent = mentions >= RARE * every
        drawn = site.types.total()
        units = sum(len(other.units) for other in others)
        if min(units, len(site.units)) >= FEW_DOCUMENTS:
            mentions = sum(other.units_with[other.common[kind]] for other in others)
            every, drawn = units, len(site.units)
        chance = (1 - mentions / (every + 1)) ** drawn >= BY_CHANCE
        known = kind in {site.names.get(name, name) for name in site.only_held_out}
        found[kind] = frequent and not chance and not known
    return found


def differences(sites: Sequence[SiteFiles], problems: list[Problem]) -> list[str]:
    """Lines on what follows for the settings; types that differ become problems."""
    lines = []
    lack = {site.name: lacking(site, sites) for site in sites}
    apart = {kind for found in lack.values() for kind, told in found.items() if told}
    for site in sites:
        what = "relations" if site.about_relations else "types"
        path = str(site.read[0].path)
        if only := sorted(apart & site.common.keys()):
            line = f"site {site.name} has {what} that not every site annotates: {', '.join(only)}"
            problems.append(Problem("types-differ", path, line))
            lines.append(line)
        if chance := sorted(kind for kind, told in lack[site.name].items() if not told):
            lines.append(
                f"site {site.name} has no {', '.join(chance)}, which may be chance: there are few"
                " elsewhere, or this site has little text"
            )
        if site.only_held_out:
            line = (
                f"site {site.name} has {what} in its dev or test text alone, of which its training"
                f" text teaches nothing: {', '.join(site.only_held_out)}"
            )
            problems.append(Problem("types-untrained", path, line))
            lines.append(line)
    found = list(repeated(sites))
    problems += found
    lines += [one.what for one in found]
    if len(sites) == 1:
        share = simulated_sites(sites[0])
        lines.append(f"one corpus: dealt to {share} simulated site{'s' * (share > 1)} at random")
    else:
        lines.append(f"{len(sites)} sites: {', '.join(site.name for site in sites)}")
    return lines


def repeated(sites: Sequence[SiteFiles]) -> Iterator[Problem]:
    """Problems of text that is there twice: at two sites, or held out and in training text."""
    training = [_sentences(site.training) for site in sites]
    for (one, own), (other, its) in combinations(zip(sites, training, strict=True), 2):
        if both := _in_both(own, its):
            what = (
                f"sites {one.name} and {other.name} have {both:,} training sentences in common, of"
                f" {len(own):,} and {len(its):,}: is one file part of the other? Then leave it out"
            )
            yield Problem("text-repeated", str(other.read[0].path), what)
    learnt = set().union(*training)
    for site in sites:
        for file in site.read:
            held_out = set() if file.part == "train" else _sentences([file.report])
            if both := _in_both(held_out, learnt):
                what = (
                    f"{both:,} of the {len(held_out):,} sentences of {file.path} are in training"
                    " text, too: scores on it will be too high"
                )
                yield Problem("text-repeated", str(file.path), what)


def _in_both(one: set[str], other: set[str]) -> int:
    """The number of sentences in both, or 0 where they are too few to tell."""
    both, fewer = len(one & other), min(len(one), len(other))
    return both if both >= max(REPEATED_SENTENCES, REPEATED_SHARE * fewer) else 0


def _sentences(reports: Iterable[CheckReport]) -> set[str]:
    """The sentences of at least `REPEATED_WORDS` words, without case."""
    found = (
        document.token_texts(sentence)
        for report in reports
        for document in report.documents
        for sentence in document.sentences
    )
    return {" ".join(words).casefold() for words in found if len(words) >= REPEATED_WORDS}


def simulated_sites(site: SiteFiles) -> int:
    """The number of sites that one corpus can be dealt to."""
    counts = Counter[str]()
    for one in site.read:
        counts[one.part] += one.report.counts["documents"]
    return max(1, min(SITES, *counts.values())) if counts else 1


# --- Types with two names
#
# Two sites may have two names for one thing, such as DRUG and Medication.
#
# Sites that name one thing differently mark the same words. So only words and surfaces (the
# letters of a mention) that both texts have can tell. Two types are one if
#
# - at least two surfaces are marked with the one type here and with the other there;
# - of the mentions of each whose surface the other text has too, most are marked there: a site that
#   leaves them alone does not annotate that;
# - most of what is marked with the one type, and marked at all at the other site, has the other
#   type there, both ways: a part is not the whole, Cancer not Disease;
# - of the words that either type marks, both mark a share of at least `LEAST` (Jaccard).
#
# "fever" is a side effect after some words and a reason for treatment after others. So the last
# two do not compare how often a word has a type, but every occurrence with what a naive Bayes
# model of the other site's text makes of it there, from the word and three words on each side.
# Words weigh by the logarithm of their occurrences; all numbers are one word. Names that differ
# in nothing but case, blanks and a plural's s are one without more ado; relations have no other
# evidence.


LEAST = 0.15
"""The least agreement of two types that are one."""
SURFACES = 2
"""The fewest surfaces that both sites mark."""
TOKENS = 30_000
"""The sample of a site's text in tokens, about, of documents from all over it."""
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
class NameMatch:
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


def matches(sites: Sequence[SiteFiles]) -> list[NameMatch]:
    """Match types that a site names otherwise than one before it, the surest first at each site."""
    found: list[NameMatch] = []
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


def _by_name(site: str, mine: Collection[str], theirs: Mapping[str, str]) -> list[NameMatch]:
    """The types whose names differ in case, blanks or a plural's s only, if just one does."""

    def plain(name: str) -> str:
        return re.sub(r"[\W_]+", "", name.casefold()).removesuffix("s")

    here, there = Counter(map(plain, mine)), Counter(map(plain, theirs))
    return [
        NameMatch(site, kind, name)
        for kind in sorted(mine)
        for other, name in theirs.items()
        if plain(kind) == plain(other) and here[plain(kind)] == there[plain(kind)] == 1
    ]


def _by_text(
    site: str, mine: Collection[str], theirs: Mapping[str, str], texts: tuple[_Text, _Text]
) -> list[NameMatch]:
    """The types that two texts mark alike; of those that share one, the pair that agrees most."""
    here, there = texts
    shared, left_alone = _surfaces(here, there)
    both, either = _words(here, there)
    pairs = [pair for pair in both if both[pair] > 0]
    agreement = {pair: both[pair] / (either[pair] or 1) for pair in pairs}
    found: list[NameMatch] = []
    for pair in sorted(pairs, key=lambda one: (-agreement[one], one)):
        kind, other = pair
        rivals = [one for one in pairs if (one[0] == kind) != (one[1] == other)]
        if (
            kind in mine
            and other in theirs
            and len(shared.get(pair, ())) >= SURFACES
            and max(left_alone[0].get(kind, 0.0), left_alone[1].get(other, 0.0)) <= 0.5
            and agreement[pair] >= LEAST
            and all(
                both[pair] > sum(both[one] for one in rivals if one[side] == pair[side])
                for side in (0, 1)
            )
        ):
            best = max((agreement[one] for one in rivals), default=0.0)
            found.append(NameMatch(site, kind, theirs[other], agreement[pair], best, shared[pair]))
    return found


def _surfaces(
    here: _Text, there: _Text
) -> tuple[dict[Pair, tuple[str, ...]], list[dict[str, float]]]:
    """The surfaces that both sites mark, by the two types, the commonest first.

    And for each site by type: of the mentions whose surface the other text has, the share that is
    left unmarked there. A surface weighs by the logarithm of its mentions.
    """
    surfaces = {*here.surfaces, *there.surfaces}
    counts = here.occurrences(surfaces), there.occurrences(surfaces)
    shared: defaultdict[Pair, list[tuple[int, str]]] = defaultdict(list)
    alone, total = (Weights(float), Weights(float)), (Weights(float), Weights(float))
    for surface in counts[0].keys() & counts[1].keys():
        own = counts[0][surface], counts[1][surface]
        for side in (0, 1):
            other = own[1 - side]
            for kind, count in own[side].items():
                weight = math.log2(1 + count)
                alone[side][kind] += weight * other[_UNMARKED] / other.total()
                total[side][kind] += weight
        for kind, count in own[0].items():
            for other_kind, other_count in own[1].items():
                if kind and other_kind:
                    seen = min(count, other_count), here.surfaces[surface]
                    shared[kind, other_kind].append(seen)
    surfaces_of = {
        pair: tuple(words for _, words in sorted(found, key=lambda one: (-one[0], one[1])))
        for pair, found in shared.items()
    }
    left = [
        {kind: alone[side][kind] / weight for kind, weight in total[side].items()}
        for side in (0, 1)
    ]
    return surfaces_of, left


def _words(here: _Text, there: _Text) -> tuple[dict[Pair, float], dict[Pair, float]]:
    """Weigh the words that both sites mark with two types, and those that either marks."""
    both: defaultdict[Pair, float] = defaultdict(float)
    one, other = Weights(float), Weights(float)
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
        start, spans = len(self.words), tokenise(document.text)
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
        """The evidence that a neighbour adds to the logarithm of each type's probability."""
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
        """Count the types that each surface is marked with, apart from parts of other mentions."""
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
