"""FedED: sites send their predictions of public examples, and never a weight.

Sui, Chen, Zhao, Jia, Xie & Sun, "FedED: Federated Learning via Ensemble Distillation for Medical
Relation Extraction", EMNLP 2020.

In every round some sites get the central model, train it on their own examples, and predict a small
public set. The server averages the predictions, softens them, and trains the central model to match
them, and the public set's labels (Algorithm 1, Eq. 4 to 6).

A kind decides what the rows of the set are, each of which is predicted: for relations the pairs of
entities, as in the paper; for entities the tokens, whose classes are the tags.

What leaves a site: at the start, which public encoder it has, names of relations and entity types,
and for entities how many training sentences it has; in a round, its predictions of the public set,
of which the server keeps only the sum, a loss and numbers of examples; counts of right answers.
What never leaves: text, examples, words, weights, gradients, predictions of its own text.
What predictions may still reveal: they are a function of a model that was trained on the text, a
few numbers for each public row. See docs/methods/feded.md.

Where we differ from the paper or decide what it leaves open:
- logits are averaged, since Eq. 5 calls p the logit (`upload = "probabilities"` averages those);
- of R classes, R - 1 columns travel, relative to the first class: the softmax is the same;
- float16 by default; int8 uses one step size for all sites, so that sums are exact;
- τ softens the teacher and the student, so that a perfect student keeps the teacher's logits; Eq. 4
  softens only the teacher, which halves them every round at τ = 2 (`temper_student = false`);
- what the server learns of the public set can be changed, and no site is asked anything else
  (`confide.methods.feded.lessons`): it may average the predictions over rounds (`past`), and stop
  by a part that it holds out (`hold_out`). With neither, it is the paper;
- the public set is sent once, without its labels, and named by the digest of its content;
- the optimiser of the distillation starts afresh each round, as the sites' do;
- for an unlabelled public set (`public.labelled = false`) the first part of Eq. 6 is left out;
- for sites with different relation sets (a site's `knows`), `average = "known"` averages a class
  over the sites that annotate it; with `upload = "probabilities"`, its probability rather than the
  first class. A class that none of them knows is learnt from the public set's labels alone;
- for entities, Eq. 4 to 6 apply to each token, summed over a sentence. A CRF predicts a token's
  marginals; their logarithms are the logits;
- a tagger's words are those of the public set (`kinds.tagger.public`), so there is no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.steps import Step
from confide.kinds.how import How, how_of
from confide.kinds.protocol import SCORE, F, ModelSpec, P, PublicSet, State
from confide.kinds.public import PublicKind
from confide.kinds.starting import settle
from confide.learning.teaching import Lesson
from confide.methods.fedavg import Facts, FedAvg
from confide.methods.feded.lessons import (
    Rows,
    certain,
    held_out,
    loss_of,
    past_of,
    saturated,
    teacher_of,
    with_past,
)
from confide.methods.feded.steps import (
    TAKE_PUBLIC_SET,
    TRAIN_AND_PREDICT,
    Predicted,
    PublicKept,
    TakePublic,
    TrainAndPredict,
)
from confide.seeds import derive_seed
from confide.settings import Settings as RunSettings
from confide.settings import Table
from confide.text.document import Document


class FedEDSettings(Table):
    """The method's own settings: the table `[options]`."""

    upload: Literal["logits", "probabilities"] = "logits"
    wire_dtype: Literal["float32", "float16", "int8"] = "float16"
    most: Annotated[float, Field(gt=0, le=1000)] = 16.0
    average: Literal["all", "known"] = "all"
    temperature: Annotated[float, Field(gt=0)] = 2.0
    temper_student: bool = True
    past: Annotated[float, Field(ge=0, le=1)] = 0.0
    hold_out: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    distil_epochs: Annotated[int, Field(ge=1)] = 1
    distil_batch_size: Annotated[int, Field(ge=1)] | None = None
    distil_learning_rate: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True)
class FedEDState(State[F], Generic[F, P]):
    """What the server carries from round to round; `weights` are the central model's."""

    gone: ClassVar[tuple[str, ...]] = ("version", "behind")

    public: P = carries("the public set")
    labels: list[str] = carries("label of each row of the public set; empty without labels")
    past: Arrays = carries("sums of the sites' predictions in earlier rounds", start=dict)


Central = FedEDState[ModelSpec, PublicSet]
"""The state of whichever kind."""


