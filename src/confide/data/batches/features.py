"""The features of a word that a linear model reads, as keyed numbers.

Sites hash their features under a key that they share and the server never sees, as they do with the
words of a vocabulary (`data.batches.vocabulary`). Here nothing needs counting first: the hash
itself says which weights belong to a feature (`models.linear`).

A word has features that are read at its own place (its first letters), also by its next neighbours
(its last letters and its shape), and also by theirs (the word itself and its short shape).

Shapes: F distinct words as written, M features of all words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from confide.data.batches.encoding import Encoded
from confide.data.batches.examples import Example
from confide.data.batches.flat import offsets
from confide.data.batches.vocabulary import digest

AFFIXES = 4
"""The most letters at the start or the end of a word that are a feature."""
_LONGEST = 12  # letters of a shape
_HASHED = 29  # bits of a mark that are hashed; two more say how far it reaches
_REPEATED = re.compile(r"(.)\1+")


def shape(word: str) -> str:
    """Its letters as `X` and `x`, its digits as `0`; other characters stay.

    >>> [shape(word) for word in ("IL-12", "Straße", "§")]
    ['XX-00', 'Xxxxxx', '§']
    """
    return "".join(map(_kind, word[:_LONGEST]))


def _kind(character: str) -> str:
    if character.isdigit():
        return "0"
    if character.isupper():
        return "X"
    return "x" if character.isalpha() else character


def features(word: str) -> Iterator[tuple[str, int]]:
    """The features of a word, and how far each is read: 0, 1 or 2 places away.

    >>> dict(features("Ab1"))["short Xx0"], sorted(text for text, far in features("Ab1") if far < 1)
    (2, ['first a', 'first ab', 'first ab1'])
    """
    low, form = word.lower(), shape(word)
    yield f"word {low}", 2
    yield f"short {_REPEATED.sub(lambda found: found[1], form)}", 2
    yield f"shape {form}", 1
    for letters in range(1, min(AFFIXES, len(low)) + 1):
        yield f"last {low[-letters:]}", 1
        yield f"first {low[:letters]}", 0


@dataclass(frozen=True)
class Marks:
    """Turns words into the marks of their features, for a holder of the key; `repr` hides it."""

    key: bytes = field(repr=False)
    _known: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def of(self, word: str) -> list[int]:
        """The marks of a word's features, each above 0 and below 2^31."""
        return [self._mark(text, far) for text, far in features(word)]

    def _mark(self, text: str, far: int) -> int:
        found = self._known.get(text)
        if found is None:
            hashed = int.from_bytes(digest(self.key, "feature", text)[:4], "big") >> 32 - _HASHED
            # the lowest ones stand for no feature and for the ends of a sentence
            found = self._known[text] = max(hashed, 2) << 2 | far
        return found


def with_features(encoded: Encoded, examples: Sequence[Example], marks: Marks) -> Encoded:
    """The text with the marks of each distinct word's features in place of its characters."""
    words_F = [""] * len(encoded.words_F)
    for window, begin in zip(encoded.windows, encoded.tokens_from_S1.tolist(), strict=False):
        tokens = examples[window.example].tokens[window.start : window.end]
        for form, token in zip(encoded.forms_N[begin : begin + len(tokens)], tokens, strict=True):
            words_F[form] = token
    found = [marks.of(word) for word in words_F]
    return replace(
        encoded,
        characters_M=np.array([mark for own in found for mark in own], np.int32),
        characters_from_F1=offsets([len(own) for own in found]),
    )
