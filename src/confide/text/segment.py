"""Raw text to sentences and tokens, with exact offsets, by the rules of its language."""

from __future__ import annotations

import re
import tomllib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from itertools import accumulate, chain, islice
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from confide.errors import DataError, SettingsError
from confide.files import Tree
from confide.text.document import Document, PackedSpans, Problems, Sentence, Span
from confide.text.rows import mend_surrogates

# --- Full stops and languages ---------------------------------------------------------------------
#
# The meaning of a stop depends on the language, which is detected.
#
# Two sources say whether a stop belongs to an abbreviation: `sentencex`, Wikimedia's library of
# abbreviations in some 240 languages, and `languages.toml`, the words of clinical text. The
# language of a text is that of its frequent short words or, where a script tells it, of its
# letters.

PLACEHOLDER = "\ufffd"
"""The text of a token that a file leaves empty."""
AUTO = "auto"
"""The setting that lets a site's own text tell its language."""


@cache
def _table() -> dict[str, Tree]:
    table: dict[str, Tree] = tomllib.loads(
        (files("confide.text") / "languages.toml").read_text("utf-8")
    )
    return table


CODES = frozenset(_table()["iso"]["codes"].split())
"""The languages of ISO 639-1, two letters each."""
_SCRIPTS = {code: re.compile(f"[{letters}]") for code, letters in _table()["scripts"].items()}
"""Scripts that tell the language; kana before Han letters, which Japanese has as well."""
_WORD = re.compile(r"[^\W\d_]+")
_SAMPLE, _DOCUMENTS = 4000, 400  # characters of a document, documents
_FEWEST, _HIT_SHARE, _LEAD = 4, 0.08, 1.25  # hits, hits per word, lead over the second language


@dataclass(frozen=True, slots=True)
class Stops:
    """The meaning of a full stop after a word.

    A word of `never`, or one that ends like one of `endings`, is an abbreviation, and the sentence
    goes on. After one of `often` it ends only if one of `openers` follows; so it does after a
    number if `ordinals`. `library`: whether sentencex is asked about all other words.
    """

    language: str
    never: frozenset[str]
    often: frozenset[str]
    openers: frozenset[str]
    endings: tuple[str, ...]
    ordinals: bool
    library: bool


def language_of(texts: Iterable[str]) -> str:
    """The language of texts, taken together; "" if they are too few or too mixed to tell."""
    letters: Counter[str] = Counter()
    scores: dict[str, float] = defaultdict(float)
    words = hits = 0
    known = _languages_of_words()
    for text in islice(texts, _DOCUMENTS):
        sample = text[:_SAMPLE]
        if not sample.isascii():  # no script that tells a language is in ASCII
            letters.update({name: len(script.findall(sample)) for name, script in _SCRIPTS.items()})
        found = _WORD.findall(sample.lower())
        words += len(found)
        for among in filter(None, map(known.get, found)):
            hits += 1
            for language in among:
                scores[language] += 1 / len(among)
    if letters["ja"] * 10 > letters["zh"]:
        letters["ja"] += letters.pop("zh", 0)
    script, seen = max(letters.items(), key=lambda item: item[1], default=("", 0))
    if seen > 2 * words:  # words of Latin letters are several letters each
        return script
    if hits < _FEWEST or hits < _HIT_SHARE * words:
        return script if seen > words and seen >= _FEWEST else ""
    (best, most), (_, second) = [*sorted(scores.items(), key=lambda item: -item[1]), ("", 0.0)][:2]
    return best if most >= _LEAD * second else ""


@lru_cache(maxsize=1 << 14)
def _abbreviates(language: str, word: str, following: str) -> bool:
    """Return whether sentencex reads a word with a stop as an abbreviation before this word."""
    from sentencex import segment

    probe = f"Xx {word}. {following} xx."
    try:
        return len(segment(language, probe)) == 1
    except UnicodeEncodeError:  # half of a character, which is no abbreviation
        return False


@cache
def _languages_of_words() -> dict[str, tuple[str, ...]]:
    """The languages that have a frequent word."""
    found: dict[str, list[str]] = {}
    for language, own in _table().items():
        for word in own.get("words", "").split():
            found.setdefault(word, []).append(language)
    return {word: tuple(dict.fromkeys(languages)) for word, languages in found.items()}


