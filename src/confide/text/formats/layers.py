"""Annotation layers of WebAnno and INCEpTION: which say something, and what an item is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NAMED_ENTITY = "de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity"
RELATION = "webanno.custom.Relation"
_QUIET = (
    "de.tudarmstadt.ukp.dkpro.core.api.metadata",
    "de.tudarmstadt.ukp.dkpro.core.api.segmentation",
    "de.tudarmstadt.ukp.dkpro.core.api.lexmorph",
    "de.tudarmstadt.ukp.dkpro.core.api.syntax",
    "de.tudarmstadt.ukp.dkpro.core.api.transform",
    "de.tudarmstadt.ukp.clarin",
    "uima.",
    "org.dkpro.core.api.xml",
)
_VALUES = ("value", "label", "type", "category", "class", "entityType", "semanticType", "role")
_CONCEPTS = ("identifier", "entityID", "concept", "conceptID", "cui")


def is_linguistic(name: str) -> bool:
    """Whether a layer is part of the text's analysis (tokens, words' classes), not annotation."""
    return name.startswith(_QUIET)


def short(name: str) -> str:
    """The last part of a layer's name.

    >>> short("webanno.custom.Drug")
    'Drug'
    """
    return name.rpartition(".")[2] or name


def called(
    layer: str, features: Mapping[str, str]
) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The type of an item, its concepts, and its other features as attributes.

    The type is the value of the first feature that usually holds it, or else the layer's name.

    >>> called("webanno.custom.Drug", {"identifier": "C1", "dose": "5"})
    ('Drug', ('C1',), (('dose', '5'),))
    """
    key = next((key for key in _VALUES if features.get(key, "").strip()), "")
    concepts = [features[key] for key in _CONCEPTS if features.get(key, "").strip()]
    others = tuple(
        (name, value)
        for name, value in features.items()
        if name not in (key, *_CONCEPTS) and value.strip()
    )
    return features[key].strip() if key else short(layer), tuple(concepts), others


class Units:
    """Offsets in UTF-16 units, as Java counts, to characters; None for one that is not there."""

    def __init__(self, text: str) -> None:
        self._places: list[int] | None = None
        self._length = len(text)
        if not text.isascii() and max(text) > "\uffff":
            places: list[int] = []
            for number, character in enumerate(text):
                places += [number] * (1 + (character > "\uffff"))
            self._places = [*places, len(text)]

    def __call__(self, offset: int) -> int | None:
        """The character that begins at an offset, or that it lies in."""
        most = self._length + 1 if self._places is None else len(self._places)
        if not 0 <= offset < most:
            return None
        return offset if self._places is None else self._places[offset]


def units_of(text: str, offsets: Sequence[int]) -> list[int]:
    r"""Ascending offsets in characters as UTF-16 units.

    >>> units_of("a\U0001f600b", [0, 1, 2, 3])
    [0, 1, 3, 4]
    """
    found: list[int] = []
    last = units = 0
    for offset in offsets:
        part = text[last:offset]
        units += len(part) + (0 if part.isascii() else sum(c > "\uffff" for c in part))
        last = offset
        found.append(units)
    return found
