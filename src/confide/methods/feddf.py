"""FedDF: sites send weights; the server distils the ensemble of their models into the mean.

Lin, Kong, Stich & Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning",
NeurIPS 2020, Algorithm 1: the server averages the sites' weights, predicts a public set with each
site's model, and trains the average to predict the mean of their logits. FedED's rival where
weights may travel: no site predicts, or even sees, the public set.

What leaves a site: the same as under FedAtt: its trained weights, which the server sees one by one.
What never leaves: text, words, predictions, the key.

Where we differ from the paper or decide what it leaves open:
- the optimiser of the distillation is the sites', afresh each round, and the passes are counted
  (`distil_epochs`), where the paper has Adam and stops on held-out text;
- the teacher and the student are softened alike; the paper has τ = 1;
- labels of the public set are not learnt, as in the paper;
- a tagger knows the words of the public set, as under FedED, because the server has to read them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from confide.federation.combining import Total, add_reply
from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.steps import Step
from confide.kinds.protocol import SCORE, TAKE, ModelSpec, PublicSet
from confide.kinds.public import Student
from confide.methods.fedatt import TRAIN_ALONE
from confide.methods.fedavg import FedAvgState, Update, Weighting, mean_of, train_ask, train_fields
from confide.methods.feded import ON_A_PUBLIC_SET, softened_mean
from confide.methods.method import Facts, Method, OptionsTable, Trait
from confide.seeds import derive_seed
from confide.training.trainer import DistillationTarget


class FedDFSettings(OptionsTable):
    """The table `[options]`. The default of `weighting` is the kind's, as under FedAvg."""

    weighting: Weighting | None = None
    temperature: Annotated[float, Field(gt=0)] = 1.0
    distil_epochs: Annotated[int, Field(ge=1)] = 1
    distil_batch_size: Annotated[int, Field(ge=1)] | None = None
    distil_learning_rate: Annotated[float, Field(gt=0)] | None = None


class FedDF(Method):
    """The method: `round` averages the sites' weights and distils their ensemble into the mean."""

    name: ClassVar[str] = "feddf"
    kinds: ClassVar[tuple[str, ...]] = ON_A_PUBLIC_SET
    steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_ALONE, SCORE)
    Settings: ClassVar[type[OptionsTable]] = FedDFSettings
    State: ClassVar[type] = FedAvgState
    traits: ClassVar[frozenset[Trait]] = frozenset({"public"})

    def start(self, federation: Federation) -> FedAvgState[ModelSpec]:
        """Agree on the model, hand out its form, and draw the first weights.

        Raises SettingsError if there is no public set.
        """
        state: FedAvgState[ModelSpec] = super().start(federation)
        self._set(state.form)
        return state

    def fields(self, n: int) -> dict[str, object]:
        """The weight of a site."""
        return train_fields(self, weighting=self.options.weighting)

    @cached_property
    def _student(self) -> Student:
        return Student()

    def _set(self, form: ModelSpec) -> PublicSet:
        """The public set."""
        public: PublicSet = form.public(self.public)[0]
        return public

    def round(
        self, state: FedAvgState[ModelSpec], federation: Federation, n: int
    ) -> tuple[FedAvgState[ModelSpec], Facts]:
        """Sites train from the common weights; their mean learns what they say together."""
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, facts
        ask, own = train_ask(self, state, n), self.options
        replies = list(federation.ask(TRAIN_ALONE, ask, round=n, sites=sites).values())
        total: Total = {}
        for reply in replies:
            add_reply(total, reply)
        together, public = Update(**total), self._set(state.form)
        said = [self._student.said(state.form, public, weights_of_site(reply)) for reply in replies]
        weights, loss = self._student.learn(
            state.form,
            public,
            labels=[],
            weights=mean_of(together, state.weights),
            soft_target=DistillationTarget(
                softened_mean(said, own.temperature),
                own.temperature,
                np.zeros(public.rows, np.float32),
            ),
            config=replace(
                ask.config,
                epochs=own.distil_epochs,
                batch_size=own.distil_batch_size or ask.config.batch_size,
                learning_rate=own.distil_learning_rate or ask.config.learning_rate,
            ),
            seed=derive_seed(federation.seed, "distil", n),
        )
        facts |= {
            "loss": together.loss / together.weight,
            "sentences": together.examples,
            "distil_loss": loss,
        }
        return replace(state, weights=weights), facts


def weights_of_site(reply: Update) -> Arrays:
    """A site's trained weights."""
    return {name: array / np.float32(reply.weight) for name, array in reply.weights.items()}
