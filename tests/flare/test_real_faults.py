"""Real processes and what may befall them: a cut network, a slow site, a full disk, a wrong key.

And canaries: text, file names and errors of a site, looked for in all that others hold.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.events import Event
from confide.federation.keys import new_key
from confide.flare.kit import SUBMITTED_AGAIN, Kit, gone_from
from confide.flare.nvidia import processes
from confide.flare.sitekit import setup_site
from confide.runs.run import run
from contract.corpus import tiny, write_conll
from flare.ports import free_port
from flare.real import Real, running
from flare.residents import stop
from flare.test_real_runs import same
from flare.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("faults"),
]

CANARIES = {
    "text": "zugspitzekrankenblatt",
    "tag text": "matterhornfieber",
    "file name": "nachtigallakte",
    "folder name": "eisvogelarchiv",
}


CUT = float(os.environ.get("CONFIDE_TEST_CUT", "0"))


class Proxy:
    """Passes bytes on to a port of this machine, until it is cut."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._cut = False
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """Drop every connection, and take none until it is mended."""
        self._cut = True
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def mend(self) -> None:
        """Pass bytes on again."""
        self._cut = False

    def _listen(self) -> None:
        while True:
            one, _ = self._listener.accept()
            if self._cut:
                one.close()
                continue
            other = socket.create_connection(("127.0.0.1", self._target))
            self._open += [one, other]
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            one.close()


def through(kit: Kit, port: int) -> None:
    """Let a site reach the server by another port."""
    path = kit.path / "startup" / "fed_client.json"
    text = path.read_text()
    changed = re.sub(rf"(localhost|127\.0\.0\.1):{kit.port}", rf"\1:{port}", text)
    assert changed != text
    path.write_text(changed)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("faults")
    settings = planted(folder, tiny(folder, "rounds=6", sites=2))
    with running(folder, settings) as consortium:
        yield consortium


def planted(folder: Path, settings: Any) -> Any:
    """The same sites; the second one's training text and its path hold canaries."""
    sites = list(settings.site)
    old = Path(sites[1].train[0]).read_text()
    path = folder / CANARIES["folder name"] / f"{CANARIES['file name']}.conll"
    block = [(CANARIES["text"], "O"), (CANARIES["tag text"], "B-Drug"), (".", "O")]
    write_conll(path, [block])
    path.write_text(old + "\n" + path.read_text())
    sites[1] = sites[1].model_copy(update={"train": (str(path),)})
    return settings.model_copy(update={"site": tuple(sites)})


@pytest.fixture(scope="module")
def whole(real: Real) -> Path:
    run(real.settings, out=real.folder / "whole")
    return real.folder / "whole"


@pytest.fixture(scope="module")
def behind(real: Real) -> Iterator[Proxy]:
    """A switch between the server and the first site, which is there from now on."""
    kit, switch = real.kit("site-1"), Proxy(real.port)
    stop(kit)
    before = (kit.path / "startup" / "fed_client.json").read_text()
    through(kit, switch.port)
    real.start_one("site-1")
    yield switch
    stop(kit)
    (kit.path / "startup" / "fed_client.json").write_text(before)
    real.start_one("site-1")


@pytest.mark.parametrize(
    ("step", "round"),
    [
        ("join", 0),
        ("check_key", 0),
        ("count_vocabulary", 0),
        ("describe", 0),
        ("take", 0),
        ("train", 2),
        ("score", 2),
        ("score", 6),
        ("leave", 6),
    ],
)
def test_a_connection_that_is_cut_in_any_step(
    real: Real, whole: Path, behind: Proxy, step: str, round: int
) -> None:
    """Until the run has broken, and for at least CONFIDE_TEST_CUT seconds; then it goes on.

    The site has been asked, and answers into the void.
    """
    told: list[str] = []
    hold = real.held_at("site-1", step, round=round)

    def cut() -> None:
        until(hold.with_suffix(".held").exists)
        behind.cut()
        start = time.monotonic()
        until(lambda: not processes.status(real.kit("site-1")).connected)
        hold.unlink()
        until(lambda: any(SUBMITTED_AGAIN in one for one in told))
        time.sleep(max(0.0, CUT - (time.monotonic() - start)))
        behind.mend()

    switch = threading.Thread(target=cut)
    switch.start()
    try:
        done = real.run(f"cut-{step}-{round}", watch=lambda event: told.append(event.message or ""))
    finally:
        hold.unlink(missing_ok=True)
        hold.with_suffix(".held").unlink(missing_ok=True)
        behind.mend()
        switch.join()
    same(whole, done.folder)


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_process_that_does_not_start_is_named_within_a_minute(
    real: Real, whole: Path, how: str
) -> None:
    """For one that hangs the site's own file says when; the site is not started again for that."""
    gate, file, named = real.gates / "site-2.unborn", real.files["site-2"], list[float]()
    before, start = file.read_text(), time.monotonic()

    def watch(event: Event) -> None:
        if event.message == gone_from(["site-2"]) and not named:
            named.append(time.monotonic() - start)
            gate.unlink()
            say("")

    def say(launcher: str) -> None:
        file.write_text(before + launcher)
        setup_site(real.kit("site-2"), file)

    say("\n[launcher]\nstarts_within = 15\n")
    gate.write_text(how)
    try:
        done = real.run(f"unborn-{how}", watch=watch)
    finally:
        gate.unlink(missing_ok=True)
        say("")
    assert named and named[0] < PATIENCE / 5
    same(whole, done.folder)


