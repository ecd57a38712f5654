"""A trained model in use: it annotates, and shows a site what it gets wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, TypeVar

from confide.data.batches.relations import Rules
from confide.scoring.calibration import AS_IS, Calibrator
from confide.tasks import Counts
from confide.text.document import Document, Entity, Relation, stated_pairs

if TYPE_CHECKING:
    from confide.kinds.bags.extractor import Fact
    from confide.scoring import BagCounts

T = TypeVar("T")
Find = TypeVar("Find", Entity, Relation)
WORST = 20
"""Length of a site's list of errors."""
RIGHT = 10
"""Length of a site's list of what the model gets right."""


@dataclass(frozen=True)
class Report:
    """What a site sees of a model on its own test text; only the counts may leave it.

    `errors` is the body of errors.json: what was taken for what, the worst cases, and some that are
    right. `sentences` is that of sentences.json: a fingerprint of the text, and the counts of each
    unit by kind of score. Both are empty if there is nothing to show.
    """

    counts: Counts
    errors: Mapping[str, object] = field(default_factory=dict)
    sentences: Mapping[str, object] = field(default_factory=dict)


class Trained(Protocol):
    """What a form's `extractor` gives."""

    def report(self, documents: Sequence[Document], looked_for: Collection[str] | None) -> Report:
        """What the model gets right and wrong on annotated documents.

        `looked_for` are the types that somebody looked for there; None: all.
        """
        ...


class Extractor(Trained, Protocol):
    """A trained model that annotates.

    Its `calibrator` acts on the confidences that it gives.
    """

    calibrator: Calibrator

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity types or relations among which the model decides."""
        ...

    def only(self, labels: Collection[str]) -> Self:
        """The same model, which decides among these labels alone."""
        ...

    @property
    def types(self) -> tuple[str, ...]:
        """The entity types that the model finds or reads."""
        ...

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with what the model finds, each with a confidence."""
        ...


class FindsEntities(Extractor, Protocol):
    """A trained model that finds entities."""

    finds: ClassVar[Literal["entities"]]

    @property
    def apart(self) -> bool:
        """Whether its sites annotated different types, so that some texts lack some of them."""
        ...


class FindsRelations(Extractor, Protocol):
    """A trained model that finds relations between given entities, in pairs that `rules` allow."""

    finds: ClassVar[Literal["relations"]]

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of the relations that it finds, and of none."""
        ...

    @property
    def rules(self) -> Rules:
        """Which pairs are candidates."""
        ...


class FindsFacts(Extractor, Protocol):
    """A trained model that finds facts of entity pairs, from all sentences that name both."""

    finds: ClassVar[Literal["facts"]]

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of the relations that it finds, and of none."""
        ...

    @property
    def rules(self) -> Rules:
        """Which pairs are candidates."""
        ...

    def facts(self, documents: Sequence[Document], *, least: float | None = None) -> list[Fact]:
        """The facts of the documents, the likeliest first.

        Gives each pair's likeliest relation unless that is none; with `least`, every relation with
        at least that confidence.
        """
        ...

    def counts(self, documents: Sequence[Document]) -> BagCounts:
        """Counts of what the model gets right on the bags of annotated documents."""
        ...


def calibrated(
    documents: Sequence[Document], calibrator: Calibrator, *, of: Literal["entities", "relations"]
) -> list[Document]:
    """The documents with the confidences of their entities or relations calibrated."""
    if calibrator[:2] == AS_IS[:2]:
        return list(documents)
    if of == "entities":
        return [
            replace(one, entities=tuple(_calibrated(find, calibrator) for find in one.entities))
            for one in documents
        ]
    return [
        replace(one, relations=tuple(_calibrated(find, calibrator) for find in one.relations))
        for one in documents
    ]


def _calibrated(find: Find, calibrator: Calibrator) -> Find:
    if find.confidence is None:
        return find
    return replace(find, confidence=calibrator.of(find.confidence))


def as_many_of_both(said: Sequence[T], silent: Sequence[T]) -> list[T]:
    """The first wrong and the first missed cases, as many of each if there are enough.

    >>> len(as_many_of_both(range(30), range(3)))
    20
    """
    few = min(len(silent), max(WORST // 2, WORST - len(said)))
    return [*said[: WORST - few], *silent[:few]]


def fingerprint(documents: Sequence[Document], *, relations: bool = False) -> str:
    """A digest of text and annotation, by which `compare` recognises the same test text."""
    digest = hashlib.sha256()
    for document in documents:
        text = document.text.encode("utf-8", "surrogatepass")
        marks = [(entity.type, entity.fragments) for entity in document.entities]
        digest.update(f"{len(text)}\0{marks!r}\0".encode() + text)
        if relations:
            names = [(entity.id, entity.concepts) for entity in document.entities]
            links = [(one.type, one.head, one.tail, one.level) for one in document.relations]
            digest.update(f"{names!r}\0{links!r}\0{stated_pairs(document)!r}\0".encode())
    return digest.hexdigest()
