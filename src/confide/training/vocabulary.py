"""Vocabularies, from words or characters to ids, in the clear or keyed, and word vectors.

A keyed vocabulary never holds a word. It holds digests under a key that the sites share and the
server never sees, so that any site can number any of its words and the server can number none
(Luboshnikov & Makarov 2020, Fig. 3; HMAC instead of the paper's plain hash).

Shapes: V entries of a vocabulary (without the two specials), 16 bytes of a digest.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, FormatError, MissingDataError
from confide.files import NotAFileError, open_regular

PAD, UNK = 0, 1
SPECIALS = 2
DIGEST_BYTES = 16
_MOST_SEEN = 1 << 17  # texts whose ids a keyed vocabulary remembers

Normalisation = Literal["none", "lower", "lower-digits"]

_DIGITS_TO_ZERO = {ord(digit): "0" for digit in "123456789"}


@lru_cache(maxsize=1 << 16)
def normalise(token: str, how: Normalisation) -> str:
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


def keyed_digest(key: bytes, kind: str, text: str) -> bytes:
    """16 bytes of HMAC-SHA-256 over the kind ("word", "character", ...), a NUL and the text."""
    message = kind.encode() + b"\0" + text.encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, "sha256")[:DIGEST_BYTES]


BUCKET = b"\0bucket\0"
"""The beginning of a row that stands for a bucket of words, and not for the digest of one.

A digest begins so with a chance of 2^-64."""


def bucket_of(digest: bytes, bits: int) -> int:
    """The number of a digest's bucket: its first bits.

    >>> bucket_of(bytes.fromhex("80c0" + "00" * 14), 2)
    2
    """
    return int.from_bytes(digest[:8], "big") >> (64 - bits)


def bucket_rows(numbers_V: NDArray[np.integer], bits: int) -> NDArray[np.uint8]:
    """Rows of a keyed vocabulary that stand for buckets of N `bits`. Shape V × 16."""
    rows = [BUCKET + bytes([0, 0, 0, bits]) + int(n).to_bytes(4, "big") for n in numbers_V]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), DIGEST_BYTES).copy()


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

    @cached_property
    def _seen(self) -> dict[str, int]:
        """The ids of texts that were asked for: the same words come again and again."""
        return {}

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """One id per text."""
        seen, find, key, kind = self._seen, self._numbers.get, self.key, self.kind
        new = [text for text in dict.fromkeys(texts) if text not in seen]
        marks = (keyed_digest(key, kind, text) for text in new)
        if bits := self._bits:
            start = BUCKET + bytes([0, 0, 0, bits])
            marks = (start + bucket_of(mark, bits).to_bytes(4, "big") for mark in marks)
        seen.update(zip(new, (find(mark, UNK) for mark in marks), strict=True))
        if len(seen) > _MOST_SEEN:
            vars(self).pop("_seen", None)
        return np.fromiter(map(seen.__getitem__, texts), np.int32, len(texts))

    def __len__(self) -> int:
        return len(self.digests_V16) + SPECIALS


Vocabulary = ClearVocabulary | KeyedVocabulary
"""Numbers texts: `PAD` is never assigned, `UNK` stands for everything unknown."""


def rows_of_digests(digests_V16: NDArray[np.uint8]) -> list[bytes]:
    """The digests of a vocabulary, in order of ids; none of buckets, which another key fills anew.

    Equal digests, of one key, are of equal texts.
    """
    rows = [row.tobytes() for row in digests_V16]
    return [] if rows and rows[0].startswith(BUCKET) else rows


def count_words(tokens: Iterable[str] | Mapping[str, int], how: Normalisation) -> Counter[str]:
    """Count the occurrences of each normalised word; `tokens` may be counts of them."""
    counts: Counter[str] = Counter()
    for token, count in Counter(tokens).items():
        counts[normalise(token, how)] += count
    return counts


def count_characters(tokens: Iterable[str] | Mapping[str, int]) -> Counter[str]:
    """Count each character as written, never normalised; `tokens` may be counts."""
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


# --- Word vectors
#
# From a word2vec or GloVe text file, keeping only words that a vocabulary knows.
#
# Each site reads the file by itself; with a keyed vocabulary, words are looked up by digest, so
# that the rows get the ids that all sites share. The file is streamed twice, so memory holds only
# what is kept.
#
# Shapes: K words kept, D numbers of a vector.


LONGEST_LINE = 1 << 20
"""Bytes of a line: a word and its numbers."""
MOST_DIMS = 1 << 16
"""Numbers of a vector."""
_CHUNK = 4096  # lines that are looked up at once


@dataclass(frozen=True, eq=False)
class VectorFile:
    """The vectors read: `rows_KD[i]` belongs to word id `ids_K[i]`; ids ascend, each is there once.

    `digest` is the file's SHA-256 in hexadecimal.
    """

    dims: int
    ids_K: NDArray[np.int32]
    rows_KD: NDArray[np.float32]
    digest: str


def read_vectors(path: Path | str, words: Vocabulary, *, how: Normalisation = "none") -> VectorFile:
    """The vectors of all words that `words` knows once they are normalised as `how` says.

    Reads word2vec's and GloVe's text form, with or without a "rows dims" line. A file that is not
    UTF-8 is read as Windows-1252. Lines that are not a word and its numbers are left out; of words
    that share an id, one that is normal already wins, then the first. Raises `MissingDataError` if
    there is no file; `FormatError` if it is a folder, a named pipe or a device, a line is longer
    than `LONGEST_LINE`, or no line is a word and its numbers; `DataError` if the system refuses to
    read it.
    """
    path = Path(path)
    digest, encoding = _survey(path)
    dims, first_line = _shape(path)
    rows: dict[int, NDArray[np.float32]] = {}
    exact: set[int] = set()
    chunk: list[tuple[str, bytes]] = []
    words_there = False

    def take() -> None:
        """Parse the numbers of the chunk's wanted lines only."""
        forms = [normalise(word, how) for word, _ in chunk]
        for (word, line), form, id in zip(chunk, forms, words.ids(forms).tolist(), strict=True):
            if id == UNK or (id in rows and (id in exact or word != form)):
                continue
            try:
                row = np.array(line.rsplit(None, dims)[1:], np.float32)
            except ValueError:
                continue
            if np.isfinite(row).all():
                rows[id] = row
                exact.update([id] if word == form else [])
        chunk.clear()

    for number, line in _lines(path):
        parts = line.rsplit(None, dims)
        if number < first_line or len(parts) != dims + 1 or line[:1].isspace():
            continue
        with suppress(UnicodeDecodeError):
            chunk.append((parts[0].decode(encoding), line))
            words_there = True
        if len(chunk) == _CHUNK:
            take()
    take()
    if not words_there:
        raise FormatError(
            "no line is a word and its vector",
            expected="word2vec or GloVe in their text form",
            where=str(path),
        )
    ids = sorted(rows)
    rows_KD = np.array([rows[id] for id in ids], np.float32).reshape(-1, dims)
    return VectorFile(dims, np.array(ids, np.int32), rows_KD, digest)


