"""FedNER: a shared bottom, a private top, and tag sets that nobody has to agree on.

Ge, Wu, Wu, Qi, Huang & Xie, "FedNER: Privacy-preserving Medical Named Entity Recognition with
Federated Learning", arXiv 2003.09288.

Every site has a tagger of its own. Its upper parts (BiLSTM and CRF) are private and learn from the
site's text only; the lower ones are shared. In every iteration each site draws a small batch,
updates its private parts itself and sends the gradient of the shared ones, and the server updates
these with the weighted mean (Algorithm 1, Eq. 2).

What leaves a site: keyed digests of words and characters with counts, names of entity types,
numbers of sentences (once); the gradient of the shared parts, of which the server keeps only the
sum; counts of right, predicted and gold entities.
What never does: text, words, predictions, the key, the private parts.
What a gradient may still tell: it is a function of one small batch. The rows of the word table in
which it is not zero are the words of that batch, by digest. docs/methods/fedner.md says more.

Where we differ from the paper or decide what it leaves open:
- N_i is rounded by largest remainder, with at least one sentence for every site;
- a site's loss is the mean over its batch, so that Eq. 2 weighs a site once;
- Adam on both sides (the paper's formulas show SGD, its settings say Adam): the server's moments
  are its state, a site's are its memory; the gradient's norm is bounded at the site (`clip`);
- the batch is drawn by the turn's seed, of sentences of similar length; dropout comes from it too;
- `local_steps = s` (1 is the paper): a site takes s steps of Adam on all parts, with moments of its
  own, and sends how far the shared parts moved; the server adds the weighted mean of that;
- `wire_dtype = "float16"` halves what travels; gradients are multiplied by 1024 on the way;
- `sparse = true` leaves rows of the update that are zero at the site, which are those of words that
  the batch does not have: the same numbers, fewer bytes;
- `types = "common"` gives every site the union of all tag sets, so that the CRF can be shared too;
- word vectors from a file are laid at each site under the shared table, which then holds what is
  learnt on top of them: vectors never travel, and all sites must have the same file;
- each site keeps its tagger of the round that was best on its own development text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from confide.errors import FederationError, SettingsError
from confide.federation.agreement import alike
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.steps import Step
from confide.learning.adam import Moments, adam
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays, initial
from confide.methods.context import DESCRIBE_ENCODER
from confide.methods.evaluation import counts_of
from confide.methods.fedner.steps import (
    ENROL,
    HALF,
    IMPROVE,
    SCORE,
    TEST,
    Enrol,
    FedNERMemory,
    Improve,
    Score,
    is_of,
    lifted,
    of_parts,
)
from confide.methods.taggers import (
    Extractor,
    TaggerMemory,
    TaggerModel,
    compare_vectors,
    extractor_of,
    settle,
    tagger_sizes,
)
from confide.methods.vocabulary import CHECK_KEY, COUNT_VOCABULARY
from confide.scoring import EntityCounts
from confide.settings import Settings as RunSettings
from confide.settings import Table, Task, own_settings
from confide.text.document import Document

PartName = Literal["word", "character", "cnn", "bilstm", "crf"]


class FedNERSettings(Table):
    """The method's own settings: the table `[options]`."""

    private: tuple[PartName, ...] = ("bilstm", "crf")
    types: Literal["own", "common"] = "own"
    local_steps: Annotated[int, Field(ge=1)] = 1
    wire_dtype: Literal["float32", "float16"] = "float32"
    sparse: bool = False


@dataclass(frozen=True)
class FedNERState(TaggerMemory):
    """What the server carries from round to round: the shared parts and Adam's moments."""

    weights: Arrays = carries("weights of the shared parts")
    steps: int = carries("steps of Adam")
    means: Arrays = carries("Adam's running means of the gradient")
    squares: Arrays = carries("Adam's running means of its square")


