"""LightNER trained against discriminators that tell sites apart: the adversarial baselines.

Wang et al., Findings of ACL 2023, Appendix A. The discriminators are trained together with the
model, by the same optimiser, and travel with it; `models.adversaries` has their loss. All else is
as in `learning.lightner`, including the weights of rows (the paper's baselines have none: weights
of 1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.examples import Example, Span
from confide.data.batches.flat import Rows
from confide.data.batches.pointers import NOTHING, PointerBatch
from confide.errors import SettingsError
from confide.learning.devices import on, placed
from confide.learning.fit import FitReport
from confide.learning.lightner import EncodedLightner, LightnerText, LightnerTrainer
from confide.learning.optimisers import Optimiser
from confide.learning.trainer import EntityTrainer, Epochs, Parts, Random, Slopes
from confide.learning.weights import Arrays
from confide.learning.windows import FoundSpan
from confide.models.adversaries import Adversary, Kind, Seen, adversarial_loss
from confide.models.lightner import Lightner, symbol_losses, trace
from confide.models.tokens import parted
from confide.seeds import derive_seed, seeded


@dataclass(frozen=True)
class Reversal:
    """How much of a discriminator's reversed gradient reaches the model as training proceeds.

    Ganin et al. 2016, 5.2.2: λ = most · (2 / (1 + exp(-steepness · p)) - 1), from 0 at the start
    (p = 0) to nearly `most` at the end (p = 1). `steepness = inf`: `most` from the start.
    """

    most: float = 1.0
    steepness: float = 10.0

    def at(self, progress: float) -> float:
        """λ after this share of all rounds.

        >>> [round(Reversal().at(p), 3) for p in (0.0, 0.1, 0.5, 1.0)]
        [0.0, 0.462, 0.987, 1.0]
        """
        if math.isinf(self.steepness):
            return self.most
        return self.most * (2.0 / (1.0 + math.exp(-self.steepness * progress)) - 1.0)


class Opposed(nn.Module):
    """A model and its adversary as one module: the trained parameters of both travel."""

    def __init__(self, model: Lightner, adversary: Adversary) -> None:
        super().__init__()
        self.model = model
        self.adversary = adversary

    def forward(self, batch: PointerBatch) -> Tensor:
        """logits_BTV of the model."""
        logits_BTV: Tensor = self.model(batch)
        return logits_BTV


@dataclass(frozen=True)
class AdversarialTrainer(EntityTrainer):
    """Makes and trains models with an adversary.

    `site` is the number of the training site, below `sites`; it is unused where nothing is trained.
    `reversal` is λ (`Reversal.at`), `weight` that of the adversary's second term.
    """

    per_batch: ClassVar[int] = LightnerTrainer.per_batch

    lightner: LightnerTrainer
    kind: Kind
    sites: int
    site: int = 0
    reversal: float = 1.0
    weight: float = 1.0

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return self.lightner.types

    def initial(self, seed: int) -> Opposed:
        """LightNER's model and the discriminators, drawn by the seed.

        Raises SettingsError if nothing of the encoder is trained, so that no adversary could move
        it.
        """
        if self.lightner.form.keeps_states:
            raise SettingsError(
                "an adversary needs an encoder that is trained",
                expected='prompts in the encoder: where = "both"',
                got=f"where = {self.lightner.form.where!r}",
            )
        bart = self.lightner.bart.loaded.model.config
        with seeded(derive_seed(seed, "adversary")):
            adversary = Adversary(
                self.kind,
                sites=self.sites,
                layers=bart.encoder_layers,
                dim=bart.d_model,
                weight=self.weight,
            )
        return placed(Opposed(self.lightner.initial(seed), adversary).eval())

    def prepared(self, examples: Sequence[Example]) -> LightnerText:
        """Sentences as word pieces, without their spans."""
        return self.lightner.prepared(examples)

    def annotated(
        self, text: LightnerText, spans: Sequence[Sequence[Span]], *, source: Set[str]
    ) -> EncodedLightner:
        """The text with these spans of each example; types in `source` are the site's own."""
        return self.lightner.annotated(text, spans, source=source)

    def find(
        self, model: Opposed, text: LightnerText, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example, as LightNER finds them."""
        return self.lightner.find(model.model, text, wanted=wanted)

    def gradient(
        self, model: Opposed, own: EncodedLightner, *, size: int, clip: float, seed: int
    ) -> tuple[float, Arrays]:
        """Raises SettingsError: an adversary is trained by `fit` alone."""
        raise SettingsError(
            "an adversary is not trained by gradients of single batches",
            expected='lightner.adversary = "none"',
            got=repr(self.kind),
        )

    def slopes(self, model: Opposed, own: EncodedLightner) -> Slopes:
        """The gradients of each row's two losses by q; the adversary takes no part."""
        return self.lightner.slopes(model.model, own)

    def batch(
        self,
        model: Opposed,
        text: LightnerText,
        rows_B: Rows,
        *,
        own: EncodedLightner | None = None,
        random: Random | None = None,
    ) -> PointerBatch:
        """These rows, as LightNER reads them."""
        return self.lightner.batch(model.model, text, rows_B, own=own)

    def losses(
        self, model: Opposed, own: EncodedLightner, batch: PointerBatch, *, output: Tensor
    ) -> Parts:
        """The two losses of LightNER; the adversary takes no part."""
        return self.lightner.losses(model.model, own, batch, output=output)

    def reduced(
        self, model: Opposed, own: EncodedLightner, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce a trained token table, as LightNER does."""
        return self.lightner.reduced(model.model, own, optimiser)

    def fit(
        self,
        model: Opposed,
        own: EncodedLightner,
        *,
        weights_S: NDArray[np.float32] | None = None,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train both in place with a fresh optimiser; the report's loss is the sum of both.

        Raises DataError if there is no row, and SettingsError if `site` is not below `sites`.
        """
        if not 0 <= self.site < self.sites:
            raise SettingsError(
                "the site has no number among those that are told apart",
                expected=f"0 to {self.sites - 1}",
                got=str(self.site),
            )

        def loss(batch: PointerBatch) -> Tensor:
            found_B, against = self._losses(model, batch, weights_S)
            return found_B + against

        return self._train(model, own, loss, Epochs(epochs, batch_size, optimiser, seed))

    def _losses(
        self, both: Opposed, batch: PointerBatch, weights_S: NDArray[np.float32] | None
    ) -> tuple[Tensor, Tensor]:
        """loss_B of the task, and the adversary's loss of the whole batch."""
        found = trace(both.model, batch)
        losses_BT = symbol_losses(found.log_probs_BTV, batch.symbols_BT)
        source_B, target_B = parted(losses_BT, batch.source_BT)
        if weights_S is not None:
            source_B = source_B * on(weights_S[batch.rows_B], source_B).to(source_B.dtype)
        real_BT = batch.symbols_BT != NOTHING
        seen = Seen(
            encoder_layers=found.encoder_layers,
            mask_BP=batch.mask_BP,
            decoder_BTD=found.decoder_BTD,
            log_probs_BTV=found.log_probs_BTV,
            real_BT=real_BT,
            pseudo_BT=real_BT & ~batch.source_BT,
        )
        against = adversarial_loss(both.adversary, seen, site=self.site, reversal=self.reversal)
        return source_B + target_B, against
