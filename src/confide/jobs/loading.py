"""A trained model as a Python object, and its results for Python, notebooks and HTML.

Load once, then annotate strings, lists and generators.

>>> import confide
>>> nlp = confide.load("runs/ours")  # doctest: +SKIP
>>> nlp("Rash after varelozil.").entities  # doctest: +SKIP
(DRUG 'varelozil' (11-20, 0.96),)
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from confide.errors import DataError
from confide.jobs.predict import above_threshold, check_options, common_names, related
from confide.runs.loading import Models, Runs, open_models
from confide.text.document import Document, Entity, Span
from confide.words import templates

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc


# --- A document as a piece of HTML
#
# Entities in colour with type and confidence, then relations.
#
# The colours are translucent, so that they suit light and dark pages; a type is also written out.
# Everything from the document is escaped.


def as_html(document: Document) -> str:
    """The document as HTML, in one element.

    Where entities overlap, the one that begins first is marked.

    >>> entity = Entity("T1", "DRUG", ((5, 9),), confidence=0.5)
    >>> "&lt;b&gt;" in as_html(Document("x", "took <b>", (entity,)))
    True
    """
    text, at, pieces = document.text, 0, list[tuple[str, Entity | None, bool]]()
    spans = [(span, one) for one in document.entities for span in one.fragments]
    for (start, end), entity in sorted(spans, key=lambda pair: pair[0]):
        if start >= at:
            pieces += [(text[at:start], None, False), (text[start:end], entity, end == entity.end)]
            at = end
    surfaces = {one.id: document.surface(one) for one in document.entities}
    return (
        templates("confide.jobs")
        .get_template("document.html.j2")
        .render(
            pieces=[*pieces, (text[at:], None, False)],
            hue=lambda name: zlib.crc32(name.encode()) % 360,
            relations=[one for one in document.relations if one.level == "entity"],
            surfaces=surfaces,
        )
    )


# --- Results for Python, notebooks and other libraries
#
# A text with what a model found in it.


@dataclass(frozen=True, slots=True)
class FoundEntity:
    """An entity in a text: offsets are characters, half open; `confidence` is a probability."""

    id: str
    type: str
    text: str
    start: int
    end: int
    fragments: tuple[Span, ...]
    confidence: float | None
    attributes: Mapping[str, str] = field(default_factory=dict)
    attribute_confidences: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Type, text, place, confidence, and what is said of it."""
        said = "".join(f", {value or key}" for key, value in self.attributes.items())
        place = f"{self.start}-{self.end}{_chance(self.confidence)}"
        return f"{self.type} {self.text!r} ({place}{said})"


@dataclass(frozen=True, slots=True)
class FoundRelation:
    """A relation between two entities of a text."""

    type: str
    head: FoundEntity
    tail: FoundEntity
    confidence: float | None

    def __repr__(self) -> str:
        """Type, both texts and confidence."""
        return f"{self.type}({self.head.text!r}, {self.tail.text!r}{_chance(self.confidence)})"


def _chance(confidence: float | None) -> str:
    return "" if confidence is None else f", {confidence:.2f}"


@dataclass(frozen=True)
class Annotated:
    """A text with what a model found in it; a notebook shows it in colour."""

    document: Document

    @property
    def text(self) -> str:
        """The text, as given."""
        return self.document.text

    @cached_property
    def entities(self) -> tuple[FoundEntity, ...]:
        """The entities, by place."""
        document = self.document
        return tuple(
            FoundEntity(
                one.id, one.type, document.surface(one), one.start, one.end, one.fragments,
                one.confidence, dict(one.attributes), dict(one.attribute_confidences),
            )
            for one in sorted(document.entities, key=lambda one: (one.start, one.end))
        )  # fmt: skip

    @cached_property
    def relations(self) -> tuple[FoundRelation, ...]:
        """The relations between these entities."""
        by_id = {one.id: one for one in self.entities}
        return tuple(
            FoundRelation(one.type, by_id[one.head], by_id[one.tail], one.confidence)
            for one in self.document.relations
            if one.level == "entity"
        )

    def to_dict(self) -> dict[str, Any]:
        """Text, entities and relations as JSON takes them; relations name entities by id."""
        return {
            "text": self.text,
            "entities": [
                {**asdict(one), "fragments": list(map(list, one.fragments))}
                for one in self.entities
            ],
            "relations": [
                {**asdict(one), "head": one.head.id, "tail": one.tail.id} for one in self.relations
            ],
        }

    def to_hf(self) -> list[dict[str, Any]]:
        """The entities in the form of transformers' token classification pipeline, aggregated.

        That form has one stretch for each entity: of several fragments, from the first to the last.
        """
        return [
            {
                "entity_group": one.type,
                "score": one.confidence,
                "word": self.text[one.start : one.end],
                "start": one.start,
                "end": one.end,
            }
            for one in self.entities
        ]

    def to_spacy(self, nlp: Language | None = None) -> Doc:
        """A spaCy document: `doc.ents`, `doc.spans["confide"]`, `doc._.confide_relations`.

        `nlp` cuts the text into tokens; by default spaCy's rules for any language. Needs the extra
        `spacy`. Entities that do not end where tokens end grow to the tokens' ends.
        """
        from confide.jobs.spacy_pipe import blank, mark

        doc = (nlp or blank()).make_doc(self.text)
        return mark(doc, self)

    def _repr_html_(self) -> str:
        """The text in colour, for notebooks."""
        return as_html(self.document)

    def __repr__(self) -> str:
        """The entities and relations."""
        found = ", ".join(map(repr, (*self.entities, *self.relations)))
        return f"<{found or 'nothing found'}>"


