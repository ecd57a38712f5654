"""Certificates that end or are renewed while processes are connected: real ones, with TLS."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.events import Event
from confide.flare import kit as service
from confide.flare import kit as startup
from confide.flare.kit import SUBMITTED_AGAIN, Kit, expires, gone_from
from confide.flare.nvidia import consortium as members
from confide.flare.nvidia.processes import status
from confide.runs.run import run
from contract.corpus import tiny
from flare.real import Real, own_keys, running
from flare.residents import stop
from flare.test_real_runs import same
from flare.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("certificates"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("certificates")
    with running(folder, tiny(folder, "rounds=6", "select.every=2", sites=2)) as consortium:
        yield consortium


def lasting(real: Real, name: str, seconds: float, out: Path) -> Kit:
    """Another kit of the site; its certificate is good for so long from now, or ended before."""
    made = dataclasses.replace(real.consortium, days=seconds / 86400)
    members._make_kits(made, out, names=(name,))
    return startup.open_kit(out / name)


def ended_now(real: Real, name: str) -> Kit:
    """Let the certificate in the site's kit be one that ended a minute ago, whoever runs."""
    kit = real.kit(name)
    other = lasting(real, name, -60, real.folder / "ended")
    for old, new in ((kit.key, other.key), (kit.certificate, other.certificate)):
        beside = old.with_suffix(".new")
        shutil.copy(new, beside)
        beside.replace(old)
    return kit


def renewed(real: Real, name: str) -> Kit:
    """The site renews its certificate, with a key that it makes, and runs again."""
    old = real.kit(name)
    stop(old)
    assert own_keys(real.consortium, old.path, name) == old
    return real.start_one(name)


def test_a_connection_outlives_the_certificate_that_it_was_made_with(
    real: Real, tmp_path: Path
) -> None:
    """Which is why a site has to look at its certificate by itself: the server does not."""
    for seconds in (4.0, 20.0, 100.0, 500.0):  # a machine that is too slow for one takes the next
        kit = lasting(real, "site-2", seconds, tmp_path / f"{seconds:.0f}")
        context = ssl.create_default_context(cafile=str(kit.root))
        context.check_hostname = False
        context.load_cert_chain(kit.certificate, kit.key)
        with service.socket.create_connection((kit.host, kit.port)) as raw:
            try:
                tls = context.wrap_socket(raw, server_hostname=kit.host)
            except OSError:
                assert service.expiry_message(kit)
                continue
            with tls:
                tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
                if service.expiry_message(kit):
                    continue
                until(lambda kit=kit: service.expiry_message(kit) != "")
                time.sleep(1.1)  # a certificate's end is a whole second
                tls.sendall(b"\r\n")
                assert tls.recv(1)
        assert "refuses this kit's certificate" in service.connection_problem(kit)
        return
    pytest.fail("no connection could be made within 500 s")


def test_a_certificate_ends_in_the_middle_of_a_run(real: Real) -> None:
    """By another one that has ended in its place: what runs has connected, what starts cannot."""
    run(real.settings, out=real.folder / "whole")
    server = real.kit("server")
    told: list[Event] = []
    done: list[Path] = []

    def lead() -> None:
        done.append(real.run("ending", watch=told.append).folder)

    def said(event: str) -> list[object]:
        return [
            one.message or one.round
            for one in told
            if event == one.kind or event in (one.message or "")
        ]

    def hears(event: str, *what: object) -> None:
        until(lambda: set(what) <= set(said(event)), what=lambda: told)

    real.shut("site-1", 4)
    thread = threading.Thread(target=lead, daemon=True)
    thread.start()
    hears("round", 3)

    kit = ended_now(real, "site-2")
    end = expires(kit)
    assert end < datetime.datetime.now(datetime.UTC)
    until(lambda: status(kit).trouble in (kit.path / "log.txt").read_text())
    now = status(kit)  # it is still in the run, and says what will be
    assert (now.connected, now.runs, now.days_left) == (True, 1, -1), told
    assert f"the certificate of site-2 expired on {end:%Y-%m-%d}" in now.trouble
    assert "site-2" in status(server).sites
    real.shut("site-1", 5)
    hears("round", 4)
    assert not said(SUBMITTED_AGAIN)

    real.job_process("site-2").kill()  # now it has to be let in again, and is not
    hears(SUBMITTED_AGAIN, gone_from(["site-2"]))
    hears("waiting for site-2", "waiting for site-2")
    until(lambda: status(server).sites == ("site-1",), what=lambda: status(server))
    until(lambda: not status(kit).connected and not status(kit).runs)
    assert "the certificate of site-2 expired on" in status(kit).trouble
    with pytest.raises(EngineError, match="not connected: site-2"):
        real.run("another", sites=["site-1", "site-2"])

    real.open("site-1")
    renewed(real, "site-2")  # nothing is lost
    thread.join(PATIENCE)
    assert done, told
    same(real.folder / "whole", done[0])


def test_server_and_lead_renew_the_keys_that_they_made(real: Real) -> None:
    """All kits of `Real` are their owners' own; a run goes over the renewed ones."""
    kits = [real.kit(name) for name in ("server", "lead")]
    before = [(kit.key.read_bytes(), kit.certificate.read_bytes()) for kit in kits]
    for kit in kits:
        if kit.kind == "server":
            stop(kit)
        assert own_keys(real.consortium, kit.path, kit.name) == kit
        if kit.kind == "server":
            real.start_one("server")
    for name in real.names:  # FLARE lets them in by a token that the server's old key signed
        stop(real.kit(name))
        real.start_one(name)
    for kit, (key, certificate) in zip(kits, before, strict=True):
        assert kit.key.read_bytes() != key and kit.certificate.read_bytes() != certificate
        assert not (kit.path / "request").exists()
    done = real.run("renewed", "rounds=1")
    assert done.result.history[0].sites == real.names
