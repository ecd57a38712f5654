"""The loss against a teacher that gives each example a probability of every class.

Sui et al. 2020, FedED, Eq. 4 to 6: the teacher's logits are softened by a temperature τ, and the
student learns from them by KL(teacher ‖ student), and from labels if there are any.

Shapes: B examples, R classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def softened(logits_BR: Tensor, temperature: float) -> Tensor:
    """The probabilities of logits divided by the temperature (Eq. 4)."""
    return torch.softmax(logits_BR / temperature, -1)


def distillation_loss(
    logits_BR: Tensor,
    teacher_BR: Tensor,
    *,
    labels_B: Tensor | None = None,
    weights_B: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """loss_B: KL(teacher ‖ student), plus the labels' cross-entropy if they are given (Eq. 6).

    A teacher of zeros teaches nothing. `weights_B` multiply the cross-entropy; None: 1.

    `temperature` softens the student too in the first part, whose gradient then shrinks with its
    square; this is compensated (Hinton, Vinyals & Dean 2015, 2). The paper softens only the
    teacher: 1.
    """
    student_BR = torch.log_softmax(logits_BR / temperature, -1)
    divergence_B = functional.kl_div(student_BR, teacher_BR, reduction="none").sum(-1)
    loss_B = divergence_B * temperature**2
    if labels_B is None:
        return loss_B
    told_B = functional.cross_entropy(logits_BR, labels_B, reduction="none")
    return loss_B + (told_B if weights_B is None else weights_B * told_B)
