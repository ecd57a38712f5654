"""The one internal form of annotated text: raw text, entities as character fragments, relations.

All offsets are characters (Python string positions) from the start of `Document.text`, half open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from confide.text.tokens import Span, Words

__all__ = ["Document", "Entity", "Problem", "Relation", "Sentence", "Span"]


@dataclass(frozen=True, slots=True)
class Entity:
    """A mention: a type and one or more character fragments, ascending and not touching."""

    id: str
    type: str
    fragments: tuple[Span, ...]
    confidence: float | None = None
    concepts: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def start(self) -> int:
        """The first character of the first fragment."""
        return self.fragments[0][0]

    @property
    def end(self) -> int:
        """One past the last character of the last fragment."""
        return self.fragments[-1][1]


@dataclass(frozen=True, slots=True)
class Relation:
    """A typed link from `head` to `tail`: entity ids, or concept ids if `level` is "concept"."""

    id: str
    type: str
    head: str
    tail: str
    level: Literal["entity", "concept"] = "entity"
    confidence: float | None = None
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and its tokens, as offsets into the document's text.

    `tokens` are a tuple, or one of the sequences of `text.tokens`, which take less memory.
    """

    start: int
    end: int
    tokens: Sequence[Span]


@dataclass(frozen=True, slots=True)
class Document:
    """Text and its annotations. `sentences` is empty if the text has not been segmented.

    `source` says where the document came from ("file:line"); it serves messages to the owner of the
    text and never travels. `unmarked`: it is a sentence of a file that does not say where documents
    begin, so its neighbours in the file may belong to the same text.
    """

    id: str
    text: str
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    source: str = ""
    unmarked: bool = field(default=False, compare=False)

    def surface(self, entity: Entity) -> str:
        """The characters of an entity, its fragments joined by one space."""
        return " ".join(self.text[start:end] for start, end in entity.fragments)

    def token_texts(self, sentence: Sentence) -> tuple[str, ...]:
        """The tokens of a sentence as strings."""
        tokens, text = sentence.tokens, self.text
        if type(tokens) is Words and tokens.text is text:
            return tuple(tokens.strings())
        return tuple([text[start:end] for start, end in tokens])


@dataclass(frozen=True, slots=True)
class Problem:
    """An annotation or line that was lost, changed or doubtful: a kind (slug), where, and why.

    `lost` is true if something in the file is missing from the documents, or may be so.
    """

    kind: str
    where: str
    what: str
    lost: bool = False
