"""What kinds need to release a model, so that it works without its run and without a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.vocabulary import SPECIALS, KeyedVocabulary
from confide.federation.files import write_of_run
from confide.federation.inprocess import SiteSpec
from confide.federation.keys import read_key
from confide.federation.messages import encode
from confide.text.document import Document

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Holders:
    """The sites that release a model, as far as a kind needs them; `find` reads their text.

    `key` is the sites' shared key file, if not that of their settings. `apart`: how many of the
    run's sites annotated only some types.
    """

    find: Callable[[], Sequence[SiteSpec]]
    key: Path | None
    apart: int

    @cached_property
    def specs(self) -> Sequence[SiteSpec]:
        """The sites."""
        return self.find()

    @property
    def train(self) -> list[Document]:
        """Their training text."""
        return [document for spec in self.specs for document in spec.train]

    def secret(self) -> bytes:
        """The key of their words' digests. Raises KeyFileError."""
        file = self.key or self.specs[0].key_file
        assert file is not None
        return read_key(Path(file))


def shape_of(form: object, kind: type[DataclassInstance]) -> dict[str, Any]:
    """The values of the form's fields that messages of this class also have."""
    return {field.name: getattr(form, field.name) for field in fields(kind)}


def named(vocabulary: KeyedVocabulary, texts: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The texts that the vocabulary knows, by id, and the rows to keep, special ones first."""
    ids = vocabulary.ids(texts)
    known = sorted((int(id), text) for id, text in zip(ids, texts, strict=True) if id >= SPECIALS)
    rows = [*range(SPECIALS), *(id for id, _ in known)]
    return [text for _, text in known], np.array(rows, np.int64)


def write_release(file: Path, message: object) -> None:
    """Write a release of one file. Raises DataError if it cannot be written."""
    write_of_run(file, encode(message))
