"""What pseudo-complete annotation needs of a kind at a site that annotates only some labels.

Labels are entity types or relations. Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra &
Henao, "Federated Domain Adaptation for Named Entity Recognition via Distilling with Heterogeneous
Tag Sets", Findings of ACL 2023.

Shapes: S rows, the units that a kind trains on (sentences, windows of long ones, pairs of
entities); G numbers of the parameter whose gradient compares rows.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.how import How
from confide.kinds.protocol import Desk, Fitted, Form
from confide.learning.trainer import Pulls

T = TypeVar("T")


class CompleteText(NamedTuple, Generic[T]):
    """A site's training text with its own annotation, and perhaps a model's as well.

    `encoded` belongs to the desk that made it; `own` and `pseudo` count the annotations of each.
    """

    encoded: T
    own: int
    pseudo: int


class CompletingDesk(Desk, Protocol[T]):
    """A desk whose site may annotate only some of the labels."""

    @property
    def site(self) -> Site:
        """The desk's site."""
        ...

    def completed(self, weights: Arrays | None, *, confidence: float = 0.0) -> CompleteText[T]:
        """The training text with the site's own annotation and, given weights, a model's as well.

        The model of these weights adds only labels that the site lacks (Eq. 5), of at least this
        confidence; own annotation is never replaced.
        """
        ...

    def slopes(self, weights: Arrays, how: How, encoded: T) -> Pulls:
        """The gradients of `how`'s loss on the text that `completed` gave, without dropout."""
        ...

    def fit(
        self,
        weights: Arrays,
        how: How,
        *,
        seed: int,
        encoded: T | None = None,
        each_S: NDArray[np.float32] | None = None,
    ) -> Fitted:
        """Train on text that `completed` gave or, without it, on the site's own.

        `each_S` weighs the part of each row's loss that is of the site's own annotation. Raises
        Refusal if there is no text.
        """
        ...

    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> Any:
        """The counts of a part of the held-out text.

        With `apart`, labels that nobody looked for there are not counted: a find may be right.
        """
        ...


class CompletingForm(Form, Protocol):
    """A form whose desks complete; `slope` ends the name of the parameter that slopes are of."""

    slope: ClassVar[str]

    def at(self, site: Site) -> CompletingDesk[Any]:
        """The desk of this form at a site, made once."""
        ...

    def parameters(self, first: Arrays) -> int:
        """The number of parameters of the whole model that starts with these weights."""
        ...
