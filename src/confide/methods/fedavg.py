"""FedAvg of a BiLSTM-CNNs-CRF tagger with a private vocabulary.

Luboshnikov & Makarov, "Federated Learning in Named Entity Recognition", AIST 2020
(doi 10.1007/978-3-030-71214-3_8); the tagger is Ma & Hovy 2016.

The sites agree on one vocabulary through keyed digests. In every round each site starts from the
common weights, trains some epochs on its own text, and the server takes the plain mean of what
they all arrive at. The learning rate falls by the global round, not by the local epoch.

What leaves a site: keyed digests of words and characters with counts, names of entity types,
numbers of sentences (once); its trained weights, of which the server keeps only the sum; counts of
right, predicted and gold entities.
What never does: text, words, predictions, the key.
What weights may still tell: they are a function of the text. Rows of the word table that moved
show which digests occur at a site, and rows that start from a public file of vectors can be
recognised by their neighbours, whatever the digest hides. docs/methods/fedavg.md says more.

Where we differ from the paper or decide what it leaves open:
- the vocabulary: see confide.methods.vocabulary;
- sizes: Ma & Hovy's where they give one (confide.settings.tables.ModelTable);
- each site's optimiser starts anew each round, at the learning rate of the round (the paper
  initialises it "by the number of rounds passed"); momentum is not carried over;
- `weighting = "sentences"` weighs sites by their training sentences; the paper's sites are equal;
- `rows = "seen"` averages a word's or character's row over the sites whose text has it. With the
  paper's plain mean (`rows = "all"`, the default) a word of one site in ten moves by a tenth of
  what that site learnt; who has a word is known to the server already, from the counts;
- word vectors from a file: each site reads the file for itself and fills in the rows that it knows
  in the first round; all sites must have the same file, and the rows stay trainable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import near
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Learnt, Step, Turn
from confide.learning.fit import fit
from confide.learning.optimisers import Optimiser
from confide.learning.predict import annotate
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays, initial, set_words
from confide.methods.context import DESCRIBE_ENCODER
from confide.methods.evaluation import (
    HELD_OUT,
    Scored,
    check_scored,
    counts_of,
    score_documents,
)
from confide.methods.taggers import (
    CHARACTER_ROWS,
    Extractor,
    TaggerMemory,
    TaggerModel,
    check_vectors,
    compare_vectors,
    encoded_text,
    extractor_of,
    forget_text,
    keep_private,
    model_of,
    prepared_text,
    rows_seen,
    settle,
    tagger_sizes,
    vectors_check,
    vectors_of,
)
from confide.methods.vocabulary import (
    CHECK_KEY,
    COUNT_VOCABULARY,
    training_examples,
)
from confide.scoring import EntityCounts
from confide.settings import Settings as RunSettings
from confide.settings import Table, Task, own_settings
from confide.text.document import Document


class FedAvgSettings(Table):
    """The method's own settings: the table `[options]`."""

    weighting: Literal["equal", "sentences"] = "equal"
    rows: Literal["all", "seen"] = "all"


@dataclass(frozen=True)
class FedAvgState(TaggerMemory):
    """What the server carries from round to round: the same, and the common weights."""

    weights: Arrays = carries("weights of the tagger")


@dataclass(frozen=True)
class VocabularyTaken:
    """A site has the common vocabulary."""

    vectors: str = carries("keyed check value of the site's vector file; empty without one")


@dataclass(frozen=True)
class Train:
    """Train from these weights."""

    weights: Arrays = carries("the common weights")
    learning_rate: float = carries("of this round")
    optimiser: str = carries("sgd, adam or adamw")
    momentum: float = carries("of SGD")
    weight_decay: float = carries("factor")
    clip: float = carries("largest norm of a gradient")
    batch_size: int = carries("sentences")
    local_epochs: int = carries("passes over the site's training text")
    word_dropout: float = carries("share of words that are read as the unknown one")
    weighting: str = carries("what a site's weights are multiplied by: 1 or its sentences")
    rows: str = carries("whose rows of words and characters enter the mean: all or seen")


@dataclass(frozen=True)
class Trained:
    """What training came to, multiplied by the site's weight."""

    weights: Arrays = carries(
        "trained weights, times the site's weight in the mean; of a table the rows that changed"
    )
    weight: float = carries("the site's weight in the mean")
    seen: dict[str, NDArray[np.float32]] = carries(
        "the weight again for each row whose word the site has; rows = seen only", legend="V"
    )
    loss: float = carries("mean training loss per sentence, times the weight")
    sentences: int = carries("sentences trained on, over all epochs")


