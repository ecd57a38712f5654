"""The trainer of LightNER: makes it from a BART's files, trains it, finds spans and gradients.

BART itself is frozen; q and its projections are trained and
travel (Wang et al., Findings of ACL 2023, 3.1). The gradients for the instance weights are those by
q (3.3, Eq. 11).

If the encoder has no prompts and nothing of it is trained, its states of a text never change: they
are computed once, and kept with the text (4 bytes a number; 1 GB for 350,000 pieces of a
BART-base).

Shapes: S rows (sentences, or windows of long ones), B rows of a batch, N pieces of all rows, P
pieces, D numbers of a state, Q prompts, G = Q · D.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from confide.data.batches.encoding import Window
from confide.data.batches.examples import Example, Span
from confide.data.batches.pointers import (
    PointerBatch,
    Pointers,
    pointer_batch,
    pointer_batches,
    pointers,
    spelled,
)
from confide.data.batches.tagger import Rows, longest_first
from confide.data.batches.token_pieces import Pieces, TokenText, token_text
from confide.errors import SettingsError
from confide.learning.bart_files import PretrainedBart
from confide.learning.devices import at_home, beside, home, placed, predicting
from confide.learning.labels import check_labels, labels_of
from confide.learning.optimisers import Optimiser
from confide.learning.rows import only_rows
from confide.learning.trainer import EntityTrainer, Parts, Random, Slopes
from confide.learning.tuning import add_low_rank
from confide.learning.weights import still
from confide.learning.windows import FoundSpan, joined
from confide.models.bart import bart_of
from confide.models.lightner import (
    Lightner,
    LightnerSizes,
    Names,
    Tune,
    Where,
    choose_trained,
    split_loss,
    split_losses,
)
from confide.models.pointing import write
from confide.models.products import widen
from confide.seeds import seeded

_PER_BATCH = 4096  # most padded pieces of a batch
_PER_SLOPES = 512  # the same if the graph is kept for two backward passes


@dataclass(frozen=True)
class LightnerForm:
    """All that a LightNER is but its BART and its weights. `types` are in the order of its labels.

    `prompts`, `hidden`, `where`, `tune` and `rank` are those of `LightnerSizes`; `longest` is the
    most pieces of a window, special ones included. With `constrained`, decoding follows the
    grammar; without, as in the paper, malformed entities are dropped.
    """

    types: tuple[str, ...]
    prompts: int = 10
    hidden: int = 400
    longest: int = 512
    where: Where = "both"
    tune: Tune = "prompts"
    rank: int = 8
    constrained: bool = True
    dropout: float = 0.1

    @property
    def keeps_states(self) -> bool:
        """Whether the encoder's states of a text never change."""
        return self.where == "decoder" and self.tune != "all"


class KeptStates:
    """states_ND of the encoder for all pieces of a text, once known."""

    def __init__(self) -> None:
        self.states_ND: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LightnerText:
    """Sentences as word pieces, with the encoder's states if these never change."""

    pieces: TokenText
    kept: KeptStates = field(default_factory=KeptStates)

    @property
    def examples(self) -> int:
        """The number of sentences."""
        return self.pieces.examples

    @property
    def windows(self) -> tuple[Window, ...]:
        """What each row is."""
        return self.pieces.windows

    @property
    def lengths_S(self) -> Rows:  # noqa: N802
        """The number of pieces of each row."""
        return self.pieces.lengths_S

    def __len__(self) -> int:
        return len(self.pieces)


