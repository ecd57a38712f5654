"""A real consortium on loopback: a server, sites and a lead, each with its kit, over TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from confide.federation.events import Event
from confide.flare import processes
from confide.flare.kits import Consortium, Kit, init
from confide.flare.lead import Coordinated, coordinate
from confide.flare.sitekit import agree, setup
from confide.methods import METHODS
from confide.settings import Settings
from flare.homes import as_toml, write_site_files

JOBS = {"worker_process": "site", "runner_process": "server"}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


class Real:
    """A consortium whose processes run."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        names = [site.name for site in settings.site]
        self.folder = folder
        self.settings = settings
        self.port = free_port()
        self.consortium: Consortium = init(
            "trial", sites=names, host="localhost", port=self.port, out=folder / "consortium"
        )
        self.files = write_site_files(folder / "homes", settings, consent={})
        for name, path in self.files.items():
            setup(self.kit(name), path)
            for method, kind in METHODS.items():
                if kind.task == settings.task:
                    agree(self.kit(name), method, bounds=("runs=1000",))

    def kit(self, name: str) -> Kit:
        return self.consortium.kit(name)

    def start(self) -> None:
        for kit in self.consortium.kits():
            if kit.kind != "lead":
                processes.start(kit, wait=40.0)

    def stop(self) -> None:
        for kit in reversed(self.consortium.kits()):
            if kit.kind != "lead":
                processes.stop(kit)

    def run(
        self,
        name: str,
        *overrides: str,
        settings: Settings | None = None,
        watch: Callable[[Event], None] | None = None,
        **given: Any,
    ) -> Coordinated:
        """A run of the lead, in the folder of that name."""
        file = self.folder / f"{name}.toml"
        file.write_text(as_toml(settings or self.settings))
        return coordinate(
            file,
            kit=self.kit("lead").path,
            overrides=overrides,
            out=self.folder / name,
            on_event=watch,
            **given,
        )

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

    def memory(self, site: str) -> Path:
        """What a site keeps of its runs."""
        return self.folder / "homes" / site / "memory"


@contextmanager
def running(folder: Path, settings: Settings) -> Iterator[Real]:
    """A consortium whose processes end with the block."""
    real = Real(folder, settings)
    try:
        real.start()
        yield real
    finally:
        real.stop()


def at_round(number: int, what: Callable[[], None]) -> Callable[[Event], None]:
    """A watcher that does something once, when that round is told."""
    done: list[int] = []

    def watch(event: Event) -> None:
        if event.kind == "round" and event.round == number and not done:
            done.append(number)
            what()

    return watch
