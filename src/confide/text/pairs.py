"""Which pairs of entities a document asks about, and what a pair without a relation is called.

Some formats mark one pair of entities in each text (BioBERT's tables, ChemProt, SemEval-2010 task
8), or list the pairs that were looked at. Documents carry these as attributes called "pair": two
entity ids with a blank between them. A document without the attribute asks about every pair.
"""

from __future__ import annotations

from collections.abc import Iterable

from confide.text.document import Document

NO_RELATION = "no-relation"
"""What a pair is labelled where nobody said that anything holds between its entities."""
PAIR = "pair"


def pair_attributes(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The attributes that say: these pairs (head id, tail id) and no others.

    >>> pair_attributes([("T1", "T2")])
    (('pair', 'T1 T2'),)
    >>> pair_attributes([])
    (('pair', ''),)
    """
    stated = tuple((PAIR, f"{head} {tail}") for head, tail in pairs)
    return stated or ((PAIR, ""),)


def stated_pairs(document: Document) -> list[tuple[str, str]] | None:
    """The pairs that a document asks about, in order, each once; None where it does not say.

    A value that is not two words is no pair; that of no pair at all is empty.
    """
    values = [value.split() for key, value in document.attributes if key == PAIR]
    if not values:
        return None
    return list(dict.fromkeys((words[0], words[1]) for words in values if len(words) == 2))
