"""Keeps a kit's resident process alive: `python -m confide.flare.kits.supervisor KIT`.

This small process starts the resident one, and restarts it whenever it ends, until it is told to
stop (SIGTERM). It holds a lock in the kit, so there is never a second supervisor. It moves to the
background; with `--foreground` it does not, and Ctrl-C stops it too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import IO

from confide.errors import KitError, os_errors_as
from confide.federation import files

RESIDENT = "confide.flare.nvidia.resident"
LOCK, NOTES, STATE = (Path("run") / name for name in ("lock", "restarts.txt", "state.json"))
"""In the kit: the lock, when the resident process ended, and how it is doing (see `watch`)."""
CONSOLE = Path("console.txt")
FOREGROUND = "--foreground"

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the resident process is restarted; doubled each time, up to the longest."""
LONG_ENOUGH = 60.0
"""Seconds after which a resident process counts as having worked, and the pause starts over."""
CONSOLE_BYTES = 1_000_000


def lock(kit: Path) -> IO[str] | None:
    """The kit's lock, held while the file is open; None if another process holds it.

    Raises KitError if the kit's disk has no locks, or no room.
    """
    with os_errors_as(
        KitError, "the kit cannot be locked", where=kit, fix="keep the kit on a local disk"
    ):
        (kit / LOCK).parent.mkdir(mode=0o700, exist_ok=True)
        return files.lock(kit / LOCK)


class Supervisor:
    """Starts the resident process, and restarts it until `stop`."""

    def __init__(self, kit: Path) -> None:
        self._kit = kit
        self._stopping = False  # no Event: a signal's handler must not wait for its lock
        self._resident: subprocess.Popen[bytes] | None = None

    def stop(self, number: int, frame: FrameType | None) -> None:
        """On SIGTERM: ask the resident process to end, and do not start it again."""
        self._stopping = True
        if self._resident is not None:
            self._resident.terminate()

    def run(self) -> None:
        """Keep the resident process running until `stop` is called, then wait for its end."""
        pause = FIRST_PAUSE
        while self._goes_on():
            began = time.monotonic()
            code = self._live()
            lived = time.monotonic() - began
            if not self._goes_on():
                return
            pause = FIRST_PAUSE if lived >= LONG_ENOUGH else pause
            self._tell(f"ended with {code} after {lived:.0f} s; again in {pause:g} s")
            self._rest(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _goes_on(self) -> bool:
        return not self._stopping

    def _live(self) -> int:
        """Run the resident process once; its exit code."""
        with open(self._kit / CONSOLE, "ab") as console:
            self._resident = subprocess.Popen(
                [sys.executable, "-m", RESIDENT, str(self._kit)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # Ctrl-C is for us alone
            )
        if not self._goes_on():
            self._resident.terminate()
        return self._resident.wait()

    def _rest(self, seconds: float) -> None:
        """Wait so many seconds, or until `stop`."""
        end = time.monotonic() + seconds
        while self._goes_on() and time.monotonic() < end:
            time.sleep(0.1)

    def _tell(self, note: str) -> None:
        """Add a line to the kit's notes; set the console file aside if it has grown long."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        try:
            with open(self._kit / NOTES, "a", encoding="utf-8") as file:
                file.write(f"{stamp} {note}\n")
            console = self._kit / CONSOLE
            if console.stat().st_size > CONSOLE_BYTES:
                console.replace(console.with_suffix(".old.txt"))
        except OSError:
            pass  # a full disk must not keep the resident process down


def main(path: str, *, foreground: bool = False) -> None:
    """Take the kit's lock and keep its resident process alive, in the background or here.

    In the foreground it exits with 0 when told to stop, and with 1 if another supervisor runs.
    """
    if not foreground and os.fork():
        os._exit(0)
    os.umask(0o077)
    kit = Path(path)
    held = lock(kit)
    if held is None:
        sys.exit(1)
    supervisor = Supervisor(kit)
    signal.signal(signal.SIGTERM, supervisor.stop)
    signal.signal(signal.SIGINT, supervisor.stop if foreground else signal.SIG_IGN)
    with held:
        supervisor.run()


if __name__ == "__main__":
    main(sys.argv[1], foreground=FOREGROUND in sys.argv[2:])
