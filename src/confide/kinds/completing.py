"""What pseudo-complete annotation asks of a kind at a site that annotates some labels alone.

Labels are what a model finds: types of entities, relations. Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra &
Henao, "Federated Domain Adaptation for Named Entity Recognition via Distilling with Heterogeneous
Tag Sets", Findings of ACL 2023.

Shapes: S rows, that is what a kind trains on one by one (sentences, windows of long ones, pairs of
entities); G numbers of the part of the model by whose gradient rows are compared.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.how import How
from confide.kinds.protocol import Desk, Fitted, Form
from confide.learning.slopes import RowSlopes


class CompleteText(NamedTuple):
    """A site's training text with its own annotation, and perhaps another model's besides.

    `encoded` is for the desk that made it; `own` and `pseudo` count what is annotated.
    """

    encoded: Any
    own: int
    pseudo: int


class Pulls(NamedTuple):
    """Gradients of the loss by the form's `slope` (Eq. 11).

    `source` is each row's, of what the site annotated; `target_G` all rows' together, of what the
    other model did.
    """

    source: RowSlopes
    target_G: NDArray[np.float32]


class CompletingDesk(Desk, Protocol):
    """A desk whose site may annotate some of the labels alone."""

    @property
    def site(self) -> Site:
        """The site that it is at."""
        ...

    def completed(self, weights: Arrays | None, *, confidence: float = 0.0) -> CompleteText:
        """The training text with the site's own annotation alone, if there are no weights.

        Else with the labels besides that the site lacks and a model of these weights finds (Eq. 5)
        with at least this confidence.
        Own annotation is never replaced.
        """
        ...

    def slopes(self, weights: Arrays, how: How, encoded: Any) -> Pulls:
        """The gradients of text that `completed` gave, by the loss of `how`, without dropout."""
        ...

    def fit(
        self,
        weights: Arrays,
        how: How,
        *,
        seed: int,
        encoded: Any = None,
        each_S: NDArray[np.float32] | None = None,
    ) -> Fitted:
        """Train on text that `completed` gave, or without it on the site's own.

        `each_S`: how much of each row's loss counts that is of the site's own annotation. Raises
        Refusal where there is no text.
        """
        ...

    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> Any:
        """The counts of a part of the held-out text.

        `apart`: not of labels that nobody looked for there, since what is found may be right.
        """
        ...


class CompletingForm(Form, Protocol):
    """A form whose desks complete; `slope` ends the name of the part by whose gradient they say."""

    slope: ClassVar[str]

    def at(self, site: Site) -> CompletingDesk:
        """The desk of this form at a site; the same one as long as the form is."""
        ...

    def parameters(self, first: Arrays) -> int:
        """Numbers of the whole model, whose first weights are these."""
        ...