@dataclass(frozen=True)
class Score:
    """Score a part of your held-out text with these weights."""

    weights: Arrays = carries("the common weights")
    part: str = carries("dev or test")


def take_vocabulary(
    site: Site, memory: TaggerMemory | None, ask: TaggerMemory, turn: Turn
) -> tuple[VocabularyTaken, TaggerMemory]:
    """Keep the common vocabulary (Fig. 3, step 4)."""
    forget_text(site)
    keep_private(site, set())
    found = vectors_of(site, ask)
    return VocabularyTaken(vectors_check(site, found)), ask


def train(
    site: Site, memory: TaggerMemory | None, ask: Train, turn: Turn
) -> tuple[Trained, TaggerMemory]:
    """Train the common model on the site's own text for some epochs."""
    memory = known(memory)
    encoded = encoded_text(site, memory)
    if not len(encoded):
        raise Refusal("no-training-text")
    model = model_of(site, memory, ask.weights)
    found = vectors_of(site, memory) if turn.round == 1 else None
    if found:
        set_words(model, found)
    report = fit(
        model,
        encoded,
        epochs=ask.local_epochs,
        batch_size=ask.batch_size,
        optimiser=Optimiser(
            name=ask.optimiser,
            learning_rate=ask.learning_rate,
            momentum=ask.momentum,
            weight_decay=ask.weight_decay,
            clip=ask.clip,
        ),
        seed=turn.seed,
        word_dropout=ask.word_dropout,
    )
    weight = float(len(training_examples(site))) if ask.weighting == "sentences" else 1.0
    trained = arrays(model)
    if weight != 1.0:
        trained = {name: array * np.float32(weight) for name, array in trained.items()}
    seen = rows_seen(encoded, memory) if ask.rows == "seen" else {}
    for name, seen_V in seen.items():
        trained[name] *= seen_V[:, None]
        seen_V *= np.float32(weight)
    return Trained(trained, weight, seen, report.loss * weight, report.sentences), memory


def score(
    site: Site, memory: TaggerMemory | None, ask: Score, turn: Turn
) -> tuple[Scored, TaggerMemory]:
    """Count what the common model gets right on the site's held-out text."""
    memory = known(memory)
    if ask.part not in HELD_OUT:
        raise Refusal("bad-ask")
    gold = site.documents(ask.part)
    model = model_of(site, memory, ask.weights, lent=True)
    predicted = annotate(model, prepared_text(site, memory, ask.part))
    return score_documents(gold, predicted), memory


def check_trained(ask: Train, reply: Trained) -> None:
    """Raise GuardError where a site's weight in the mean is not what was asked for."""
    if reply.weight < 1 or (ask.weighting == "equal" and reply.weight != 1):
        raise GuardError("weight is not a weight in the mean")
    if reply.sentences < 1:
        raise GuardError("sentences is not a count")
    asked = {"word.weight", *CHARACTER_ROWS} & set(ask.weights) if ask.rows == "seen" else set()
    if reply.seen.keys() != asked:
        raise GuardError("seen does not name the arrays that have a row per word or character")
    for name, seen_V in reply.seen.items():
        fits = seen_V.shape == ask.weights[name].shape[:1] and seen_V.dtype == np.float32
        if not fits or not ((seen_V == 0) | (seen_V == np.float32(reply.weight))).all():
            raise GuardError("seen is not a weight for each row")
        if reply.weights[name][seen_V == 0].any():
            raise GuardError("weights has numbers in rows that the site has not seen")


def numbers_of_trained(ask: Train) -> dict[str, int]:
    """How many numbers `seen` holds: one for each row of the tables of words and characters."""
    tables = [ask.weights[name] for name in ("word.weight", *CHARACTER_ROWS) if name in ask.weights]
    return {"seen": sum(len(table) for table in tables)}


def start_of_trained(ask: Train, reply: Trained, name: str) -> np.ndarray:
    """What an array of the reply would be, had the site learnt nothing."""
    start: np.ndarray = ask.weights[name]
    if reply.weight != 1.0:
        start = start * np.float32(reply.weight)
    if name in reply.seen:
        start = start * _mask(reply.seen[name], len(start))
    return start


def rows_had(reply: Trained, name: str) -> np.ndarray | None:
    """How heavy each row of an array is, where rows = seen."""
    return reply.seen[name][:, None] if name in reply.seen else None


