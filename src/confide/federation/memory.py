"""What a site keeps for itself between steps. A folder that the site owns; never sent.

Every change is a new version, written whole and renamed into place. A version is named by the
turn (round, step) that made it, and a turn that changed nothing leaves an empty mark, so that a
step that is asked again, or a server that resumes from an earlier round, finds the memory as it
was before that turn and answers with the same reply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.federation.files import write_atomically
from confide.federation.messages import decode, encode

_NAME = re.compile(r"^(\d{8})\.round-(\d{6,})\.(\w+)\.(memory|same)$")


@dataclass(frozen=True, slots=True)
class _Version:
    """A turn that was answered: with new memory, or with a mark that it stayed the same."""

    number: int
    round: int
    step: str
    path: Path

    @property
    def holds_memory(self) -> bool:
        return self.path.suffix == ".memory"


class MemoryStore:
    """Versioned memory of one site, for one run. `kind` is the method's `Memory` message."""

    def __init__(self, folder: Path, kind: type) -> None:
        self._folder = folder
        self._kind = kind
        self._held: tuple[Path, Any] | None = None

    def before(self, round: int, step: str) -> Any:
        """The memory as it was before this turn; None before the first version.

        Versions made by this turn or by later ones are dropped: they will be made again.
        """
        kept: list[_Version] = []
        versions = self._versions()
        for place, version in enumerate(versions):
            if version.round > round or (version.round, version.step) == (round, step):
                for late in reversed(versions[place:]):
                    late.path.unlink(missing_ok=True)
                break
            kept.append(version)
        return self._newest(kept)

    def commit(self, round: int, step: str, memory: Any) -> None:
        """Keep `memory` as the version that this turn made; forget what no re-ask can need."""
        path = self._next(round, step, "memory")
        write_atomically(path, encode(memory))
        self._held = (path, memory)

    def unchanged(self, round: int, step: str) -> None:
        """Note that this turn was answered and left the memory as it was."""
        path = self._next(round, step, "same")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def latest(self) -> Any:
        """The newest version, or None."""
        return self._newest(self._versions())

    def _next(self, round: int, step: str, kind: str) -> Path:
        """Where the version of this turn goes; those that no re-ask can need are forgotten."""
        versions = self._versions()
        old = [version for version in versions if version.round < round - 1]
        last = next((version for version in reversed(old) if version.holds_memory), None)
        for version in old:
            if version is not last:
                version.path.unlink(missing_ok=True)
        number = versions[-1].number + 1 if versions else 1
        return self._folder / f"{number:08d}.round-{round:06d}.{step}.{kind}"

    def _newest(self, versions: list[_Version]) -> Any:
        last = next((version for version in reversed(versions) if version.holds_memory), None)
        return self._read(last.path) if last else None

    def _read(self, path: Path) -> Any:
        if self._held is None or self._held[0] != path:
            self._held = (path, decode(self._kind, path.read_bytes()))
        return self._held[1]

    def _versions(self) -> list[_Version]:
        if not self._folder.is_dir():
            return []
        found = []
        for path in sorted(self._folder.iterdir()):
            match = _NAME.match(path.name)
            if match:
                found.append(_Version(int(match[1]), int(match[2]), match[3], path))
        return found
