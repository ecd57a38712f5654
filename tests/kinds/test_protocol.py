"""What all pairs share: a site takes the form, keeps one site model of it, and scores with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cases import each
from confide.errors import GuardError
from confide.federation.guards import check_reply
from confide.kinds.protocol import Taken, calibrated
from confide.methods import METHODS
from confide.scoring.calibration import Calibrator
from confide.text.document import Document, Entity

TAKE = next(step for step in METHODS["fedavg-bags"].steps if step.name == "take")


@each("reply", [Taken(-1, ""), Taken(3, "x" * 65)])
def test_what_no_site_can_have_is_refused(reply: Taken) -> None:
    check_reply(TAKE, None, Taken(0, ""))
    check_reply(TAKE, None, Taken(3, "ab"))
    with pytest.raises(GuardError):
        check_reply(TAKE, None, reply)


def test_finds_without_a_confidence_are_not_calibrated() -> None:
    sure, unsure = Entity("1", "Sign", ((0, 5),), 0.9), Entity("2", "Sign", ((0, 9),))
    (found,) = calibrated(
        [Document("d", "fever and cough", (sure, unsure))], Calibrator(3.0), of="entities"
    )
    assert found.entities == (replace(sure, confidence=Calibrator(3.0).of(0.9)), unsure)
