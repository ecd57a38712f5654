"""Adversaries that make a model's states alike for all sites: three published baselines.

Wang et al., Findings of ACL 2023, Appendix A: on the states of every layer of the encoder, a linear
discriminator without bias predicts which of K sites a text is from (K · d numbers for each layer);
its gradient reaches the model reversed. The discriminators are trained and sent with the model.

- `dann` (Ganin et al. 2016, "Domain-Adversarial Training"): only their cross entropy.
- `fada` (Peng et al. 2019, "Federated Adversarial Domain Adaptation"): also, the decoder's last
  states are disentangled into a part that tells the site and a part that does not.
- `fade` (Hong et al. 2021, "Federated Adversarial Debiasing"): the adversarial loss is squared, so
  that a site whose texts are still told apart counts more; and the entropy of the symbols of
  entities that another model found is minimised.

Where the papers leave it open, or are about images:

- A text's state is the mean over its pieces; losses are means over texts and layers, so that their
  weight does not depend on the number of either. `fade` squares each layer's mean.
- A site knows only its own number, so all texts of a batch have this label.
- FADA's disentangling: one more K · d matrix reads the decoder's states. Its rows span the site's
  part, and their orthogonal complement is the task's part, so the two add up to the state and no
  reconstruction is needed. The first predicts the site (without reversal). The two are made
  independent by decorrelation over the symbols of a batch: the mean squared correlation between the
  numbers of one and those of the other. FADA bounds their mutual information with another network
  (MINE), and splits with two networks; for linear parts of one state, that reduces to correlations.

Shapes: N layers of the encoder, B texts, P pieces, T symbols, V choices, D numbers of a state, K
sites, R symbols of all texts without padding.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.errors import SettingsError
from confide.kinds.encoder import parted
from confide.kinds.lightner.model import (
    NOTHING,
    EncodedLightner,
    Lightner,
    LightnerText,
    LightnerTrainer,
    PointerBatch,
    symbol_losses,
    trace,
)
from confide.seeds import derive_seed, seeded
from confide.training.batches import Rows
from confide.training.devices import on, placed
from confide.training.optimisers import Optimiser
from confide.training.trainer import Epochs, FitReport, FoundSpan, LastLayerGradients
from confide.training.weights import Arrays

Kind = Literal["dann", "fada", "fade"]

_LEAST = 1e-5  # added to a variance
_NEVER = -1e4  # stands for the logarithm of probability 0


class Seen(NamedTuple):
    """An adversary's view: the states of every layer of the encoder, and the decoder's last.

    `mask_BP` is None without padding. `real_BT` is true at symbols that are not padding,
    `pseudo_BT` at those of entities that another model found. `log_probs_BTV` may hold minus
    infinity.
    """

    encoder_layers: list[Tensor]
    mask_BP: Tensor | None
    decoder_BTD: Tensor
    log_probs_BTV: Tensor
    real_BT: Tensor
    pseudo_BT: Tensor


class Adversary(nn.Module):
    """The discriminators of one kind for `layers` layers of `dim` numbers: N · K · D numbers.

    The decoder's (`fada`) has another K · D. `weight` is that of the second term: the
    disentangling, or the entropy.
    """

    def __init__(
        self, kind: Kind, *, sites: int, layers: int, dim: int, weight: float = 1.0
    ) -> None:
        super().__init__()
        self.kind = kind
        self.weight = weight
        self.sites_NKD = nn.Parameter(_drawn(layers, sites, dim))
        self.site_KD = nn.Parameter(_drawn(sites, dim)) if kind == "fada" else None

    def forward(self, pooled_NBD: Tensor) -> Tensor:
        """logits_NBK of each layer's discriminator."""
        return torch.bmm(pooled_NBD, self.sites_NKD.transpose(1, 2))


def adversarial_loss(adversary: Adversary, seen: Seen, *, site: int, reversal: float) -> Tensor:
    """The adversarial loss of a batch of this site's texts, to be added to the task's loss.

    Minimising it teaches the discriminators to tell the sites apart; their gradient reaches the
    model reversed and multiplied by `reversal` (Ganin's λ).
    """
    pooled_NBD = torch.stack([_mean(layer, seen.mask_BP) for layer in seen.encoder_layers])
    logits_NBK = adversary(reversed_gradient(pooled_NBD, reversal))
    losses_N = _site_losses(logits_NBK, site).mean(1)
    if adversary.kind == "dann":
        return losses_N.mean()
    if adversary.kind == "fade":
        return losses_N.square().mean() + adversary.weight * _entropy(seen)
    assert adversary.site_KD is not None
    return losses_N.mean() + adversary.weight * _disentangling(adversary.site_KD, seen, site=site)


def reversed_gradient(values: Tensor, reversal: float) -> Tensor:
    """Return the values unchanged; their gradient is multiplied by minus `reversal`."""
    found: Tensor = _Reversed.apply(values, reversal)  # type: ignore[no-untyped-call]
    return found


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, reversal: float) -> Tensor:
        ctx.reversal = reversal
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.reversal * gradient, None


def _drawn(*shape: int) -> Tensor:
    """A uniform draw with the range of a linear layer."""
    wide = 1 / math.sqrt(shape[-1])
    return torch.empty(shape).uniform_(-wide, wide)


