"""Files of text to the passages of a pretraining: read, cut, counted, some held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from confide.data.corpora import VARIABLE, locate
from confide.data.denoising import Specials
from confide.data.noise import Flags, Passage
from confide.data.passages import Cutter, Passages, held_out, passages
from confide.errors import DataError, MissingDataError
from confide.learning.encoder import SURROGATES
from confide.learning.encoder_files import first_line
from confide.learning.seeds import derive_seed
from confide.text.formats import read

_CHUNK = 4096  # sentences that are cut into pieces at once


@dataclass(frozen=True)
class Texts:
    """What is learnt from and what is measured on. `facts`: names and counts of each text.

    `digest` is a SHA-256 over all pieces of both; `repeated` counts sentences that were left out.
    """

    learnt: Passages
    measured: Passages
    facts: list[dict[str, Any]]
    digest: str
    repeated: int


class Pieces:
    """How a BART's tokenizer cuts text; `backend` is that of `load_pieces`."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each piece."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    @cached_property
    def continues_V(self) -> Flags:  # noqa: N802
        """Of each piece, whether it goes on with a word."""
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
        """The numbers of each text's pieces, without special ones."""
        found: list[list[int]] = []
        for start in range(0, len(texts), _CHUNK):
            chunk = [SURROGATES.sub("�", text) for text in texts[start : start + _CHUNK]]
            found += [one.ids for one in self.backend.encode_batch(chunk, add_special_tokens=False)]
        return found

    def text(self, ids: Sequence[int]) -> str:
        """Pieces as they can be read, [MASK] too."""
        return str(self.backend.decode(list(ids), skip_special_tokens=False))


def load_pieces(folder: Path) -> Pieces:
    """The tokenizer of a BART's folder. Raises DataError where it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        backend = found.backend_tokenizer
    except Exception as error:  # whatever transformers stumbles over
        raise DataError(
            "the tokenizer could not be loaded", got=first_line(error), where=str(folder)
        ) from error
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return Pieces(backend)


def read_texts(
    files: Sequence[str | Path],
    *,
    without: Sequence[str | Path],
    pieces: Pieces,
    longest: int,
    share: float,
    seed: int,
    say: Callable[[str], None],
) -> Texts:
    """Every text once, in the order given; what also stands in `without` is left out.

    `longest` counts special pieces too. Raises MissingDataError, FormatError and DataError of the
    reader, and DataError where nothing is left to learn from or to measure on.
    """
    if not files:
        raise MissingDataError("there is no text to learn from", fix="name files or folders")
    cutter = Cutter(pieces, pieces.continues_V, longest=longest - 2)
    for file in without:
        cutter.leave_out(read(locate(file)).documents)
    learnt: list[Passage] = []
    measured: list[Passage] = []
    facts: list[dict[str, Any]] = []
    for place, file in enumerate(files):
        documents = read(locate(file)).documents
        if len(documents) > 1:
            documents, out = held_out(
                documents, share=share, seed=derive_seed(seed, "held out", place)
            )
            measured += cutter.cut(out)
        own = cutter.cut(documents)
        learnt += own
        counts = {"documents": len(documents), "passages": len(own)}
        counts["pieces"] = sum(len(passage.ids_P) for passage in own)
        facts.append({"name": short_name(file), **counts})
        say(f"{file}: {counts['passages']:,} passages, {counts['pieces']:,} pieces")
    if not learnt or not measured:
        raise DataError(
            "there is too little text to learn from and to measure on",
            expected="several documents of whole sentences",
            got=f"{len(learnt)} and {len(measured)} passages",
            fix="name more files; text that stands in --without, or twice, is read once at most",
        )
    both = passages(learnt), passages(measured)
    digest = hashlib.sha256()
    for part in both:
        digest.update(part.from_S1.tobytes() + part.ids_N.tobytes())
    return Texts(*both, facts, digest.hexdigest(), cutter.repeated)


def short_name(file: str | Path) -> str:
    """The file's name and its folder's, and nothing of where that lies; a corpus's whole path.

    >>> short_name("/home/someone/notes/train.tsv"), short_name("$CONFIDE_DATA/psytar/all/dev.txt")
    ('notes/train.tsv', 'psytar/all/dev.txt')
    """
    parts = Path(file).parts
    return "/".join(parts[1:] if parts[:1] == (f"${VARIABLE}",) else parts[-2:]).lstrip("/")
