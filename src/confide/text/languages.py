"""What a full stop means in a language, and which language a text is in.

Two sources say whether a stop belongs to an abbreviation: `sentencex`, Wikimedia's library of
abbreviations in some 240 languages, and `languages.toml`, the words of clinical text. The language
of a text is that of its frequent short words or, where a script tells it, of its letters.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import islice

from confide.errors import SettingsError
from confide.userfiles import Tree

AUTO = "auto"
"""The setting that lets a site's own text tell its language."""

_ISO = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv "
    "cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr "
    "ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw "
    "ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv "
    "ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr "
    "ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi "
    "yo za zh zu"
)
CODES = frozenset(_ISO.split())
"""The languages of ISO 639-1, two letters each."""

_SCRIPTS = (
    ("ja", re.compile("[\u3041-\u30ff]")),
    ("ko", re.compile("[\u1100-\u11ff\uac00-\ud7a3]")),
    ("zh", re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")),
    ("th", re.compile("[\u0e01-\u0e4e]")),
    ("lo", re.compile("[\u0e81-\u0ece]")),
    ("km", re.compile("[\u1780-\u17d3]")),
    ("my", re.compile("[\u1000-\u104f]")),
    ("ka", re.compile("[\u10a0-\u10ff]")),
    ("hy", re.compile("[\u0531-\u0587]")),
    ("am", re.compile("[\u1200-\u135a]")),
    ("bn", re.compile("[\u0980-\u09fb]")),
    ("ta", re.compile("[\u0b80-\u0bfa]")),
    ("te", re.compile("[\u0c00-\u0c7f]")),
)
"""Scripts that tell the language; kana before Han letters, which Japanese has as well."""
_WORD = re.compile(r"[^\W\d_]+")
_SAMPLE, _DOCUMENTS = 4000, 400  # characters of a document, documents
_FEWEST, _SHARE, _LEAD = 4, 0.08, 1.25  # hits, hits per word, lead over the second language


@dataclass(frozen=True, slots=True)
class Stops:
    """What a full stop after a word means.

    A word of `never`, or one that ends like one of `endings`, is an abbreviation, and the sentence
    goes on. After one of `often` it ends only if one of `openers` follows; so it does after a
    number if `ordinals`. `library`: whether sentencex is asked about all other words.
    """

    language: str
    never: frozenset[str]
    often: frozenset[str]
    openers: frozenset[str]
    endings: tuple[str, ...] = ()
    ordinals: bool = False
    library: bool = True

    def never_ends(self, lower: str) -> bool:
        """Whether a word in lower case, with a stop, is an abbreviation that ends no sentence."""
        return lower in self.never or (bool(self.endings) and lower.endswith(self.endings))

    def in_library(self, word: str, following: str) -> bool:
        """Whether sentencex reads a word with a stop, before this word, as an abbreviation."""
        return self.library and _abbreviates(self.language, word, following)


def stops_of(language: str, abbreviations: Iterable[str] = ()) -> Stops:
    """The rules of a language of `languages.toml`, or else those of sentencex alone.

    `abbreviations` are further ones that never end a sentence, with or without their last stop.
    """
    own = _table().get(language, {})
    never = [*own.get("never", "").split(), *(one.strip() for one in abbreviations)]
    never = [one.lower().removesuffix(".") for one in never]
    return Stops(
        language,
        never=frozenset(one for one in never if not one.startswith("-")),
        often=frozenset(own.get("often", "").split()),
        openers=frozenset(own.get("openers", "").split()),
        endings=tuple(one[1:] for one in never if one.startswith("-")),
        ordinals=own.get("ordinals", False),
    )


def check_language(code: str) -> None:
    """Raise SettingsError for a language that is neither `auto` nor one of ISO 639-1."""
    if code != AUTO and code not in CODES:
        raise SettingsError(
            "the language is not known",
            expected="auto, or two letters of ISO 639-1 such as en, es, fr, de or ja",
            got=repr(code[:40]),
        )


def language_of(texts: Iterable[str]) -> str:
    """The language of texts, taken together; "" if they are too few or too mixed to tell."""
    letters: Counter[str] = Counter()
    scores: dict[str, float] = defaultdict(float)
    words = hits = 0
    known = _languages_of_words()
    for text in islice(texts, _DOCUMENTS):
        sample = text[:_SAMPLE]
        letters.update({name: len(script.findall(sample)) for name, script in _SCRIPTS})
        for word in _WORD.findall(sample.lower()):
            words += 1
            among = known.get(word, ())
            hits += bool(among)
            for language in among:
                scores[language] += 1 / len(among)
    if letters["ja"] * 10 > letters["zh"]:
        letters["ja"] += letters.pop("zh", 0)
    script, seen = max(letters.items(), key=lambda item: item[1], default=("", 0))
    if seen > 2 * words:  # words of Latin letters are several letters each
        return script
    if hits < _FEWEST or hits < _SHARE * words:
        return script if seen > words and seen >= _FEWEST else ""
    (best, most), (_, second) = [*sorted(scores.items(), key=lambda item: -item[1]), ("", 0.0)][:2]
    return best if most >= _LEAD * second else ""


@lru_cache(maxsize=1 << 14)
def _abbreviates(language: str, word: str, following: str) -> bool:
    """Whether sentencex reads a word with a stop as an abbreviation before this word."""
    from sentencex import segment

    probe = f"Xx {word}. {following} xx."
    try:
        return len(segment(language, probe)) == 1
    except UnicodeEncodeError:  # half of a character, which is no abbreviation
        return False


@cache
def _table() -> dict[str, Tree]:
    table: dict[str, Tree] = tomllib.loads(
        (files("confide.text") / "languages.toml").read_text("utf-8")
    )
    return table


@cache
def _languages_of_words() -> dict[str, tuple[str, ...]]:
    """The languages that have a frequent word."""
    found: dict[str, list[str]] = {}
    for language, own in _table().items():
        for word in own.get("words", "").split():
            found.setdefault(word, []).append(language)
    return {word: tuple(dict.fromkeys(languages)) for word, languages in found.items()}
