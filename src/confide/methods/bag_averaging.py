"""FedAvg of a bag model, with any way to denoise a bag; and the chain, which has no server's mean.

The baselines of Sui et al. 2021 (Lazy MIL, 4.1). FedAvg: McMahan, Moore, Ramage, Hampson & Agüera y
Arcas, AISTATS 2017. What makes one of the sentences of a bag is `[bags] denoise`: none of them is
doubted (`none`), the likeliest counts (`one`: Zeng et al. 2015), selective attention (`att`: Lin et
al. 2016), the mean (`ave`), relation-aware attention within the bag (`att-ra`: Ye & Ling 2019).
Chain: the sites drawn train one after the other, each from where the one before it stopped.

What leaves a site: at the start that it holds the common key, keyed digests of its words with
counts (or which public encoder it has), names of relations and entity types, numbers of sentences
and bags; its trained weights: the sum of all sites under FedAvg, one by one in a chain; counts of
facts by score, and of bags by best label.
What never does: text, words, entities, identifiers, predictions, the key.
What weights may still tell: docs/methods/lazy-mil.md.

Where we differ from the paper or decide what it leaves open:
- a bag lies at one site: sentences of one pair at two sites are two bags of training;
- `weighting = "equal"` is the plain mean; `"sentences"` (default) weighs a site by its training
  sentences, whatever the denoiser does with them;
- the order of a chain is drawn anew each round; the weights pass through the server, since sites
  do not speak with each other; a site that fails is passed over;
- rows of a file of word vectors are filled in by each site in the first round, and in a chain by
  the first site;
- a site without training text is not asked to train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.learning.seeds import derive_seed
from confide.methods.bag_extractor import BagExtractor, extractor_of
from confide.methods.bag_form import COUNT_BAGS, BagMemory
from confide.methods.bags import (
    SCORE_BAGS,
    TAKE_BAG_FORM,
    BagState,
    TrainBags,
    bag_scores_from,
    looked_at,
    mean_of,
    start_of_bags,
    train_at,
    trained,
)
from confide.methods.relation_averaging import (
    LEARNT,
    RelationsTrained,
    bounded_trained,
    check_trained,
    start_of_trained,
)
from confide.methods.relations import training_of
from confide.methods.vocabulary import CHECK_KEY
from confide.scoring.bags import BagCounts
from confide.settings import Settings as RunSettings
from confide.settings import Table, Task, own_settings
from confide.text.document import Document


def train_bags(
    site: Site, memory: BagMemory | None, ask: TrainBags, turn: Turn
) -> tuple[RelationsTrained, BagMemory]:
    """Train the common model on the site's own bags for some epochs."""
    memory = known(memory)
    model, report = train_at(site, memory, ask, seed=turn.seed)
    sentences = len(looked_at(site, memory, "train").encoded)
    weight = float(sentences) if ask.weighting == "sentences" else 1.0
    return trained(model, report, weight=weight), memory


def train_in_turn(
    site: Site, memory: BagMemory | None, ask: TrainBags, turn: Turn
) -> tuple[RelationsTrained, BagMemory]:
    """The same, from where the site before stopped."""
    return train_bags(site, memory, ask, turn)


_HOW: dict[str, Any] = {
    "like": (("weights", "weights"),),
    "check": check_trained,
    "bound": bounded_trained,
    "start": start_of_trained,
    "learnt": LEARNT,
}
TRAIN_BAGS = Step.of(train_bags, summed=True, **_HOW)
TRAIN_IN_TURN = Step.of(train_in_turn, **_HOW)


class FedAvgBagsSettings(Table):
    """The table `[options]` of FedAvg of bags."""

    weighting: Literal["equal", "sentences"] = "sentences"


class ChainSettings(Table):
    """The table `[options]` of `chain`: there is nothing to set."""