def _survey(path: Path) -> tuple[str, str]:
    """The file's SHA-256, and its encoding by a vote of the lines that are not plain ASCII."""
    digest = hashlib.sha256()
    utf8 = other = 0
    for _, line in _raw_lines(path):
        digest.update(line)
        if not line.isascii():
            try:
                line.decode("utf-8")
                utf8 += 1
            except UnicodeDecodeError:
                other += 1
    return digest.hexdigest(), "cp1252" if other > utf8 else "utf-8"


def _shape(path: Path) -> tuple[int, int]:
    """Find the length of a vector, and the number of the first line that holds one."""
    first = next(_lines(path), (1, b""))[1].split()
    if len(first) == 2 and all(part.isdigit() for part in first):
        dims = int(first[1]) if len(first[1]) < 9 else 0
        if not 0 < dims <= MOST_DIMS:
            raise FormatError(
                "the first line states vectors of another size than there are",
                expected=f"1 to {MOST_DIMS:,} numbers",
                got=first[1][:20].decode("ascii"),
                where=f"{path}:1",
            )
        return dims, 2
    if len(first) < 2:
        raise FormatError(
            "the first line is neither `rows dims` nor a word and its vector", where=f"{path}:1"
        )
    return len(first) - 1, 1


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that hold something; only a line feed ends a line."""
    for number, line in _raw_lines(path):
        stripped = line.rstrip(b" \t\r\n")
        if stripped:
            yield number, stripped


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line, and its number; not more of the file than a line is held."""
    try:
        with open_regular(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    raise FormatError(
                        f"a line of more than {LONGEST_LINE:,} bytes",
                        expected="a word and its vector on each line, as text",
                        where=f"{path}:{number}",
                    )
                yield number, line
    except NotAFileError as error:
        raise FormatError(f"{error.strerror}", where=str(path), fix="name a file") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError("there is no file of word vectors", where=str(path)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be read ({error})", where=str(path)) from error
