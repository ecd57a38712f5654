"""Sums under noise over real processes: each site's account is over all its runs, its keys are not.

What is trained under noise is not the same twice, so no run of one machine stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import ConfideError
from confide.federation.ledger import read_ledger
from confide.flare.status import budget_status
from confide.privacy.accountant import ACCOUNT, PRIVACY
from contract.corpus import tiny
from flare.real import Real, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("noise"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Three sites, of which each keeps an account."""
    overrides = (
        "method=dp-fedsgd-encoder", 'encoder.tune="frozen"', "rounds=3", "guards.masked=true",
        "federation.sums=masked", "privacy.holdout_scores=withheld", "privacy.noise=4",
        "guards.max_epsilon=20",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("noise")
    with running(folder, tiny(folder, *overrides)) as found:
        yield found


def charges(real: Real, name: str) -> list[dict[str, object]]:
    lines = (real.memory(name) / PRIVACY / ACCOUNT).read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_each_site_charges_its_own_account_over_all_runs_and_forgets_their_keys(real: Real) -> None:
    first = real.run("first")
    rows = read_ledger(first.folder / "ledger.jsonl")
    assert {one.step for one in rows if one.direction == "up"} >= {"add_noisily", "mask", "unmask"}
    assert not {one.step for one in rows} & {"score", "count_examples"}
    assert first.result.privacy is not None and first.result.privacy.rounds == 3
    for name in real.names:
        assert len(charges(real, name)) == 3
        assert not list((real.memory(name) / PRIVACY).glob("*.key"))
    account = real.memory("site-1") / PRIVACY / ACCOUNT
    kept, (before, limit) = account.read_bytes(), budget_status(real.kit("site-1"))
    assert before.charges == 3 and 0 < before.epsilon < limit.epsilon == 20
    real.run("second")
    assert budget_status(real.kit("site-1"))[0].epsilon > before.epsilon
    for name in real.names:
        told = charges(real, name)
        assert len(told) == 6 and len({one["run"] for one in told}) == 2
        assert len({one["mark"] for one in told}) == 6
    real.run("third")  # at whose beginning the others saw what two runs had spent
    account.write_bytes(kept)  # put back from a backup: what the second spent is forgotten
    with pytest.raises(ConfideError, match=r"agreed to the roster.*older-account"):
        real.run("fourth")
    said = "".join(path.read_text() for path in real.memory("site-2").rglob("site.log"))
    assert "older-account" in said and len(charges(real, "site-2")) == 9
