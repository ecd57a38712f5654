"""Large messages in parts over real processes: the same numbers, whoever is killed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.federation.comparing import compare_ledgers
from confide.runs.run import run
from contract.corpus import tiny
from flare.real import Real, running
from flare.test_real_runs import same

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("parts"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("real")
    settings = tiny(folder, "rounds=3", "select.every=1", "model.bilstm_hidden=120")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARTS", "100000")
        with running(folder, settings) as consortium:
            yield consortium


@pytest.fixture(scope="module")
def whole(real: Real) -> Path:
    """The same run on one machine, which sends nothing in parts."""
    run(real.settings, out=real.folder / "whole")
    return real.folder / "whole"


def asked(real: Real, name: str) -> int:
    """How often a kit was asked for a part so far."""
    return len((real.gates / f"{name}.parts").read_text().splitlines())


def test_the_numbers_are_the_same_and_both_ledgers_agree(real: Real, whole: Path) -> None:
    done = real.run("in-parts")
    same(whole, done.folder)
    assert min(asked(real, name) for name in ("server", *real.names)) > 10
    for site in real.names:
        found = compare_ledgers(done.folder, real.run_of(site, "in-parts"))
        assert found.agree and found.verified > 0, found


@pytest.mark.parametrize("who", ["site-2", "server"])
def test_a_process_killed_while_a_message_is_fetched_from_it(
    real: Real, whole: Path, who: str
) -> None:
    told = []
    fatal = real.gates / f"{who}.part-kill"
    fatal.touch()
    done = real.run(f"killed-{who}", watch=lambda event: told.append(event.message))
    assert not fatal.exists()
    same(whole, done.folder)