# --- The splitter ---------------------------------------------------------------------------------
#
# Raw text to sentences and tokens, with exact offsets, behind one small interface.
#
# Tokens cover every character that is not white space, in order and without overlap; every token
# lies in one sentence. The rules are made for clinical and scientific prose: abbreviations,
# decimals, initials, list items, headings, and notes whose lines either end with the sentence or
# are merely wrapped.

_UNITS = "mg|mcg|ug|µg|g|kg|ml|mL|dl|dL|l|L|mm|cm|mmHg|mmol|mEq|IU|hrs?|h|min|days?|wks?|yo|x"
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0e00"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u200c\u200d\u20d0-\u20f0\ufe00-\ufe0f"
)
_ALONE = (  # letters of Chinese and Japanese, Thai, Lao, Burmese and Khmer
    "\u3005-\u3007\u3040-\u3098\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d"
    "\U00020000-\U0003ffff\u0e01-\u0e30\u0e32\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0ec0-\u0ec6"
    "\u0edc-\u0edf\u1000-\u102a\u103f\u1050-\u1055\u1780-\u17b3"
)
_JOINED = (  # their vowels and tones above, below and behind
    "\u3099\u309a\uff9e\uff9f\ufe00-\ufe0f\u0e31\u0e33-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb3-\u0ebc"
    "\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u17dd"
)
_TOKEN = re.compile(
    rf"""
      [A-Za-z][A-Za-z0-9]*+(?:[{_MARKS}]|[^\W_{_ALONE}])*+  # words, the usual ones first for speed
    | \d+(?:[.,]\d+)*(?=(?i:{_UNITS})\b)       # the number of a dose: 5 of 5mg
    | \d+(?:[.,]\d+)+                          # decimals and thousands: 3.5, 10,000
    | [{_ALONE}](?:[\u17d2\u1039][{_ALONE}]|[{_JOINED}])*  # scripts without blanks: one by one
    | [^\W_{_ALONE}](?:[{_MARKS}]|[^\W_{_ALONE}])*  # other words, with their combining marks
    | ['’](?i:s|t|d|m|re|ve|ll)\b              # the end of: patient's, don't
    | (?P<run>[.\-=_*~!?\#])(?P=run)+          # ..., ---, ====
    | \S
    """,
    re.VERBOSE,
)
_STOPS = "。！？｡؟۔।॥։።။។"
_MAY_BREAK = re.compile(rf"[.!?\n{_STOPS}]")
_BREAK = re.compile(
    r"(?<![.!?])(?P<stop>[.!?]++)[\"'”’)\]]*+(?=\s|$)|(?P<line>\n\s*+)"
    f"|[{_STOPS}]++[”’」』]*+"
)
_BULLET = re.compile(r"(?:[-*•·+>]|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s")
_LINE = re.compile(r"[\n\r]+")
_NEXT_WORD = re.compile(r"\w+")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_DOTTED = re.compile(r"[^\W\d_]{1,3}(?:\.-?[^\W\d_]{1,3})+")
_WRAPPED_AT = 60


Segmenter = Callable[[str], tuple[Sentence, ...]]
"""A splitter: from a text to its sentences, in order, whose tokens are offsets into it."""


@dataclass(frozen=True)
class RuleSegmenter:
    """The sentence splitter and tokeniser that comes with confide; it is deterministic.

    A full stop ends a sentence unless it belongs to a title, an abbreviation, an initial or a
    number, or a lower-case word follows. A newline ends one unless the line was merely wrapped
    (the next line continues in lower case, or the line has 60 characters or more and no final mark,
    and no list item follows); an empty line always does.

    `language` is a code of ISO 639-1; without one, stops mean what they do in English prose.
    `abbreviations` are further ones that end no sentence, with or without their last stop.
    """

    language: str = ""
    abbreviations: tuple[str, ...] = ()

    @cached_property
    def stops(self) -> Stops:
        """The rules of the language in `languages.toml`, or else those of sentencex alone.

        Without a language they are those of English prose, and sentencex is not asked.
        """
        own = _table().get(self.language or "plain", {})
        never = [*own.get("never", "").split(), *(one.strip() for one in self.abbreviations)]
        never = [one.lower().removesuffix(".") for one in never]
        return Stops(
            self.language,
            never=frozenset(one for one in never if not one.startswith("-")),
            often=frozenset(own.get("often", "").split()),
            openers=frozenset(own.get("openers", "").split()),
            endings=tuple(one[1:] for one in never if one.startswith("-")),
            ordinals=own.get("ordinals", False),
            library=bool(self.language),
        )

    def __call__(self, text: str) -> tuple[Sentence, ...]:
        """The sentences of a text; none for a text of white space."""
        return cut_at(text, _cuts(text, self.stops))


