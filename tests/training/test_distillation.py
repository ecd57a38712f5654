"""What a student loses against a teacher: Eq. 4 to 6 of Sui et al. 2020, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cases import each
from confide.training.trainer import distillation_loss, softened

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
TEACHER = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.25, 0.75]])


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    powers = [math.exp(one / temperature) for one in logits]
    return [one / sum(powers) for one in powers]


def divergence(teacher: list[float], student: list[float]) -> float:
    """KL(teacher ‖ student); 0 · log 0 is 0."""
    pairs = zip(teacher, student, strict=True)
    return sum(q * (math.log(q) - math.log(p)) for q, p in pairs if q > 0)


def by_hand(*, temperature: float = 1.0) -> list[float]:
    losses = []
    for logits, teacher in zip(LOGITS.tolist(), TEACHER.tolist(), strict=True):
        losses.append(temperature**2 * divergence(teacher, softmax(logits, temperature)))
    return losses


@each("temperature", [1.0, 2.0, 5.0])
def test_the_loss_is_that_of_the_formula(temperature: float) -> None:
    found = distillation_loss(LOGITS, TEACHER, temperature=temperature)
    assert found.tolist() == pytest.approx(by_hand(temperature=temperature), rel=1e-5)


def test_a_temperature_softens() -> None:
    for temperature in (0.5, 1.0, 2.0):
        found = softened(LOGITS, temperature).tolist()
        for row, logits in zip(found, LOGITS.tolist(), strict=True):
            assert row == pytest.approx(softmax(logits, temperature))


def test_a_class_that_nobody_knows_has_no_part() -> None:
    """Its teacher is 0: what the student says of it is pushed down, and nothing is infinite."""
    logits = torch.tensor([[1.0, 2.0, -math.inf]])
    teacher = softened(logits, 2.0)
    assert teacher[0, 2] == 0
    assert teacher.sum().item() == pytest.approx(1)
    student = torch.zeros(1, 3, requires_grad=True)
    loss = distillation_loss(student, teacher).sum()
    loss.backward()
    assert loss.item() == pytest.approx(divergence(teacher[0].tolist(), [1 / 3] * 3))
    assert student.grad is not None
    assert torch.isfinite(student.grad).all()
    assert student.grad[0, 2] > 0


def test_a_student_that_says_the_same_loses_nothing() -> None:
    same = torch.softmax(LOGITS, -1)
    loss = distillation_loss(LOGITS, same)
    np.testing.assert_allclose(loss.numpy(), 0, atol=1e-6)
    twice = distillation_loss(LOGITS, softened(LOGITS, 3.0), temperature=3.0)
    np.testing.assert_allclose(twice.numpy(), 0, atol=1e-5)


def test_the_gradient_is_the_difference_of_probabilities() -> None:
    """d KL / d logits = p - q."""
    student = LOGITS.clone().requires_grad_()
    distillation_loss(student, TEACHER).sum().backward()
    torch.testing.assert_close(student.grad, torch.softmax(LOGITS, -1) - TEACHER)
