"""Hiding entities that occur at several sites, to see how much of a gain depends on them.

Ge et al. 2020, 4.5 (Fig. 5) mask a share of the entities that their data sets have in common, but
do not say how. Here a mention's letters and digits become "x": it stays an entity of the same
length at the same place, but nobody can learn its words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from confide.text.document import Document, Entity

_SPACE = re.compile(r"\s+")
_LETTER = re.compile(r"\w")


def common_entities(sites: Mapping[str, Sequence[Document]]) -> list[str]:
    """What is written, in small letters, of entities that are annotated at two sites or more."""
    holders: dict[str, set[str]] = {}
    for site, documents in sites.items():
        for document in documents:
            for entity in document.entities:
                holders.setdefault(_written(document, entity), set()).add(site)
    return sorted(text for text, names in holders.items() if len(names) > 1)


def masked(
    sites: Mapping[str, Sequence[Document]], share: float, *, seed: int
) -> dict[str, list[Document]]:
    """The same documents, with a `share` of the common entities hidden wherever they are annotated.

    For the same seed, a larger share hides everything that a smaller one hides.
    """
    common = common_entities(sites)
    order = np.random.default_rng(seed).permutation(len(common))
    hidden = {common[place] for place in order[: int(share * len(common) + 0.5)]}
    return {site: [_hide(one, hidden) for one in documents] for site, documents in sites.items()}


def _written(document: Document, entity: Entity) -> str:
    pieces = [document.text[start:end] for start, end in entity.fragments]
    return _SPACE.sub(" ", " ".join(pieces)).strip().lower()


def _hide(document: Document, hidden: set[str]) -> Document:
    """The document with the letters of these entities replaced; no offset moves."""
    text = document.text
    for entity in document.entities:
        if _written(document, entity) in hidden:
            for start, end in entity.fragments:
                text = text[:start] + _LETTER.sub("x", text[start:end]) + text[end:]
    return document if text == document.text else replace(document, text=text)