def line_segmenter(text: str) -> tuple[Sentence, ...]:
    """Each line of a text that is not blank as one sentence."""
    return cut_at(text, (match.end() for match in _LINE.finditer(text)))


def cut_at(text: str, cuts: Iterable[int]) -> tuple[Sentence, ...]:
    """The sentences between ascending offsets; a cut inside a token comes after that token."""
    borders = array("I", chain.from_iterable(map(re.Match.span, _TOKEN.finditer(text))))
    starts = borders[::2]
    sentences: list[Sentence] = []
    first = 0
    for cut in (*cuts, len(text)):
        last = bisect_left(starts, cut, first)
        if last > first:
            own = borders[2 * first : 2 * last]
            sentences.append(Sentence(own[0], own[-1], PackedSpans(own)))
        first = last
    return tuple(sentences)


def tokenise(text: str) -> list[Span]:
    """The tokens of a text, the same that `RuleSegmenter` finds, without its sentences."""
    return list(map(re.Match.span, _TOKEN.finditer(text)))


# --- Text that comes as sentences, or as tokens


class JoinedText(NamedTuple):
    """A text, its sentences with their tokens, and where each of the given strings begins."""

    text: str
    sentences: tuple[Sentence, ...]
    starts: tuple[int, ...]


def join_sentences(texts: Iterable[str]) -> JoinedText:
    """Sentences joined by newlines. Each stays one sentence, whatever full stops it contains."""
    pieces = list(texts)
    starts = tuple(accumulate((len(piece) + 1 for piece in pieces), initial=0))[:-1]
    text = "\n".join(pieces)
    return JoinedText(text, cut_at(text, starts[1:]), starts)


def one_sentence(text: str) -> tuple[Sentence, ...]:
    """A text as one sentence with its tokens; none for a text of white space."""
    return cut_at(text, ())


def words_with_gaps(parts: Iterable[tuple[str, str]]) -> tuple[str, list[Span]]:
    """The text of words, each with the white space behind it, and where each word stands.

    >>> words_with_gaps([("no", " "), ("rash", ""), (".", "")])
    ('no rash.', [(0, 2), (3, 7), (7, 8)])
    """
    pieces: list[str] = []
    spans: list[Span] = []
    offset = 0
    for word, gap in parts:
        pieces += word, gap
        spans.append((offset, offset + len(word)))
        offset += len(word) + len(gap)
    return "".join(pieces), spans


def lay_out_tokens(
    sentences: Sequence[Sequence[str]], where: str, problems: Problems
) -> tuple[str, tuple[Sentence, ...]]:
    """The text of sentences (tokens joined by blanks, sentences by newlines), and their tokens.

    An empty token is read as U+FFFD, which is reported. Raises DataError if there is no token.
    """
    lines: list[str] = []
    found: list[Sentence] = []
    offset = 0
    for sentence in filter(None, sentences):
        tokens = [token if token.strip() else PLACEHOLDER for token in sentence]
        if PLACEHOLDER in tokens and list(sentence) != tokens:
            problems.note("empty-token", where, "an empty token is read as U+FFFD")
        tokens = [mend_surrogates(token, where, problems) for token in tokens]
        spans: list[Span] = []
        for token in tokens:
            spans.append((offset, offset + len(token)))
            offset += len(token) + 1
        lines.append(" ".join(tokens))
        found.append(Sentence(spans[0][0], spans[-1][1], tuple(spans)))
    if not found:
        raise DataError("a document without a token", where=where)
    return "\n".join(lines), tuple(found)


def text_of_tokens(document: Document) -> str:
    """The text that `lay_out_tokens` makes of a segmented document's tokens."""
    return "\n".join(" ".join(document.token_texts(sentence)) for sentence in document.sentences)


def tokens_covered(tokens: Sequence[Span], start: int, end: int) -> tuple[int, int]:
    """The first token that shares a character with a stretch, and one past the last."""
    first = bisect_right(tokens, start, key=itemgetter(1))
    return first, bisect_left(tokens, end, key=itemgetter(0))


