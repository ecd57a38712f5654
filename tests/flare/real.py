"""A real consortium on loopback: a server, sites and a lead, each with its kit, over TLS.

Whoever disturbs a run needs it to be somewhere: `Real.shut` holds a site at a round, for as long as
it takes, so that no test hopes to be quicker than a run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from confide.federation.events import Event
from confide.flare.kit import KITS, SERVER, Consortium, Kit, open_consortium
from confide.flare.nvidia import processes
from confide.flare.nvidia.certificates import accept, approve, ask_to_join
from confide.flare.nvidia.consortium import create_consortium, described
from confide.flare.nvidia.lead import LeadRecord, coordinate_run
from confide.flare.sitekit import agree_to, setup_site
from confide.methods import METHODS
from confide.runs.folder import RunFolder
from confide.runs.run import RunResult
from confide.settings import Settings
from contract.models import on_the_shelf
from flare import residents
from flare.homes import as_toml, write_site_files
from flare.ports import free_port
from flare.waiting import until

JOBS = {"worker_process": "site", "runner_process": "server"}
WIRETAP = Path(__file__).parent / "wiretap"


def own_keys(founded: Consortium, kit: Path, name: str) -> Kit:
    """A place makes its keys and gets its kit, or renews it, as docs/deployment.md says."""
    kind = described(founded, name, path=kit).kind
    asked = ask_to_join(kit, site=name, consortium=founded.name, kind=kind)
    answer = approve(founded.path, asked.file, compared=True).file
    assert answer is not None
    made = accept(kit, answer, compared=True).kit
    assert made is not None
    return made


class Real:
    """A consortium whose processes run."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.names = [site.name for site in settings.site]
        self.port = free_port()
        founded = create_consortium(
            "trial", sites=None, host="localhost", port=self.port, out=folder / "consortium"
        )
        for name in (SERVER, founded.lead, *self.names):
            own_keys(founded, founded.path / KITS / name, name)
        self.consortium: Consortium = open_consortium(founded.path)
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.first = settings
        self.become(settings)

    def become(self, settings: Settings, *, homes: str = "homes") -> None:
        """From now on, the sites have the text of these settings, and agree to its task's methods.

        `homes` is the folder of their files and of what they keep; guards are the settings'.
        """
        self.settings = settings
        self.homes = self.folder / homes
        self.files = write_site_files(self.homes, settings, consent={})
        for name, path in self.files.items():
            setup_site(self.kit(name), path)
            for method, kind in METHODS.items():
                if kind.task == settings.task:
                    agree_to(self.kit(name), method, bounds=("runs=1000",))

    def kit(self, name: str) -> Kit:
        return self.consortium.kit(name)

    def start(self) -> None:
        """Start the server, then all sites at once, and wait until it sees every one."""
        on_the_shelf()
        self.start_one("server")
        for name in self.names:
            residents.start(self.kit(name), wait=0.0)
        self.wait_for_sites()

    def start_one(self, name: str) -> Kit:
        """Start a kit and wait until it is connected, or turned away."""
        kit = self.kit(name)
        residents.start(kit)
        return kit

    def wait_for_sites(self, *names: str) -> None:
        """Wait until these sites, or all, are connected and the server sees them."""
        wanted = set(names or self.names)
        server = self.kit("server")
        until(
            lambda: (
                wanted <= set(processes.status(server).sites)
                and all(processes.status(self.kit(name)).connected for name in wanted)
            ),
            what=lambda: [processes.status(kit) for kit in self._residents()],
        )

    def stop(self) -> None:
        for path in self.gates.iterdir():
            path.unlink()
        for kit in reversed(self._residents()):
            residents.stop(kit)

    def _residents(self) -> list[Kit]:
        return [kit for kit in self.consortium.kits() if kit.kind != "lead"]

    def run(
        self,
        name: str,
        *overrides: str,
        settings: Settings | None = None,
        watch: Callable[[Event], None] | None = None,
        **given: Any,
    ) -> RunResult:
        """A run of the lead, in the folder of that name; of all sites where none is named."""
        file = self.folder / f"{name}.toml"
        chosen = settings or self.settings
        file.write_text(as_toml(chosen))
        for public in chosen.public.files:
            shutil.copy(public, self.kit("server").path / "public")
        if not {"sites", "resume"} & given.keys():
            self.wait_for_sites()
        return coordinate_run(
            file,
            kit=self.kit("lead").path,
            overrides=overrides,
            out=self.folder / name,
            on_event=watch,
            **given,
        )

    # --- somewhere in a run -------------------------------------------------------------------

    def shut(self, site: str, round: int) -> None:
        """Let a site take its time from that round on, until `open`; it stays connected."""
        path = self.gates / f"{site}.shut"
        beside = path.with_suffix(".new")
        beside.write_text(str(round))
        beside.replace(path)

    def killed_at(self, site: str, step: str, *, round: int, who: str) -> Path:
        """Have a process of a site killed when it is asked this; a file is there until then.

        `who` is "job", or "site" for that of the run and the resident one together.
        """
        path = self.gates / f"{site}.kill"
        path.write_text(f"{step} {round} {who}")
        return path

    def held_at(self, site: str, step: str, *, round: int) -> Path:
        """Have a site wait when it is asked this, until the file is gone; beside it is `.held`."""
        path = self.gates / f"{site}.hold"
        path.write_text(f"{step} {round}")
        return path

    def open(self, site: str) -> None:
        """Let the site go on."""
        (self.gates / f"{site}.shut").unlink(missing_ok=True)

    def at_round(
        self, number: int, what: Callable[[], None], *, gate: str = "site-1"
    ) -> Callable[[Event], None]:
        """A watcher that does something once, when that round is told; `gate` holds the run there.

        So nothing is over before it is done.
        """
        done: list[int] = []
        self.shut(gate, number + 1)

        def watch(event: Event) -> None:
            if event.kind == "round" and event.round == number and not done:
                done.append(number)
                try:
                    what()
                finally:
                    self.open(gate)

        return watch

    def job_process(self, name: str) -> psutil.Process:
        """The process of the run that goes on at the server or at a site."""
        for process in processes._processes(self.kit(name)):
            if any(mark in " ".join(process.cmdline()) for mark in JOBS):
                return process
        raise LookupError(f"no job runs at {name}")

    def resident(self, name: str) -> psutil.Process:
        """The resident process of a kit."""
        pid = processes.status(self.kit(name)).pid
        assert pid is not None
        return psutil.Process(pid)

    # --- what is left -------------------------------------------------------------------------

    def memory(self, site: str) -> Path:
        """What a site keeps of its runs."""
        return self.homes / site / "memory"

    def run_of(self, site: str, run: str) -> Path:
        """The folder in which a site keeps the run of that name."""
        return self.memory(site) / "runs" / LeadRecord.read(RunFolder(self.folder / run)).run


@contextmanager
def running(folder: Path, settings: Settings) -> Iterator[Real]:
    """A consortium whose processes end with the block."""
    real = Real(folder, settings)
    path = os.pathsep.join(filter(None, (str(WIRETAP), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATES", str(real.gates))
        patch.setenv("PYTHONPATH", path)
        try:
            real.start()
            yield real
        finally:
            real.stop()
