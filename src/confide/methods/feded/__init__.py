"""FedED: sites send what they predict of public examples, and never a weight.

Sui, Chen, Zhao, Jia, Xie & Sun, "FedED: Federated Learning via Ensemble Distillation for Medical
Relation Extraction", EMNLP 2020.

In every round some sites get the central model, train it on their own examples, and predict a small
public set. The server averages the predictions, softens them, and trains the central model to say
the same of the public set, and what its labels say (Algorithm 1, Eq. 4 to 6).

What leaves a site: at the start which public encoder it has, names of relations and entity types;
in a round its predictions of the public examples, of which the server keeps only the sum, a loss
and numbers of examples; counts of right and wrong relations.
What never does: text, examples, weights, gradients, predictions of its own text.
What predictions may still tell: they are a function of a model that was trained on the text, a few
numbers for each public example. docs/methods/feded.md says more.

Where we differ from the paper or decide what it leaves open:
- logits are averaged (`upload = "probabilities"`: these), since Eq. 5 calls p the logit;
- of R classes R - 1 columns travel, against the first class: a softmax does not see the difference;
- float16 by default; int8 has one step for all sites, so that sums are sums;
- τ softens the teacher only, as Eq. 4 has it (`temper_student`: both);
- the public set is sent once, without its labels, and named by a number from its content;
- the optimiser of the distillation starts anew each round, as those of the sites do;
- `download = "difference"`: every site keeps the central model, and gets after each round how it
  changed, in int8; what the server goes on with is what the sites then have; the model that is
  tested at the end is sent whole;
- an unlabelled public set (`public.labelled = false`): the first part of Eq. 6 is left out;
- sites with other relation sets (`knows` of a site): `average = "known"` takes the mean of a
  relation over the sites that annotate it. A relation that no site asked knows is learnt from the
  public set's labels alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from confide.data.relation_pieces import EncodedRelations, RelationBatch
from confide.data.relations import candidates
from confide.errors import SettingsError
from confide.federation.coarse import difference, plus, unfixed
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.steps import Step
from confide.learning.relations import fit_relations
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays, load
from confide.methods.context import find_encoder
from confide.methods.feded.steps import (
    SCORE_MODEL,
    TAKE_MODEL,
    TAKE_PUBLIC_SET,
    TRAIN_AND_PREDICT,
    FedEDMemory,
    Predicted,
    PublicSet,
    ScoreModel,
    TakeModel,
    TrainAndPredict,
    examples_of,
    public_of,
)
from confide.methods.relation_extractor import RelationExtractor, extractor_of
from confide.methods.relation_form import (
    DESCRIBE_RELATIONS,
    agree_on_relations,
    modeller_of,
    rules_of,
)
from confide.methods.relations import optimiser_of, scores_from, training_of
from confide.models.distillation import distillation_loss, softened
from confide.models.relation import RelationClassifier
from confide.scoring import RelationCounts
from confide.settings import Settings as RunSettings
from confide.settings import Table, Task, own_settings
from confide.text.document import Document


class FedEDSettings(Table):
    """The method's own settings: the table `[options]`."""

    upload: Literal["logits", "probabilities"] = "logits"
    wire_dtype: Literal["float32", "float16", "int8"] = "float16"
    most: Annotated[float, Field(gt=0, le=1000)] = 16.0
    average: Literal["all", "known"] = "all"
    temperature: Annotated[float, Field(gt=0)] = 2.0
    temper_student: bool = False
    distil_epochs: Annotated[int, Field(ge=1)] = 1
    distil_batch_size: Annotated[int, Field(ge=1)] | None = None
    distil_learning_rate: Annotated[float, Field(gt=0)] | None = None
    download: Literal["whole", "difference"] = "whole"


@dataclass(frozen=True)
class FedEDState(PublicSet):
    """What the server carries from round to round.

    `behind` are the sites that did not take the last difference, and need the model whole.
    """

    labels: list[str] = carries("relation of each public example; empty without labels")
    version: int = carries("which central model this is")
    weights: Arrays = carries("the central model")
    behind: list[str] = carries("sites that do not keep it")


