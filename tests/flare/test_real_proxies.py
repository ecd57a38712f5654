"""Real processes behind a proxy that asks for a password and alone knows where the server is."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver

from confide.flare.kit import Kit, connection_problem, open_kit
from confide.flare.nvidia import processes
from confide.flare.sitekit import setup_site
from confide.flare.status import read_site_file
from confide.runs.run import run
from contract.corpus import tiny
from flare import residents
from flare.proxying import ConnectProxy
from flare.real import Real, running
from flare.test_real_runs import same
from flare.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("proxies"),
]

SECRET = "murmeltierpfad"
FORMS = [form.encode() for form in (SECRET, base64.b64encode(f"north:{SECRET}".encode()).decode())]
AWAY = "server.invalid"


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    """Two sites; the first one is set up behind the proxy, and not yet started there."""
    folder = tmp_path_factory.mktemp("proxies")
    (folder / "tap").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIRETAP", str(folder / "tap"))
        with running(folder, tiny(folder, "rounds=3", sites=2)) as consortium:
            yield consortium


@pytest.fixture(scope="module")
def proxy(real: Real) -> Iterator[ConnectProxy]:
    made = ConnectProxy({f"{AWAY}:{real.port}": real.port}, secret=f"north:{SECRET}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def password(real: Real) -> Path:
    path = real.folder / "password"
    path.write_text("another")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def kit(real: Real, proxy: ConnectProxy, password: Path) -> Kit:
    """The first site's, behind the proxy, with a password that is wrong."""
    residents.stop(real.kit("site-1"))
    for seen in (real.folder / "tap").glob("site-1-*"):
        seen.unlink()
    kit = _away(real.kit("site-1"))
    file = real.files["site-1"]
    own = f'proxy = "http://north@127.0.0.1:{proxy.port}"\nproxy_password_file = "{password}"\n'
    file.write_text(own + file.read_text())
    setup_site(kit, file)
    residents.start(kit, wait=0.0)
    return kit


def _away(kit: Kit) -> Kit:
    """Let a kit know the server by a name that nothing here can resolve."""
    for path in (*(kit.path / "startup").glob("fed_*.json"), kit.path / "local/confide.json"):
        text = re.sub(rf"localhost(?=:{kit.port})", AWAY, path.read_text())
        path.write_text(text.replace('"host": "localhost"', f'"host": "{AWAY}"'))
    return open_kit(kit.path)


def test_a_wrong_password_is_named_and_the_right_one_needs_no_restart(
    real: Real, kit: Kit, proxy: ConnectProxy, password: Path
) -> None:
    said = "does not take this user and password"
    until(lambda: processes.status(kit).running)
    until(lambda: said in (kit.path / "log.txt").read_text())
    assert said in processes.status(kit).trouble and not proxy.opened
    password.write_text(f"{SECRET}\n")
    real.wait_for_sites()
    assert connection_problem(kit, read_site_file(kit).way_out) == ""
    assert f"cannot resolve the server's name, {AWAY}" in connection_problem(kit)


def test_a_run_through_a_proxy_that_is_cut_off_for_a_while(
    real: Real, kit: Kit, proxy: ConnectProxy, password: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site and lead connect through it alone, and nobody but the proxy hears the password."""
    _away(real.kit("lead"))
    monkeypatch.setattr(AioHttpDriver, "connect", AioHttpDriver.connect)
    monkeypatch.setenv("CONFIDE_PROXY", f"http://north@127.0.0.1:{proxy.port}")
    monkeypatch.setenv("CONFIDE_PROXY_PASSWORD_FILE", str(password))
    before, shown = len(proxy.opened), list[str]()

    def cut() -> None:
        """In a step, until each process has tried in vain to connect again."""
        for one in processes._processes(kit):
            shown.extend([*one.cmdline(), *one.environ().values()])
        proxy.cut()
        until(lambda: proxy.in_vain >= 6)
        proxy.mend()

    done = real.run("through", watch=real.at_round(2, cut))
    run(real.settings, out=real.folder / "whole")
    same(real.folder / "whole", done.folder)
    assert len(proxy.opened) >= before + 4, "the run's process and the lead, and all once more"
    assert set(proxy.opened) == {f"{AWAY}:{real.port}"}

    own = [*(real.folder / "tap").glob("site-1-*.connected")]
    assert len(own) >= 2, "the resident process and that of the run"
    for path in own:
        assert f", {real.port}" not in path.read_text(), "past the proxy"
        assert f"'127.0.0.1', {proxy.port}" in path.read_text()

    assert shown and not [text for text in shown for form in FORMS if form in text.encode()]
    places = [real.kit(name).path for name in ("server", "site-1", "site-2", "lead")]
    places += [real.homes, done.folder, real.folder / "tap"]
    found = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(found) > 100
    assert not [path for path in found for form in FORMS if form in path.read_bytes()]
