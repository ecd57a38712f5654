"""A trained model as a Python object: load once, then annotate strings, lists and generators.

>>> import confide
>>> nlp = confide.load("runs/ours")  # doctest: +SKIP
>>> nlp("Rash after varelozil.").entities  # doctest: +SKIP
(DRUG 'varelozil' (11-20, 0.96),)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import overload

from confide.errors import DataError
from confide.jobs.loading.annotated import Annotated
from confide.jobs.predict import check_options, common_names, related, sure
from confide.runs.opening import Models, Runs, opened
from confide.text.document import Document

__all__ = ["Annotated", "LoadedModel", "load"]

_WANTED = (
    "expected a string, a confide document or a list of these, got {};"
    " confide.api.read reads files, and pipe takes generators"
)


def load(
    run: Runs,
    *,
    site: str | None = None,
    key: Path | None = None,
    types: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    threshold: float = 0.0,
) -> LoadedModel:
    """Load the model of a run or release, or a chain of two, to annotate text with.

    All arguments are as in `confide.api.predict`, which this opens the same models as.

    Raises:
        KeyFileError: the model's vocabulary is keyed, and the key is missing or another one.
        RunError: a folder holds no model, or two models have the same task.
        DataError: no relation is possible between the entity types that the recogniser finds.
        SettingsError: `types`, `names` or `threshold` is out of range.
    """
    models = opened(run, site=site, key=key, types=types)
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
        """What it finds: "entities", "relations", "facts"."""
        some = (self.models.entities, self.models.relations)
        return tuple(one.finds for one in some if one is not None)

    def only(self, types: Sequence[str]) -> LoadedModel:
        """The same model, which decides among these entity types or relations alone.

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
            return [sure(one, self.threshold) for one in linked]

    def __repr__(self) -> str:
        """What it finds, in one line."""
        types = f" ({', '.join(self.entity_types)})" if self.entity_types else ""
        return f"<confide model: finds {' and '.join(self.finds)}{types}>"


def _document(text: object, number: int) -> Document:
    """The document of a text. Raises TypeError for anything else."""
    if isinstance(text, Document):
        return text
    if not isinstance(text, str):
        raise TypeError(_WANTED.format(type(text).__name__))
    return Document(f"text-{number}", text)
