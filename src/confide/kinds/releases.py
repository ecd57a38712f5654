"""What kinds need to hand a model on, so that it can be used without the run and without a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.vocabulary import SPECIALS, KeyedVocabulary
from confide.federation.files import write_of_run
from confide.federation.inprocess import SiteSpec
from confide.federation.keys import read_key
from confide.federation.messages import encode
from confide.text.document import Document


@dataclass(frozen=True)
class Holders:
    """The sites that let a model go, as far as a kind needs them: `find` reads their text.

    `key` is the sites' shared key file, if it is not that of their settings. `apart`: how many of
    the run's sites annotated some of the types only.
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
        """The key by which their words get their names. Raises KeyFileError."""
        file = self.key or self.specs[0].key_file
        assert file is not None
        return read_key(Path(file))


def shape_of(form: Any, kind: type[Any]) -> dict[str, Any]:
    """What the form says that a message of this class has, too."""
    return {field.name: getattr(form, field.name) for field in fields(kind)}


def named(vocabulary: KeyedVocabulary, texts: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The texts that the vocabulary knows, by id; and the rows to keep, the specials first."""
    ids = vocabulary.ids(texts)
    known = sorted((int(id), text) for id, text in zip(ids, texts, strict=True) if id >= SPECIALS)
    rows = [*range(SPECIALS), *(id for id, _ in known)]
    return [text for _, text in known], np.array(rows, np.int64)


def write_release(file: Path, message: Any) -> None:
    """A release of one file."""
    write_of_run(file, encode(message))
