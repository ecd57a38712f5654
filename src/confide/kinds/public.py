"""A public set: text that the server and all sites may read, whatever a kind makes of it.

A kind has a message of its own for it (`kinds.protocol.PublicSet`), which holds the text and never
what is annotated there. It is named by a number from its content, which every place works out for
itself. Sites predict it; a model of the server's own, the student, learns from what they predict.

Shapes: S rows of a public set, R classes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.how import How
from confide.kinds.protocol import Desk, Form, Kind
from confide.text.document import Document

MIB = 2**20
NAME = "name"
"""The field of a public set that is the number from the content of the others."""
P = TypeVar("P", contravariant=True)


class PublicDesk(Desk, Protocol[P]):
    """A desk that predicts a public set. S rows of the set, R classes."""

    def predicted(self, weights: Arrays, public: P) -> NDArray[np.float32]:
        """logits_SR of these weights: their softmax is what the model believes of each row."""
        ...

    def known_classes(self) -> list[bool]:
        """For each class whether the site annotates it. The first is one that every site does."""
        ...


class PublicForm(Form, Protocol):
    """The form of a kind that learns from predictions of a public set."""

    @property
    def classes(self) -> int:
        """How many there are. The first is what is there where nothing is."""
        ...

    def at(self, site: Site) -> PublicDesk[Any]:
        """The desk of this form at a site."""
        ...


class Student(Protocol):
    """The server's own model, that learns from what the sites predict of the public set."""

    def learn(
        self,
        form: Any,
        public: Any,
        *,
        labels: Sequence[str],
        weights: Arrays,
        teacher_SR: NDArray[np.float32],
        temperature: float,
        how: How,
        seed: int,
    ) -> tuple[Arrays, float]:
        """The weights after a distillation from these weights, and the mean loss.

        `teacher_SR` are probabilities; `temperature` softens the student. `labels` are those of the
        rows, which are learnt as well where there are some.
        """
        ...


class PublicKind(Kind, Protocol):
    """A kind whose form is a `PublicForm`, and whose desks are each a `PublicDesk`."""

    Public: ClassVar[type]

    def public(self, form: Any, documents: Sequence[Document]) -> tuple[Any, list[str]]:
        """What of these documents the sites get, and the labels of its rows.

        Raises SettingsError where there is nothing for this kind in them.
        """
        ...

    def student(self) -> Student:
        """A server's own model, that nothing has been learnt by."""
        ...


def named(content: Mapping[str, Any]) -> int:
    """The number of a public set of these fields, 32 bits."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def check_named(public: Any) -> None:
    """Raise Refusal where a public set is not the one that its name says."""
    content = {one.name: getattr(public, one.name) for one in fields(public) if one.name != NAME}
    if public.name != named(content):
        raise Refusal("other-public-set")


def no_public_set(what: str) -> SettingsError:
    """What is raised where there is none, or nothing in it; `what` a kind would read there."""
    return SettingsError(
        f"FedED needs a public set, {what} that all sites may read",
        fix="name its files in [public], or take a `share` of a corpus that is dealt",
    )
