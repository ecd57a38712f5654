"""Public sets: text that the server and all sites may read, in whatever shape a kind needs.

A kind has its own message for it (`kinds.protocol.PublicSet`), which holds the text and never its
annotation. The server and every site compute the digest of its content for themselves; an ask to
predict it names that digest. The sites predict it; the server's own model, the student, learns from
the predictions.

Shapes: S rows of a public set, R classes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from confide.errors import SettingsError
from confide.federation.messages import Arrays
from confide.kinds.how import How
from confide.kinds.protocol import Kind, PublicSet
from confide.learning.teaching import Lesson
from confide.text.document import Document

MIB = 2**20
SEVERAL = "\n"
"""What stands between the classes of a row that has several: no name has a line's end in it."""


class Student(Protocol):
    """The server's own model, which learns from what the sites predict on the public set."""

    def learn(
        self,
        form: Any,
        public: Any,
        *,
        labels: Sequence[str],
        weights: Arrays,
        lesson: Lesson,
        how: How,
        seed: int,
    ) -> tuple[Arrays, float]:
        """Distil from these weights; gives the new weights and the mean loss.

        The rows of the lesson are those of the public set. `labels`, unless empty, are the rows'
        labels, which are learnt as well, as much as the lesson says.
        """
        ...

    def said(self, form: Any, public: Any, weights: Arrays) -> NDArray[np.float32]:
        """logits_SR of a public set by a model with these weights."""
        ...


class PublicKind(Kind, Protocol):
    """A kind whose desks predict a public set."""

    Public: ClassVar[type]

    def public(self, form: Any, documents: Sequence[Document]) -> tuple[PublicSet, list[str]]:
        """The public set of these documents as the sites get it, and the labels of its rows.

        Raises SettingsError if the documents hold nothing for this kind.
        """
        ...

    def student(self) -> Student:
        """A fresh student."""
        ...


def digest_of(public: Any) -> str:
    """SHA-256 of all fields of a public set, as 64 hexadecimal digits."""
    content = {field.name: getattr(public, field.name) for field in fields(public)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def no_public_set(what: str) -> SettingsError:
    """The error for a public set that is missing or empty; `what` names what the kind reads."""
    return SettingsError(
        f"the method needs a public set: {what} that may be read everywhere",
        fix="name its files in [public], or take a `share` of a corpus that is dealt",
    )
