"""The labels of a model that writes the names of types: the pieces of each name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain

from confide.errors import SettingsError
from confide.learning.bart_files import PretrainedBart

_BETWEEN = re.compile(r"[-_/\s]+")  # the words of a type's name


def labels_of(bart: PretrainedBart, types: Sequence[str]) -> list[tuple[int, ...]]:
    """The pieces of each type's name."""
    words = [[word for word in _BETWEEN.split(name) if word] for name in types]
    return [tuple(chain.from_iterable(pieces)) for pieces in bart.loaded.cut(words)]


def parts_of(label: Sequence[int]) -> frozenset[tuple[int, Fraction]]:
    """All that the model knows of a label: each piece, and its share."""
    return frozenset((piece, Fraction(n, len(label))) for piece, n in Counter(label).items())


def check_labels(types: Sequence[str], labels: Sequence[tuple[int, ...]]) -> None:
    """Raise SettingsError unless every label has pieces, different from all others."""
    seen: dict[frozenset[tuple[int, Fraction]], str] = {}
    for name, label in zip(types, labels, strict=True):
        if not label:
            raise SettingsError(
                "the name of an entity type has no word",
                got=repr(name),
                fix="map it to a name in words",
            )
        if (parts := parts_of(label)) in seen:
            raise SettingsError(
                "two entity types have names of the same pieces, so the model cannot tell"
                " them apart",
                got=f"{seen[parts]!r} and {name!r}",
                fix="map one of them to another name",
            )
        seen[parts] = name
