"""What all tests share."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from contract.runs import Straight

ROOT = Path(__file__).resolve().parent.parent

# Made-up cases are few in the fast set; `make test-slow` takes them up again with many.
for name, examples in (("few", 20), ("many", 200)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("few")

# Small models are fastest on one thread, and tests may run side by side.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("COLUMNS", None)  # the terminal's width, which xdist sets, is not that of a test


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups are held together, or tests that share servers would stop each other's.

    pytest-xdist marks a group's tests in their names; some versions of pytest lose that.
    """
    if not getattr(session.config.option, "loadgroup", False):
        return
    lost = [
        item.nodeid
        for item in session.items
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid
    ]
    if lost:
        pytest.exit(f"this pytest and pytest-xdist lose groups: {lost[0]}", returncode=3)


@pytest.fixture(scope="session", autouse=True)
def commands_made_once() -> Iterator[None]:
    """typer's runner makes all verbs anew for each command that a test types."""
    from typer import testing
    from typer.main import get_command

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and a third of a tiny run's time is waiting for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def words_in_few_buckets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sums in the fast set are not over a million buckets: that takes longer than a tiny run.

    The slow set keeps them: its runs in processes of their own have them too.
    """
    with pytest.MonkeyPatch.context() as patch:
        agreement = sys.modules.get("confide.kinds.agreement")
        if agreement is not None and request.config.option.markexpr == "not slow":
            patch.setattr(agreement, "WORD_BITS", 16)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """One thread for tensors, in tests that have imported torch."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture
def corpora() -> Path:
    """The folder of published corpora; the test is skipped without it."""
    folder = os.environ.get("CONFIDE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the published corpora under $CONFIDE_DATA")
    return Path(folder)


@pytest.fixture(scope="session")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `confide demo` leaves, from less text and one run. Made once; do not write there."""
    from confide import api
    from confide.corpora.synthetic import write_corpus

    folder = tmp_path_factory.mktemp("demo") / "demo-run"
    settings = write_corpus(folder / "corpus", sentences=60)
    plain = settings.read_text(encoding="utf-8").replace("workers = 2", "workers = 1")
    settings.write_text(plain, encoding="utf-8")
    overrides = ["rounds=8", "model.bilstm_hidden=32", "model.word_dim=25"]
    api.run(settings, overrides=overrides, out=folder / "federated")
    return folder


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Straight]:
    """Gives a tiny run with these overrides (`contract.runs.straight_run`), made once for all."""
    from contract.runs import straight_run

    made: dict[object, Straight] = {}

    def give(*overrides: str, sites: int = 3) -> Straight:
        key = (overrides, sites)
        if key not in made:
            made[key] = straight_run(tmp_path_factory.mktemp("straight"), *overrides, sites=sites)
        return made[key]

    return give


@pytest.fixture
def demo_run(small_demo: Path) -> Callable[[Path], Path]:
    """Puts a copy of the small demo's folder where it is wanted."""

    def put(folder: Path) -> Path:
        return Path(shutil.copytree(small_demo, folder))

    return put
