"""FedAvg: sites train from the common weights, and the server averages the results.

McMahan, Moore, Ramage, Hampson & Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1. For a tagger it is the method of Luboshnikov &
Makarov, "Federated Learning in Named Entity Recognition", AIST 2020 (doi
10.1007/978-3-030-71214-3_8); for relations and bags the baseline of Sui et al. 2020 and 2021.

What leaves a site: its kind's description of the text at the start (`confide.kinds`); its number of
training examples; its trained weights, of which the server keeps only the sum; counts of right,
predicted and gold answers.
What never leaves: text, words, predictions, the key.
What weights may still reveal: they are a function of the text. Changed rows of a word table show
which digests occur at a site; those of a table of word pieces show which pieces do, in the clear.
Rows that start from a public vector file can be recognised by their neighbours, whatever the digest
hides. See docs/methods/fedavg.md.

Where we differ from the papers or decide what they leave open:
- the learning rate decays by the global round, not by the local epoch; each site's optimiser starts
  afresh each round at that rate, and momentum is not carried over;
- `weighting`: how much a site's weights count, `"equal"` or by its training `"examples"`; by
  default, taggers, encoders and LightNER count equally (Luboshnikov & Makarov), others by examples;
- `server`: the server may take a step of its own towards the mean, and `proximal` holds each site's
  training to its start (FedProx); with neither, this is FedAvg, bit for bit;
- `rows = "seen"` averages the row of a word or character over the sites whose text has it, and that
  of a relation over the sites that annotate it. With the plain mean (`"all"`, the default) a word
  that one site in ten has moves by a tenth of what that site learnt; the server already knows from
  the counts who has which word, and from the names who annotates what;
- word vectors from a file: each site reads its own copy and fills in the rows that it knows in the
  first round; all sites need the same file, and the rows stay trainable;
- a site without training text is not asked to train;
- a public set is not used: its text is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, Learnt, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds import protocol
from confide.kinds.protocol import F, State
from confide.kinds.steps import no_tables
from confide.methods.method import Carried, Facts, Method, OptionsTable, ServerTable
from confide.training.optimisers import ServerStep, Term, stepped

Weighting = Literal["equal", "examples", "sentences"]
"""The weight of a site in a mean; `sentences` is a synonym of `examples`."""


class FedAvgSettings(ServerTable):
    """The table `[options]`: `weighting` is the kind's by default, `proximal` FedProx's μ."""

    weighting: Weighting | None = None
    rows: Literal["all", "seen"] = "all"
    proximal: Annotated[float, Field(ge=0)] = 0.0


@dataclass(frozen=True)
class FedAvgState(State[F], Generic[F]):
    """The server's state from round to round: the weights, and the means of its own steps."""

    moments: Arrays = carries("the server's running means of the change", start=dict)
    squares: Arrays = carries("the server's running means of its square", start=dict)


@dataclass(frozen=True)
class Train:
    """Train from these weights."""

    weights: Arrays = carries("the common weights")
    config: protocol.TrainConfig = carries("how a site trains")
    weighting: str = carries("what a site's weights are multiplied by: equal (1) or its examples")
    tables: list[str] = carries(
        "tables whose rows count only if the site has what they stand for", rule="varies"
    )

    def fit(
        self, site: Site, memory: protocol.Kept[Any] | None, turn: Turn, *, term: Term | None = None
    ) -> tuple[protocol.Fitted, Any]:
        """Train the common model on the site's own text; gives the result and the memory after it.

        The method may add a term to the loss. Raises Refusal if the site has no memory or no text.
        """
        memory = known(memory)
        site_model = memory.form.at(site)
        config = self.config if term is None else self.config.with_term(term)
        config, memory_after = protocol.resuming(memory, config)
        fitted = site_model.fit(self.weights, config, seed=turn.seed)
        return fitted, memory_after()


@dataclass(frozen=True)
class Update:
    """The result of a site's training, multiplied by the site's weight."""

    weights: Arrays = carries(
        "trained weights, times the site's weight in the mean; of tables only changed rows",
        value=Learnt(like="weights", weight="weight", weighting="weighting", rows="seen"),
    )
    weight: float = carries("the site's weight in the mean")
    seen: dict[str, NDArray[np.float32]] = carries(
        "the same weight for each row whose word or relation the site has; only if rows = seen",
        legend="V",
        value=Value(
            shape=lambda ask: {
                name: ask.weights[name].shape[:1] for name in ask.tables if name in ask.weights
            }
        ),
    )
    loss: float = carries("mean training loss per example, times the weight")
    examples: int = carries("examples trained on, over all epochs", value=Value(least=1))

    @staticmethod
    def of(fitted: protocol.Fitted, *, weight: float, seen: Arrays | None = None) -> Update:
        """The result of training, times the site's weight; `seen` is 1 for each row that counts."""
        weights, own = fitted.weights, seen or {}
        if weight != 1.0:
            weights = {name: array * np.float32(weight) for name, array in weights.items()}
        for name, seen_V in own.items():
            weights[name] *= seen_V.reshape(-1, *[1] * (weights[name].ndim - 1))
            seen_V *= np.float32(weight)
        return Update(weights, weight, own, fitted.loss * weight, fitted.examples)


