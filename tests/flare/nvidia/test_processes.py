"""The resident processes of kits: real ones, on loopback, with TLS."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.private.fed.server.fed_server import FederatedServer

from cases import each
from confide.cli import sites
from confide.errors import KitError, SettingsError
from confide.flare import kit as policies
from confide.flare import kit as service
from confide.flare import kit as startup
from confide.flare.kit import Consortium, Kit, open_kit
from confide.flare.nvidia import processes, watch
from confide.flare.nvidia.consortium import add_site, create_consortium
from confide.flare.nvidia.processes import status
from confide.flare.nvidia.service import say_whose_process_ended
from flare.ports import free_port
from flare.residents import start, stop
from flare.waiting import PATIENCE, until


def _marked(kit: Kit) -> list[psutil.Process]:
    """The kit's living processes, found without the code under test."""
    found = []
    for one in psutil.process_iter():
        try:
            mark = one.environ().get("CONFIDE_KIT")
            if mark == str(kit.path) and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> Consortium:
    out = tmp_path_factory.mktemp("founded") / "trial"
    return create_consortium(
        "trial", sites=["north", "south"], host="localhost", port=free_port(), out=out
    )


# --- what needs no process ------------------------------------------------------------------


def test_what_cannot_start_is_refused(founded, tmp_path, monkeypatch):
    with pytest.raises(KitError, match="a lead has no resident process"):
        processes.start(founded.kit("lead"))
    spaced = dataclasses.replace(founded.kit("north"), path=tmp_path / "my kit")
    with pytest.raises(KitError, match="spaces or quotes"):
        processes.start(spaced)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", founded.port))
        taken.listen()
        with pytest.raises(KitError, match=f"cannot listen on port {founded.port}"):
            processes.start(founded.kit("server"))
    short = create_consortium(
        "short", sites=["a"], host="localhost", out=tmp_path / "short", days=0.5 / 86400
    )
    until(lambda: service.expiry_message(short.kit("a")) != "")
    with pytest.raises(KitError, match="expired on 20"):
        processes.start(short.kit("a"))
    assert status(short.kit("a")).days_left == -1


def test_nothing_runs_before_it_is_started(founded):
    kit = founded.kit("south")
    now = status(kit)
    assert (now.running, now.pid, now.memory, now.connected) == (False, None, 0, False)
    assert now.days_left == 364
    assert stop(kit) is False
    said = CliRunner().invoke(sites.site, ["stop", str(kit.path)])
    assert said.exit_code == 0 and "it was not running" in said.output
    said = CliRunner().invoke(sites.site, ["status", str(kit.path), "--json"])
    assert json.loads(said.stdout)["running"] is False


