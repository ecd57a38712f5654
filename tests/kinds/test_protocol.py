"""What all pairs share: a site takes the form, keeps one site model of it, and scores with it."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import GuardError
from confide.federation.guards import check_reply
from confide.kinds.protocol import Taken
from confide.methods import METHODS

TAKE = next(step for step in METHODS["fedavg-bags"].steps if step.name == "take")


@each("reply", [Taken(-1, ""), Taken(3, "x" * 65)])
def test_what_no_site_can_have_is_refused(reply: Taken) -> None:
    check_reply(TAKE, None, Taken(0, ""))
    check_reply(TAKE, None, Taken(3, "ab"))
    with pytest.raises(GuardError):
        check_reply(TAKE, None, reply)
