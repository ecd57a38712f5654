"""What FedNER needs of a kind: a model of parts, some of which stay at the site.

Ge et al. 2020 (`confide.methods.fedner`): the server sees the gradients of the shared parts only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.how import How
from confide.kinds.protocol import Desk, Form

Lift = Mapping[str, tuple[NDArray[np.int64], NDArray[np.float32]]]
"""By table, the ids of the rows that a vector file has (K), and its vectors (K × D)."""


class PartedDesk(Desk, Protocol):
    """A desk that gives gradients."""

    def gradient(self, weights: Arrays, how: How, *, seed: int) -> tuple[float, Arrays, int]:
        """The mean loss of a batch drawn by the seed, its gradient, and the batch's size."""
        ...

    def lift(self) -> Lift:
        """The rows of the site's vector file; empty without one."""
        ...

    def worth(self, counted: Any, by: str) -> float | None:
        """The score by which models are compared; None if nothing was scored."""
        ...


class PartedForm(Form, Protocol):
    """The form of a model of parts.

    `private` are the parts that stay at the site by default, `head` is the part whose shape depends
    on the types, and `word_table` the table that vector files have rows of; each may be empty.
    """

    private: ClassVar[Sequence[str]]
    head: ClassVar[str]
    word_table: ClassVar[str]

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own model; with `types`, of the types of its text only.

        Raises Refusal if the site cannot have its own model with these private parts.
        """
        ...

    def at(self, site: Site) -> PartedDesk:
        """The desk of this form at a site, made once."""
        ...
