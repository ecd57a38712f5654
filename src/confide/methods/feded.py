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
  (`confide.methods.feded`): it may average the predictions over rounds (`past`), and stop
  by a part that it holds out (`holdout_share`). With neither, it is the paper;
- the public set is sent once, without its labels, and named by the digest of its content;
- the optimiser of the distillation starts afresh each round, as the sites' do;
- for an unlabelled public set (`public.labelled = false`) the first part of Eq. 6 is left out;
- for sites with different relation sets (a site's `annotates`), `average = "known"` averages a
  class over the sites that annotate it; with `upload = "probabilities"`, its probability rather
  than the first class. A class that none knows is learnt from the public set's labels alone;
- for entities, Eq. 4 to 6 apply to each token, summed over a sentence. A CRF predicts a token's
  marginals; their logarithms are the logits;
- a tagger's words are those of the public set (`kinds.tagger.site`), so there is no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, Learnt, Value, carries, fixed, unfixed
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds import protocol
from confide.kinds.protocol import F, P, State, taken
from confide.kinds.public import SEVERAL, Student
from confide.kinds.relations.model import probabilities
from confide.kinds.steps import settle
from confide.methods.method import Facts, Method, OptionsTable, Trait
from confide.seeds import derive_seed
from confide.training.trainer import DistillationTarget, softened

# --- FedED at a site: the messages, and how a site answers
#
# Shapes: S rows of the public set (pairs of entities, or tokens, as the kind decides), R classes,
# Q = R - 1 columns of predictions.


@dataclass(frozen=True)
class TakePublic(Generic[F, P]):
    """Keep the form of the model, and the public set without its labels."""

    form: F = carries("the form of the model")
    public: P = carries("the public set")


@dataclass(frozen=True)
class PublicKept(protocol.Kept[F], Generic[F, P]):
    """A site's memory: the form and the public set."""

    public: P = carries("the public set")


@dataclass(frozen=True)
class TrainAndPredict:
    """Train the central model on your own examples, and predict the public set."""

    weights: Arrays = carries("the central model")
    config: protocol.TrainConfig = carries("how a site trains")
    public: str = carries("SHA-256 of the public set", rule="varies")
    examples: int = carries("number of its rows, each to be predicted", rule="varies")
    classes: int = carries("number of classes", rule="varies")
    upload: str = carries("what to send: logits or probabilities")
    average: str = carries("whose predictions of a class are averaged: all or known")
    wire_dtype: str = carries("number type of the predictions")
    most: float = carries("the largest prediction; larger ones are clipped to it")


@dataclass(frozen=True)
class Predicted:
    """A trained model's predictions of the public set, and of nothing else."""

    said_SQ: NDArray[np.int8 | np.float16 | np.float32] = carries(
        "for each public row, logits relative to the first class, or probabilities",
        value=Learnt(
            shape=lambda ask: (ask.examples, ask.classes - 1),
            weight="sites",
            columns="knows",
            fixed=("wire_dtype", "most"),
        ),
    )
    knows: dict[str, NDArray[np.float32]] = carries(
        "for each class but the first, whether the site annotates it; only if average = known",
        legend="Q",
        value=Value(shape=lambda ask: {"": (ask.classes - 1,)} if ask.average == "known" else {}),
    )
    sites: int = carries("1, so that the sum counts the sites")
    loss: float = carries("mean training loss per example")
    sentences: int = carries("examples trained on, over all epochs", value=Value(least=1))


# --- the public set ----------------------------------------------------------------------------


def take_public_set(
    site: Site, memory: object, ask: TakePublic[F, P], turn: Turn
) -> tuple[protocol.Taken, PublicKept[F, P]]:
    """Keep the form of the model and the public set. Raises Refusal if the set is malformed."""
    ask.public.check()
    return taken(site, ask.form), PublicKept(ask.form, public=ask.public)


# --- training and predicting ------------------------------------------------------------------


def train_and_predict(
    site: Site, memory: PublicKept[F, P] | None, ask: TrainAndPredict, turn: Turn
) -> tuple[Predicted, PublicKept[F, P]]:
    """Train on the site's own examples, and predict the public set (Algorithm 1)."""
    memory = known(memory)
    site_model = desk_for(site, memory, ask)
    config, memory_after = protocol.resuming(memory, ask.config)
    fitted = site_model.fit(ask.weights, config, seed=turn.seed)
    memory = memory_after()
    reply = predicted(site_model, memory.public, ask=ask, weights=fitted.weights)
    return replace(reply, loss=round(fitted.loss, 4), sentences=fitted.examples), memory


def desk_for(site: Site, memory: PublicKept[F, P], ask: TrainAndPredict) -> protocol.SiteModel:
    """The site model. Raises Refusal if the ask is of another public set than the site has."""
    public, form = memory.public, memory.form
    if (ask.public, ask.examples, ask.classes) != (public.digest, public.rows, form.classes):
        raise Refusal("other-public-set")
    return form.at(site)


def predicted(
    site_model: protocol.SiteModel, public: P, *, ask: TrainAndPredict, weights: Arrays
) -> Predicted:
    """Predict the public set with these weights, as if one sentence had been trained on."""
    logits_SR = site_model.predicted(weights, public)
    knows_R = np.array(
        site_model.known_classes() if ask.average == "known" else [True] * ask.classes
    )
    found_SQ = columns(logits_SR, knows_R, upload=ask.upload, average=ask.average)
    return Predicted(
        said_SQ=fixed(found_SQ, ask.wire_dtype, most=ask.most),  # type: ignore[arg-type]
        knows={"": knows_R[1:].astype(np.float32)} if ask.average == "known" else {},
        sites=1,
        loss=0.0,
        sentences=1,
    )


def columns(
    logits_SR: NDArray[np.float32], knows_R: NDArray[np.bool_], *, upload: str, average: str
) -> NDArray[np.float64]:
    """Encode predictions: logits relative to the first class, or probabilities, without the first.

    Nothing is lost: the softmax ignores what all logits share, and probabilities sum to 1. Where
    sites know different classes, a probability is that of the class rather than the first, whatever
    else the site knows: only these can be compared. Classes that the site does not know are 0.
    """
    found_SR = logits_SR.astype(np.float64)
    found_SQ = found_SR[:, 1:] - found_SR[:, :1]
    if upload == "probabilities" and average == "known":
        found_SQ = np.exp(-np.logaddexp(0.0, -found_SQ))
    elif upload == "probabilities":
        found_SQ = probabilities(found_SR)[:, 1:]
    return np.where(knows_R[1:], found_SQ, 0.0)


TAKE_PUBLIC_SET = Step.of(take_public_set)
TRAIN_AND_PREDICT = Step.of(train_and_predict, summed=True)


# --- The server's part of FedED
#
# It learns the teacher in a round, and which rows it holds out.
#
# Nothing here concerns the sites: they predict every row of the public set, whatever is learnt of
# it.
#
# Shapes: S rows of the public set (pairs of entities, or tokens), R classes, Q = R - 1 columns of
# predictions, N sentences.


Chosen = NDArray[np.bool_]


def teacher_of(
    total: Predicted, ask: TrainAndPredict, *, temperature: float
) -> NDArray[np.float32]:
    """Softened probabilities teacher_SR from the sum of the sites' predictions (Eq. 4 and 5).

    A class that none of the asked sites knows has probability 0.
    """
    sums_SQ = unfixed(total.said_SQ, ask.wire_dtype, most=ask.most)  # type: ignore[arg-type]
    sites_Q = total.knows.get("", np.full(ask.classes - 1, float(total.sites)))
    mean_SQ = sums_SQ / np.where(sites_Q > 0, sites_Q, 1.0)
    if ask.upload == "probabilities" and ask.average == "known":  # of each class or the first
        mean_SQ = mean_SQ.clip(1e-6, 1 - 1e-6)
        mean_SQ = np.log(mean_SQ) - np.log1p(-mean_SQ)
    if ask.upload == "logits" or ask.average == "known":
        logits_SR = np.concatenate((np.zeros((len(mean_SQ), 1)), mean_SQ), 1)
    else:
        first_S1 = 1.0 - mean_SQ.sum(1, keepdims=True)
        logits_SR = np.log(np.maximum(np.concatenate((first_S1, mean_SQ), 1), 1e-6))
    logits_SR[:, 1:][:, sites_Q == 0] = -np.inf
    found: NDArray[np.float32] = softened(torch.from_numpy(logits_SR), temperature).float().numpy()
    return found


def saturated(total: Predicted, ask: TrainAndPredict) -> float:
    """The share of predictions for which all sites sent (nearly) the largest possible value."""
    mean_SQ = unfixed(total.said_SQ, ask.wire_dtype, most=ask.most) / total.sites  # type: ignore[arg-type]
    return float((np.abs(mean_SQ) >= 0.999 * ask.most).mean()) if ask.upload == "logits" else 0.0


def softened_mean(said: Sequence[NDArray[np.float32]], temperature: float) -> NDArray[np.float32]:
    """Softened probabilities of the mean of several models' logits_SR."""
    mean_SR = torch.from_numpy(np.mean(said, 0, dtype=np.float64))
    found: NDArray[np.float32] = softened(mean_SR, temperature).float().numpy()
    return found


def with_past(
    total: Predicted, ask: TrainAndPredict, past: Arrays, *, factor: float
) -> tuple[Predicted, Arrays]:
    """The sum over the sites of this round and of those before, and what the next round must know.

    A round counts `factor` times what the one after it counts, so 1 gives the plain mean over all
    sites of all rounds. `past` is what the round before gave; empty: there was none.
    """
    knows_Q = total.knows.get("", np.full(ask.classes - 1, float(total.sites)))
    sites_R = np.append(float(total.sites), knows_Q)
    said_SQ = total.said_SQ.astype(np.float64)
    if past:
        said_SQ = said_SQ + factor * past["said_SQ"]
        sites_R = sites_R + factor * past["sites_R"]
    together = replace(total, said_SQ=said_SQ, knows={"": sites_R[1:]})  # type: ignore[arg-type]
    return together, {"said_SQ": said_SQ, "sites_R": sites_R}


def held_out(public: protocol.PublicSet, share: float, *, seed: int) -> Chosen:
    """The rows of a public set that are held out: this share of its sentences, drawn by the seed.

    Raises SettingsError if nothing is held out, or nothing is left.
    """
    sentences_S = public.row_sentences
    count = int(sentences_S.max()) + 1
    rank_S = np.random.default_rng(seed).permutation(count)[sentences_S]
    held_S: Chosen = rank_S < round(share * count)
    if not held_S.any() or held_S.all():
        raise SettingsError(
            "the public set has too few sentences to hold some out",
            got=f"{count} sentences, holdout_share = {share}",
            fix="use a larger public set, or another value of `holdout_share`",
        )
    return held_S


def loss_of(
    logits_SR: NDArray[np.float32], wanted_SR: NDArray[np.float32] | NDArray[np.float64]
) -> float:
    """The mean cross-entropy between wanted probabilities and those of these logits."""
    likely_SR = torch.log_softmax(torch.from_numpy(logits_SR).double(), -1).numpy()
    return float(-(wanted_SR * likely_SR).sum(1).mean())


def certain(labels: Sequence[str], names: Sequence[str]) -> NDArray[np.float32]:
    """wanted_SR: 1 for the label of each row; of several, an equal share for each."""
    numbers = {name: number for number, name in enumerate(names)}
    wanted_SR = np.zeros((len(labels), len(names)), np.float32)
    for row, label in enumerate(labels):
        own = label.split(SEVERAL)
        wanted_SR[row, [numbers[name] for name in own]] = 1 / len(own)
    return wanted_SR


ON_A_PUBLIC_SET = ("relations", "tagger", "encoder", "spans")
"""The kinds that learn from a public set."""


class FedEDSettings(OptionsTable):
    """The method's own settings: the table `[options]`."""

    upload: Literal["logits", "probabilities"] = "logits"
    wire_dtype: Literal["float32", "float16", "int8"] = "float16"
    max_logit: Annotated[float, Field(gt=0, le=1000)] = 16.0
    average: Literal["all", "known"] = "all"
    temperature: Annotated[float, Field(gt=0)] = 2.0
    temper_student: bool = True
    past_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    holdout_share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    distil_epochs: Annotated[int, Field(ge=1)] = 1
    distil_batch_size: Annotated[int, Field(ge=1)] | None = None
    distil_learning_rate: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True)