def with_own_tokens(document: Document) -> Document:
    """The document with its own sentences, and the tokens that `tokenise` finds in each.

    >>> told = Document("d", "Art. 25. gilt", sentences=(Sentence(0, 13, ((0, 4), (5, 8))),))
    >>> with_own_tokens(told).sentences[0].tokens
    ((0, 3), (3, 4), (5, 7), (7, 8), (9, 13))
    """
    return replace(document, sentences=tuple(_own(document.text, s) for s in document.sentences))


def _own(text: str, sentence: Sentence) -> Sentence:
    found = map(re.Match.span, _TOKEN.finditer(text, sentence.start, sentence.end))
    tokens = PackedSpans(array("I", chain.from_iterable(found)))
    return sentence if tokens == sentence.tokens else replace(sentence, tokens=tokens)


@dataclass(frozen=True, slots=True)
class WordsCut:
    """The words in entities as a file cuts them, and how many of them `tokenise` cuts otherwise.

    Only sentences that came with tokens are counted.
    """

    words: int = 0
    cut: int = 0

    @property
    def share(self) -> float:
        """The share that is cut otherwise; 0 without a word."""
        return self.cut / self.words if self.words else 0.0


def count_words_cut(documents: Iterable[Document]) -> WordsCut:
    """Count the differences between the tokens of files, in entities, and those of raw text.

    A model that learnt from the former does not know the latter.
    """
    words = cut = 0
    for document in documents:
        inside = sorted(part for one in document.entities for part in one.fragments)
        if not inside or not document.sentences:
            continue
        own = {span for s in with_own_tokens(document).sentences for span in s.tokens}
        ends = list(accumulate((end for _, end in inside), max))
        starts = [start for start, _ in inside]
        for sentence in document.sentences:
            for start, end in sentence.tokens:
                place = bisect_left(starts, end)  # fragments that begin before the token ends
                if place and ends[place - 1] > start:
                    words += 1
                    cut += (start, end) not in own
    return WordsCut(words, cut)


def _cuts(text: str, stops: Stops) -> Iterator[int]:
    """The offsets where a sentence ends, ascending."""
    line_start = 0
    for match in _breaks(text):
        if match.lastgroup == "line":
            if _line_ends(text, line_start, match):
                yield match.end()
            line_start = match.end()
        elif match.lastgroup is None or _stop_ends(text, line_start, match, stops=stops):
            yield match.end()


def _breaks(text: str) -> Iterator[re.Match[str]]:
    """The matches of `_BREAK`; its first characters are found much faster by themselves."""
    end = 0
    for candidate in _MAY_BREAK.finditer(text):
        if candidate.start() >= end and (found := _BREAK.match(text, candidate.start())):
            end = found.end()
            yield found


def _line_ends(text: str, line_start: int, match: re.Match[str]) -> bool:
    """Return whether a newline ends the sentence."""
    if match.group().count("\n") > 1 or match.end() == len(text):
        return True
    if _BULLET.match(text, match.end()):
        return True
    end = match.start()
    while end > line_start and text[end - 1].isspace():
        end -= 1
    if end == line_start or text[end - 1] in ".!?:;":
        return True
    following, wrapped = text[match.end()], end - line_start >= _WRAPPED_AT
    return not (following.islower() or (wrapped and (following.isalnum() or following in "(")))


def _stop_ends(text: str, line_start: int, match: re.Match[str], *, stops: Stops) -> bool:
    """Return whether a stop before white space or the end of the text ends the sentence."""
    position = match.end()
    while position < len(text) and text[position].isspace() and text[position] != "\n":
        position += 1
    if position == len(text) or text[position] == "\n":
        return False  # the end of the text or of the line decides
    following = text[position]
    if following.islower():
        return False
    if match.group("stop") != ".":
        return True
    found = _LAST_WORD.search(text, max(line_start, match.start() - 40), match.start())
    word = found.group() if found else ""
    lower = word.lower()
    if lower in stops.never or lower.endswith(stops.endings):
        return False
    if lower == "no" and following.isdigit():
        return False
    if _BULLET.match(text, match.start() - len(word)) and match.start() - len(word) == line_start:
        return False  # "1. Aspirin"
    ahead = _NEXT_WORD.match(text, position, position + 20)
    next_word = ahead.group() if ahead else ""
    initial = stops.library and len(next_word) == 1 and text[position + 1 : position + 2] == "."
    opens = next_word.lower() in stops.openers and not initial
    if (len(word) == 1 and word.isalpha()) or lower in stops.often:
        return opens
    if stops.library and _DOTTED.fullmatch(word):
        return opens
    if stops.ordinals and word.isdigit() and len(word) <= 2:
        return opens or not next_word
    return not (stops.library and _abbreviates(stops.language, word, next_word))


