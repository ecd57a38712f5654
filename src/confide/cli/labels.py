"""What `confide data label` reads and shows."""

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
    "unidentified": "of them skipped, having no identifier",
    "ambiguous_forms": "words with several identifiers",
    "ambiguous_mentions": "mentions of such words",
    "repeated": "pairs of mentions passed over for a nearer one in the same text",
    "known": "triples in the knowledge base",
    "triples": "of them found",
    "unmentioned": "of them with an end that no text mentions",
    "apart": "of them with both ends mentioned, but never together",
    "pairs": "pairs with a relation",
    "several": "of them with more than one",
    "na_pairs": "pairs without a relation (NA)",
    "na_left": "further ones not drawn",
    "na_types": "further ones whose types match no triple",
}


def documents_of(files: Sequence[Path]) -> list[Document]:
    """Read the documents of files, and report on stderr what was lost or changed."""
    from confide import api

    readings = [api.read(file) for file in files]
    say_problems([problem for reading in readings for problem in reading.problems])
    return [document for reading in readings for document in reading.documents]


def share_and_seed(given: str) -> tuple[float, int]:
    """Read SHARE or SHARE:SEED; the seed is 1 by default. Raises SettingsError.

    >>> share_and_seed("0.25"), share_and_seed("0.25:7")
    ((0.25, 1), (0.25, 7))
    """
    share, _, seed = given.partition(":")
    try:
        return float(share), int(seed or 1)
    except ValueError as error:
        raise SettingsError(
            "--na takes a share of pairs, and optionally a colon and a seed",
            expected="a value such as 0.25 or 0.25:7",
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
