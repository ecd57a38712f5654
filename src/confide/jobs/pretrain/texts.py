"""From files to the passages of a pretraining: text is read, cut, counted and partly held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.data.batches.noise import Passage
from confide.data.batches.passages import Cutter, Passages, held_out, passages
from confide.data.corpus.corpora import VARIABLE, locate
from confide.errors import DataError, MissingDataError
from confide.learning.text_pieces import Pieces
from confide.seeds import derive_seed
from confide.text.formats import read
from confide.userfiles import Tree


@dataclass(frozen=True)
class Texts:
    """The passages to learn from and to measure on. `facts` has the name and counts of each text.

    `digest` is a SHA-256 over all pieces of both; `repeated` counts sentences that were left out.
    """

    learnt: Passages
    measured: Passages
    facts: list[Tree]
    digest: str
    repeated: int


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
    """Every sentence once, in the order given, without those that also occur in `without`.

    `longest` counts special pieces too. Raises what the readers raise, and DataError if nothing is
    left to learn from or to measure on.
    """
    if not files:
        raise MissingDataError("there is no text to learn from", fix="name files or folders")
    cutter = Cutter(pieces, pieces.continues_V, longest=longest - 2)
    for file in without:
        cutter.leave_out(read(locate(file)).documents)
    learnt: list[Passage] = []
    measured: list[Passage] = []
    facts: list[Tree] = []
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
            fix="name more files; repeated text counts once, and text in --without not at all",
        )
    both = passages(learnt), passages(measured)
    digest = hashlib.sha256()
    for part in both:
        digest.update(part.from_S1.tobytes() + part.ids_N.tobytes())
    return Texts(*both, facts, digest.hexdigest(), cutter.repeated)


def short_name(file: str | Path) -> str:
    """The name of a file and its folder, without the path to it; a corpus keeps its whole path.

    >>> short_name("/home/someone/notes/train.tsv"), short_name("$CONFIDE_DATA/psytar/all/dev.txt")
    ('notes/train.tsv', 'psytar/all/dev.txt')
    """
    parts = Path(file).parts
    return "/".join(parts[1:] if parts[:1] == (f"${VARIABLE}",) else parts[-2:]).lstrip("/")