def _mean(states_BPD: Tensor, mask_BP: Tensor | None) -> Tensor:
    """pooled_BD: the mean over all but padding; 0 if there is nothing else."""
    if mask_BP is None:
        return states_BPD.mean(1)
    inside_BP1 = mask_BP.bool()[:, :, None]
    sums_BD = states_BPD.masked_fill(~inside_BP1, 0.0).sum(1)
    return sums_BD / inside_BP1.sum(1).clamp(min=1)


def _site_losses(logits_NBK: Tensor, site: int) -> Tensor:
    """loss_NB: the cross entropy of the site."""
    return -functional.log_softmax(logits_NBK, -1)[..., site]


def _entropy(seen: Seen) -> Tensor:
    """The mean entropy of the symbols of pseudo entities; 0 where there are none."""
    log_probs_RV = seen.log_probs_BTV[seen.pseudo_BT].clamp(min=_NEVER)
    entropies_R = -(log_probs_RV.exp() * log_probs_RV).sum(1)
    return entropies_R.sum() / max(1, len(entropies_R))


def _disentangling(site_KD: Tensor, seen: Seen, *, site: int) -> Tensor:
    """The loss of the part that tells the site, and how much the other part correlates with it."""
    pooled_BD = _mean(seen.decoder_BTD, seen.real_BT)
    site_loss = _site_losses(pooled_BD @ site_KD.T, site).mean()
    states_RD = seen.decoder_BTD[seen.real_BT]
    basis_DK, _ = torch.linalg.qr(site_KD.T)
    of_site_RK = states_RD @ basis_DK
    of_task_RD = states_RD - of_site_RK @ basis_DK.T
    together_KD = _standard(of_site_RK).T @ _standard(of_task_RD) / max(1, len(states_RD))
    return site_loss + together_KD.square().mean()


def _standard(values_RD: Tensor) -> Tensor:
    """Each column minus its mean, divided by its deviation; zeros if there is only one row."""
    centred_RD = values_RD - values_RD.mean(0)
    return centred_RD * (centred_RD.square().mean(0) + _LEAST).rsqrt()


# --- LightNER with adversaries
#
# It is trained against discriminators that tell sites apart: the adversarial baselines.
#
# Wang et al., Findings of ACL 2023, Appendix A. The discriminators are trained together with the
# model, by the same optimiser, and travel with it; their loss is above. All else is as in
# `kinds.lightner.model`, including the weights of rows (the paper's baselines have none: weights
# of 1).


_STEEPNESS = 10.0


def reversal_at(progress: float, *, most: float = 1.0) -> float:
    """The share of a discriminator's reversed gradient that reaches the model.

    `progress` p is the share of all rounds that are over. Ganin et al. 2016, 5.2.2:
    λ = most · (2 / (1 + exp(-10 p)) - 1), from 0 at the start to nearly `most` at the end.

    >>> [round(reversal_at(p), 3) for p in (0.0, 0.1, 0.5, 1.0)]
    [0.0, 0.462, 0.987, 1.0]
    """
    return most * (2.0 / (1.0 + math.exp(-_STEEPNESS * progress)) - 1.0)


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
class AdversarialTrainer(LightnerTrainer):
    """Makes and trains models with an adversary; all else is as LightNER does it.

    `site` is the number of the training site, below `sites`; it is unused where nothing is trained.
    `reversal` is λ (`reversal_at`).
    """

    kind: Kind
    sites: int
    site: int = 0
    reversal: float = 1.0

    def initial(self, seed: int) -> Opposed:  # type: ignore[override]
        """LightNER's model and the discriminators, drawn by the seed.

        Raises SettingsError if nothing of the encoder is trained, so that no adversary could move
        it.
        """
        if self.keeps_states:
            raise SettingsError(
                "an adversary needs an encoder that is trained",
                expected='prompts in the encoder: where = "both"',
                got=f"where = {self.form.where!r}",
            )
        bart = self.bart.loaded.model.config
        with seeded(derive_seed(seed, "adversary")):
            adversary = Adversary(
                self.kind, sites=self.sites, layers=bart.encoder_layers, dim=bart.d_model
            )
        return placed(Opposed(super().initial(seed), adversary).eval())

    def find(
        self, model: Any, text: LightnerText, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example."""
        return super().find(model.model, text, wanted=wanted)

    def gradient(
        self, model: Any, own: EncodedLightner, *, size: int, clip: float, seed: int
    ) -> tuple[float, Arrays]:
        """Raises SettingsError: an adversary is trained by `fit` alone."""
        raise SettingsError(
            "an adversary is not trained by gradients of single batches",
            expected='lightner.adversary = "none"',
            got=repr(self.kind),
        )

    def row_gradients(self, model: Any, own: EncodedLightner) -> LastLayerGradients:
        """The gradients of each row's two losses by q; the adversary takes no part."""
        return super().row_gradients(model.model, own)

    def batch(
        self, model: Any, text: LightnerText, rows_B: Rows, *, own: EncodedLightner | None = None
    ) -> PointerBatch:
        """These rows."""
        return super().batch(model.model, text, rows_B, own=own)

    def reduced(
        self, model: Any, own: EncodedLightner, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce a trained token table."""
        return super().reduced(model.model, own, optimiser)

    def fit(
        self,
        model: Any,
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