def _mask(seen_V: np.ndarray, count: int) -> np.ndarray:
    if seen_V.shape != (count,):
        raise GuardError("seen is not a weight for each row")
    return (seen_V > 0).astype(np.float32)[:, None]


def bounded_trained(ask: Train, reply: Trained, most: float) -> Trained:
    """The reply with weights that are at most `most` away from those that were asked.

    So far as they are sent: without the site's weight, and without the rows that it leaves out.
    """
    before = {name: start_of_trained(ask, reply, name) for name in reply.weights}
    kept = near(reply.weights, before, most, times=reply.weight)
    return reply if kept is reply.weights else replace(reply, weights=kept)


def mean_of(total: Trained, before: Arrays) -> Arrays:
    """The weighted mean of what sites arrived at; a row that no site has seen stays as it was."""
    mean = {}
    for name, sums in total.weights.items():
        if name in total.seen:
            seen_V1 = total.seen[name][:, None]
            sums = np.where(seen_V1 > 0, sums / np.maximum(seen_V1, 1e-9), before[name])
        else:
            sums = sums / total.weight
        mean[name] = sums.astype(np.float32)
    return mean


TAKE_VOCABULARY = Step.of(take_vocabulary, check=check_vectors)
TRAIN = Step.of(
    train,
    summed=True,
    like=(("weights", "weights"),),
    check=check_trained,
    bound=bounded_trained,
    start=start_of_trained,
    numbers=numbers_of_trained,
    learnt=Learnt("weights", "weight", start="weights", has=rows_had),
)
SCORE = Step.of(score, check=check_scored)


class FedAvg:
    """The method: `start` agrees on vocabulary and tags, `round` is one turn of FedAvg."""

    name: ClassVar[str] = "fedavg"
    steps: ClassVar[tuple[Step, ...]] = (
        CHECK_KEY,
        COUNT_VOCABULARY,
        DESCRIBE_ENCODER,
        TAKE_VOCABULARY,
        TRAIN,
        SCORE,
    )
    Settings: ClassVar[type] = FedAvgSettings
    State: ClassVar[type] = FedAvgState
    Memory: ClassVar[type] = TaggerMemory
    task: ClassVar[Task] = "ner"
    keyed: ClassVar[bool] = True
    personal: ClassVar[bool] = False

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._own = own_settings(FedAvgSettings, settings.options)

    def start(self, federation: Federation) -> FedAvgState:
        """Agree on the vocabulary and draw the first weights (Fig. 3)."""
        agreed, common = settle(self._run, federation)
        taken = federation.ask(TAKE_VOCABULARY, common, round=0, sites=sorted(agreed.sentences))
        compare_vectors(federation, TAKE_VOCABULARY, taken)
        first = initial(tagger_sizes(common), derive_seed(federation.seed, "weights"))
        return FedAvgState(**vars(common), weights=arrays(first))

    def round(
        self, state: FedAvgState, federation: Federation, n: int
    ) -> tuple[FedAvgState, dict[str, Any]]:
        """Sites train from the common weights; the mean of theirs is the next state."""
        training = self._run.training
        rate = training.learning_rate * training.decay ** (n - 1)
        sites = federation.draw(self._run.federation.fraction, n)
        ask = Train(
            weights=state.weights,
            learning_rate=rate,
            optimiser=training.optimiser,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            clip=training.clip,
            batch_size=training.batch_size,
            local_epochs=training.local_epochs,
            word_dropout=training.word_dropout,
            weighting=self._own.weighting,
            rows=self._own.rows,
        )
        total = federation.sum(TRAIN, ask, round=n, sites=sites)
        facts = {
            "loss": total.loss / total.weight,
            "learning_rate": rate,
            "sites": list(sites),
            "sentences": total.sentences,
        }
        return replace(state, weights=mean_of(total, state.weights)), facts

    def score(
        self, state: FedAvgState, federation: Federation, *, part: str, round: int
    ) -> dict[str, EntityCounts]:
        """Every site's counts on its own held-out text."""
        replies = federation.ask(SCORE, Score(state.weights, part), round=round)
        return {site: counts_of(reply) for site, reply in replies.items()}

    def model(self, state: FedAvgState, memory: object) -> TaggerModel:
        """The common tagger, the same for all sites."""
        return TaggerModel(state, state.weights)

    def extractor(
        self, state: FedAvgState, memory: object, *, key: bytes | None, encoder: str | None = None
    ) -> Extractor:
        """What reads documents and annotates them, for who holds the key."""
        return extractor_of(self.model(state, memory), key=key, encoder=encoder)