class FedED:
    """The method: `start` gives the sites the public set, `round` is one turn of Algorithm 1."""

    name: ClassVar[str] = "feded"
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_RELATIONS,
        TAKE_PUBLIC_SET,
        TAKE_MODEL,
        TRAIN_AND_PREDICT,
        SCORE_MODEL,
    )
    Settings: ClassVar[type] = FedEDSettings
    State: ClassVar[type] = FedEDState
    Memory: ClassVar[type] = FedEDMemory
    task: ClassVar[Task] = "re"
    keyed: ClassVar[bool] = False
    personal: ClassVar[bool] = False

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._own = own_settings(FedEDSettings, settings.options)
        self._public = public
        self._student = _Student()

    def start(self, federation: Federation) -> FedEDState:
        """Agree on the classifier, give the public set out, and draw the first weights."""
        labelled = self._run.public.labelled
        form = agree_on_relations(self._run, federation, public=self._public)
        examples = candidates(self._public, rules_of(form)).examples
        if not examples:
            raise SettingsError(
                "FedED needs a public set, text with pairs of entities that all sites may read",
                fix="name its files in [public], or take a `share` of a corpus that is dealt",
            )
        public = public_of(form, examples)
        federation.ask(TAKE_PUBLIC_SET, public, round=0)
        first = modeller_of(form, find_encoder(form.encoder)).initial(
            derive_seed(federation.seed, "weights")
        )
        state = FedEDState(
            **vars(public),
            labels=[one.relation for one in examples] if labelled else [],
            version=1,
            weights=arrays(first),
            behind=list(federation.sites),
        )
        return self._given_out(state, {}, federation, round=0)

    def round(
        self, state: FedEDState, federation: Federation, n: int
    ) -> tuple[FedEDState, dict[str, Any]]:
        """Sites train and predict the public set; the central model learns from their mean."""
        sites = federation.draw(self._run.federation.fraction, n)
        own = self._own
        ask = TrainAndPredict(
            **training_of(self._run, n),
            weights=self._sent(state),
            version=state.version,
            public=state.public,
            examples=len(state.texts),
            classes=len(state.relations),
            upload=own.upload,
            average=own.average,
            wire_dtype=own.wire_dtype,
            most=own.most if own.upload == "logits" else 1.0,
        )
        total = federation.sum(TRAIN_AND_PREDICT, ask, round=n, sites=sites)
        teacher_SR = teacher_of(total, ask, temperature=own.temperature)
        seed = derive_seed(federation.seed, "distil", n)
        weights, distilled = self._student.learn(state, teacher_SR, ask, own=own, seed=seed)
        facts = {
            "loss": total.loss / total.sites,
            "distil_loss": distilled,
            "learning_rate": ask.learning_rate,
            "sites": list(sites),
            "sentences": total.sentences,
            "saturated": saturated(total, ask),
        }
        return self._moved(state, weights, federation, round=n), facts

    def score(
        self, state: FedEDState, federation: Federation, *, part: str, round: int
    ) -> dict[str, RelationCounts]:
        """Every site's counts on its own held-out text.

        What is tested at the end is the model of the round that was selected, which the sites need
        not have kept: it is sent whole.
        """
        weights = state.weights if part == "test" else self._sent(state)
        ask = ScoreModel(weights, state.version, part)
        return scores_from(federation, SCORE_MODEL, ask, round=round)

    def _sent(self, state: FedEDState) -> Arrays:
        """The central model as it goes into an ask: not at all, where the sites keep it."""
        return state.weights if self._own.download == "whole" else {}

    def _moved(
        self, state: FedEDState, weights: Arrays, federation: Federation, *, round: int
    ) -> FedEDState:
        """The state with these weights, or with those nearby that the sites will have."""
        change: Arrays = {}
        if self._own.download == "difference":
            change = difference(weights, state.weights)
            weights = plus(state.weights, change)
        state = replace(state, version=state.version + 1, weights=weights)
        return self._given_out(state, change, federation, round=round)

    def _given_out(
        self, state: FedEDState, change: Arrays, federation: Federation, *, round: int
    ) -> FedEDState:
        """Let every site keep the central model, where only differences are sent."""
        if self._own.download == "whole":
            return state
        whole = TakeModel(state.version, state.weights, {})
        part = TakeModel(state.version, {}, change)
        asks = {site: whole if site in state.behind else part for site in federation.sites}
        taken = federation.ask(TAKE_MODEL, asks, round=round)
        return replace(state, behind=sorted(set(federation.sites) - taken.keys()))

    def model(self, state: FedEDState, memory: object) -> tuple[PublicSet, Arrays]:
        """The central classifier, the same for all sites."""
        return state, state.weights

    def extractor(
        self, state: FedEDState, memory: object, *, key: bytes | None, encoder: str | None = None
    ) -> RelationExtractor:
        """What reads documents and finds relations between their entities."""
        return extractor_of(state, state.weights, encoder=encoder)