@dataclass(frozen=True, eq=False)
class EncodedLightner:
    """A text and the symbols to write."""

    text: LightnerText
    written: Pointers

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class LightnerTrainer(EntityTrainer):
    """Makes and trains models of one form from one BART."""

    per_batch: ClassVar[int] = _PER_SLOPES

    bart: PretrainedBart
    form: LightnerForm

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return self.form.types

    @cached_property
    def pieces(self) -> Pieces:
        """How texts are read. Raises SettingsError if BART reads fewer pieces than `longest`."""
        return self.bart.loaded.pieces(self.form.longest)

    @cached_property
    def names(self) -> Names:
        """The tokens of the labels, of the start and of the stop.

        Raises SettingsError if a type's name has no word, or two names have the same pieces.
        """
        loaded, labels = self.bart.loaded, labels_of(self.bart, self.types)
        check_labels(self.types, labels)
        return Names(tuple(labels), start=loaded.start, stop=loaded.stop)

    @property
    def sizes(self) -> LightnerSizes:
        """The sizes of the form."""
        form = self.form
        return LightnerSizes(form.prompts, form.hidden, form.where, form.tune, form.rank)

    def initial(self, seed: int) -> Lightner:
        """The BART with prompts drawn by the seed; only trained parameters require a gradient.

        All models made from one BART share its frozen weights in memory.
        """
        loaded = self.bart.loaded.model
        own = self.form.tune == "all"
        weights = {name: p.clone() if own else p for name, p in loaded.state_dict().items()}
        body = bart_of(loaded.config, weights, dropout=self.form.dropout)
        with seeded(seed):
            if self.form.tune == "lora":
                side = body if self.form.where == "both" else body.decoder
                rank = self.form.rank  # alpha is the rank: the learning rate does the same
                add_low_rank(side, ["q_proj", "v_proj"], rank=rank, alpha=rank)
            model = Lightner(body, self.names, self.sizes)
        choose_trained(model)
        widen(model)
        return placed(model.eval())

    def prepared(self, examples: Sequence[Example]) -> LightnerText:
        """Sentences as word pieces, without their spans."""
        cut = self.bart.loaded.cut
        return LightnerText(token_text(examples, pieces=self.pieces, cut=cut))

    def annotated(
        self, text: LightnerText, spans: Sequence[Sequence[Span]], *, source: Set[str]
    ) -> EncodedLightner:
        """The text with these spans of each example; types in `source` are the site's own.

        Raises DataError as `data.pointers.pointers` does.
        """
        most = self.bart.loaded.model.config.max_position_embeddings
        written = pointers(text.pieces, spans, types=self.types, source=source, most=most)
        return EncodedLightner(text, written)

    def find(
        self, model: Lightner, text: LightnerText, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example, in order of start, as the model writes them greedily.

        A span's confidence is the product of the probabilities of its start, end and type, each
        among all symbols, given what was written before; with `wanted` as `models.pointing` says.
        """
        types = self.types if wanted is None else wanted
        if not {*types} & {*self.types}:
            return [[] for _ in range(text.pieces.examples)]
        chosen_Y = torch.tensor([one in types for one in self.types])
        wanted_Y = None if wanted is None else beside(chosen_Y, model)
        by_window: list[list[FoundSpan]] = [[] for _ in range(len(text))]
        with still(model):
            self._keep(model, text)
            with predicting(model):
                for plain in pointer_batches(text.pieces, pieces_per_batch=_PER_BATCH):
                    batch = beside(self._with_states(plain, text), model)
                    how = self.form.constrained
                    found = write(model, batch, constrained=how, wanted_Y=wanted_Y)
                    rows = zip(*(home(part).tolist() for part in found), strict=True)
                    for row, (symbols, log_probs) in zip(batch.rows_B.tolist(), rows, strict=True):
                        spans, _ = spelled(symbols, log_probs, types=self.types)
                        by_window[row] = [
                            FoundSpan(*span, chance) for span, chance in spans if span[2] in types
                        ]
        return joined(by_window, text.pieces.windows, examples=text.pieces.examples)

    def batch(
        self,
        model: Lightner,
        text: LightnerText,
        rows_B: Rows,
        *,
        own: EncodedLightner | None = None,
        random: Random | None = None,
    ) -> PointerBatch:
        """These rows, in this order, with the encoder's states if these never change."""
        self._keep(model, text)
        written = None if own is None else own.written
        return self._with_states(pointer_batch(text.pieces, rows_B, written=written), text)

    def losses(
        self, model: nn.Module, own: EncodedLightner, batch: PointerBatch, *, output: Tensor
    ) -> Parts:
        """The loss of each row's source symbols, and of its target symbols (Eq. 7 and 10)."""
        return split_losses(output, batch)

    def reduced(
        self, model: Lightner, own: EncodedLightner, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce a trained token table to the rows that this text needs."""
        if self.form.tune != "all" or not optimiser.keeps_still:
            return nullcontext()
        text, names = own.text.pieces, self.names
        others = [text.padding, names.start, names.stop, *(n for one in names.labels for n in one)]
        return only_rows(model, model.bart.shared, np.append(text.ids_N, others))

    def slopes(self, model: Lightner, encoded: EncodedLightner) -> Slopes:
        """The gradients of each row's two losses by q, without dropout; the model is unchanged.

        Each row of a batch has its own copy of q, so one pass gives all gradients. Raises
        SettingsError if there are no prompts.
        """
        if model.prompts is None:
            raise SettingsError(
                "without prompts there is no q to take gradients by", expected="prompts > 0"
            )
        shape = (len(encoded), model.prompts.q_QD.numel())
        found = Slopes(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        text = encoded.text
        with still(model), _frozen(model):
            self._keep(model, text)
            q_QD = model.prompts.q_QD.detach()
            for rows_B, both in _slope_rows(encoded):
                plain = pointer_batch(text.pieces, rows_B, written=encoded.written)
                q_BQD = q_QD.repeat(len(plain), 1, 1).requires_grad_()
                batch = beside(self._with_states(plain, text), model)
                losses = split_loss(model, batch, q=q_BQD)
                (slope,) = torch.autograd.grad(losses[0].sum(), q_BQD, retain_graph=both)
                found.source_SG[rows_B] = at_home(slope.flatten(1))
                if both:
                    (slope,) = torch.autograd.grad(losses[1].sum(), q_BQD)
                    found.target_SG[rows_B] = at_home(slope.flatten(1))
        return found

    def _keep(self, model: Lightner, text: LightnerText) -> None:
        """Compute the encoder's states of the text if they never change and are not known yet."""
        if not self.form.keeps_states or text.kept.states_ND is not None:
            return
        states_ND = torch.zeros(len(text.pieces.ids_N), model.bart.config.d_model)
        with predicting(model):
            for batch in pointer_batches(text.pieces, pieces_per_batch=_PER_BATCH):
                read_BPD = home(model.encoded(beside(batch, model)))
                for row, state_PD in zip(batch.rows_B.tolist(), read_BPD, strict=True):
                    begin, end = text.pieces.from_S1[row : row + 2].tolist()
                    states_ND[begin:end] = state_PD[: end - begin]
        text.kept.states_ND = states_ND

    def _with_states(self, batch: PointerBatch, text: LightnerText) -> PointerBatch:
        states_ND = text.kept.states_ND
        if states_ND is None:
            return batch
        steps_P = torch.arange(batch.ids_BP.shape[1])
        from_B1 = torch.from_numpy(text.pieces.from_S1[batch.rows_B])[:, None]
        places_BP = (from_B1 + steps_P).clamp(max=len(states_ND) - 1)
        return replace(batch, states_BPD=states_ND[places_BP])


def _slope_rows(encoded: EncodedLightner) -> Iterator[tuple[Rows, bool]]:
    """The rows of each batch, and whether they have a target loss, which needs a second pass."""
    written = encoded.written
    has_S = np.add.reduceat(~written.source_N, written.from_S1[:-1]) > 0 if len(written) else ()
    for both in (True, False):
        rows = np.flatnonzero(np.asarray(has_S, np.bool_) == both)
        for places in longest_first(encoded.text.pieces.lengths_S[rows], _PER_SLOPES):
            yield rows[places], both


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Nothing of the model requires a gradient for the duration."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
