"""Pseudo-complete annotation: sites that annotate different types train one model of all types.

Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra & Henao, "Federated Domain Adaptation for Named Entity
Recognition via Distilling with Heterogeneous Tag Sets", Findings of ACL 2023.

Each site annotates only some of the types (of entities or relations). In a round the common model
annotates the site's own text with the types that the site lacks; the site trains on both; the
server takes the mean. A row (a sentence; for relations a pair of entities) counts more if the
gradient of its own annotation agrees with that of the types that other sites lack.

What leaves a site: names of the types that it annotates, its number of training rows, a digest of
its public encoder or BART, for a tagger the keyed vocabulary, for relations the types that they
link (once); the gradient of one small parameter, summed over all its rows, and its trained weights,
of both of which the server keeps only the sum; numbers of its own and of pseudo entities or
relations, as sums; counts of right, predicted and gold ones.
What never leaves: text, annotation, pseudo-annotation, instance weights, gradients of a row.
What weights may still reveal: they are a function of the text; see docs/methods/pseudo-complete.md.

Where we differ from the paper or decide what it leaves open:
- any kind that finds entities works (section 7 asks for it), and so does the relation classifier.
  The shared parameter whose gradient compares rows is LightNER's q, and the last linear layer's
  weight of the others;
- a pair of entities has one label: a site's own relation stays; if it has none, the common model's
  likeliest label is taken, provided that the site lacks this relation. A pair that still has no
  label counts as source and is learnt to have none of the site's own relations, as under FedAvg;
  learnt to have none at all, relations that a young model misses would be unlearnt for ever;
- for the token-wise kinds, tokens outside all entities count as source, as LightNER's stop does;
- a site's part of g^tgt is the sum over its sentences (Algorithm 2), not their mean (Eq. 7);
- a pseudo entity that overlaps a site's own is dropped; entities are merged in order of start;
- the first `warmup_rounds` make no pseudo-annotation and no instance weights: the common model has
  not learnt anything yet;
- a site subtracts its own part from the sum of target gradients, so the server never sees one
  alone;
- a row without a source gradient, or without any other site's target gradient, keeps its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.federation.federation import Federation
from confide.federation.messages import carries
from confide.federation.steps import Step
from confide.kinds.protocol import F, ModelSpec, State
from confide.methods.fedavg import Facts, FedAvg, Latest, mean_of
from confide.methods.pseudo_complete.steps import (
    COMPLETE,
    SCORE_APART,
    TAKE_AND_COUNT,
    WEIGH,
    Complete,
    Counting,
    Weigh,
)
from confide.settings import Table


class PseudoCompleteSettings(Table):
    """The method's own settings: the table `[options]`.

    `distil`: pseudo-annotation (3.2), where the common model's confidence is at least `confidence`
    (the paper: whatever it finds). `instance_weights` (3.3) move by `1 - momentum` a round; if
    `centred`, each site shifts them to a mean of 1 before use, so that they choose among sentences
    but do not change how much a site's own annotation counts. `weighting`: how the mean weighs
    sites (the paper: equally). `rows`: whether a word's row is averaged over all sites, or over
    those whose text has it, as under fedavg.
    """

    distil: bool = True
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    instance_weights: bool = True
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    centred: bool = False
    warmup_rounds: Annotated[int, Field(ge=0)] = 1
    weighting: Literal["equal", "examples", "sentences"] = "equal"
    rows: Literal["all", "seen"] = "all"


@dataclass(frozen=True)
class CompleteState(State[F], Generic[F]):
    """What the server carries from round to round, and the size of the whole model."""

    parameters: int = carries("number of parameters of the whole model", start=int)


class PseudoComplete(FedAvg):
    """The method: `start` agrees on the types, `round` annotates, weighs and trains."""

    method: ClassVar[str] = "pseudo-complete"
    own_steps: ClassVar[tuple[Step, ...]] = (TAKE_AND_COUNT, WEIGH, COMPLETE, SCORE_APART)
    Settings: ClassVar[type] = PseudoCompleteSettings
    State: ClassVar[type] = CompleteState
    Memory: ClassVar[type] = Counting
    apart: ClassVar[bool] = True

    def start(self, federation: Federation) -> CompleteState[ModelSpec]:
        """Agree on the types and the form of the model, and draw its first weights."""
        state: CompleteState[ModelSpec] = super().start(federation)
        return replace(state, parameters=state.form.parameters(state.weights))

    def expects(self, step: str, n: int) -> dict[str, object]:
        """As under FedAvg, and how the text is completed and weighed."""
        return super().expects(step, n) | self._completing(n)

    def _completing(self, n: int) -> dict[str, Any]:
        """How a round completes the text and weighs its rows."""
        own = self._own
        return {
            "distil": own.distil and n > own.warmup_rounds,
            "confidence": own.confidence,
            "kept": own.momentum,
            "centred": own.centred,
        }

    def sentence_weights(self, latest: Latest) -> tuple[int, NDArray[np.float32]] | None:
        """The round of a site's instance weights, and the weights; None if it has none."""
        kept: Counting[ModelSpec] | None = latest()
        if kept is None or not len(kept.instance_weights_S):
            return None
        return kept.weighed, kept.instance_weights_S

    def round(
        self, state: CompleteState[ModelSpec], federation: Federation, n: int
    ) -> tuple[CompleteState[ModelSpec], Facts]:
        """One turn of Algorithm 1: instance weights, pseudo-complete annotation, training, mean."""
        own = self._own
        train, sites, facts = self._drawn(state, federation, n)
        if not sites:
            return state, {**facts, "own": 0, "pseudo": 0}
        learnt = n > own.warmup_rounds
        slope_G = np.zeros(0, np.float32)
        if own.distil and own.instance_weights and learnt:
            weigh = Weigh(state.weights, _shared(state), train.how, own.confidence)
            weighed = federation.sum(WEIGH, weigh, round=n, sites=sites)
            slope_G = weighed.slope_G.astype(np.float32)
            # a site that is not in the sum cannot subtract its own part
            out = {f.site for f in federation.faults if (f.round, f.step) == (n, WEIGH.name)}
            sites = [site for site in sites if site not in out]
        ask = Complete(
            **vars(train),
            **self._completing(n),
            slope_G=slope_G,
        )
        total = federation.sum(COMPLETE, ask, round=n, sites=sites)
        mean = mean_of(total, state.weights)
        facts |= {
            "loss": total.loss / total.weight,
            "sites": sites,
            "sentences": total.examples,
            "own": total.own,
            "pseudo": total.pseudo,
            "share": sum(array.size for array in mean.values()) / state.parameters,
        }
        return replace(state, weights=mean), facts


def _shared(state: CompleteState[ModelSpec]) -> str:
    """The name of the parameter whose gradient compares rows."""
    return next(name for name in state.weights if name.endswith(state.form.slope))
