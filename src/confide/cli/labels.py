"""What `confide data label` reads, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from confide.cli.putting import say_problems
from confide.errors import SettingsError

if TYPE_CHECKING:
    from confide.data.corpus.labelling import Labelled
    from confide.text.document import Document

_WORDS = {
    "documents": "documents",
    "mentions": "mentions of entities",
    "unidentified": "of them without an identifier: skipped",
    "ambiguous_forms": "words that stand for several identifiers",
    "ambiguous_mentions": "mentions of these",
    "repeated": "mentions of a pair with nearer ones in the same text",
    "known": "triples of the knowledge base",
    "triples": "of them found",
    "unmentioned": "of them with an end that no text mentions",
    "apart": "of them with both ends mentioned, but never together",
    "pairs": "pairs with a relation",
    "several": "of them with several",
    "na_pairs": "pairs without a relation (NA)",
    "na_left": "further ones that were not drawn",
    "na_types": "further ones of types that no triple matches",
}


def documents_of(files: Sequence[Path]) -> list[Document]:
    """The documents of files; what was lost or changed in reading is said on stderr."""
    from confide import api

    readings = [api.read(file) for file in files]
    say_problems([problem for reading in readings for problem in reading.problems])
    return [document for reading in readings for document in reading.documents]


def share_and_seed(given: str) -> tuple[float, int]:
    """A share, and after a colon a seed (1 if there is none). Raises SettingsError.

    >>> share_and_seed("0.25"), share_and_seed("0.25:7")
    ((0.25, 1), (0.25, 7))
    """
    share, _, seed = given.partition(":")
    try:
        return float(share), int(seed or 1)
    except ValueError as error:
        raise SettingsError(
            "--na takes a share of pairs, and a seed after a colon",
            expected="such as 0.25 or 0.25:7",
            got=repr(given),
        ) from error


def labelled(done: Labelled) -> Iterator[Table]:
    """Two tables: sentences by relation, and what matched."""
    relations = Table("relation", title="Sentences")
    relations.add_column("sentences", justify="right")
    for name, number in done.relations.items():
        relations.add_row(name, f"{number:,}")
    relations.add_row("all", f"{len(done.documents):,}")
    yield relations
    counts = Table("", title="What matched")
    counts.add_column("count", justify="right")
    for name, words in _WORDS.items():
        counts.add_row(words, f"{done.counts[name]:,}")
    yield counts
