"""How a site trains. A new way to train arrives here, for all kinds and methods at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from confide.federation.messages import carries
from confide.learning.optimisers import Moments, Optimiser
from confide.settings import Settings as RunSettings


@dataclass(frozen=True)
class How:
    """How a site trains in one round."""

    learning_rate: float = carries("learning rate of this round")
    optimiser: str = carries("sgd, adam, adamw or adagrad")
    momentum: float = carries("momentum of SGD")
    weight_decay: float = carries("factor")
    clip: float = carries("largest norm of a gradient; 0: no bound")
    batch_size: int = carries("examples", rule="min_batch")
    epochs: int = carries("passes over the site's training text")
    word_dropout: float = carries("share of words read as the unknown word")
    vectors: bool = carries("whether rows of the site's vector file are filled in first")
    round: int = carries("the round, for what changes over a run")
    proximal: float = carries("FedProx's μ: how strongly training holds to its start", start=float)
    batches: int = carries("most batches in this round; 0: no bound", start=int)
    outside: float = carries(
        "weight of types that a site lacks, at a token outside its entities, or of relations, at a"
        " pair without one; 0: none of them",
        start=float,
    )
    keep: bool = carries(
        "whether the site's optimiser goes on with the running means of its last round", start=bool
    )

    @property
    def steps(self) -> Optimiser:
        """The optimiser and its numbers."""
        return Optimiser(
            name=self.optimiser,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip=self.clip,
            proximal=self.proximal,
            most=self.batches,
        )

    def without_vectors(self) -> How:
        """The same without filling in word vectors, for weights that already have them."""
        return replace(self, vectors=False)


@dataclass(frozen=True)
class GoingOn(How):
    """How a site trains if its optimiser goes on from what it remembers; never sent."""

    moments: Moments = field(default_factory=Moments)

    @property
    def steps(self) -> Optimiser:
        """The optimiser, its numbers, and what it remembers."""
        return replace(super().steps, moments=self.moments)


def how_of(run: RunSettings, round: int) -> How:
    """How sites train in a round: the rate decays; word vectors are filled in at round 1."""
    own = run.training
    return How(
        learning_rate=own.learning_rate * own.decay ** (round - 1),
        optimiser=own.optimiser,
        momentum=own.momentum,
        weight_decay=own.weight_decay,
        clip=own.clip,
        batch_size=own.batch_size,
        epochs=own.local_epochs,
        batches=own.local_steps,
        word_dropout=own.word_dropout,
        vectors=round == 1,
        round=round,
        outside=own.outside,
        keep=own.moments == "kept",
    )
