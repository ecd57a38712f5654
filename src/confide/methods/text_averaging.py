"""FedAvg of a BART that learns to write noised text again: pretraining over many sites.

McMahan, Moore, Ramage, Hampson & Agüera y Arcas, AISTATS 2017: the mean of the sites' weights, each
as heavy as its training sentences. What they train is the denoising of Lewis et al. 2020, section
2 (`confide.learning.denoising`), of a BART that everybody makes of the same public encoder; text
only, no annotation. `confide release` writes what was trained as a BART's folder, for LightNER.

What leaves a site: which public encoder it has, how many training sentences; its trained weights,
of which the server keeps only the sum; counts of right and wrong pieces of held-out text.
What never does: text, word pieces, what the model writes.
What weights may still tell: a model that writes text again may have learnt some by heart, and
writes it to whoever asks in the right way. docs/pretraining.md says more.

What we decide:
- the decoder alone is trained and travels, unless `denoising.train = "all"`;
- each site's AdamW starts anew each round, at the learning rate of the round, which falls by
  `training.decay` from round to round and is steady within it;
- `batch_size` counts passages of full length: a step has as many pieces as these would;
- a sentence is read once at a site, and not at all where it stands in its held-out text;
- a site without training text is not asked to train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from confide.errors import FederationError, GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.learning.bart_making import write_bart
from confide.learning.denoising import Denoiser, Denoising
from confide.learning.texts import MadeBart, fit_texts, made_bart
from confide.learning.weights import load
from confide.methods.evaluation import HELD_OUT
from confide.methods.relation_averaging import (
    LEARNT,
    RelationsTrained,
    bounded_trained,
    check_trained,
    start_of_trained,
)
from confide.methods.relation_form import with_encoder
from confide.methods.text_form import (
    TAKE_TEXT_FORM,
    TextMemory,
    bart_at,
    batches_at,
    batches_of,
    find_base,
    passages_at,
    reading_of,
)
from confide.scoring.texts import TextCounts
from confide.settings import Settings as RunSettings
from confide.settings import Table, Task, own_settings
from confide.text.document import Document


@dataclass(frozen=True)
class TextState(TextMemory):
    """What the server carries from round to round: the form, who has no text, and the weights."""

    idle: list[str] = carries("sites without training text")
    weights: Arrays = carries("what is trained of the BART")


@dataclass(frozen=True)
class TrainText:
    """Train from these weights."""

    weights: Arrays = carries("the common weights")
    learning_rate: float = carries("of this round")
    weight_decay: float = carries("factor")
    clip: float = carries("largest norm of a gradient")
    batch_size: int = carries("passages of full length")
    local_epochs: int = carries("passes over the site's training text")
    weighting: str = carries("what a site's weights are multiplied by: 1 or its sentences")


@dataclass(frozen=True)
class ScoreText:
    """Score a part of your held-out text with these weights."""

    weights: Arrays = carries("the common weights")
    part: str = carries("dev or test")


@dataclass(frozen=True)
class TextScored:
    """Counts of one site on one part of its held-out text."""

    pieces: int = carries("word pieces to be written")
    right: int = carries("how many of them the model finds likeliest")
    hidden: int = carries("how many of them are not in the noised text")
    hidden_right: int = carries("how many of these the model finds likeliest")
    loss: float = carries("sum of the negative log probabilities")


def train_text(
    site: Site, memory: TextMemory | None, ask: TrainText, turn: Turn
) -> tuple[RelationsTrained, TextMemory]:
    """Train the common BART on the site's own text for some epochs."""
    memory = known(memory)
    found = passages_at(site, memory, "train")
    if not len(found):
        raise Refusal("no-training-text")
    made = bart_at(site, memory)
    load(made.model, ask.weights)
    denoiser = Denoiser(
        made.model,
        Denoising(
            train=_part(memory),
            learning_rate=ask.learning_rate,
            warm_up=0.0,
            weight_decay=ask.weight_decay,
            clip=ask.clip,
            dropout=memory.dropout,
            sampled=memory.sampled,
            seed=turn.seed,
        ),
    )
    batching = reading_of(memory, made).batching(ask.batch_size * memory.longest)
    report = fit_texts(denoiser, found, batching, epochs=ask.local_epochs, seed=turn.seed)
    sentences = int(found.sentences_N.sum())
    weight = float(sentences) if ask.weighting == "sentences" else 1.0
    weights = {name: array * np.float32(weight) for name, array in denoiser.trained().items()}
    loss = report.loss * weight
    return RelationsTrained(weights, weight, loss, sentences * ask.local_epochs), memory


def score_text(
    site: Site, memory: TextMemory | None, ask: ScoreText, turn: Turn
) -> tuple[TextScored, TextMemory]:
    """Count which pieces of the site's held-out text the common BART writes again."""
    memory = known(memory)
    if ask.part not in HELD_OUT:
        raise Refusal("bad-ask")
    made = bart_at(site, memory)
    load(made.model, ask.weights, lent=True)
    denoiser = Denoiser(made.model, Denoising(train=_part(memory)))
    counts = denoiser.counted(batches_at(site, memory, ask.part))
    reply = TextScored(counts.pieces, counts.right, counts.hidden, counts.hidden_right, counts.loss)
    return reply, memory


def check_text_scored(ask: object, reply: TextScored) -> None:
    """Raise GuardError where counts contradict themselves."""
    hidden = min(reply.hidden, reply.right)
    if not 0 <= reply.right <= reply.pieces or not 0 <= reply.hidden <= reply.pieces:
        raise GuardError("right or hidden are counts that cannot be")
    if not 0 <= reply.hidden_right <= hidden or not 0 <= reply.loss < float("inf"):
        raise GuardError("hidden_right or loss cannot be")