class FedAvgBags:
    """FedAvg: `start` agrees on the model, `round` takes the mean of what sites arrive at."""

    name: ClassVar[str] = "fedavg-bags"
    steps: ClassVar[tuple[Step, ...]] = (
        CHECK_KEY,
        COUNT_BAGS,
        TAKE_BAG_FORM,
        TRAIN_BAGS,
        SCORE_BAGS,
    )
    Settings: ClassVar[type] = FedAvgBagsSettings
    State: ClassVar[type] = BagState
    Memory: ClassVar[type] = BagMemory
    task: ClassVar[Task] = "bags"
    keyed: ClassVar[bool] = True
    personal: ClassVar[bool] = False

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._own: Any = own_settings(self.Settings, settings.options)

    def start(self, federation: Federation) -> BagState:
        """Agree on the model and its words, and draw its first weights."""
        return start_of_bags(self._run, federation, TAKE_BAG_FORM, denoise=self._run.bags.denoise)

    def round(
        self, state: BagState, federation: Federation, n: int
    ) -> tuple[BagState, dict[str, Any]]:
        """Sites train from the common weights; the mean of theirs is the next state."""
        drawn = federation.draw(self._run.federation.fraction, n)
        ask = train_ask(self._run, state.weights, n, weighting=self._own.weighting)
        sites = [site for site in drawn if site not in state.idle]
        facts = {"loss": None, "learning_rate": ask.learning_rate, "sites": list(drawn)}
        if not sites:
            return state, {**facts, "sentences": 0}
        total = federation.sum(TRAIN_BAGS, ask, round=n, sites=sites)
        facts |= {"loss": total.loss / total.weight, "sentences": total.sentences}
        return replace(state, weights=mean_of(total)), facts

    def score(
        self, state: BagState, federation: Federation, *, part: str, round: int
    ) -> dict[str, BagCounts]:
        """Every site's counts on its own held-out text."""
        return bag_scores_from(federation, state.weights, part=part, round=round)

    def model(self, state: BagState, memory: object) -> tuple[BagMemory, Arrays]:
        """The common model, the same for all sites."""
        return state, state.weights

    def extractor(
        self, state: BagState, memory: object, *, key: bytes | None, encoder: str | None = None
    ) -> BagExtractor:
        """What reads documents and finds facts, for who holds the key."""
        return extractor_of(state, state.weights, key=key, encoder=encoder)


class Chain(FedAvgBags):
    """The chain: in a round the sites drawn train in turn, and no mean is taken."""

    name: ClassVar[str] = "chain"
    steps: ClassVar[tuple[Step, ...]] = (
        CHECK_KEY,
        COUNT_BAGS,
        TAKE_BAG_FORM,
        TRAIN_IN_TURN,
        SCORE_BAGS,
    )
    Settings: ClassVar[type] = ChainSettings

    def round(
        self, state: BagState, federation: Federation, n: int
    ) -> tuple[BagState, dict[str, Any]]:
        """The sites drawn train in an order of the seed, each from where the last one stopped."""
        drawn = federation.draw(self._run.federation.fraction, n)
        order = np.random.default_rng(derive_seed(federation.seed, "chain", n)).permutation(
            [site for site in drawn if site not in state.idle]
        )
        ask = train_ask(self._run, state.weights, n, weighting="equal")
        replies = federation.relay(
            TRAIN_IN_TURN, ask, round=n, sites=list(map(str, order)), then=_on_from
        )
        links = list(replies.values())
        weights = links[-1].weights if links else state.weights
        facts = {
            "loss": sum(link.loss for link in links) / len(links) if links else None,
            "learning_rate": ask.learning_rate,
            "sites": list(drawn),
            "order": list(replies),
            "sentences": sum(link.sentences for link in links),
        }
        return replace(state, weights=weights), facts


def _on_from(ask: TrainBags, reply: RelationsTrained) -> TrainBags:
    return replace(ask, weights=reply.weights, vectors=False)


def train_ask(run: RunSettings, weights: Arrays, n: int, *, weighting: str) -> TrainBags:
    """How the sites train in a round; in the first they fill their word vectors in."""
    return TrainBags(**training_of(run, n), weights=weights, weighting=weighting, vectors=n == 1)
