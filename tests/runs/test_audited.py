"""What an audit says of itself, in numbers and in words."""

from __future__ import annotations

from typing import Any

from cases import each
from confide.runs.folder import (
    Audit,
    SiteAudit,
    audit_sentences,
    epsilon_sentence,
    smallest_sentence,
)
from report.test_audits import CANARIES, found_of, one


def of(**more: Any) -> Audit:
    return found_of(**more)


def test_the_stronger_attack_counts() -> None:
    weak, strong = one(0.1)["membership"], one(0.4)["membership"]
    for first, second in ((weak, strong), (strong, weak)):
        found = SiteAudit.model_validate({"membership": first, "referenced": second})
        assert found.strongest.found.value == 0.4


@each(
    ("unit", "epsilon", "broken"),
    [("document", 1.0, True), ("patient", 1.0, True), ("sentence", 1.0, False),
     ("document", 2.0, False)],
)  # fmt: skip
def test_a_promise_is_broken_by_more_than_it_says(unit: str, epsilon: float, broken: bool) -> None:
    found = of(promised={"unit": unit, "epsilon": epsilon, "delta": 1e-6})
    assert found.broken is broken
    assert ("The promise was broken" in epsilon_sentence(found)) is broken
    assert f"{epsilon:.2f} for one {unit} (δ = 1e-6)" in epsilon_sentence(found)


def test_the_site_that_shows_most_is_told() -> None:
    sites = {"a": one(0.1, canaries=CANARIES), "b": one(0.1, canaries={**CANARIES, "epsilon": 2})}
    assert "at least 2.00 for one document (δ = 1e-5, 95 % sure)" in epsilon_sentence(
        of(sites=sites)
    )
    chance = of(sites={"a": one(0.1, canaries={**CANARIES, "epsilon": 0.0})})
    assert "none above 0 could be shown (45 right guesses of 50, 100" in epsilon_sentence(chance)
    none = of(sites={"a": one(0.1)})
    assert epsilon_sentence(none).endswith("ε measured: not measured, for want of canaries")
    assert sum("canaries:" in line for line in audit_sentences(of(sites=sites))) == 2


@each(
    ("smallest", "said"),
    [(1, "read: 1 (it could read single replies)"), (4, "read: 4"), (None, "no weights left")],
)
def test_the_smallest_sum_in_words(smallest: int | None, said: str) -> None:
    crossed = of().crossed.model_copy(update={"smallest": smallest})
    assert said in smallest_sentence(crossed)
    assert ("single" in smallest_sentence(crossed)) is (smallest == 1)
