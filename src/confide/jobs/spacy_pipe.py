"""confide as a component of spaCy: `nlp.add_pipe("confide", config={"run": "runs/ours"})`.

spaCy finds the component by the entry point `spacy_factories`, without an import. It sets
`doc.ents` (where entities overlap, the longest), `doc.spans["confide"]` (all),
`span._.confide_confidence`, `span._.confide_attributes` (assertions), and
`doc._.confide_relations`. Needs the extra `spacy`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import filter_spans

from confide.jobs.loading import Annotated, LoadedModel, load

if TYPE_CHECKING:
    from confide.jobs.loading import FoundEntity


SPANS = "confide"


@cache
def blank() -> Language:
    """A pipeline that only cuts text into tokens."""
    return spacy.blank("xx")


def mark(doc: Doc, found: Annotated) -> Doc:
    """Put what was found into a spaCy document of the same text."""
    _extend()
    spans = [_span(doc, one) for one in found.entities]
    doc.spans[SPANS] = spans
    doc.set_ents(filter_spans([span for span in spans if len(span)]), default="outside")
    doc._.confide_relations = found.relations
    return doc


def _span(doc: Doc, one: FoundEntity) -> Span:
    """The tokens that an entity touches."""
    span = doc.char_span(one.start, one.end, label=one.type, alignment_mode="expand")
    assert span is not None, "offsets of another text"
    span._.confide_confidence = one.confidence
    span._.confide_attributes = dict(one.attributes)
    return span


@cache
def _extend() -> None:
    """Give spaCy's documents and spans the attributes of confide."""
    Span.set_extension("confide_confidence", default=None, force=True)
    Span.set_extension("confide_attributes", default={}, force=True)
    Doc.set_extension("confide_relations", default=(), force=True)


class Component:
    """The component: annotates each document that passes."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model

    def __call__(self, doc: Doc) -> Doc:
        """Annotate one document."""
        return mark(doc, self.model(doc.text))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 64) -> Iterator[Doc]:
        """Annotate documents in batches."""
        docs = iter(stream)
        while batch := list(islice(docs, batch_size)):
            texts = [doc.text for doc in batch]
            for doc, found in zip(
                batch, self.model.pipe(texts, batch_size=batch_size), strict=True
            ):
                yield mark(doc, found)


RELEASE = "confide_release"
"""The component of a pipeline that `confide export --to spacy` writes."""


class ReleaseComponent(Component):
    """A component with a release of its own, which goes with the pipeline's folder."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def take(self, folder: Path) -> ReleaseComponent:
        """Annotate with this release from now on."""
        self._folder, self.model = folder, load(folder)
        return self

    def to_disk(self, path: Path | str, *, exclude: Iterable[str] = ()) -> None:
        """Copy the release."""
        if self._folder is not None:
            shutil.copytree(self._folder, path, dirs_exist_ok=True)

    def from_disk(self, path: Path | str, *, exclude: Iterable[str] = ()) -> ReleaseComponent:
        """Open the release that was copied."""
        return self.take(Path(path))


@Language.factory(RELEASE, assigns=["doc.ents", "doc.spans"])
def make_released(*, nlp: Language, name: str) -> ReleaseComponent:
    """The component of an exported pipeline; it gets its release from the pipeline's folder."""
    return ReleaseComponent()


@Language.factory(
    "confide",
    default_config={"run": "", "site": None, "key": None, "types": None, "threshold": 0.0},
    assigns=["doc.ents", "doc.spans"],
)  # fmt: skip
def make(
    *, nlp: Language, name: str, run: str | list[str], site: str | None, key: str | None,
    types: list[str] | None, threshold: float,
) -> Component:  # fmt: skip
    """The component of a run or release, or of a chain; options as in `confide.load`."""
    if not run:
        raise ValueError('name a run: nlp.add_pipe("confide", config={"run": "runs/ours"})')
    where = Path(key) if key else None
    return Component(load(run, site=site, key=where, types=types, threshold=threshold))
