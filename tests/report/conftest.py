"""What the tests of reports share."""

from __future__ import annotations

import pytest

EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>'


@pytest.fixture
def drawn() -> None:
    """The figures of the test's pages are drawn."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are set up but not drawn, which takes a second for each page, unless `drawn`."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("confide.report.plots.svg_file", lambda figure, **_: EMPTY)
