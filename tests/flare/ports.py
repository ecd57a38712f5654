"""Ports for tests that run side by side: whoever is given one has it until its process ends."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from pathlib import Path
from typing import IO

FIRST, LAST = 20_000, 29_999
"""Below the ports that a kernel hands out by itself, or a passing connection might take one."""
_held: list[IO[str]] = []
_next = itertools.count(FIRST + os.getpid() * 37 % (LAST - FIRST))


def free_port() -> int:
    """A port that nobody listens on now, and that no other test is given."""
    folder = Path(tempfile.gettempdir()) / f"confide-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for number in itertools.islice(_next, LAST - FIRST):
        port = FIRST + (number - FIRST) % (LAST - FIRST + 1)
        file = open(folder / str(port), "w")  # noqa: SIM115 - held until this process ends
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(("", port))
        except OSError:
            file.close()
            continue
        _held.append(file)
        return port
    raise OSError(f"every port from {FIRST} to {LAST} is taken")
