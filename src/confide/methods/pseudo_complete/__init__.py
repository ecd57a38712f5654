"""One model for every tag: sites that annotate different entity types train one that finds all.

Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra & Henao, "Federated Domain Adaptation for Named Entity
Recognition via Distilling with Heterogeneous Tag Sets", Findings of ACL 2023.

Each site annotates some of the types. In a round the common model annotates the site's own text
with the types that the site lacks; the site trains on both together; the server takes the mean. A
sentence whose own annotation pulls the model to where other sites' missing types pull it too counts
more than one that does not.

What leaves a site: names of the types that it annotates, its number of training sentences, a digest
of its public encoder or BART, of the tagger kind the keyed vocabulary (once); the gradient by one
small parameter, of all its sentences together, and its trained weights, of both of which the server
keeps only the sum; numbers of its own and of pseudo entities, as sums; counts of right, predicted
and gold entities.
What never does: text, annotation, pseudo-annotation, instance weights, gradients of a sentence.
What weights may still tell: they are a function of the text; docs/methods/pseudo-complete.md.

Where we differ from the paper or decide what it leaves open:
- any kind of model that finds entities can be trained so (its section 7 asks for it): `model.kind`.
  The shared part by whose gradient sentences are compared is q of LightNER, the weights of the last
  linear layer of the other two;
- of the token-wise kinds, tokens outside all entities count as source, as LightNER's stop does;
- a pseudo entity that overlaps a site's own is dropped; the join is in order of start;
- the first `warmup_rounds` make no pseudo-annotation and no instance weights: the common model has
  learnt nothing;
- a site subtracts its own part from the sum of target gradients, so that the server never sees one;
- a sentence without a source gradient, or with nobody else's target gradient, keeps its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import nn

from confide.errors import SettingsError
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.steps import Step
from confide.learning.adversaries import Reversal
from confide.learning.seeds import derive_seed
from confide.learning.weights import initial, trained
from confide.methods.context import DESCRIBE_ENCODER, NONE, find_encoder
from confide.methods.evaluation import counts_of
from confide.methods.pseudo_complete.asks import Complete, ScoreTypes, Weigh
from confide.methods.pseudo_complete.extractor import EntityExtractor, extractor_of
from confide.methods.pseudo_complete.forms import (
    DESCRIBE_TYPES,
    BartMemory,
    BartShape,
    Shape,
    TaggedMemory,
    TokenMemory,
    TokenShape,
    agree_on_types,
    bart_shape,
    find_bart,
    modeller_for,
    token_shape,
)
from confide.methods.pseudo_complete.steps import (
    COMPLETE,
    SCORE_TYPES,
    TAKE_BART_SHAPE,
    TAKE_TAGGER,
    TAKE_TOKEN_SHAPE,
    WEIGH,
)
from confide.methods.taggers import TaggerMemory, settle, tagger_sizes
from confide.methods.vocabulary import CHECK_KEY, COUNT_VOCABULARY
from confide.scoring import EntityCounts
from confide.settings import Settings as RunSettings
from confide.settings import Table, Task, own_settings
from confide.text.document import Document


class PseudoCompleteSettings(Table):
    """The method's own settings: the table `[options]`.

    `distil`: pseudo-annotation (3.2). `instance_weights` (3.3) move by `1 - momentum` a round; if
    `centred` they are moved to a mean of 1 at each site before they are used, so that they choose
    among sentences, and a site's own annotation counts as much as ever. `weighting`: what the mean
    of the sites weighs them by (the paper: equal). `adversary`: the paper's rivals (App. A), of
    LightNER alone; `reversal` is how much of its gradient reaches the model at the end.
    """

    distil: bool = True
    instance_weights: bool = True
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    centred: bool = False
    warmup_rounds: Annotated[int, Field(ge=0)] = 1
    weighting: Literal["equal", "sentences"] = "equal"
    adversary: Literal["none", "dann", "fada", "fade"] = "none"
    reversal: Annotated[float, Field(ge=0)] = 1.0


@dataclass(frozen=True)
class TaggedState(TaggerMemory):
    """What the server carries from round to round: the form of the tagger, and its weights."""

    weights: Arrays = carries("weights of the tagger")
    parameters: int = carries("numbers of the whole model")


@dataclass(frozen=True)
class TokenState(TokenShape):
    """The same of an encoder that tags."""

    weights: Arrays = carries("weights of encoder and linear layer")
    parameters: int = carries("numbers of the whole model")


@dataclass(frozen=True)
class BartState(BartShape):
    """The same of LightNER: the weights of what is trained."""

    weights: Arrays = carries("weights of what is trained")
    parameters: int = carries("numbers of the whole model")


class PseudoComplete:
    """The method, with LightNER: `start` agrees on tags, `round` annotates, weighs and trains."""

    name: ClassVar[str] = "pseudo-complete"
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_TYPES,
        TAKE_BART_SHAPE,
        WEIGH,
        COMPLETE,
        SCORE_TYPES,
    )
    Settings: ClassVar[type] = PseudoCompleteSettings
    State: ClassVar[type] = BartState
    Memory: ClassVar[type] = BartMemory
    task: ClassVar[Task] = "ner"
    kinds: ClassVar[tuple[str, ...]] = ("lightner",)
    keyed: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    take: ClassVar[Step] = TAKE_BART_SHAPE
    shared: ClassVar[str] = "prompts.q_QD"

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._own = own_settings(PseudoCompleteSettings, settings.options)
        if self._own.adversary != NONE and settings.model.kind != "lightner":
            raise SettingsError(
                "an adversary looks at every layer of LightNER's encoder",
                expected='model.kind = "lightner", or options.adversary = "none"',
                got=f"model.kind = {settings.model.kind!r}",
            )

    def start(self, federation: Federation) -> Any:
        """Agree on the types and on the form of the model, and draw its first weights."""
        shape, sites = self._agreed(federation)
        federation.ask(self.take, shape, round=0, sites=sites)
        model = self._first(shape, derive_seed(federation.seed, "weights"))
        return self.State(
            **{field.name: getattr(shape, field.name) for field in fields(shape)},
            weights=trained(model),
            parameters=sum(p.numel() for p in model.parameters()),
        )

    def _agreed(self, federation: Federation) -> tuple[Shape, list[str]]:
        """The form, and the sites that take part."""
        name = self._run.lightner.bart
        digest = find_bart(name).digest
        types, replies = agree_on_types(self._run, federation, name=name, digest=digest)
        adversary, sites = self._own.adversary, sorted(replies)
        return bart_shape(self._run, types, digest, adversary=adversary, sites=sites), sites

    def _first(self, shape: Any, seed: int) -> nn.Module:
        """The model before the first round; the server needs the same public files as the sites."""
        return modeller_for(shape, key=None)[0].initial(seed)

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Any, dict[str, Any]]:
        """Algorithm 1: instance weights, pseudo-complete annotation, training, the mean."""
        own, training = self._own, self._run.training
        sites = federation.draw(self._run.federation.fraction, n)
        learnt = n > own.warmup_rounds
        slope_G = np.zeros(0, np.float32)
        if own.distil and own.instance_weights and learnt:
            weigh = Weigh(state.weights, self._shared(state.weights))
            weighed = federation.sum(WEIGH, weigh, round=n, sites=sites)
            slope_G = weighed.slope_G.astype(np.float32)
            # who is not in the sum cannot take its own part out of it
            out = {f.site for f in federation.faults if (f.round, f.step) == (n, WEIGH.name)}
            sites = tuple(site for site in sites if site not in out)
        rate = training.learning_rate * training.decay ** (n - 1)
        ask = Complete(
            weights=state.weights,
            distil=own.distil and learnt,
            slope_G=slope_G,
            momentum_of_weights=own.momentum,
            centred=own.centred,
            learning_rate=rate,
            optimiser=training.optimiser,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            clip=training.clip,
            batch_size=training.batch_size,
            local_epochs=training.local_epochs,
            weighting=own.weighting,
            reversal=Reversal(own.reversal).at((n - 1) / self._run.rounds),
        )
        total = federation.sum(COMPLETE, ask, round=n, sites=sites)
        mean = {name: (a / total.weight).astype(np.float32) for name, a in total.weights.items()}
        facts = {
            "loss": total.loss / total.weight,
            "learning_rate": rate,
            "sites": list(sites),
            "sentences": total.sentences,
            "own": total.own,
            "pseudo": total.pseudo,
            "share": sum(array.size for array in mean.values()) / state.parameters,
        }
        return replace(state, weights=mean), facts

    def _shared(self, weights: Arrays) -> str:
        """The parameter by whose gradient sentences are compared, as it is called here."""
        return next(name for name in weights if name.endswith(self.shared))

    def score(
        self, state: Any, federation: Federation, *, part: str, round: int
    ) -> dict[str, EntityCounts]:
        """Every site's counts on its own held-out text."""
        replies = federation.ask(SCORE_TYPES, ScoreTypes(state.weights, part), round=round)
        return {site: counts_of(reply) for site, reply in replies.items()}

    def model(self, state: Any, memory: object) -> tuple[Shape, Arrays]:
        """The common model, the same for all sites."""
        return state, state.weights

    def extractor(
        self, state: Any, memory: object, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """What reads documents and annotates them."""
        return extractor_of(state, state.weights, key=key, encoder=encoder)


class PseudoCompleteEncoder(PseudoComplete):
    """The same with an encoder that tags words; all of it is trained."""

    name: ClassVar[str] = "pseudo-complete-encoder"
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_TYPES,
        TAKE_TOKEN_SHAPE,
        WEIGH,
        COMPLETE,
        SCORE_TYPES,
    )
    State: ClassVar[type] = TokenState
    Memory: ClassVar[type] = TokenMemory
    kinds: ClassVar[tuple[str, ...]] = ("encoder",)
    take: ClassVar[Step] = TAKE_TOKEN_SHAPE
    shared: ClassVar[str] = "tag.weight"

    def _agreed(self, federation: Federation) -> tuple[Shape, list[str]]:
        name = self._run.classifier.encoder
        digest = find_encoder(name).digest
        types, replies = agree_on_types(self._run, federation, name=name, digest=digest)
        return token_shape(self._run, types, digest), sorted(replies)


