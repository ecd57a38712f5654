"""Adversaries that make a model's states of all sites alike: three published baselines.

Wang et al., Findings of ACL 2023, Appendix A: on the states of every layer of the encoder, a linear
discriminator without bias says which of K sites a text is from, K · d numbers for each layer; its
gradient reaches the model reversed. The discriminators are trained and sent with the model.

- `dann` (Ganin et al. 2016, "Domain-Adversarial Training"): their cross entropy, and no more.
- `fada` (Peng et al. 2019, "Federated Adversarial Domain Adaptation"): with it the decoder's last
  states are disentangled into what tells the site and what does not.
- `fade` (Hong et al. 2021, "Federated Adversarial Debiasing"): the adversarial loss is squared, so
  that a site whose texts are still told apart counts more; and the entropy of what is written of
  entities that another model found is made small.

Where the papers leave it open, or speak of images:

- A text's state is the mean over its pieces; losses are means over texts, and over layers, so that
  their weight does not depend on how many there are. `fade` squares each layer's mean.
- The site's number is the only label that a site knows: all texts of a batch have it.
- FADA's disentangling: one more K · d matrix reads the decoder's states. Its rows span the part of
  the site, their orthogonal complement is the part of the task, so that both together are the state
  and nothing needs to be put together again. The first predicts the site (here nothing is
  reversed). The two are made independent by decorrelation over the symbols of a batch: the mean of
  the squared correlations of the one's numbers with the other's. FADA bounds their mutual
  information with a network of its own (MINE), and splits with two networks; for linear parts of
  one state correlations are what is left of that.

Shapes: N layers of the encoder, B texts, P pieces, T symbols, V choices, D numbers of a state, K
sites, R symbols of all texts without padding.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Kind = Literal["dann", "fada", "fade"]

_LEAST = 1e-5  # added to a variance
_NEVER = -1e4  # the logarithm of what has no probability


class Seen(NamedTuple):
    """What an adversary looks at: the states of every layer of the encoder, and the decoder's last.

    `mask_BP`: None where nothing is padded. `real_BT` is true at symbols that are no padding,
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

    That of the decoder (`fada`) is another K · D. `weight` is that of the second term: of the
    disentangling, or of the entropy.
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
    """What a batch of this site's texts costs, beside the loss of its task.

    Going down it, discriminators learn to tell the sites apart; what the model gets of their loss
    is reversed and multiplied by `reversal` (Ganin's λ).
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
    """Uniform, as wide as that of a linear layer."""
    wide = 1 / math.sqrt(shape[-1])
    return torch.empty(shape).uniform_(-wide, wide)


def _mean(states_BPD: Tensor, mask_BP: Tensor | None) -> Tensor:
    """pooled_BD: the mean over what is no padding; 0 where there is nothing."""
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
    """The loss of the part that tells the site, and how much the other part goes along with it."""
    pooled_BD = _mean(seen.decoder_BTD, seen.real_BT)
    told = _told(pooled_BD @ site_KD.T, site).mean()
    states_RD = seen.decoder_BTD[seen.real_BT]
    basis_DK, _ = torch.linalg.qr(site_KD.T)
    of_site_RK = states_RD @ basis_DK
    of_task_RD = states_RD - of_site_RK @ basis_DK.T
    together_KD = _standard(of_site_RK).T @ _standard(of_task_RD) / max(1, len(states_RD))
    return told + together_KD.square().mean()


def _standard(values_RD: Tensor) -> Tensor:
    """Each column less its mean, by its deviation; zeros where there is one row."""
    centred_RD = values_RD - values_RD.mean(0)
    return centred_RD * (centred_RD.square().mean(0) + _LEAST).rsqrt()