class FedNER:
    """The method: `start` enrols the sites, `round` is one iteration of Algorithm 1."""

    name: ClassVar[str] = "fedner"
    steps: ClassVar[tuple[Step, ...]] = (
        CHECK_KEY,
        COUNT_VOCABULARY,
        DESCRIBE_ENCODER,
        ENROL,
        IMPROVE,
        SCORE,
        TEST,
    )
    Settings: ClassVar[type] = FedNERSettings
    State: ClassVar[type] = FedNERState
    Memory: ClassVar[type] = FedNERMemory
    task: ClassVar[Task] = "ner"
    keyed: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._own = own_settings(FedNERSettings, settings.options)
        if settings.training.optimiser != "adam":
            raise SettingsError(
                "FedNER takes its steps with Adam",
                expected='training.optimiser = "adam"',
                got=repr(settings.training.optimiser),
            )

    def start(self, federation: Federation) -> FedNERState:
        """Agree on the vocabulary, draw the shared weights, and enrol every site."""
        run, private = self._run, [str(part) for part in self._own.private]
        agreed, common = settle(run, federation)
        if "crf" not in private and self._own.types == "own":
            compare_types(federation, agreed.types_by_site)
        first = arrays(initial(tagger_sizes(common), derive_seed(federation.seed, "weights")))
        shared = {n: value for n, value in first.items() if not is_of(n, private)}
        has_file = bool(run.model.vectors or any(site.vectors for site in run.site))
        total = sum(agreed.sentences.values())
        sizes = shares_of_batch(agreed.sentences, run.training.batch_size)
        asks = {
            site: Enrol(
                **vars(common),
                private=private,
                own_types=self._own.types == "own",
                batch_size=sizes[site],
                share=sentences / total,
                word_weights=of_parts(shared, ["word"]) if has_file else {},
            )
            for site, sentences in agreed.sentences.items()
        }
        taken = federation.ask(ENROL, asks, round=0)
        compare_vectors(federation, ENROL, taken)
        return FedNERState(**vars(common), weights=shared, steps=0, means={}, squares={})

    def round(
        self, state: FedNERState, federation: Federation, n: int
    ) -> tuple[FedNERState, dict[str, Any]]:
        """Sites send gradients of the shared parts; their weighted mean is followed (Eq. 2)."""
        training, own = self._run.training, self._own
        rate = training.learning_rate * training.decay ** (n - 1)
        sites = federation.draw(self._run.federation.fraction, n)
        ask = Improve(
            weights=self._sent(state),
            learning_rate=rate,
            weight_decay=training.weight_decay,
            clip=training.clip,
            word_dropout=training.word_dropout,
            local_steps=own.local_steps,
            sparse=own.sparse,
        )
        total = federation.sum(IMPROVE, ask, round=n, sites=sites)
        scale = total.share * (HALF if own.wire_dtype == "float16" else 1.0)
        mean = {name: (sums / scale).astype(np.float32) for name, sums in total.update.items()}
        if own.local_steps == 1:
            weights, moments = adam(
                state.weights,
                mean,
                moments=Moments(state.steps, state.means, state.squares),
                learning_rate=rate,
                weight_decay=training.weight_decay,
            )
            state = replace(state, weights=weights, **vars(moments))
        else:
            moved = {name: state.weights[name] + change for name, change in mean.items()}
            state = replace(state, weights=moved)
        facts = {
            "loss": total.loss / total.share,
            "learning_rate": rate,
            "sites": list(sites),
            "sentences": total.sentences,
        }
        return state, facts

    def score(
        self, state: FedNERState, federation: Federation, *, part: str, round: int
    ) -> dict[str, EntityCounts]:
        """Every site's counts on its own held-out text, each with its own tagger."""
        ask = Score(self._sent(state), self._run.select.by)
        step = SCORE if part == "dev" else TEST
        replies = federation.ask(step, ask, round=round)
        return {site: counts_of(reply) for site, reply in replies.items()}

    def model(self, state: FedNERState, memory: FedNERMemory) -> TaggerModel:
        """The tagger that a site kept."""
        last = lifted({**state.weights, **memory.own}, memory)
        return TaggerModel(memory, memory.best or last)

    def extractor(
        self,
        state: FedNERState,
        memory: FedNERMemory,
        *,
        key: bytes | None,
        encoder: str | None = None,
    ) -> Extractor:
        """What reads a site's documents and annotates them, for who holds the key."""
        return extractor_of(self.model(state, memory), key=key, encoder=encoder)

    def _sent(self, state: FedNERState) -> Arrays:
        """The shared weights as they travel."""
        kind = np.dtype(self._own.wire_dtype)
        return {name: value.astype(kind, copy=False) for name, value in state.weights.items()}


def shares_of_batch(sentences: Mapping[str, int], batch_size: int) -> dict[str, int]:
    """N_i = |S_i| / Σ|S_j| · N for each site: largest remainders, and at least 1.

    >>> shares_of_batch({"a": 600, "b": 300, "c": 1}, 64)
    {'a': 43, 'b': 21, 'c': 1}
    """
    total = sum(sentences.values())
    exact = {site: batch_size * count / total for site, count in sentences.items()}
    shares = {site: int(share) for site, share in exact.items()}
    left = batch_size - sum(shares.values())
    for site in sorted(exact, key=lambda site: (shares[site] - exact[site], site))[:left]:
        shares[site] += 1
    return {site: max(1, share) for site, share in shares.items()}


def compare_types(federation: Federation, types_by_site: Mapping[str, list[str]]) -> None:
    """Leave out sites that have not the tag set that most have: a CRF is of one tag set.

    Raises FederationError where too few have the same.
    """
    sets = "; ".join(f"{site} has {', '.join(types)}" for site, types in types_by_site.items())
    alike(
        federation,
        {site: tuple(types) for site, types in types_by_site.items()},
        step=COUNT_VOCABULARY,
        why="its tag set is not that of the other sites, and the CRF is shared",
        error=lambda _: FederationError(
            f"the CRF depends on the tag set, and the sites' tag sets differ: {sets}",
            fix="put crf into options.private, map the sites' tags to common ones, or give every"
            ' site all tags with options.types = "common"',
        ),
    )