def test_a_site_that_is_too_slow_is_named_and_the_run_resumed(real: Real, whole: Path) -> None:
    held: list[Any] = []

    def stop() -> None:
        held.append(real.job_process("site-2"))
        held[0].send_signal(signal.SIGSTOP)

    with pytest.raises(EngineError, match=r"site site-2, step .* did not answer in time"):
        real.run("slow", f"federation.timeout={PATIENCE / 10}", watch=real.at_round(3, stop))
    held[0].send_signal(signal.SIGCONT)
    same(whole, real.run("slow", "federation.timeout=3600", resume=True).folder)


def test_a_full_disk_is_named_and_the_run_resumed(real: Real, whole: Path) -> None:
    memory = real.memory("site-1")
    memory.mkdir(exist_ok=True)
    mounted = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(memory)]
    if os.geteuid() or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        filler = memory / "filler"
        for kib in range(256, 0, -4):
            try:
                filler.write_bytes(bytes(kib * 1024 - 512))
                break
            except OSError:
                continue
        with pytest.raises(EngineError, match=r"site site-1, .*no space left on its disk"):
            real.run("full")
        filler.unlink()
        subprocess.run([*mounted[:4], "remount,size=64m", *mounted[5:]], check=True)
        same(whole, real.run("full", resume=True).folder)
    finally:
        subprocess.run(["umount", "-l", str(memory)], check=True)


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "no space left on its disk"), (errno.EROFS, "its disk is read-only")],
)
def test_a_disk_that_takes_no_more_is_named_and_the_run_resumed(
    real: Real, whole: Path, number: int, said: str
) -> None:
    """From the third round on; what was written before is enough to go on from."""
    told, name = real.gates / "site-1.disk", f"disk-{number}"
    try:
        with pytest.raises(EngineError, match=f"site site-1, .*{said}"):
            real.run(name, watch=real.at_round(2, lambda: told.write_text(str(number))))
    finally:
        told.unlink(missing_ok=True)
    same(whole, real.run(name, resume=True).folder)


def test_another_key_at_one_site_is_named(real: Real) -> None:
    file = real.files["site-2"]
    before = file.read_text()
    other = new_key(real.folder / "other.key")
    file.write_text(re.sub(r"(?m)^key = .*$", f'key = "{other}"', before))
    setup_site(real.kit("site-2"), file)
    try:
        with pytest.raises(EngineError, match=r"(?s)site.*key.*site"):
            real.run("key")
    finally:
        file.write_text(before)
        setup_site(real.kit("site-2"), file)


def test_a_method_that_was_not_agreed_to_does_not_run(real: Real) -> None:
    from confide.flare.sitekit import agree_to, withdraw_from

    withdraw_from(real.kit("site-1"), "fedavg-tagger")
    try:
        with pytest.raises(EngineError, match=r"site-1, step join.*did not agree.*site consent"):
            real.run("unasked")
    finally:
        agree_to(real.kit("site-1"), "fedavg-tagger")


def test_errors_of_a_site_stay_there_and_no_text_is_anywhere_else(real: Real, whole: Path) -> None:
    told: list[Event] = []
    same(whole, real.run("canary", watch=told.append).folder)
    path = Path(real.settings.site[1].train[0])
    before = path.read_text()
    path.write_text(before + f"\n{CANARIES['text']} has too few columns\n{CANARIES['tag text']}\n")
    try:
        with pytest.raises(EngineError, match="site site-2, step join") as raised:
            real.run("broken")
    finally:
        path.write_text(before)
    own = [real.kit("site-2").path, real.memory("site-2")]
    log = (real.memory("site-2") / "site.log").read_text()
    assert CANARIES["file name"] in log, "the site itself can read what was wrong"
    places = [real.kit(name).path for name in ("server", "site-1", "lead")]
    places += [real.memory("site-1"), real.folder / "canary", real.folder / "broken"]
    found = [
        f"{name} in {file}"
        for place in places
        for file in place.rglob("*")
        if file.is_file()
        for name, word in CANARIES.items()
        if word.encode() in file.read_bytes()
    ]
    assert not found
    said = json.dumps([str(event) for event in told]) + str(raised.value)
    assert not [word for word in CANARIES.values() if word in said]
    logs = [file for file in own[0].rglob("*log*") if file.is_file()]
    assert logs
    for file in logs:
        assert not [w for w in CANARIES.values() if w.encode() in file.read_bytes()], file