class FedEDState(State[F], Generic[F, P]):
    """The server's state from round to round; `weights` are the central model's."""

    gone: ClassVar[tuple[str, ...]] = ("version", "behind")

    public: P = carries("the public set")
    labels: list[str] = carries("label of each row of the public set; empty without labels")
    past: Arrays = carries("sums of the sites' predictions in earlier rounds", start=dict)


Central = FedEDState[protocol.ModelSpec, protocol.PublicSet]
"""The state of whichever kind."""


class FedED(Method):
    """The method: `start` hands out the public set, `round` is one turn of Algorithm 1."""

    name: ClassVar[str] = "feded"
    kinds: ClassVar[tuple[str, ...]] = ON_A_PUBLIC_SET
    steps: ClassVar[tuple[Step, ...]] = (TAKE_PUBLIC_SET, TRAIN_AND_PREDICT, protocol.SCORE)
    Settings: ClassVar[type[OptionsTable]] = FedEDSettings
    State: ClassVar[type] = FedEDState
    traits: ClassVar[frozenset[Trait]] = frozenset({"public"})

    @cached_property
    def _student(self) -> Student:
        return Student()

    @cached_property
    def _judge(self) -> Student:
        return Student()

    def start(self, federation: Federation) -> Central:
        """Agree on the model, hand out the public set, and draw the first weights.

        Raises SettingsError if there is no public set, or too small a one for its parts.
        """
        labels: list[str] = []

        def with_public(
            form: protocol.ModelSpec,
        ) -> TakePublic[protocol.ModelSpec, protocol.PublicSet]:
            public, found = form.public(self.public)
            labels.extend(found if self.run.public.labelled else ())
            return TakePublic(form, public)

        agreed, taken, idle = settle(
            self.run,
            federation,
            self.kind,
            step=self.step(TAKE_PUBLIC_SET.name),
            public=self.public,
            start=self._start,
            ask=with_public,
        )
        state = FedEDState(
            form=agreed.form,
            weights=self.first(agreed.form, federation),
            idle=idle,
            public=taken.public,
            labels=labels,
        )
        if self.options.holdout_share:
            self._held(state, federation.seed)
        return state

    def entry(self, state: Central) -> tuple[Step, object] | None:
        """The form and the public set."""
        return self.step(TAKE_PUBLIC_SET.name), TakePublic(state.form, state.public)

    def round(self, state: Central, federation: Federation, n: int) -> tuple[Central, Facts]:
        """Sites train and predict the public set; the central model learns from their mean."""
        own, config = self.options, self.config(n)
        total, ask, facts = self._said(state, federation, n)
        if total is None:
            return state, facts
        if own.past_weight:
            total, past = with_past(total, ask, state.past, factor=own.past_weight)
            state = replace(state, past=past)
        teacher_SR = teacher_of(total, ask, temperature=own.temperature)
        weights, distilled = self._distilled(state, teacher_SR, config, seed=federation.seed)
        return replace(state, weights=weights), facts | distilled

    def _said(
        self, state: Central, federation: Federation, n: int
    ) -> tuple[Predicted | None, TrainAndPredict, Facts]:
        """The sum of what the drawn sites predict, the ask for it, and the facts of the round."""
        sites, facts = self.drawn(state, federation, n)
        ask = self._asked_of(state, n)
        if not sites:
            return None, ask, facts
        total = federation.sum(TRAIN_AND_PREDICT, ask, round=n, sites=sites)
        facts |= {
            "loss": total.loss / total.sites,
            "sentences": total.sentences,
            "saturated": saturated(total, ask),
        }
        return total, ask, facts

    def fields(self, n: int) -> dict[str, Any]:
        """The form in which a site sends its predictions."""
        own = self.options
        return {
            "upload": own.upload,
            "average": own.average,
            "wire_dtype": own.wire_dtype,
            "most": own.max_logit if own.upload == "logits" else 1.0,
        }

    def _asked_of(self, state: Central, n: int) -> TrainAndPredict:
        """Make the ask of a round."""
        return TrainAndPredict(
            weights=state.weights,
            config=self.config(n),
            public=state.public.digest,
            examples=state.public.rows,
            classes=state.form.classes,
            **FedED.fields(self, n),
        )

    def _distilled(
        self,
        state: Central,
        teacher_SR: NDArray[np.float32],
        config: protocol.TrainConfig,
        *,
        seed: int,
    ) -> tuple[Arrays, Facts]:
        """The central model after the distillation of a round, and its facts (Eq. 6)."""
        own = self.options
        soft_target = DistillationTarget(
            teacher_SR,
            own.temperature if own.temper_student else 1.0,
            np.full(len(teacher_SR), bool(state.labels), np.float32),
        )
        config = replace(
            config,
            epochs=own.distil_epochs,
            batch_size=own.distil_batch_size or config.batch_size,
            learning_rate=own.distil_learning_rate or config.learning_rate,
        )
        named = derive_seed(seed, "distil", config.round)
        if own.holdout_share:
            held_S = self._held(state, seed)
            return self._best(state, teacher_SR, soft_target, held_S, config=config, seed=named)
        weights, loss = self._student.learn(
            state.form,
            state.public,
            labels=state.labels,
            weights=state.weights,
            soft_target=soft_target,
            config=config,
            seed=named,
        )
        return weights, {"distil_loss": loss}

    def _held(self, state: Central, seed: int) -> Chosen:
        """The rows of the public set that are held out; the same in every round."""
        return held_out(
            state.public, self.options.holdout_share, seed=derive_seed(seed, "public parts")
        )

    def _best(
        self,
        state: Central,
        teacher_SR: NDArray[np.float32],
        soft_target: DistillationTarget,
        held_S: Chosen,
        *,
        config: protocol.TrainConfig,
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
        for epoch in range(config.epochs):
            weights, loss = self._student.learn(
                form,
                rest,
                labels=labels[~held_S].tolist() if state.labels else [],
                weights=weights,
                soft_target=replace(
                    soft_target,
                    teacher_TY=soft_target.teacher_TY[~held_S],
                    labels_T=soft_target.labels_T[~held_S],
                ),
                config=replace(config, epochs=1),
                seed=derive_seed(seed, "pass", epoch),
            )
            found = judged(weights)
            if found >= least:
                break
            best, least = weights, found
        return best, {"distil_loss": loss, "held_out_loss": least}