class PseudoCompleteTagger(PseudoComplete):
    """The same with the BiLSTM-CRF, whose words are keyed."""

    name: ClassVar[str] = "pseudo-complete-tagger"
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_TYPES,
        CHECK_KEY,
        COUNT_VOCABULARY,
        DESCRIBE_ENCODER,
        TAKE_TAGGER,
        WEIGH,
        COMPLETE,
        SCORE_TYPES,
    )
    State: ClassVar[type] = TaggedState
    Memory: ClassVar[type] = TaggedMemory
    kinds: ClassVar[tuple[str, ...]] = ("tagger",)
    keyed: ClassVar[bool] = True
    take: ClassVar[Step] = TAKE_TAGGER
    shared: ClassVar[str] = "crf.linear.weight"

    def _agreed(self, federation: Federation) -> tuple[Shape, list[str]]:
        if self._run.model.vectors or any(site.vectors for site in self._run.site):
            raise SettingsError(
                "this method's tagger learns all its word vectors",
                expected="no `vectors`",
                fix='leave them out, or set model.context = "minilm"',
            )
        types, _ = agree_on_types(self._run, federation, name="", digest="")
        data = self._run.data.model_copy(update={"types": tuple(types)})
        agreed, common = settle(self._run.model_copy(update={"data": data}), federation)
        return common, sorted(agreed.sentences)

    def _first(self, shape: Any, seed: int) -> nn.Module:
        return initial(tagger_sizes(shape), seed)