_WANTED = (
    "expected a string, a confide document or a list of these, got {};"
    " confide.api.read reads files, and pipe takes generators"
)


def load(
    run: Runs,
    *,
    site: str | None = None,
    key: Path | str | None = None,
    types: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    threshold: float = 0.0,
    int8: bool = False,
) -> LoadedModel:
    """Load the model of a run or release, or a chain, to annotate text with.

    All arguments are as in `confide.api.predict`, which this opens the same models as.

    Raises:
        KeyFileError: the model's vocabulary is keyed, and the key is missing or another one.
        RunError: a folder holds no model, or two models have the same task.
        DataError: no relation is possible between the entity types that the recogniser finds.
        SettingsError: `types`, `names` or `threshold` is out of range.
    """
    models = open_models(run, site=site, key=key, types=types, int8=int8)
    check_options(models, names, threshold=threshold)
    if models.entities is not None and models.relations is not None:
        common_names(models, [], names)
    return LoadedModel(models, names=names or {}, threshold=threshold)


class LoadedModel:
    """A model in memory. Call it with a text, a document, or a list of these.

    It may be used from many threads; they take turns.
    """

    def __init__(self, models: Models, *, names: Mapping[str, str], threshold: float) -> None:
        self.models = models
        self.threshold = threshold
        self._names = names
        self._turn = threading.Lock()

    @property
    def entity_types(self) -> tuple[str, ...]:
        """The entity types that it finds; empty if it only finds relations."""
        return () if self.models.entities is None else tuple(self.models.entities.types)

    @property
    def finds(self) -> tuple[str, ...]:
        """The outputs: "entities", "attributes", "relations", "facts"."""
        return tuple(one.finds for one in self.models.parts)

    def only(self, types: Sequence[str]) -> LoadedModel:
        """Restrict the model to these entity types or relations.

        The two share their weights. Raises SettingsError if the model has not all of them.
        """
        found = copy(self)
        found.models = self.models.only(types)
        return found

    @overload
    def __call__(self, text: str | Document) -> Annotated: ...
    @overload
    def __call__(self, text: list[str] | list[Document]) -> list[Annotated]: ...
    def __call__(
        self, text: str | Document | list[str] | list[Document]
    ) -> Annotated | list[Annotated]:
        """Annotate a text, or each text of a list. A string is text, never a path.

        Raises DataError if a relation model without a recogniser gets text without entities.
        """
        if isinstance(text, (str, Document)):
            return next(self.pipe([text]))
        if not isinstance(text, list):
            raise TypeError(_WANTED.format(type(text).__name__))
        return list(self.pipe(text))

    def pipe(self, texts: Iterable[str | Document], *, batch_size: int = 64) -> Iterator[Annotated]:
        """Annotate texts in batches, in order; `texts` is read one batch ahead at most.

        A model of bags judges a fact by all sentences of *one* text; `confide.api.facts` judges it
        by all files together. Raises as calling it does, and ValueError for an empty batch.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        size = 1 if "facts" in self.finds else batch_size
        stream = iter(texts)
        while batch := list(islice(stream, size)):
            documents = [_document(one, number) for number, one in enumerate(batch, start=1)]
            yield from map(Annotated, self.annotated(documents))

    def annotated(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with what the model finds, all looked at together."""
        with self._turn:
            found = self.models.found(documents)
            if self.models.relations is None:
                return found
            types = self.models.types(found)
            if not types:
                raise DataError(
                    "this model finds relations between entities, and the text marks none",
                    fix='load a chain, confide.load("ENTITIES+RELATIONS"), or give documents with'
                    " entities",
                )
            given = {name: known for name, known in self._names.items() if name in types}
            names = common_names(self.models, found, given)
            linked = related(self.models.relations, found, names)
            return [above_threshold(one, self.threshold) for one in linked]

    def __repr__(self) -> str:
        """The model's outputs, in one line."""
        types = f" ({', '.join(self.entity_types)})" if self.entity_types else ""
        return f"<confide model: finds {' and '.join(self.finds)}{types}>"


def _document(text: object, number: int) -> Document:
    """The document of a text. Raises TypeError for anything else."""
    if isinstance(text, Document):
        return text
    if not isinstance(text, str):
        raise TypeError(_WANTED.format(type(text).__name__))
    return Document(f"text-{number}", text)
