"""What a trained model is for who has it: it annotates, and a site can see what it gets wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from confide.data.batches.relations import Rules
from confide.tasks import Counts
from confide.text.document import Document
from confide.text.pairs import stated_pairs

if TYPE_CHECKING:
    from confide.kinds.bags.extractor import Fact
    from confide.scoring import BagCounts

T = TypeVar("T")
WORST = 20
"""Cases in a site's list of errors."""


@dataclass(frozen=True)
class Report:
    """What a site can see of a model on its own test text; all but the counts stays there.

    `errors` is the body of errors.json, `sentences` that of sentences.json: a fingerprint of the
    text, and the counts of each unit by kind. Both are empty where there is nothing to show.
    """

    counts: Counts
    errors: Mapping[str, Any] = field(default_factory=dict)
    sentences: Mapping[str, Any] = field(default_factory=dict)


class Trained(Protocol):
    """What a form's `extractor` gives."""

    def report(self, documents: Sequence[Document], looked_for: Collection[str] | None) -> Report:
        """What it gets right and wrong on annotated documents.

        `looked_for` are the types of it that somebody looked for there; None: all.
        """
        ...


class Extractor(Trained, Protocol):
    """A trained model that annotates."""

    @property
    def types(self) -> tuple[str, ...]:
        """The entity types that it finds, or knows."""
        ...

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with what the model finds, a confidence on each."""
        ...


class FindsEntities(Extractor, Protocol):
    """One that finds entities.

    `apart`: the sites that it learnt from annotated different types, so that nobody need have
    looked for all in a text.
    """

    finds: ClassVar[Literal["entities"]]

    @property
    def apart(self) -> bool:
        """Whether what it finds need not have been looked for."""
        ...


class FindsRelations(Extractor, Protocol):
    """One that finds relations between entities that are there, in the pairs that `rules` name."""

    finds: ClassVar[Literal["relations"]]

    @property
    def rules(self) -> Rules:
        """Which pairs it looks at."""
        ...


class FindsFacts(Extractor, Protocol):
    """One that finds what holds between two entities by all sentences that name them both."""

    finds: ClassVar[Literal["facts"]]

    @property
    def rules(self) -> Rules:
        """Which pairs it looks at."""
        ...

    def facts(self, documents: Sequence[Document], *, least: float | None = None) -> list[Fact]:
        """What holds between the pairs of the documents, the likeliest first.

        Of each pair its likeliest relation, unless that is none; with `least`, every relation whose
        confidence is at least that.
        """
        ...

    def counts(self, documents: Sequence[Document]) -> BagCounts:
        """What it gets right of the bags of annotated documents."""
        ...


def as_many_of_both(said: Sequence[T], silent: Sequence[T]) -> list[T]:
    """The first of what a model said wrongly, and of what it missed: as many of both, if there are.

    >>> len(as_many_of_both(range(30), range(3)))
    20
    """
    few = min(len(silent), max(WORST // 2, WORST - len(said)))
    return [*said[: WORST - few], *silent[:few]]


def fingerprint(documents: Sequence[Document], *, relations: bool = False) -> str:
    """A digest of text and annotation, by which `compare` knows the same test text."""
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
