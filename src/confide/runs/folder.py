"""The folder of a run: where its parts lie, and how they are opened, written and refused.

settings.toml     the settings, resolved
environment.json  versions, seeds, machine, fingerprint of the data
result.json       scores, history, bytes, seconds (docs/result.md)
ledger.jsonl      what crossed the wall
checkpoints/      the server's state, by round
alone/NAME/       the same two for every site of a run with method "alone"
sites/NAME/       what the site owns: its memory, log, errors, counts by sentence; not the server's
"""

from __future__ import annotations

import json
import os
import platform
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide import __version__
from confide.errors import MessageError, RunError, SettingsError
from confide.federation.checkpoints import CheckpointStore
from confide.federation.files import inside, plain_name, private_folder, write_of_run
from confide.federation.keys import new_key, simulated_key
from confide.federation.memory import MemoryStore
from confide.federation.messages import decode_file
from confide.runs.result import RESULT, Result
from confide.settings import SIMULATED, Settings, dump, leaves, load, parse, read_tree
from confide.userfiles import json_of, text_of

if TYPE_CHECKING:
    from confide.methods import Method

CHECKPOINTS, ALONE = "checkpoints", "alone"


class RunFolder:
    """The parts of one run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def sites(self) -> Path:
        """The folder that holds each site's own folder."""
        return self.path / "sites"

    def home(self, site: str) -> Path:
        """What a site keeps for itself after the run (`confide.runs.athome`)."""
        return inside(self.sites, plain_name(site, "site"), "home")

    def part(self, name: str) -> Path:
        """Where checkpoints and ledger of one federation lie: here, or below `alone`."""
        return self.path / ALONE / name if name else self.path

    def store(self, part: str = "") -> CheckpointStore:
        """The checkpoints of one federation of the run."""
        return CheckpointStore(self.part(part) / CHECKPOINTS)

    def is_taken(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "settings.toml").exists()

    def check(self, settings: Settings, *, resume: bool) -> None:
        """Raise RunError where starting would lose a run, or where there is none to resume."""
        if self.is_taken() and not resume:
            raise RunError(
                "there is a run in this folder already",
                where=str(self.path),
                fix="continue it with --resume, or choose another folder with --out",
            )
        if resume and not self.is_taken():
            raise RunError(
                "there is no run to resume in this folder",
                where=str(self.path),
                fix="leave --resume away to start one",
            )
        if resume:
            self._same(settings)

    def begin(self, settings: Settings) -> None:
        """Make the folder with its settings, and the sites' key where none was named.

        That key is random; it comes from the seed where the settings say that sites are simulated,
        or deal one corpus to several.
        """
        self.close()
        self.write("settings.toml", dump(settings))
        key_file = self.key_file(settings)
        if settings.key in (None, SIMULATED) and not key_file.exists():
            fresh = key_file.with_name("new.key")  # renamed when it is whole
            fresh.unlink(missing_ok=True)
            simulated = settings.split is not None or settings.key == SIMULATED
            key = simulated_key(settings.seed) if simulated else None
            new_key(fresh, key).replace(key_file)

    def close(self) -> None:
        """Make the folder, and close it to everyone but its owner. Raises RunError."""
        try:
            private_folder(self.path)
        except OSError as error:
            raise RunError(
                f"the run's folder cannot be made, or not closed to others ({error.strerror})",
                where=str(self.path),
                fix="choose another folder with --out",
            ) from error

    def _same(self, settings: Settings) -> None:
        """Raise RunError where the run was begun with other settings, or by a newer confide."""
        before, now = decisive(self.settings(as_written=True)), decisive(settings)
        if (self.path / RESULT).exists():
            self.result()
        changed = sorted(
            key for key in before.keys() | now.keys() if before.get(key) != now.get(key)
        )
        if changed:
            raise RunError(
                f"the run was begun with another {changed[0]}",
                where=str(self.path),
                expected=repr(before.get(changed[0])),
                got=repr(now.get(changed[0])),
                fix="resume with the settings of the run, or start in another folder",
            )

    def key_file(self, settings: Settings) -> Path:
        """The key that the simulated sites share: the given one, or one made for this run."""
        given = settings.key not in (None, SIMULATED)
        return Path(str(settings.key)) if given else self.sites / "shared.key"

    def settings(self, *, as_written: bool = False) -> Settings:
        """The settings of the run; relative paths are from its folder, unless taken `as_written`.

        Raises RunError where there is none.
        """
        path = self.path / "settings.toml"
        if not path.is_file():
            raise RunError(
                "this is not the folder of a run",
                where=str(self.path),
                expected="a settings.toml, written by `confide run`",
            )
        try:
            return parse(read_tree(path)) if as_written else load(path)
        except SettingsError as error:
            raise RunError(f"its settings cannot be read: {error}", where=str(self.path)) from error

    def settings_text(self) -> str:
        """settings.toml as it stands; empty where there is none. Raises RunError."""
        return self._text("settings.toml")

    def environment(self) -> dict[str, Any]:
        """environment.json; empty where there is none. Raises RunError."""
        try:
            found = json_of(self._text("environment.json") or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            where = str(self.path / "environment.json")
            raise RunError("the file cannot be read as a JSON object", where=where)
        return found

    def _text(self, name: str) -> str:
        try:
            return text_of(self.path / name)
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            where = str(self.path / name)
            raise RunError("the file cannot be read", where=where) from error

    def result(self) -> Result:
        """What the run came to. Raises RunError as `Result.read` does, or where there is no run."""
        if self.path.is_dir() and not (self.path / RESULT).exists():
            self.settings()
        return Result.read(self.path)

    def part_of(self, result: Result, site: str | None, *, personal: bool = False) -> str:
        """Which federation of the run a site's model belongs to; raises RunError.

        `personal`: every site of a federation has a model of its own.
        """
        parts, known = result.best_rounds, sorted(result.data.sites)
        if site is not None and site not in known:
            raise RunError(f"the run has no site {site!r}", expected=", ".join(known))
        if "" in parts and (not personal or site is not None or result.method == "pooled"):
            return ""
        if site is None:
            raise RunError(
                "every site of this run has a model of its own",
                fix=f"choose one with --site: {', '.join(known)}",
            )
        return site

    def trained(self, method: type[Method], site: str | None) -> tuple[Any, Any]:
        """The state at the selected round, and the memory that goes with it, if there is one.

        Raises RunError (also where another version wrote it), CheckpointError.
        """
        result = self.result()
        part = self.part_of(result, site, personal=method.personal)
        checkpoint = self.store(part).load(result.best_rounds[part])
        try:
            state: Any = decode_file(method.State, checkpoint.state.tobytes())
        except MessageError as error:
            raise RunError(
                f"the model was written by another version of confide: {error.what}",
                where=str(self.path),
                fix="use the version that environment.json names, or train again",
            ) from error
        if not method.personal:
            return state, None
        owner = "pooled" if result.method == "pooled" else str(site)
        return state, memory_of(self.sites / owner, method.Memory)

    def write(self, name: str, content: str | dict[str, Any]) -> Path:
        """Write a text or JSON file of the run, whole or not at all."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        write_of_run(self.path / name, text.encode())
        return self.path / name


class HeldFolder(RunFolder):
    """A run's folder that nobody writes into: settings and result are read once."""

    @cached_property
    def _settings(self) -> Settings:
        return super().settings()

    @cached_property
    def _result(self) -> Result:
        return super().result()

    def settings(self, *, as_written: bool = False) -> Settings:
        """As of any folder; taken `as_written` they are read again."""
        return super().settings(as_written=True) if as_written else self._settings

    def result(self) -> Result:
        """As of any folder."""
        return self._result


def memory_of(folder: Path, kind: Any) -> Any:
    """What a site remembers at the end of a run; `folder` is the site's own.

    Raises RunError where there is nothing.
    """
    memory = MemoryStore(folder / "memory", kind).written()
    if memory is None:
        raise RunError(
            "the site's own part of the model is not here",
            where=str(folder / "memory"),
            fix="ask the site: its part of the model never left it",
        )
    return memory


def decisive(settings: Settings) -> dict[str, Any]:
    """The settings that decide the numbers of a round, by dotted key.

    How many rounds there are, how many workers, and how patient a run is do not, nor how long a
    site may take.
    """
    tree = settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    for key in ("rounds", "workers", "name", "when"):
        tree.pop(key)
    tree["select"].pop("patience")
    tree["federation"].pop("timeout", None)
    return {".".join(key): value for key, value in leaves(tree)}


def environment(settings: Settings, fingerprint: str) -> dict[str, Any]:
    """What the numbers depend on besides settings: versions, machine, data. No host name."""
    packages = ("torch", "numpy", "safetensors", "pydantic")
    return {
        "confide": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
        },
        "seed": settings.seed,
        "workers": settings.workers,
        "threads": settings.threads,
        "data": fingerprint,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
