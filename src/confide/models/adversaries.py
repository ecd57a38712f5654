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
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.models.autograd import Context

Kind = Literal["dann", "fada", "fade"]

_LEAST = 1e-5  # added to a variance
_NEVER = -1e4  # stands for the logarithm of probability 0


class Seen(NamedTuple):
    """What an adversary sees: the states of every layer of the encoder, and the decoder's last.

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
    losses_N = _told(logits_NBK, site).mean(1)
    if adversary.kind == "dann":
        return losses_N.mean()
    if adversary.kind == "fade":
        return losses_N.square().mean() + adversary.weight * _entropy(seen)
    assert adversary.site_KD is not None
    return losses_N.mean() + adversary.weight * _disentangling(adversary.site_KD, seen, site=site)


def reversed_gradient(values: Tensor, reversal: float) -> Tensor:
    """The same values; their gradient is multiplied by minus `reversal`."""
    found: Tensor = _Reversed.apply(values, reversal)  # type: ignore[no-untyped-call]
    return found


class _Kept(Context, Protocol):
    """What the forward pass keeps."""

    reversal: float


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Kept, values: Tensor, reversal: float) -> Tensor:
        ctx.reversal = reversal
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Kept, gradient: Tensor) -> tuple[Tensor, None]:
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


def _told(logits_NBK: Tensor, site: int) -> Tensor:
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
    told = _told(pooled_BD @ site_KD.T, site).mean()
    states_RD = seen.decoder_BTD[seen.real_BT]
    basis_DK, _ = torch.linalg.qr(site_KD.T)
    of_site_RK = states_RD @ basis_DK
    of_task_RD = states_RD - of_site_RK @ basis_DK.T
    together_KD = _standard(of_site_RK).T @ _standard(of_task_RD) / max(1, len(states_RD))
    return told + together_KD.square().mean()


def _standard(values_RD: Tensor) -> Tensor:
    """Each column minus its mean, divided by its deviation; zeros if there is only one row."""
    centred_RD = values_RD - values_RD.mean(0)
    return centred_RD * (centred_RD.square().mean(0) + _LEAST).rsqrt()
