"""Vocabularies: from words or characters to ids, in the clear or by keyed digest.

A keyed vocabulary never holds a word. It holds digests under a key that the sites share and the
server never sees, so that any site can number any of its words and the server can number none
(Luboshnikov & Makarov 2020, Fig. 3; HMAC instead of the paper's plain hash).

Shapes: V entries of a vocabulary (without the two specials), 16 bytes of a digest.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError

PAD, UNK = 0, 1
SPECIALS = 2
DIGEST_BYTES = 16

How = Literal["none", "lower", "lower-digits"]

_DIGITS_TO_ZERO = {ord(digit): "0" for digit in "123456789"}


def normalise(token: str, how: How) -> str:
    """The form under which a token is counted and looked up.

    >>> [normalise("IL-12", how) for how in ("none", "lower", "lower-digits")]
    ['IL-12', 'il-12', 'il-00']
    """
    if how == "none":
        return token
    if how == "lower":
        return token.lower()
    if how == "lower-digits":
        return token.lower().translate(_DIGITS_TO_ZERO)
    raise DataError(
        "unknown way to normalise words", expected="none, lower or lower-digits", got=repr(how)
    )


def digest(key: bytes, kind: str, text: str) -> bytes:
    """16 bytes of HMAC-SHA-256 over the kind ("word", "character", ...), a NUL and the text."""
    message = kind.encode() + b"\0" + text.encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, "sha256")[:DIGEST_BYTES]


BUCKET = b"\0bucket\0"
"""How a row begins that stands for a bucket of words, and not for the digest of one.

A digest begins so with a chance of 2^-64."""


def bucket_of(digest: bytes, bits: int) -> int:
    """The number of a digest's bucket: its first bits.

    >>> bucket_of(bytes.fromhex("80c0" + "00" * 14), 2)
    2
    """
    return int.from_bytes(digest[:8], "big") >> (64 - bits)


def bucket_rows(numbers_V: NDArray[np.integer], bits: int) -> NDArray[np.uint8]:
    """Rows of a keyed vocabulary that stand for buckets of so many bits. Shape V × 16."""
    rows = [BUCKET + bytes([0, 0, 0, bits]) + int(n).to_bytes(4, "big") for n in numbers_V]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), DIGEST_BYTES).copy()


class Vocabulary(Protocol):
    """Numbers texts: `PAD` is never assigned, `UNK` stands for everything unknown."""

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """One id per text."""
        ...

    def __len__(self) -> int:
        """How many ids there are, the two specials included."""
        ...


@dataclass(frozen=True)
class ClearVocabulary:
    """A vocabulary in the clear: `texts[i]` has id `i + 2`."""

    texts: tuple[str, ...]
    kind: str = "word"

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.texts, SPECIALS)}

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """One id per text."""
        find = self._numbers.get
        return np.fromiter((find(text, UNK) for text in texts), np.int32, len(texts))

    def __len__(self) -> int:
        return len(self.texts) + SPECIALS


@dataclass(frozen=True, eq=False)
class KeyedVocabulary:
    """A vocabulary of digests, or of buckets of them: row `i` of `digests_V16` has id `i + 2`.

    Only someone with the key can look a text up. Texts of one bucket share its id. `repr` does not
    show the key.
    """

    digests_V16: NDArray[np.uint8]
    kind: str
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if self.digests_V16.ndim != 2 or self.digests_V16.shape[1] != DIGEST_BYTES:
            raise DataError(
                "these are not digests of a vocabulary",
                expected=f"an array of V x {DIGEST_BYTES} bytes",
                got=f"shape {self.digests_V16.shape}",
            )

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        rows = self.digests_V16.tobytes()
        starts = range(0, len(rows), DIGEST_BYTES)
        return {rows[i : i + DIGEST_BYTES]: id for id, i in enumerate(starts, SPECIALS)}

    @cached_property
    def _bits(self) -> int:
        """The bits of a bucket's number; 0 if rows are digests."""
        row = self.digests_V16[:1].tobytes()
        bits = row[len(BUCKET) + 3] if row.startswith(BUCKET) else 0
        return bits if bits <= 32 else 0

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """One id per text."""
        find, key, kind = self._numbers.get, self.key, self.kind
        marks = (digest(key, kind, text) for text in texts)
        if bits := self._bits:
            start = BUCKET + bytes([0, 0, 0, bits])
            marks = (start + bucket_of(mark, bits).to_bytes(4, "big") for mark in marks)
        return np.fromiter((find(mark, UNK) for mark in marks), np.int32, len(texts))

    def __len__(self) -> int:
        return len(self.digests_V16) + SPECIALS


def rows_of_digests(digests_V16: NDArray[np.uint8]) -> list[bytes]:
    """The digests of a vocabulary, in order of ids; none of buckets, which another key fills anew.

    Equal digests, of one key, are of equal texts.
    """
    rows = [row.tobytes() for row in digests_V16]
    return [] if rows and rows[0].startswith(BUCKET) else rows


def count_words(tokens: Iterable[str] | Mapping[str, int], how: How) -> Counter[str]:
    """How often each normalised word occurs; `tokens` may be counts of them."""
    counts: Counter[str] = Counter()
    for token, count in Counter(tokens).items():
        counts[normalise(token, how)] += count
    return counts


def count_characters(tokens: Iterable[str] | Mapping[str, int]) -> Counter[str]:
    """How often each character occurs (as written, never normalised); `tokens` may be counts."""
    counts: Counter[str] = Counter()
    for token, count in Counter(tokens).items():
        for character in token:
            counts[character] += count
    return counts


def numbered(
    counts: Mapping[str, int], *, min_count: int = 1, kind: str = "word"
) -> ClearVocabulary:
    """The clear vocabulary of these counts: most frequent first, ties in order of the text."""
    kept = sorted((-count, text) for text, count in counts.items() if count >= min_count)
    return ClearVocabulary(tuple(text for _, text in kept), kind)
