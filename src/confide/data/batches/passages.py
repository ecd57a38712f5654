"""From documents to the passages that a denoising model learns from, as pieces of words.

A passage is a run of whole sentences of one document, as many as fit into `longest` pieces; a
longer sentence is cut between words. A sentence is read once: repeats with the same letters and
digits are left out, and so are sentences of text that must stay unseen (test files). Whole
documents are held out, drawn by a seed.

Shapes: N pieces of all passages, S passages, V pieces of the vocabulary, P pieces of one passage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.flat import offsets
from confide.data.batches.noise import Flags, Ints, Passage
from confide.errors import DataError
from confide.text.document import Document
from confide.text.segment import segmented

Tokenise = Callable[[Sequence[str]], list[list[int]]]
"""The numbers of each text's pieces, without special ones."""

LEAST = 8
"""The fewest pieces of a passage; there is little to learn from a shorter one."""

_SIGNS = re.compile(r"[\W_]+")


@dataclass(frozen=True, eq=False)
class Passages:
    """Passages one after the other. `from_S1`: where each begins, and the end.

    `words_N` and `sentences_N`: the piece begins a word, a sentence.
    """

    ids_N: Ints
    words_N: Flags
    sentences_N: Flags
    from_S1: NDArray[np.int64]

    @property
    def lengths_S(self) -> NDArray[np.int64]:  # noqa: N802
        """Pieces of each passage."""
        return np.diff(self.from_S1)

    def __len__(self) -> int:
        return len(self.from_S1) - 1

    def __getitem__(self, place: int) -> Passage:
        if not 0 <= place < len(self):
            raise IndexError(place)
        part = slice(self.from_S1[place], self.from_S1[place + 1])
        return Passage(self.ids_N[part], self.words_N[part], self.sentences_N[part])


class Cutter:
    """Cuts documents into passages, and remembers which sentences it has seen.

    `continues_V` says for each piece of the vocabulary whether it continues a word ("##ache").
    `longest` counts pieces without special ones.
    """

    def __init__(self, tokenise: Tokenise, continues_V: Flags, *, longest: int) -> None:
        self._tokenise, self._continues_V, self._longest = tokenise, continues_V, longest
        self._seen: set[bytes] = set()
        self.repeated = 0

    def leave_out(self, documents: Sequence[Document]) -> None:
        """Leave the sentences of these documents out from now on."""
        for document in documents:
            for sentence in _sentences(document):
                self._seen.add(_key(sentence))

    def cut(self, documents: Sequence[Document]) -> list[Passage]:
        """The passages of documents, without sentences that were read before."""
        fresh = [[s for s in _sentences(document) if self._unseen(s)] for document in documents]
        pieces = iter(self._tokenise([sentence for own in fresh for sentence in own]))
        found: list[Passage] = []
        for own in fresh:
            found += self._packed([next(pieces) for _ in own])
        return found

    def _unseen(self, sentence: str) -> bool:
        key = _key(sentence)
        if key in self._seen:
            self.repeated += 1
            return False
        self._seen.add(key)
        return True

    def _packed(self, sentences: Sequence[Sequence[int]]) -> Iterator[Passage]:
        """Sentences of one document, as many together as there is room for."""
        held: list[Passage] = []
        for sentence in sentences:
            for part in self._parts(np.array(sentence, np.int32)):
                if held and sum(len(one.ids_P) for one in held) + len(part.ids_P) > self._longest:
                    yield from _joined(held)
                    held = []
                held.append(part)
        yield from _joined(held)

    def _parts(self, ids_P: Ints) -> Iterator[Passage]:
        """A sentence, or the parts of one that is too long, cut between words where it can be."""
        words_P = ~self._continues_V[ids_P]
        words_P[:1] = True
        start = 0
        while start < len(ids_P):
            end = min(start + self._longest, len(ids_P))
            if end < len(ids_P):
                begins = np.flatnonzero(words_P[start + 1 : end + 1])
                end = start + 1 + int(begins[-1]) if len(begins) else end
            words = words_P[start:end].copy()
            words[0] = True
            sentences = np.zeros(end - start, np.bool_)
            sentences[0] = True
            yield Passage(ids_P[start:end], words, sentences)
            start = end


def passages(found: Sequence[Passage]) -> Passages:
    """Them all, one after the other."""
    empty = Passage(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.bool_))
    ids_N, words_N, sentences_N = (np.concatenate(parts) for parts in zip(empty, *found))  # noqa: B905
    return Passages(ids_N, words_N, sentences_N, offsets([len(one.ids_P) for one in found]))


def held_out(
    documents: Sequence[Document], *, share: float, seed: int
) -> tuple[list[Document], list[Document]]:
    """(documents to learn from, documents to measure on): about `share` of them, at least one.

    Raises DataError if there are fewer than two documents.
    """
    if len(documents) < 2:
        raise DataError(
            "too few documents to hold any out", expected="at least 2", got=str(len(documents))
        )
    count = min(max(1, round(share * len(documents))), len(documents) - 1)
    chosen = np.zeros(len(documents), np.bool_)
    chosen[np.random.default_rng(seed).permutation(len(documents))[:count]] = True
    learnt = [one for one, out in zip(documents, chosen, strict=True) if not out]
    return learnt, [one for one, out in zip(documents, chosen, strict=True) if out]


def _sentences(document: Document) -> Iterator[str]:
    for sentence in segmented(document).sentences:
        yield document.text[sentence.start : sentence.end]


def _key(sentence: str) -> bytes:
    """The same for the same letters and digits, whatever their case, signs and blanks are."""
    return blake2b(
        _SIGNS.sub("", sentence.lower()).encode(errors="replace"), digest_size=12
    ).digest()


def _joined(parts: Sequence[Passage]) -> Iterator[Passage]:
    if sum(len(part.ids_P) for part in parts) >= LEAST:
        yield Passage(*(np.concatenate(column) for column in zip(*parts, strict=True)))
