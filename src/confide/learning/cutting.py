"""Words and texts into an encoder's pieces, by a fast tokenizer or a slow one.

A fast one (of the library tokenizers) cuts whole sentences at once and says which word each piece
is of; a slow one (Python code of transformers itself) is given one word at a time. Either way every
piece belongs to exactly one word, in order. Text that looks like a special piece, such as "[SEP]",
is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, SettingsError
from confide.learning.encoder_files import first_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SURROGATES = re.compile("[\ud800-\udfff]")
"""Unpaired halves of characters, which no tokenizer accepts."""

_CHUNK = 1024  # sentences, or texts, that are tokenised at once


class CutSentence(NamedTuple):
    """The ids of a sentence's pieces, and the word that each belongs to."""

    ids_P: NDArray[np.int32]
    words_P: NDArray[np.int32]


class Cutter(Protocol):
    """Cuts text into pieces, without special ones."""

    @property
    def size(self) -> int:
        """The number of pieces that it knows."""
        ...

    @property
    def unknown(self) -> int | None:
        """The piece for what it does not know, if it has one."""
        ...

    def sentences(self, sentences: Sequence[Sequence[str]]) -> Iterator[CutSentence]:
        """The pieces of each sentence, given its words."""
        ...

    def texts(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """The ids of each text's pieces."""
        ...


def by_word(cutter: Cutter, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The ids of the pieces of each word of each sentence."""
    found: list[list[list[int]]] = []
    for words, cut in zip(sentences, cutter.sentences(sentences), strict=True):
        own: list[list[int]] = [[] for _ in words]
        for number, word in zip(cut.ids_P.tolist(), cut.words_P.tolist(), strict=True):
            own[word].append(number)
        found.append(own)
    return found


@dataclass(frozen=True)
class FastCutter:
    """Cuts with a tokenizer of the library tokenizers.

    `special` are pieces that no text has: where its letters are those of one, as in a vocabulary of
    sentencepiece they may be, the piece is unknown.
    """

    backend: Tokenizer
    special: frozenset[int] = frozenset()
    unknown_piece: int | None = None

    @property
    def size(self) -> int:
        """The number of pieces."""
        return int(self.backend.get_vocab_size())

    @property
    def unknown(self) -> int | None:
        """The unknown piece, if there is one."""
        name = getattr(self.backend.model, "unk_token", None)
        own = self.backend.token_to_id(name) if isinstance(name, str) else None
        return self.unknown_piece if own is None else own

    def sentences(self, sentences: Sequence[Sequence[str]]) -> Iterator[CutSentence]:
        """The pieces of each sentence."""
        for chunk in _chunks([[_clean(word) for word in words] for words in sentences]):
            for cut in self.backend.encode_batch(
                chunk, is_pretokenized=True, add_special_tokens=False
            ):
                ids = np.array(self._without_special(cut.ids), np.int32)
                yield CutSentence(ids, np.array(cut.word_ids, np.int32))

    def texts(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """The ids of each text's pieces."""
        for chunk in _chunks([_clean(text) for text in texts]):
            for cut in self.backend.encode_batch(chunk, add_special_tokens=False):
                yield self._without_special(cut.ids)

    def _without_special(self, ids: list[int]) -> list[int]:
        unknown = self.unknown
        if unknown is None or self.special.isdisjoint(ids):
            return ids
        return [unknown if number in self.special else number for number in ids]


@dataclass(frozen=True)
class SlowCutter:
    """Cuts with a tokenizer that is Python code; a word that was cut is remembered."""

    tokenizer: Any

    @cached_property
    def _known(self) -> dict[str, list[int]]:
        return {}

    @property
    def size(self) -> int:
        """The number of pieces."""
        return len(self.tokenizer)

    @property
    def unknown(self) -> int | None:
        """The unknown piece, if there is one."""
        number: int | None = self.tokenizer.unk_token_id
        return number

    def sentences(self, sentences: Sequence[Sequence[str]]) -> Iterator[CutSentence]:
        """The pieces of each sentence."""
        for words in sentences:
            cut = [self._cut(word) for word in words]
            ids = [number for word in cut for number in word]
            yield CutSentence(
                np.array(ids, np.int32),
                np.repeat(np.arange(len(words), dtype=np.int32), [len(word) for word in cut]),
            )

    def texts(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """The ids of each text's pieces."""
        for text in texts:
            yield self._pieces(text)

    def _cut(self, word: str) -> list[int]:
        if word not in self._known:
            self._known[word] = self._pieces(word)
        return self._known[word]

    def _pieces(self, text: str) -> list[int]:
        pieces = self.tokenizer.tokenize(_clean(text), split_special_tokens=True)
        ids: list[int] = self.tokenizer.convert_tokens_to_ids(pieces)
        return ids


def _clean(text: str) -> str:
    return SURROGATES.sub("�", text)


def _chunks(items: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def tokenizer_of(folder: Path, *, fast: bool = True) -> Any:
    """The folder's tokenizer, as transformers loads it; nothing in the folder runs.

    Raises DataError if it cannot be loaded, and SettingsError if it is not a fast one where one is
    needed.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, add_prefix_space=True
        )
    except Exception as error:  # whatever transformers raises
        raise DataError(
            "the tokenizer could not be loaded", got=first_line(error), where=str(folder)
        ) from error
    if fast and not tokenizer.is_fast:
        raise SettingsError("the model has no fast tokenizer", where=str(folder))
    return tokenizer


def cutter_of(tokenizer: Any) -> Cutter:
    """How this tokenizer of transformers cuts text."""
    if not tokenizer.is_fast:
        return SlowCutter(tokenizer)
    unknown = tokenizer.unk_token_id
    special = frozenset(tokenizer.all_special_ids) - {unknown}
    backend = plain(tokenizer)
    # pairs of bytes know every text
    knows_all = type(backend.model).__name__ == "BPE"
    return FastCutter(backend, special, None if knows_all else unknown)


def around(tokenizer: Any, rows: int) -> tuple[list[int], list[int]] | None:
    """The special pieces before and behind a text; None if a piece has no row in the table."""
    if max(tokenizer.get_vocab().values(), default=0) >= rows:
        return None
    if tokenizer.is_fast:
        probe = tokenizer(["a"], is_split_into_words=True)
        inner = [place for place, word in enumerate(probe.word_ids()) if word is not None]
        ids: list[int] = probe["input_ids"]
    else:
        own = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("a"))
        ids = tokenizer.build_inputs_with_special_tokens(own)
        starts = range(len(ids) - len(own) + 1)
        first = next((at for at in starts if own and ids[at : at + len(own)] == own), None)
        inner = [] if first is None else list(range(first, first + len(own)))
    return (ids[: inner[0]], ids[inner[-1] + 1 :]) if inner else None


def plain(tokenizer: Any) -> Tokenizer:
    """Its backend: texts stay whole and unpadded, and "[SEP]" in them is plain text.

    Words of byte-level pieces begin with a space, as within a text.
    """
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    before: Any = backend.pre_tokenizer
    if type(before).__name__ == "ByteLevel" and not before.add_prefix_space:
        before.add_prefix_space = True
        backend.pre_tokenizer = before
    return backend
