"""Who is revoked is out: at once, after a restart, and with a renewed kit, until admitted again."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.private.fed.server.client_manager import ClientManager

from cases import each
from confide.cli import sites as kit_verbs
from confide.cli.verbs import app
from confide.errors import KitError
from confide.federation.events import Event
from confide.flare.kit import Consortium, Kit, open_consortium
from confide.flare.nvidia import processes
from confide.flare.nvidia.consortium import create_consortium, renew_kit
from confide.flare.nvidia.processes import admit_site, revoke_site, revoked, status
from confide.flare.nvidia.watch import RevocationWatch
from contract.corpus import tiny
from flare.real import Real, running
from flare.residents import start, stop
from flare.waiting import until


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> Consortium:
    out = tmp_path_factory.mktemp("founded") / "trial"
    return create_consortium("trial", sites=["north", "south"], host="fl.example.org", out=out)


@pytest.fixture
def server(founded, tmp_path) -> Kit:
    return open_consortium(Path(shutil.copytree(founded.path, tmp_path / "trial"))).kit("server")


# --- the list -------------------------------------------------------------------------------


def test_who_is_revoked_stands_in_the_engines_own_list(server):
    assert revoked(server) == ()
    assert revoke_site(server, "south") is True
    assert revoke_site(server, "north") is True
    assert revoke_site(server, "north") is False
    assert revoked(server) == ("north", "south")
    path = server.path / processes.REVOKED
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    manager = ClientManager()
    manager.set_disabled_clients_file(str(path))
    assert manager.is_client_disabled("north") and not manager.is_client_disabled("west")
    admit_site(server, "north")
    assert revoked(server) == ("south",)
    assert [one.name for one in server.path.iterdir() if one.suffix == ".tmp"] == []


@each("name", ["server", "All", "../north", "a b", "", "FL.example.org"])
def test_what_no_site_is_called_is_not_revoked(server, name):
    with pytest.raises(KitError, match=r"have this name"):
        revoke_site(server, name)
    assert not (server.path / processes.REVOKED).exists()


def test_only_who_is_revoked_is_admitted(server):
    with pytest.raises(
        KitError, match="not revoked; expected none: no site is revoked; got 'north'"
    ):
        admit_site(server, "north")
    revoke_site(server, "south")
    with pytest.raises(KitError, match="not revoked; expected one of: south"):
        admit_site(server, "North")
    assert revoked(server) == ("south",)


@each("torn", [b"", b"[]", b'{"disabled_clients": [1]}', b"{}", b"\xff"])
def test_a_damaged_list_is_never_read_as_an_empty_one(server, torn):
    (server.path / processes.REVOKED).write_bytes(torn)
    for refused in (revoked, processes.start, status, lambda kit: revoke_site(kit, "north")):
        with pytest.raises(KitError, match="list of revoked sites cannot be read"):
            refused(server)
    assert (server.path / processes.REVOKED).read_bytes() == torn


def test_only_a_servers_kit_revokes(founded):
    for name in ("north", "lead"):
        kit = str(founded.kit(name).path)
        for verb in ("revoke", "admit"):
            said = CliRunner().invoke(app, ["server", verb, kit, "south"])
            assert said.exit_code == 2
            assert "expected: a server's kit" in " ".join(said.output.split())
        assert not (founded.kit(name).path / processes.REVOKED).exists()


def test_the_verbs_say_what_was_done(server):
    runner, kit = CliRunner(), str(server.path)
    for said in ("north is revoked", "north is revoked already"):
        done = runner.invoke(kit_verbs.server, ["revoke", kit, "north"])
        assert done.exit_code == 0 and done.output.strip() == said
    shown = runner.invoke(kit_verbs.server, ["status", kit])
    assert "revoked" in shown.output and "north" in shown.output
    held = json.loads(runner.invoke(kit_verbs.server, ["status", kit, "--json"]).stdout)
    assert held["revoked"] == ["north"]
    done = runner.invoke(kit_verbs.server, ["admit", kit, "north"])
    assert done.exit_code == 0 and "north is let in again" in done.output
    assert revoked(server) == ()


def test_a_renewed_server_must_be_told_who_is_revoked(server):
    folder = server.path.parent.parent
    shutil.move(server.path, folder / "old")
    done = CliRunner().invoke(kit_verbs.consortium, ["renew", str(folder), "server"])
    assert "disabled_clients.json (who is revoked)" in " ".join(done.output.split())


# --- a server that runs ---------------------------------------------------------------------


class Engine:
    """The parts of FLARE's engine of a server that a door needs; its list of sites is FLARE's."""

    def __init__(self, *sites: str, runs: dict[str, list[str]]) -> None:
        self.client_manager = ClientManager()
        for name in sites:
            self.client_manager.clients[f"token of {name}"] = Client(name, f"token of {name}")
        self.run_processes = {
            run: {RunProcessKey.PARTICIPANTS: {f"token of {n}": Client(n, n) for n in names}}
            for run, names in runs.items()
        }
        self.ended: list[str] = []
        self.job_runner = SimpleNamespace(stop_run=lambda run, _: self.ended.append(run))

    def disable_clients(self, names: list[str]) -> None:
        for name in names:
            self.client_manager.disable_client(name)

    def enable_clients(self, names: list[str]) -> None:
        for name in names:
            self.client_manager.enable_client(name)

    @contextmanager
    def new_context(self) -> Iterator[None]:
        yield None

    def connected(self) -> set[str]:
        return {client.name for client in self.client_manager.clients.values()}


def test_a_server_that_runs_follows_the_list(server):
    engine: Any = Engine(
        "north", "south", runs={"one": ["north", "south"], "two": ["south"], "three": ["north"]}
    )
    door = RevocationWatch(server.path / processes.REVOKED)
    assert door.follow(engine) is True  # it has seen that there is none
    assert door.follow(engine) is False
    revoke_site(server, "north")
    assert door.follow(engine) is True
    assert engine.connected() == {"south"}
    until(lambda: sorted(engine.ended) == ["one", "three"])
    assert engine.client_manager.is_client_disabled("north")
    assert door.follow(engine) is False
    revoke_site(server, "south")
    admit_site(server, "north")
    assert door.follow(engine) is True
    assert engine.client_manager.disabled_clients == {"south"}


def test_a_list_that_cannot_be_read_changes_nothing(server):
    engine: Any = Engine("north", runs={})
    door = RevocationWatch(server.path / processes.REVOKED)
    revoke_site(server, "north")
    door.follow(engine)
    (server.path / processes.REVOKED).write_text("{")
    assert door.follow(engine) is False
    assert engine.client_manager.disabled_clients == {"north"}
    (server.path / processes.REVOKED).unlink()  # by hand: nobody is revoked
    assert door.follow(engine) is True
    assert engine.client_manager.disabled_clients == set()


def test_a_server_that_runs_never_writes_the_list(server):
    """It would write over a name that was added between its reading and its writing."""
    revoke_site(server, "north")
    engine: Any = Engine("north", "south", runs={})
    path = server.path / processes.REVOKED
    engine.client_manager.set_disabled_clients_file(str(path))  # as FLARE does at its start
    door = RevocationWatch(path)
    disable = engine.disable_clients

    def late(names: list[str]) -> None:
        revoke_site(server, "west")
        disable(names)

    engine.disable_clients = late
    revoke_site(server, "south")
    assert door.follow(engine) is True
    assert revoked(server) == ("north", "south", "west")
    assert door.follow(engine) is True
    assert engine.client_manager.disabled_clients == {"north", "south", "west"}


# --- real processes -------------------------------------------------------------------------


class Lost(Exception):
    """The lead heard that the run was ended."""


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("revoked")
    with running(folder, tiny(folder, "rounds=6", sites=2)) as consortium:
        yield consortium


@pytest.mark.slow
@pytest.mark.xdist_group("revoked")
@pytest.mark.filterwarnings("ignore")  # those of NVIDIA FLARE are not ours
def test_a_site_that_is_revoked_is_out_of_the_run_and_stays_out(real):
    server, site = real.kit("server"), real.kit("site-2")
    real.shut("site-1", 3)

    def watch(event: Event) -> None:
        if event.kind == "round" and event.round == 2:
            done = CliRunner().invoke(kit_verbs.server, ["revoke", str(server.path), "site-2"])
            assert done.output.strip() == "site-2 is revoked"  # and the server took notice
        if event.kind == "failed":
            raise Lost

    with pytest.raises(Lost):
        real.run("ended", watch=watch)
    real.open("site-1")
    until(lambda: status(site).runs == status(server).runs == 0)
    until(lambda: status(server).sites == ("site-1",), what=lambda: status(server))
    until(lambda: "revoked" in status(site).trouble, what=lambda: status(site))
    now = status(site)
    assert not now.connected
    until(lambda: status(real.kit("site-1")).connected)

    stop(site)
    start(site)  # started again, it is not let in
    assert processes.TURNED_AWAY in status(site).trouble
    stop(site)
    stop(server)
    start(server)  # nor by one that was started again
    start(site)
    assert processes.TURNED_AWAY in status(site).trouble
    assert "site-2" not in status(server).sites
    stop(site)


@pytest.mark.slow
@pytest.mark.xdist_group("revoked")
@pytest.mark.filterwarnings("ignore")
def test_a_renewed_kit_does_not_help_until_the_site_is_admitted(real):
    """After the test above: site-2 is revoked."""
    server, old = real.kit("server"), real.kit("site-2")
    stop(old)
    shutil.move(old.path, real.folder / "old kit")
    kit = renew_kit(real.consortium.path, "site-2")
    try:
        start(kit)
        assert processes.TURNED_AWAY in status(kit).trouble
        done = CliRunner().invoke(kit_verbs.server, ["admit", str(server.path), "site-2"])
        assert done.exit_code == 0
        until(lambda: status(kit).connected)  # by itself
        until(lambda: status(server).sites == ("site-1", "site-2"))
        assert status(kit).trouble == ""
    finally:
        stop(kit)