def test_the_environment_is_ours(founded, monkeypatch):
    monkeypatch.setenv("NVFL_LOG_ROOT", "/elsewhere")
    monkeypatch.setenv("FL_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("NVFLARE_STREAMING_RETRY_WAIT", "40")
    kit = founded.kit("north")
    given = processes._environment(kit)
    assert given["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert given["TMPDIR"] == str(kit.path / "tmp")
    assert given["NVFLARE_SECURE_LOGGING"] == "true"
    assert given["HF_HUB_OFFLINE"] == "1"
    assert given["OMP_NUM_THREADS"] == "7"
    link = processes.LINK | {"NVFLARE_STREAMING_RETRY_WAIT": "40"}  # who knows better, may say so
    assert link.items() <= given.items()
    assert not {"NVFL_LOG_ROOT", "FL_LOG_LEVEL"} & set(given)


def test_a_kit_is_locked_by_one_process(tmp_path):
    held = processes.lock_kit(tmp_path)
    assert held is not None
    assert processes.lock_kit(tmp_path) is None
    held.close()
    again = processes.lock_kit(tmp_path)
    assert again is not None
    again.close()


FAKE = """
import sys
from types import SimpleNamespace
from confide.flare.nvidia import service, watch
def main(args):
    open("run/there", "w").close()
    how = sys.stdin.readline().strip()
    if how == "raise":
        raise ValueError("Mr Smith")
    if how == "wait":
        watch.StatusWriter.engine = SimpleNamespace(shutdown=done.set)
        watch.StatusWriter.registered = True
        done.wait(600)
import threading
done = threading.Event()
flare = SimpleNamespace(main=main, parse_arguments=lambda: SimpleNamespace(workspace="."))
service._flare = lambda kit: flare
service.run_service(".")
"""


@pytest.mark.parametrize(
    ("how", "signalled", "code"),
    [
        ("wait", signal.SIGTERM, 0),
        pytest.param("wait", signal.SIGINT, 0, marks=pytest.mark.slow),
        pytest.param("raise", None, None, marks=pytest.mark.slow),
        ("return", None, 1),
    ],
)
def test_it_ends_with_0_only_if_it_was_asked_to(founded, how, signalled, code):
    """A service manager starts it again otherwise."""
    kit = founded.kit("north")
    (kit.path / "run").mkdir(mode=0o700, exist_ok=True)
    (kit.path / "run/there").unlink(missing_ok=True)
    command = [sys.executable, "-c", FAKE]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=env, cwd=kit.path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as here:
        until((kit.path / "run/there").exists)
        second = subprocess.run(command, env=env, cwd=kit.path, capture_output=True, text=True)
        assert second.returncode == 1 and "already running" in second.stderr
        here.stdin.write(f"{how}\n")
        here.stdin.flush()
        if signalled:
            time.sleep(0.5)
            here.send_signal(signalled)
        ended = here.wait(PATIENCE)
        said = here.stderr.read()
    assert ended == code if code is not None else ended > 0
    assert ("ended by itself" in said) == (code != 0)
    held = processes.lock_kit(kit.path)
    assert held is not None
    held.close()


def test_start_becomes_the_resident_process(founded, monkeypatch):
    kit, became = founded.kit("north"), []

    def becomes(*given: object) -> None:
        became.append(given)
        raise SystemExit(0)

    monkeypatch.setattr(processes.os, "execve", becomes)
    said = CliRunner().invoke(sites.site, ["start", str(kit.path)])
    assert "site north runs here until you stop it" in said.output
    program, command, environment = became[0]
    assert (program, command[1:]) == (sys.executable, ["-m", processes.SERVICE, str(kit.path)])
    assert environment == processes._environment(kit)
    held = processes.lock_kit(kit.path)
    assert held is not None
    with pytest.raises(KitError, match="is already running"):
        processes.start(kit)
    held.close()


@each("given", [["--foreground"], ["--wait", "5"]])
def test_what_start_no_longer_takes_says_what_to_do(founded, given):
    for verb, name in ((sites.site, "north"), (sites.server, "server")):
        said = CliRunner().invoke(verb, ["start", str(founded.kit(name).path), *given])
        assert isinstance(said.exception, SettingsError)
        assert "always runs in the foreground" in str(said.exception)
        assert "leave the option out" in str(said.exception)
        assert given[0] not in CliRunner().invoke(verb, ["start", "--help"]).output


def test_the_probe_names_what_is_wrong(founded):
    kit = founded.kit("north")
    assert "no server answers at localhost" in service.connection_problem(kit)
    nowhere = dataclasses.replace(kit, host="no-such-host.invalid")
    assert "cannot resolve" in service.connection_problem(nowhere)


NO_RUNS = SimpleNamespace(run_processes={})


def _watched(*events: str, token: str | None = None) -> dict[str, object]:
    """What a site's kit (the folder we are in) says after these events of its process."""
    context = SimpleNamespace(
        get_engine=lambda: SimpleNamespace(get_all_job_ids=list, client_executor=NO_RUNS),
        get_prop=lambda name: token if name == FLContextKey.CLIENT_TOKEN else None,
    )
    seen = watch.StatusWriter()
    seen._answered = lambda _: True
    for event in (EventType.SYSTEM_BOOTSTRAP, *events):
        seen.handle_event(event, context)
    file = Path(processes.STATE)
    return json.loads(file.read_text()) if file.exists() else {}


def test_a_site_notices_that_it_is_not_let_in(in_tmp, monkeypatch):
    monkeypatch.setattr(watch.StatusWriter, "engine", None)
    monkeypatch.setattr(watch.StatusWriter, "registered", False)
    register = EventType.AFTER_CLIENT_REGISTER
    before, after = EventType.BEFORE_CLIENT_HEARTBEAT, EventType.AFTER_CLIENT_HEARTBEAT
    assert _watched(register, token="taken") == {}
    said = _watched(register)
    assert (said["connected"], said["refused"]) == (False, True)
    said = _watched(register, before, after, before, token="taken")
    assert (said["connected"], said["refused"]) == (True, False)
    said = _watched(register, before, after, before, before, token="taken")
    assert (said["connected"], said["refused"]) == (False, True)
    said = _watched(register, before, before, before, after, token="taken")
    assert (said["connected"], said["refused"]) == (True, False)


def test_a_clock_that_is_set_back_keeps_nobody_connected(founded, monkeypatch):
    """What was noted before lies a day ahead: a site that has gone was shown as there all day."""
    kit, now = founded.kit("server"), time.time()
    resident = SimpleNamespace(pid=1, create_time=lambda: now, info={"memory_info": None})
    monkeypatch.setattr(processes, "_processes", lambda _: [resident])
    monkeypatch.setattr(processes, "_runs", lambda one, *_: True)
    monkeypatch.setattr(processes.kits, "expiry_message", lambda _: "")
    heard = {"north": now, "south": now + 86_400}
    state = {"pid": 1, "at": now, "connected": True, "sites": heard}
    monkeypatch.setattr(processes, "_state", lambda _: state)
    assert status(kit).sites == ("north",)
    site = founded.kit("north")
    assert status(site).connected
    state["at"] = now + 86_400
    monkeypatch.setattr(processes.kits, "connection_problem", lambda *_: "gone")
    assert not status(site).connected


@each(
    ("days", "said"), [(-2, "has expired"), (1, "is not valid yet, by the clock of this machine")]
)
def test_a_clock_that_is_wrong_is_named(founded, tmp_path, days: int, said: str) -> None:
    """With the clock set back, the server was said to be of another consortium."""
    whole = x509.load_pem_x509_certificate(founded.kit("server").certificate.read_bytes())
    key = load_pem_private_key(founded.kit("server").key.read_bytes(), None)
    made = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    builder = x509.CertificateBuilder().subject_name(whole.subject).issuer_name(whole.subject)
    builder = builder.public_key(key.public_key()).serial_number(7)
    builder = builder.not_valid_before(made).not_valid_after(made + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    shown = tmp_path / "shown.crt"
    shown.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, founded.kit("server").key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def greet() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as raw:
                context.wrap_socket(raw, server_side=True)

        threading.Thread(target=greet, daemon=True).start()
        kit = dataclasses.replace(founded.kit("north"), port=port, host="localhost")
        kit = _trusting(kit, tmp_path, shown)
        assert said in service.connection_problem(kit)


def _trusting(kit: Kit, folder: Path, root: Path) -> Kit:
    """The kit, in a folder of its own, whose root is another."""
    shutil.copytree(kit.path, folder / "kit")
    own = dataclasses.replace(kit, path=folder / "kit")
    shutil.copy(root, own.root)
    return own


def test_a_site_leaves_when_its_certificate_has_ended_and_its_runs_are_over(tmp_path, monkeypatch):
    kit = create_consortium("short", sites=["a"], host="localhost", out=tmp_path / "short").kit("a")
    end = startup.expires(kit)
    monkeypatch.setattr(service, "expires", lambda _: end)
    monkeypatch.chdir(kit.path)
    monkeypatch.setattr(watch.StatusWriter, "registered", True)
    runs, left, said = ["one"], threading.Event(), []
    engine = SimpleNamespace(
        get_all_job_ids=lambda: runs, shutdown=left.set, client_executor=NO_RUNS
    )
    monkeypatch.setattr(watch.StatusWriter, "engine", engine)
    monkeypatch.setattr(watch._LOG, "warning", lambda form, *given: said.append(form % given))
    seen = watch.StatusWriter()

    def beat() -> None:
        seen.handle_event(EventType.BEFORE_CLIENT_HEARTBEAT, None)
        seen._unanswered = False

    beat()
    assert not said
    end = datetime.datetime.now(datetime.UTC)
    assert "the certificate of a expired on 20" in service.expiry_message(kit)
    beat()
    beat()
    assert (
        said == [service.expiry_message(kit)] and not left.is_set()
    )  # it is in a run, which goes on
    runs.append("two")  # which its processes cannot join
    beat()
    assert not left.is_set()
    runs.remove("one")
    beat()
    assert left.wait(PATIENCE)
    left.clear()
    beat()
    assert not left.is_set() and len(said) == 1


def test_the_server_notes_whose_process_ended_a_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of a run that goes on, and of one of its sites: whatever else a site reports."""
    ended: list[object] = []
    monkeypatch.setattr(
        FederatedServer, "process_job_failure", lambda _, asked: ended.append(asked)
    )
    monkeypatch.chdir(tmp_path)
    say_whose_process_ended()
    (tmp_path / "one").mkdir()
    runner = SimpleNamespace(is_client_outcome_pending=lambda run, name: name != "south")
    server = SimpleNamespace(
        client_manager=SimpleNamespace(
            clients={name: SimpleNamespace(name=name) for name in ("north", "south")}
        ),
        engine=SimpleNamespace(run_processes={"one": {}}, job_runner=runner),
    )

    def reported(token: object, said: object) -> str:
        asked = SimpleNamespace(payload=said, get_header=lambda _: token)
        FederatedServer.process_job_failure(server, asked)
        assert ended.pop() is asked, "FLARE does what it does"
        (found,) = [one.read_text() for one in tmp_path.rglob("*.json")] or [""]
        return found

    failed = {"job_id": "one", "code": 104, "reason": "infrastructure error"}
    for token, said in (
        ("stranger", failed), ("south", failed), ("north", failed | {"reason": None}),
        ("north", failed | {"job_id": ".."}), ("north", failed | {"job_id": ["one"]}),
        ("north", "one"), (None, None),
    ):  # fmt: skip
        assert not reported(token, said)
    assert json.loads(reported("north", failed)) == {
        "state": "running", "why": "north: the process of the run is gone; submitted again"
    }  # fmt: skip


# --- real processes -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(founded) -> Iterator[Consortium]:
    """The server and two sites, all started. Whatever a test started of `founded` is stopped."""
    try:
        for name in ("server", "north", "south"):
            start(founded.kit(name))
        yield founded
    finally:
        for path in (founded.path / "kits").iterdir():
            kit = open_kit(path)
            if kit.kind != "lead":
                stop(kit, wait=15)


def _connected(kit: Kit) -> bool:
    return until(lambda: status(kit).connected, what=lambda: status(kit))


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_server_and_sites_find_each_other(running):
    server = running.kit("server")
    _connected(server)
    for name in ("north", "south"):
        _connected(running.kit(name))
    until(lambda: status(server).sites == ("north", "south"))
    now = status(running.kit("north"))
    assert now.running and now.pid in [one.pid for one in _marked(running.kit("north"))]
    assert 20e6 < now.memory < 400e6
    assert (now.runs, now.trouble) == (0, "")
    until(lambda: service.connection_problem(running.kit("north")) == "")


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_starting_twice_starts_nothing(running):
    kit = running.kit("north")
    before = {one.pid for one in _marked(kit)}
    command = [sys.executable, "-m", "confide", "site", "start", str(kit.path)]
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode and "is already running" in again.stderr
    assert {one.pid for one in _marked(kit)} == before


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_whoever_listens_asks_for_a_certificate_of_the_consortium(running):
    """The server's port, and those that a kit's processes speak to each other through."""
    shown_by = {}
    for name in ("server", "north", "south"):
        kit = running.kit(name)
        held = [each for one in _marked(kit) for each in one.net_connections()]
        listening = [each.laddr for each in held if each.status == psutil.CONN_LISTEN]
        assert {address.ip for address in listening} == {"127.0.0.1"}  # `host` is localhost
        identity = kit.identity if name == "server" else name
        shown_by |= {address.port: identity for address in listening}
    assert running.port in shown_by and len(shown_by) == 4
    other = create_consortium(
        "other", sites=["x"], host="localhost", out=running.path / "other"
    ).kit("x")
    mixed = _mixed(running.kit("north"), other, running.path / "mixed")
    for port, identity in shown_by.items():
        stranger = dataclasses.replace(other, port=port, identity=identity)
        _in_trouble(stranger, "is not from this consortium")
        stranger = dataclasses.replace(stranger, path=mixed)
        _in_trouble(stranger, "refuses this kit's certificate")


def _in_trouble(kit: Kit, said: str) -> None:
    """Wait until the probe says so: a busy server answers too slowly."""
    until(
        lambda: said in service.connection_problem(kit),
        what=lambda: service.connection_problem(kit),
    )


def _mixed(kit: Kit, other: Kit, path: Path) -> Path:
    """A kit that trusts our authority but shows another one's certificate."""
    (path / "startup").mkdir(parents=True)
    for file in (other.certificate, other.key, kit.root):
        (path / "startup" / file.name).write_bytes(file.read_bytes())
    return path


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_what_is_killed_comes_back(running):
    kit = running.kit("south")
    _connected(kit)
    killed = status(kit).pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until(lambda: status(kit).pid not in (None, killed))
    _connected(kit)
    until(lambda: "south" in status(running.kit("server")).sites)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_the_server_comes_back_and_the_sites_find_it(running):
    server = running.kit("server")
    killed = status(server).pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until(lambda: status(server).connected)
    until(lambda: {"north", "south"} <= set(status(server).sites))
    for name in ("north", "south"):
        _connected(running.kit(name))


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_an_added_site_is_let_in_at_once(running):
    kit = add_site(running.path, "west")
    start(kit)
    _connected(kit)
    until(lambda: "west" in status(running.kit("server")).sites)
    assert stop(kit) is True
    assert _marked(kit) == []
    until(lambda: "west" not in status(running.kit("server")).sites)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_site_of_another_consortium_is_not_let_in(running, tmp_path):
    other = create_consortium(
        "trial", sites=["east"], host="localhost", port=running.port, out=tmp_path / "o"
    )
    kit = other.kit("east")
    try:
        start(kit, wait=0)
        until(lambda: status(kit).running)
        until(lambda: "is not from this consortium" in status(kit).trouble)
        assert not status(kit).connected
        assert "east" not in status(running.kit("server")).sites
        said = CliRunner().invoke(sites.site, ["status", str(kit.path)])
        assert "is not from this consortium" in said.output
    finally:
        assert stop(kit, wait=10) is True
    assert _marked(kit) == []


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_site_whose_certificate_has_ended_is_not_let_in(running):
    project = running.path / "consortium.toml"
    for seconds in (4, 20, 100, 500):  # a machine that is too slow for one takes the next
        project.write_text(project.read_text().replace("days = 365", f"days = {seconds / 86400}"))
        kit = add_site(running.path, f"late-{seconds}")
        project.write_text(project.read_text().replace(f"days = {seconds / 86400}", "days = 365"))
        if service.connection_problem(kit) == "":
            break
    else:
        pytest.fail("the server takes no certificate")
    until(lambda: service.expiry_message(kit) != "")
    time.sleep(1.1)  # a certificate's end is a whole second
    _in_trouble(kit, "refuses this kit's certificate")
    with pytest.raises(KitError, match="expired on"):
        processes.start(kit)


# --- what a lead's kit can do ---------------------------------------------------------------

_LEAD = """
import json, sys, time
from nvflare.fuel.flare_api.flare_api import new_secure_session
kit, user, *given = sys.argv[1:]
session = new_secure_session(username=user, startup_kit_location=kit, timeout=120)
found = {}
try:
    for one in given:
        if one.startswith("submit "):
            number = session.submit_job(one.removeprefix("submit "))
            end = time.monotonic() + 240
            while time.monotonic() < end:
                meta = session.get_job_meta(number)
                if meta["status"].startswith("FINISHED"):
                    break
                time.sleep(0.3)
            found[one] = [number, meta["status"], meta.get("job_deploy_detail")]
        else:
            found[one] = str(session.api.do_command(one))
finally:
    print("FOUND" + json.dumps(found))
    session.close()
"""


def _as_lead(made: Consortium, *given: str) -> dict[str, object]:
    """What the lead hears to these commands."""
    lead = made.kit("lead")
    done = subprocess.run(
        [sys.executable, "-c", _LEAD, str(lead.path), lead.user, *given],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "FOUND" in done.stdout, done.stderr
    return json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])


def _submitted(folder: Path, *, server: str, site: str, ships: str = "") -> Path:
    """A job folder by hand, of one controller and one executor."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    everyone = {"deploy_map": {"app": ["@ALL"]}, "min_clients": 2, "resource_spec": {}}
    (folder / "meta.json").write_text(json.dumps({"name": folder.name, **everyone}))
    run = {"run": "r", "settings": "", "sites": [], "version": ""}
    args = run if server == policies.CLASSES[0] else {}
    workflow = {"id": "controller", "path": server, "args": args}
    executor = {"tasks": ["*"], "executor": {"path": site, "args": {}}}
    for name, held in (
        ("server", {"workflows": [workflow]}),
        ("client", {"executors": [executor]}),
    ):
        text = json.dumps({"format_version": 2, **held})
        (config / f"config_fed_{name}.json").write_text(text)
    if ships:
        (folder / "app" / "custom").mkdir()
        (folder / "app" / "custom" / "shipped.py").write_text(ships)
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_lead_cannot_ship_code(running, tmp_path):
    ran = tmp_path / "ran"
    ships = f"from pathlib import Path; Path({str(ran)!r}).touch()"
    controller, executor = policies.CLASSES
    folder = _submitted(tmp_path / "ships", server=controller, site=executor, ships=ships)
    (heard,) = _as_lead(running, f"submit {folder}").values()
    assert heard[1] == "FINISHED:FAILED_TO_RUN"
    assert heard[2] == ["server: BYOC not permitted"]
    assert not ran.exists()
    assert all(status(running.kit(name)).runs == 0 for name in ("server", "north", "south"))


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_lead_cannot_have_a_foreign_class_built(running, tmp_path):
    ran = tmp_path / "ran"
    controller, _ = policies.CLASSES
    foreign = "subprocess.Popen"
    folder = _submitted(tmp_path / "foreign", server=controller, site=foreign)
    file = folder / "app" / "config" / "config_fed_client.json"
    held = json.loads(file.read_text())
    held["executors"][0]["executor"]["args"] = {"args": ["touch", str(ran)]}
    file.write_text(json.dumps(held))
    (heard,) = _as_lead(running, f"submit {folder}").values()
    assert heard[1] in ("FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL", "FINISHED:ABORTED")
    for name in ("north", "south"):
        kit = running.kit(name)
        log = (kit.path / str(heard[0]) / "log.txt").read_text()
        assert "ComponentNotAuthorized" in log
        until(lambda kit=kit: status(kit).runs == 0)
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_lead_cannot_look_into_server_or_sites_nor_stop_them(running):
    commands = [
        "ls server",
        "cat server local/resources.json",
        "shutdown server",
        "sys_info server",
        "configure_site_log server DEBUG",
        "disable_client north",
        "check_status client",
        "restart client",
        "report_env north",
        "cat north local/authorization.json",
        "ls north",
    ]
    before = {name: status(running.kit(name)).pid for name in ("server", "north", "south")}
    heard = _as_lead(running, "check_status server", *commands)
    assert "north" in str(heard.pop("check_status server"))
    for command, said in heard.items():
        refused = ("not authorized", "not_authorized", "invalid_request", "NOT_AUTHORIZED")
        assert any(word in str(said) for word in refused), (command, said)
        assert "permissions" not in str(said)
    assert {name: status(running.kit(name)).pid for name in before} == before


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_everything_stays_in_the_kit_and_for_the_owner(running):
    """After runs were submitted: all that is written lies in the kit, and is private."""
    server = running.kit("server")
    assert list((server.path / policies.STORE / "runs").iterdir())
    for name in ("server", "north", "south"):
        kit = running.kit(name)
        for path in kit.path.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
        for one in _marked(kit):
            written = [Path(file.path) for file in one.open_files() if file.mode != "r"]
            assert written
            assert all(path.is_relative_to(kit.path) for path in written)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_stopping_leaves_no_process(running):
    for name in ("north", "south", "server"):
        kit = running.kit(name)
        assert _marked(kit)
        assert stop(kit) is True
        assert _marked(kit) == []
        assert status(kit).running is False
        assert stop(kit) is False


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_site_waits_for_its_server(running):
    """After all have been stopped: the site first."""
    server, site = running.kit("server"), running.kit("north")
    start(site, wait=0)
    until(lambda: status(site).running)
    until(lambda: f"no server answers at localhost:{running.port}" in status(site).trouble)
    now = status(site)
    assert now.running and not now.connected
    start(server)
    _connected(site)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_server_ends_in_good_order(tmp_path):
    made = create_consortium(
        "t", sites=["a"], host="localhost", port=free_port(), out=tmp_path / "t"
    )
    kit = made.kit("server")
    command = [str(Path(sys.executable).parent / "confide"), "server", "start", str(kit.path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as here:
        try:
            until(lambda: status(kit).connected)
            assert here.poll() is None and status(kit).pid == here.pid
            here.send_signal(signal.SIGTERM)
            assert here.wait(PATIENCE) == 0
            assert "the server runs here until you stop it" in here.stderr.read()
            until(lambda: not _marked(kit))
            assert (kit.path / "log.txt").exists()
        finally:
            stop(kit)
