"""A text with what a model found in it, for Python, notebooks and other libraries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confide.jobs.loading.html import as_html
from confide.text.document import Document, Entity, Span

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc


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

    def __repr__(self) -> str:
        """Type, text, place and confidence."""
        return f"{self.type} {self.text!r} ({self.start}-{self.end}{_chance(self.confidence)})"


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
        some = sorted(self.document.entities, key=lambda one: (one.start, one.end))
        return tuple(self._entity(one) for one in some)

    @cached_property
    def relations(self) -> tuple[FoundRelation, ...]:
        """The relations between these entities."""
        by_id = {one.id: one for one in self.entities}
        return tuple(
            FoundRelation(one.type, by_id[one.head], by_id[one.tail], one.confidence)
            for one in self.document.relations
            if one.level == "entity"
        )

    def _entity(self, one: Entity) -> FoundEntity:
        surface = self.document.surface(one)
        return FoundEntity(
            one.id, one.type, surface, one.start, one.end, one.fragments, one.confidence
        )

    def to_dict(self) -> dict[str, Any]:
        """Text, entities and relations as JSON takes them; relations name entities by id."""
        return {
            "text": self.text,
            "entities": [
                {
                    "id": one.id,
                    "type": one.type,
                    "start": one.start,
                    "end": one.end,
                    "fragments": [list(span) for span in one.fragments],
                    "text": one.text,
                    "confidence": one.confidence,
                }
                for one in self.entities
            ],
            "relations": [
                {
                    "type": one.type,
                    "head": one.head.id,
                    "tail": one.tail.id,
                    "confidence": one.confidence,
                }
                for one in self.relations
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
        from confide.jobs.loading.spacy_pipe import blank, mark

        doc = (nlp or blank()).make_doc(self.text)
        return mark(doc, self)

    def _repr_html_(self) -> str:
        """The text in colour, for notebooks."""
        return as_html(self.document)

    def __repr__(self) -> str:
        """The entities and relations."""
        found = ", ".join(map(repr, (*self.entities, *self.relations)))
        return f"<{found or 'nothing found'}>"