def teacher_of(
    total: Predicted, ask: TrainAndPredict, *, temperature: float
) -> NDArray[np.float32]:
    """Softened probabilities teacher_SR from the sum of the sites' predictions (Eq. 4 and 5).

    A class that no site asked knows has probability 0.
    """
    sums_SQ = unfixed(total.said_SQ, ask.wire_dtype, most=ask.most)  # type: ignore[arg-type]
    sites_R = total.knows.get("R", np.full(ask.classes, float(total.sites)))
    mean_SQ = sums_SQ / np.maximum(sites_R[1:], 1.0)
    if ask.upload == "logits":
        logits_SR = np.concatenate((np.zeros((len(mean_SQ), 1)), mean_SQ), 1)
    else:
        first_S1 = 1.0 - mean_SQ.sum(1, keepdims=True)
        logits_SR = np.log(np.maximum(np.concatenate((first_S1, mean_SQ), 1), 1e-6))
    logits_SR[:, sites_R == 0] = -np.inf
    found: NDArray[np.float32] = softened(torch.from_numpy(logits_SR), temperature).float().numpy()
    return found


def saturated(total: Predicted, ask: TrainAndPredict) -> float:
    """The share of predictions of which all sites sent the largest that can be sent, or nearly."""
    mean_SQ = unfixed(total.said_SQ, ask.wire_dtype, most=ask.most) / total.sites  # type: ignore[arg-type]
    return float((np.abs(mean_SQ) >= 0.999 * ask.most).mean()) if ask.upload == "logits" else 0.0


class _Student:
    """The server's own classifier, made once, that learns from the sites' predictions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # federations of one run may go on side by side
        self._made: tuple[Any, RelationClassifier, EncodedRelations] | None = None

    def learn(
        self,
        state: FedEDState,
        teacher_SR: NDArray[np.float32],
        ask: TrainAndPredict,
        *,
        own: FedEDSettings,
        seed: int,
    ) -> tuple[Arrays, float]:
        """The central model after the distillation (Eq. 6), and its mean loss per example."""
        with self._lock:
            model, encoded = self._ready(state)
            load(model, state.weights)
            teacher = torch.from_numpy(teacher_SR)
            labelled = bool(state.labels)

            def loss(model: RelationClassifier, batch: RelationBatch) -> Tensor:
                return distillation_loss(
                    model(batch),
                    teacher[batch.rows_B],
                    labels_B=batch.relations_B if labelled else None,
                    temperature=own.temperature if own.temper_student else 1.0,
                )

            report = fit_relations(
                model,
                encoded,
                epochs=own.distil_epochs,
                batch_size=own.distil_batch_size or ask.batch_size,
                optimiser=replace(
                    optimiser_of(ask),
                    learning_rate=own.distil_learning_rate or ask.learning_rate,
                ),
                seed=seed,
                loss=loss,
            )
            return arrays(model), report.loss

    def _ready(self, state: FedEDState) -> tuple[RelationClassifier, EncodedRelations]:
        """The classifier and the public examples as numbers, made once for a set and a form."""
        key = state.public, tuple(state.relations), tuple(state.types)
        if self._made is None or self._made[0] != key:
            modeller = modeller_of(state, find_encoder(state.encoder))
            examples = examples_of(state, state.labels)
            self._made = key, modeller.initial(0), modeller.encoded(examples)
        return self._made[1:]