class FedED(FedAvg):
    """The method: `start` hands out the public set, `round` is one turn of Algorithm 1."""

    method: ClassVar[str] = "feded"
    own_steps: ClassVar[tuple[Step, ...]] = (TAKE_PUBLIC_SET, TRAIN_AND_PREDICT, SCORE)
    Settings: ClassVar[type] = FedEDSettings
    State: ClassVar[type] = FedEDState
    Memory: ClassVar[type] = PublicKept
    public: ClassVar[bool] = True
    kind: ClassVar[PublicKind]

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        super().__init__(settings, public)
        self._public = public
        self._student = self.kind.student()
        self._judge = self.kind.student()

    def start(self, federation: Federation) -> Central:
        """Agree on the model, hand out the public set, and draw the first weights.

        Raises SettingsError if there is no public set, or too small a one for its parts.
        """
        labels: list[str] = []

        def with_public(form: ModelSpec) -> TakePublic[ModelSpec, PublicSet]:
            public, found = self.kind.public(form, self._public)
            labels.extend(found if self._run.public.labelled else ())
            return TakePublic(form, public)

        agreed, taken, idle = settle(
            self._run,
            federation,
            self.kind,
            step=self._step(TAKE_PUBLIC_SET),
            public=self._public,
            ask=with_public,
        )
        state = FedEDState(
            form=agreed.form,
            weights=self._first(agreed.form, federation),
            idle=idle,
            public=taken.public,
            labels=labels,
        )
        if self._own.hold_out:
            self._held(state, federation.seed)
        return state

    def round(self, state: Central, federation: Federation, n: int) -> tuple[Central, Facts]:
        """Sites train and predict the public set; the central model learns from their mean."""
        own, how = self._own, how_of(self._run, n)
        total, ask, facts = self._said(state, federation, how)
        if total is None:
            return state, facts
        if own.past:
            total = with_past(total, ask, state.past, factor=own.past)
            state = replace(state, past=past_of(total))
        teacher_SR = teacher_of(total, ask, temperature=own.temperature)
        weights, distilled = self._distilled(state, teacher_SR, how, seed=federation.seed)
        return replace(state, weights=weights), facts | distilled

    def _said(
        self, state: Central, federation: Federation, how: How
    ) -> tuple[Predicted | None, TrainAndPredict, Facts]:
        """The sum of what the drawn sites predict, the ask for it, and the facts of the round."""
        drawn = federation.draw(self._run.federation.fraction, how.round)
        sites = [site for site in drawn if site not in state.idle]
        ask = self._asked_of(state, how)
        facts: Facts = {"loss": None, "learning_rate": how.learning_rate, "sites": list(drawn)}
        if not sites:
            return None, ask, {**facts, "sentences": 0}
        total = federation.sum(TRAIN_AND_PREDICT, ask, round=how.round, sites=sites)
        facts |= {
            "loss": total.loss / total.sites,
            "sentences": total.sentences,
            "saturated": saturated(total, ask),
        }
        return total, ask, facts

    def _upload(self) -> dict[str, Any]:
        """What a site sends of its predictions."""
        own = self._own
        return {
            "upload": own.upload,
            "average": own.average,
            "wire_dtype": own.wire_dtype,
            "most": own.most if own.upload == "logits" else 1.0,
        }

    def expects(self, step: str, n: int) -> dict[str, object]:
        """As under FedAvg, and what a site sends of its predictions."""
        return super().expects(step, n) | self._upload()

    def _asked_of(self, state: Central, how: How) -> TrainAndPredict:
        """What the sites are asked in a round."""
        return TrainAndPredict(
            weights=state.weights,
            how=how,
            public=state.public.digest,
            examples=state.public.rows,
            classes=state.form.classes,
            **self._upload(),
        )

    def _distilled(
        self, state: Central, teacher_SR: NDArray[np.float32], how: How, *, seed: int
    ) -> tuple[Arrays, Facts]:
        """The central model after the distillation of a round, and its facts (Eq. 6)."""
        own = self._own
        lesson = Lesson(
            teacher_SR,
            own.temperature if own.temper_student else 1.0,
            np.full(len(teacher_SR), bool(state.labels), np.float32),
        )
        how = replace(
            how,
            epochs=own.distil_epochs,
            batch_size=own.distil_batch_size or how.batch_size,
            learning_rate=own.distil_learning_rate or how.learning_rate,
        )
        named = derive_seed(seed, "distil", how.round)
        if own.hold_out:
            held_S = self._held(state, seed)
            return self._best(state, teacher_SR, lesson, held_S, how=how, seed=named)
        weights, loss = self._student.learn(
            state.form,
            state.public,
            labels=state.labels,
            weights=state.weights,
            lesson=lesson,
            how=how,
            seed=named,
        )
        return weights, {"distil_loss": loss}

    def _held(self, state: Central, seed: int) -> Rows:
        """The rows of the public set that are held out; the same in every round."""
        return held_out(state.public, self._own.hold_out, seed=derive_seed(seed, "public parts"))

    def _best(
        self,
        state: Central,
        teacher_SR: NDArray[np.float32],
        lesson: Lesson,
        held_S: Rows,
        *,
        how: How,
        seed: int,
    ) -> tuple[Arrays, Facts]:
        """Distil pass by pass until the held-out sentences' loss stops falling; keep the best.

        The loss is that of the labels or, without labels, of the teacher. Each pass has a fresh
        optimiser. If no pass lowers it, the model stays as it was.
        """
        form, labels = state.form, np.array(state.labels)
        wanted_SR = certain(state.labels, form.class_names) if state.labels else teacher_SR
        held, rest = state.public.part(held_S), state.public.part(~held_S)

        def judged(weights: Arrays) -> float:
            return loss_of(self._judge.said(form, held, weights), wanted_SR[held_S])

        best = weights = state.weights
        least, loss = judged(best), 0.0
        for epoch in range(how.epochs):
            weights, loss = self._student.learn(
                form,
                rest,
                labels=labels[~held_S].tolist() if state.labels else [],
                weights=weights,
                lesson=replace(
                    lesson,
                    teacher_TY=lesson.teacher_TY[~held_S],
                    labels_T=lesson.labels_T[~held_S],
                ),
                how=replace(how, epochs=1),
                seed=derive_seed(seed, "pass", epoch),
            )
            found = judged(weights)
            if found >= least:
                break
            best, least = weights, found
        return best, {"distil_loss": loss, "held_out_loss": least}
