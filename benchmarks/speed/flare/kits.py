"""A consortium on loopback, as the programs of this folder need one, its runs and their memory."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import psutil

from confide.corpora.dealing import partition
from confide.federation.keys import new_key
from confide.flare.nvidia import processes
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.nvidia.lead import coordinate_run
from confide.flare.sitekit import agree_to, setup_site
from confide.text.document import Document
from confide.text.formats import write


def founded(
    folder: Path,
    parts: Mapping[str, Sequence[Document]],
    *,
    sites: Sequence[str],
    agreed: Sequence[str],
    more: str = "",
    bounds: Sequence[str] = (),
) -> list[Any]:
    """The kits of a server, of sites among whom the text is dealt, and of a lead.

    `parts` are train, dev and test documents; the sites have `agreed` to these methods within these
    `bounds`, and `more` stands in each one's site.toml.
    """
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        port = probing.getsockname()[1]
    made = create_consortium(
        "bench", sites=list(sites), host="localhost", port=port, out=folder / "bench"
    )
    key = new_key(folder / "shared.key")
    for part, documents in parts.items():
        shares = partition(documents, len(sites), by="iid", seed=1)
        for site, share in zip(sites, shares.values(), strict=True):
            (folder / site).mkdir(exist_ok=True)
            write(share, folder / site / f"{part}.conll", "conll")
    for site in sites:
        own = folder / site / "site.toml"
        own.write_text(
            f'name = "{site}"\nformat = "conll"\nkey = "{key}"\nmemory = "memory"\n'
            f'train = "train.conll"\ndev = "dev.conll"\ntest = "test.conll"\n{more}'
        )
        setup_site(made.kit(site), own)
        for method in agreed:
            agree_to(made.kit(site), method, bounds=bounds)
    return [made.kit("server"), *map(made.kit, sites), made.kit("lead")]


Seen = dict[str, list[tuple[float, int]]]
"""Of each kit's run process, when it was looked at, in seconds, and its resident bytes."""


class Memory(threading.Thread):
    """The resident memory of each of these kits' run process, looked at twice a second."""

    def __init__(self, kits: Sequence[Any]) -> None:
        super().__init__(daemon=True)
        self._places = {Path(kit.path) for kit in kits}
        self.seen: Seen = defaultdict(list)
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.5):
            for process in psutil.process_iter():
                try:
                    if any(name in processes.RUN for name in process.cmdline()):
                        kit = Path(process.environ()[processes.MARK])
                        now = time.perf_counter(), process.memory_info().rss
                        if kit in self._places:  # others may have runs on this machine
                            self.seen[kit.name].append(now)
                except (psutil.Error, KeyError):
                    continue

    def stop(self) -> Seen:
        """All that was seen."""
        self._done.set()
        self.join()
        return dict(self.seen)


def started(kit: Any) -> None:
    """Start a kit's process, which `processes.stop` ends, and wait until it is connected."""
    command = [sys.executable, "-m", "confide", kit.kind, "start", str(kit.path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not processes.status(kit).connected:
        if process.poll() is not None:
            raise SystemExit(f"{kit.name} ended; see {kit.path / 'log.txt'}")
        time.sleep(0.1)


def measured(
    kits: Sequence[Any],
    settings: str,
    travels: Sequence[str],
    told: Callable[[Any, Seen], dict[str, Any]],
    *,
    folder: Path,
    keep: Path | None,
) -> None:
    """Run these settings once for each "up, down" of `travels`, and print a line for each run.

    The settings end within their table `federation`, which these two are added to.
    `told` says what was measured, of the run's result and its memory. Lines are appended to `keep`.
    """
    try:
        for kit in kits[:-1]:
            started(kit)
        for number, travel in enumerate(travels):
            up, down = travel.split(", ")
            file, out = folder / f"run-{number}.toml", folder / f"run-{number}"
            file.write_text(f'{settings}up = "{up}"\ndown = "{down}"\n')
            memory, start = Memory(kits), time.perf_counter()
            memory.start()
            try:
                result = coordinate_run(file, kit=kits[-1].path, out=out).result
            finally:
                seen = memory.stop()
            line = json.dumps(
                {
                    "travel": travel,
                    "sites": len(kits) - 2,
                    "seconds": round(time.perf_counter() - start),
                    **told(result, seen),
                    "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
                    "date": date.today().isoformat(),
                }
            )
            print(line, flush=True)
            if keep:
                with keep.open("a", encoding="utf-8") as lines:
                    lines.write(line + "\n")
    finally:
        for kit in kits[-2::-1]:
            processes.stop(kit)