@dataclass(frozen=True)
class Personal(protocol.Kept[F], Generic[F]):
    """The memory of a site with weights of its own, in place of the common ones."""

    own: Arrays = carries("the site's own weights: never sent", start=dict)

    def model(self, common: Arrays) -> tuple[F, Arrays]:
        """The form, and the common weights with the site's own."""
        return self.form, {**common, **self.own}


def train(
    site: Site, memory: protocol.Kept[Any] | None, ask: Train, turn: Turn
) -> tuple[Update, protocol.Kept[Any]]:
    """Train the common model on the site's own text for some epochs."""
    fitted, memory = ask.fit(site, memory, turn)
    return weighed(memory.form.at(site), ask, fitted), memory


def weighed(site_model: protocol.SiteModel, ask: Train, fitted: protocol.Fitted) -> Update:
    """The result of training at a site model, weighted as the ask says."""
    rows = site_model.rows_seen(ask.config) if ask.tables else {}
    weight = float(site_model.size) if ask.weighting == "examples" else 1.0
    return Update.of(fitted, weight=weight, seen={name: rows[name] for name in ask.tables})


def mean_of(total: Update, before: Arrays) -> Arrays:
    """The weighted mean of the sites' weights; a row that no site has seen stays as it was.

    It takes the total's weights apart: of a large model, sums and means are not held together.
    """
    mean = {}
    for name in list(total.weights):
        sums = total.weights.pop(name)
        if name in total.seen:
            seen_V = total.seen[name].reshape(-1, *[1] * (sums.ndim - 1))
            sums = np.where(seen_V > 0, sums / np.maximum(seen_V, 1e-9), before[name])
        else:
            sums = sums / total.weight
        mean[name] = sums.astype(np.float32)
    return mean


TRAIN = Step.of(train, summed=True)


class FedAvg(Method):
    """The method: `round` averages the sites' trained weights."""

    name: ClassVar[str] = "fedavg"
    steps: ClassVar[tuple[Step, ...]] = (protocol.TAKE, TRAIN, protocol.SCORE)
    Settings: ClassVar[type[OptionsTable]] = FedAvgSettings
    State: ClassVar[type] = FedAvgState

    def start(self, federation: Federation) -> Any:
        """Agree on the model, hand out its form, and draw the first weights."""
        state = super().start(federation)
        if "tables" not in self.fields(1) and not state.form.tables():
            raise no_tables(self.kind.name)
        return state

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sites train from the common weights; the mean of their results is the next state."""
        return self.averaged(state, federation, n, step=TRAIN)

    def averaged(
        self, state: Any, federation: Federation, n: int, *, step: Step, ask: Train | None = None
    ) -> tuple[Carried, Facts]:
        """A round in which sites train by this step and ask, and the server takes the mean."""
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, facts
        total = federation.sum(step, ask or train_ask(self, state, n), round=n, sites=sites)
        facts |= {"loss": total.loss / total.weight, "sentences": total.examples}
        own = self.options
        weights, moments, squares = stepped(
            state.weights,
            mean_of(total, state.weights),
            how=own.step(n) if isinstance(own, ServerTable) else ServerStep(),
            moments=state.moments,
            squares=state.squares,
        )
        return replace(state, weights=weights, moments=moments, squares=squares), facts

    def fields(self, n: int) -> dict[str, object]:
        """The weight of a site, and how training is held to its start."""
        own = self.options
        return train_fields(self, weighting=own.weighting, rows=own.rows, proximal=own.proximal)


def train_fields(
    method: Method,
    *,
    weighting: Weighting | None = "equal",
    rows: Literal["all", "seen"] = "all",
    proximal: float = 0.0,
) -> dict[str, object]:
    """The fields of `Train` that follow from settings; the default `weighting` is the kind's."""
    if weighting is None:
        weighting = method.kind.Spec.weighting
    found: dict[str, object] = {
        "weighting": "equal" if weighting == "equal" else "examples",
        "config.proximal": proximal,
    }
    return found if rows == "seen" else {**found, "tables": []}


def train_ask(method: Method, state: Carried, n: int) -> Train:
    """The ask of a round: training settings, and the weight of a site."""
    fields: dict[str, Any] = method.fields(n)
    tables = fields.get("tables", list(state.form.tables()))
    return Train(state.weights, method.config(n), fields["weighting"], tables)
