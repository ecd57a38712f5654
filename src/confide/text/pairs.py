"""Which pairs of entities a document asks about, and the label of a pair without a relation.

Some formats mark one pair of entities in each text (BioBERT's tables, ChemProt, SemEval-2010 task
8), or list the pairs that annotators looked at. Documents carry these as attributes named "pair":
two entity ids separated by a blank. A document without the attribute asks about every pair.
"""

from __future__ import annotations

from collections.abc import Iterable

from confide.text.document import Document

NO_RELATION = "no-relation"
"""The label of a pair between whose entities nothing is said to hold."""
PAIR = "pair"


def pair_attributes(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The attributes that state these pairs (head id, tail id) and no others.

    >>> pair_attributes([("T1", "T2")])
    (('pair', 'T1 T2'),)
    >>> pair_attributes([])
    (('pair', ''),)
    """
    stated = tuple((PAIR, f"{head} {tail}") for head, tail in pairs)
    return stated or ((PAIR, ""),)


def stated_pairs(document: Document) -> list[tuple[str, str]] | None:
    """The pairs that a document asks about, in order, each once; None if it does not say.

    A value that is not two words is not a pair; an empty value stands for no pair at all.
    """
    values = [value.split() for key, value in document.attributes if key == PAIR]
    if not values:
        return None
    return list(dict.fromkeys((words[0], words[1]) for words in values if len(words) == 2))
