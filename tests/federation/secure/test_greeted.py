"""What a site shows of itself is checked before anything is made of it."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import GuardError
from confide.federation.secure.messages import Greet, Greeted, check_exchange


@each("account", ["\ud800", "\x1b[2J", "7 é", "x" * 5000])
def test_an_account_that_cannot_be_one_is_the_fault_of_its_site(account: str) -> None:
    """Half a character ended the run for everybody, where the server signed what it had heard."""
    key, signature = "09" + "00" * 31, "11" * 64
    shown = {"identity": key, "box_key": key, "sign_key": key, "binding": key, "card": ""}
    check_exchange(Greet("run"), Greeted(**shown, signature=signature, account="7 " + "ab" * 32))
    with pytest.raises(GuardError, match="account"):
        check_exchange(Greet("run"), Greeted(**shown, signature=signature, account=account))
