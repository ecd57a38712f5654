"""Real processes under the guards' defaults: agreements that name the lead and the sites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.failures import CODES
from confide.flare.agreements import COUNT_FILE
from confide.flare.sitekit import agree_to, settings_asked, setup_site, withdraw_from
from confide.flare.status import agreement_status, guard_values, site_file
from contract.corpus import tiny, write_sites
from flare.homes import as_toml
from flare.real import Real
from flare.test_agreements import without_guards

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
]

NAMED = ("sites=site-1,site-2,site-3", "lead=lead", "runs=2")


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    """Three sites with enough text for the guards' defaults, of which none says a guard itself."""
    folder = tmp_path_factory.mktemp("agreeing")
    sites = write_sites(folder / "data", 3, train=24)
    settings = tiny(folder, "federation.sums=masked", "training.batch_size=8", site=sites)
    consortium = Real(folder, settings)
    without_guards(consortium.files)
    file = folder / "asked.toml"
    file.write_text(as_toml(settings))
    for name, path in consortium.files.items():
        kit = consortium.kit(name)
        setup_site(kit, path)
        withdraw_from(kit, "fedavg-tagger")
        agree_to(kit, "fedavg-tagger", asked=settings_asked(file), bounds=NAMED)
    try:
        consortium.start()
        yield consortium
    finally:
        consortium.stop()


def test_a_run_within_is_run_and_counted_and_what_is_outside_is_refused(real: Real) -> None:
    kit = real.kit("site-2")
    assert {guard.source for guard in guard_values(kit)} == {"default"}
    assert {guard.name: guard.value for guard in guard_values(kit)}["min_sites"] == 3
    assert real.run("within").result.left_out == {}
    assert [
        (one.used, one.runs, one.lead)
        for one in agreement_status(kit)
        if one.method == "fedavg-tagger"
    ] == [(1, 2, ("lead",))]
    with pytest.raises(EngineError, match=r"site-2, step join.*\(rounds\)"):
        real.run("longer", "rounds=3")
    with pytest.raises(EngineError, match=r"step join.*min_sites"):
        real.run("fewer", sites=["site-1", "site-2"])
    with pytest.raises(EngineError, match=r"site-1, step join.*min_sites"):
        real.run("single", sites=["site-1"])
    with pytest.raises(EngineError, match=r"step join.*min_sites"):
        real.run("alone", "method=alone")
    assert [one.used for one in agreement_status(kit) if one.method == "fedavg-tagger"] == [1]


def test_the_lead_is_who_the_server_says_it_is(real: Real) -> None:
    kit = real.kit("site-2")
    agree_to(kit, "fedavg-tagger", bounds=("lead=somebody-else",))
    try:
        with pytest.raises(EngineError) as raised:
            real.run("led")
    finally:
        agree_to(kit, "fedavg-tagger", bounds=("lead=lead",))
    assert "site site-2, step join" in str(raised.value)
    assert f"{CODES['outside-consent']} (lead)" in str(raised.value)
    assert "somebody-else" not in str(raised.value)
    assert real.run("led", resume=True).result.left_out == {}
    count = site_file(kit).with_name(COUNT_FILE).read_text()
    assert len([line for line in count.splitlines() if "led-" in line]) == 1
