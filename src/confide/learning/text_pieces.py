"""A BART's tokenizer: how it cuts text into word pieces, and its special pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from confide.data.batches.denoising import Specials
from confide.data.batches.noise import Flags
from confide.learning.cutting import SURROGATES, plain, tokenizer_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHUNK = 4096  # sentences that are tokenised at once


class Pieces:
    """How a BART's tokenizer cuts text; `backend` is that of `load_pieces`."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The id of each piece."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    @cached_property
    def continues_V(self) -> Flags:  # noqa: N802
        """For each piece, whether it continues a word."""
        flags_V = np.zeros(max(self.numbers.values()) + 1, np.bool_)
        flags_V[[number for piece, number in self.numbers.items() if piece.startswith("##")]] = True
        return flags_V

    @cached_property
    def specials(self) -> Specials:
        """The special pieces of BERT."""
        start, end, padding, mask = (
            self.numbers[piece] for piece in ("[CLS]", "[SEP]", "[PAD]", "[MASK]")
        )
        return Specials(start, end, padding, mask)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text's pieces, without special ones."""
        found: list[list[int]] = []
        for start in range(0, len(texts), _CHUNK):
            chunk = [SURROGATES.sub("�", text) for text in texts[start : start + _CHUNK]]
            found += [one.ids for one in self.backend.encode_batch(chunk, add_special_tokens=False)]
        return found

    def text(self, ids: Sequence[int]) -> str:
        """Pieces as readable text, including [MASK]."""
        return str(self.backend.decode(list(ids), skip_special_tokens=False))


def load_pieces(folder: Path) -> Pieces:
    """The tokenizer of a BART's folder. Raises as `tokenizer_of`."""
    return Pieces(plain(tokenizer_of(folder)))
