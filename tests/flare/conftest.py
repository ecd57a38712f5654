"""What the tests with real processes share."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterator

import pytest

if typing.TYPE_CHECKING:
    from flare.real import Real
    from flare.tapping import Tap


@pytest.fixture(autouse=True)
def stays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kit that starts where the test says that it is refused must not become this process."""

    def becomes(*given: object) -> None:
        raise AssertionError(f"it would start: {given}")

    monkeypatch.setattr(os, "execve", becomes)


@pytest.fixture(scope="session")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Tap:
    """Where the processes of `tapped` leave every frame."""
    from flare.tapping import Tap

    return Tap(tmp_path_factory.mktemp("tap"))


@pytest.fixture(scope="session")
def tapped(tmp_path_factory: pytest.TempPathFactory, tap: Tap) -> Iterator[Real]:
    """Three sites whose text, names of files and identifiers are full of canaries.

    Whoever uses it belongs to the group TAPPED, so that one process has it; nobody kills anything.
    """
    from contract.corpus import tiny
    from flare.real import running
    from test_canary import plant

    folder = tmp_path_factory.mktemp("tapped")
    settings = tiny(folder, "rounds=3", site=plant(folder / "data"), data={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIRETAP", str(tap.folder))
        with running(folder, settings) as consortium:
            yield consortium