def text_counts_of(reply: TextScored) -> TextCounts:
    """The counts in a reply."""
    return TextCounts(
        pieces=reply.pieces,
        right=reply.right,
        hidden=reply.hidden,
        hidden_right=reply.hidden_right,
        loss=reply.loss,
    )


def _part(memory: TextMemory) -> Literal["decoder", "all"]:
    return "all" if memory.train == "all" else "decoder"


TRAIN_TEXT = Step.of(
    train_text,
    summed=True,
    like=(("weights", "weights"),),
    check=check_trained,
    bound=bounded_trained,
    start=start_of_trained,
    learnt=LEARNT,
)
SCORE_TEXT = Step.of(score_text, check=check_text_scored)


@dataclass(frozen=True)
class TextModel:
    """A trained BART: what can be measured of it, and the folder that it is written as."""

    made: MadeBart
    memory: TextMemory

    def counts(self, documents: Sequence[Document]) -> TextCounts:
        """What it writes again of these documents."""
        denoiser = Denoiser(self.made.model, Denoising(train=_part(self.memory)))
        return denoiser.counted(batches_of(self.memory, self.made, documents))

    def write(self, folder: Path) -> None:
        """A BART's folder as transformers reads it. Raises DataError where the disk takes none."""
        arrays = Denoiser(self.made.model, Denoising()).arrays()
        write_bart(folder, arrays, config=self.made.config, tokenizer=self.made.base)


def text_model_of(memory: TextMemory, weights: Arrays, *, encoder: str | None = None) -> TextModel:
    """What a trained BART is; `encoder` is where its files lie, if not as the settings say.

    Raises FederationError where these are other files; and what `find_base` raises.
    """
    folder, digest = find_base(encoder or memory.encoder)
    if digest != memory.digest:
        raise FederationError(
            "this is not the encoder that the BART was made of",
            where=str(folder),
            fix="name the folder of the same files",
        )
    made = made_bart(folder, decoder_layers=memory.decoder_layers, dropout=memory.dropout)
    load(made.model, weights)
    return TextModel(made, memory)


class FedAvgTextSettings(Table):
    """The table `[options]` of FedAvg of text."""

    weighting: Literal["equal", "sentences"] = "sentences"


class FedAvgText:
    """FedAvg: `start` makes the BART, `round` takes the mean of what sites arrive at."""

    name: ClassVar[str] = "fedavg-text"
    steps: ClassVar[tuple[Step, ...]] = (TAKE_TEXT_FORM, TRAIN_TEXT, SCORE_TEXT)
    Settings: ClassVar[type] = FedAvgTextSettings
    State: ClassVar[type] = TextState
    Memory: ClassVar[type] = TextMemory
    task: ClassVar[Task] = "text"
    keyed: ClassVar[bool] = False
    personal: ClassVar[bool] = False

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._own: Any = own_settings(self.Settings, settings.options)
        if settings.training.optimiser != "adamw":
            raise SettingsError(
                "a BART is trained by AdamW alone",
                expected='training.optimiser = "adamw"',
                got=repr(settings.training.optimiser),
            )

    def start(self, federation: Federation) -> TextState:
        """Make the BART of the encoder that all sites have."""
        own = self._run.denoising
        folder, digest = find_base(own.encoder)
        form = TextMemory(digest=digest, **own.model_dump())
        replies = federation.ask(TAKE_TEXT_FORM, form, round=0)
        digests = {site: reply.digest for site, reply in replies.items()}
        same = with_encoder(federation, TAKE_TEXT_FORM, digests, ours=digest)
        idle = [site for site in same if not replies[site].sentences]
        if len(idle) == len(same):
            raise FederationError(
                "no site has a passage to learn from",
                fix="name text of whole sentences as `train` files; what also stands in a site's"
                " held-out text is left out",
            )
        made = made_bart(folder, decoder_layers=form.decoder_layers)
        first = Denoiser(made.model, Denoising(train=_part(form))).trained()
        return TextState(**vars(form), idle=idle, weights=first)

    def round(
        self, state: TextState, federation: Federation, n: int
    ) -> tuple[TextState, dict[str, Any]]:
        """Sites train from the common weights; the mean of theirs is the next state."""
        own, drawn = self._run.training, federation.draw(self._run.federation.fraction, n)
        ask = TrainText(
            weights=state.weights,
            learning_rate=own.learning_rate * own.decay ** (n - 1),
            weight_decay=own.weight_decay,
            clip=own.clip,
            batch_size=own.batch_size,
            local_epochs=own.local_epochs,
            weighting=self._own.weighting,
        )
        facts = {"loss": None, "learning_rate": ask.learning_rate, "sites": list(drawn)}
        sites = [site for site in drawn if site not in state.idle]
        if not sites:
            return state, {**facts, "sentences": 0}
        total = federation.sum(TRAIN_TEXT, ask, round=n, sites=sites)
        mean = {name: (a / total.weight).astype(np.float32) for name, a in total.weights.items()}
        facts |= {"loss": total.loss / total.weight, "sentences": total.sentences}
        return replace(state, weights=mean), facts

    def score(
        self, state: TextState, federation: Federation, *, part: str, round: int
    ) -> dict[str, TextCounts]:
        """Every site's counts on its own held-out text."""
        replies = federation.ask(SCORE_TEXT, ScoreText(state.weights, part), round=round)
        return {site: text_counts_of(reply) for site, reply in replies.items()}

    def model(self, state: TextState, memory: object) -> tuple[TextMemory, Arrays]:
        """The common BART, the same for all sites."""
        return state, state.weights

    def extractor(
        self, state: TextState, memory: object, *, key: bytes | None, encoder: str | None = None
    ) -> TextModel:
        """The trained BART; it annotates nothing."""
        return text_model_of(state, state.weights, encoder=encoder)