def segmented(document: Document, segmenter: Segmenter | None = None) -> Document:
    """The document with sentences and tokens; one that already has them is returned as it is."""
    if document.sentences:
        return document
    return replace(document, sentences=(segmenter or RuleSegmenter())(document.text))


# --- Cutting of documents -------------------------------------------------------------------------
#
# Into sentences: by a language's rules, by their lines, or as they came.

Sentences = Literal["rules", "lines"]
TrainOn = Literal["own tokens", "file tokens"]
"""The tokens of text that comes with tokens: those that raw text has, or those of the file."""
_PLAIN_LANGUAGES = ("", "en")
_WORD_SHARE, _COMMONEST = 0.01, 10


@dataclass(frozen=True, slots=True)
class Splitting:
    """The rules for cutting text into sentences and tokens.

    `language` is two letters of ISO 639-1, or `auto`: that of all documents together. Text that is
    English, or does not tell, then keeps the rules of English prose. With `lines`, every line is a
    sentence. `abbreviations` are further ones that end no sentence. Text that comes with sentences
    keeps them; `tokens` says which tokens they have.
    """

    language: str = AUTO
    sentences: Sentences = "rules"
    abbreviations: tuple[str, ...] = ()
    tokens: TrainOn = "file tokens"

    def __post_init__(self) -> None:
        """Raise SettingsError for a language that is neither `auto` nor one of ISO 639-1."""
        if self.language != AUTO and self.language not in CODES:
            raise SettingsError(
                "the language is not known",
                expected="auto, or two letters of ISO 639-1 such as en, es, fr, de or ja",
                got=repr(self.language[:40]),
            )

    def language_for(self, documents: Sequence[Document]) -> str:
        """The language that is stated or, if `auto`, told by documents without sentences."""
        if self.language != AUTO:
            return self.language
        return language_of(one.text for one in documents if not one.sentences)

    def segmenter(self, language: str) -> Segmenter:
        """Return the segmenter of text in this language."""
        if self.sentences == "lines":
            return line_segmenter
        plain = self.language == AUTO and language in _PLAIN_LANGUAGES
        return RuleSegmenter("" if plain else language, self.abbreviations)


def into_sentences(documents: Sequence[Document], splitting: Splitting) -> list[Document]:
    """The documents with sentences; those that have some keep them."""
    if splitting.tokens == "own tokens":
        documents = [with_own_tokens(one) if one.sentences else one for one in documents]
    if all(one.sentences for one in documents):
        return list(documents)
    segmenter = splitting.segmenter(splitting.language_for(documents))
    if segmenter == RuleSegmenter():  # what everything does by itself, when it needs sentences
        return list(documents)
    return [segmented(document, segmenter) for document in documents]


# --- entities across the ends of sentences --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossing:
    """Entities of a type that cross the end of a sentence, of how many, and what stands there.

    `before` counts the words before those ends, the ten commonest first.
    """

    crossing: int
    entities: int
    before: Mapping[str, int]


class Crossings:
    """Counts, document by document, the entities that cross the end of a sentence."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._before: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, document: Document) -> None:
        """Count a segmented document, with the word before the first such end of each entity."""
        self._totals.update(entity.type for entity in document.entities)
        ordered = sorted((one for one in document.entities if len(one.fragments) == 1),
                         key=attrgetter("start"))  # fmt: skip
        sentences, place = document.sentences, 0
        for entity in ordered:
            while place + 1 < len(sentences) and sentences[place + 1].start <= entity.start:
                place += 1
            if place + 1 < len(sentences) and sentences[place + 1].start < entity.end:
                end = sentences[place].end
                words = document.text[max(end - 40, sentences[place].start) : end].split()
                self._before[entity.type][words[-1] if words else ""] += 1

    def by_type(self) -> dict[str, Crossing]:
        """The types of which more than 1 % cross the end of a sentence, the most frequent first."""
        found = {
            type: Crossing(words.total(), self._totals[type], dict(words.most_common(_COMMONEST)))
            for type, words in self._before.items()
            if words.total() > _WORD_SHARE * self._totals[type]
        }
        return dict(sorted(found.items(), key=lambda item: -item[1].crossing))
