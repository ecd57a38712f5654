"""The folder of a run: where its parts lie, and how they are opened, written and refused.

settings.toml     the settings, resolved
environment.json  versions, seeds, machine, fingerprint of the data
result.json       scores, history, bytes, seconds (docs/result.md)
ledger.jsonl      what crossed the wall
run.lock          the number of the process that runs here; empty once it has ended
lost.json         the sites that sums under masks have lost, each with the round and the step
checkpoints/      the server's state, by round
alone/NAME/       ledger and checkpoints of each site, if the method is "alone"
sites/NAME/       what the site owns, not the server: memory, log, errors, counts by sentence,
                  and the model that it keeps (`confide home`)
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from confide import __version__
from confide.errors import MessageError, RunError, SettingsError, os_errors_as, printable
from confide.federation.checkpoints import CheckpointStore
from confide.federation.files import inside, lock, plain_name, private_folder, write_of_run
from confide.federation.keys import new_key, simulated_key
from confide.federation.memory import MemoryStore
from confide.federation.messages import decode_file
from confide.removed import without_removed
from confide.runs.result import RESULT, Result
from confide.scoring.calibration import AS_IS, Calibrator
from confide.settings import SIMULATED, Settings, dump, leaves, parse, read_tree
from confide.userfiles import Tree, json_of, text_of

if TYPE_CHECKING:
    from confide.methods import Method

T = TypeVar("T")

CHECKPOINTS, ALONE, LOST, LOCK = "checkpoints", "alone", "lost.json", "run.lock"
RUNS = "runs"
"""The folder of run folders in a real site's memory folder."""


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
        """The folder with one federation's checkpoints and ledger: this one, or one in `alone`."""
        return self.path / ALONE / name if name else self.path

    def store(self, part: str = "") -> CheckpointStore:
        """The checkpoints of one federation of the run."""
        return CheckpointStore(self.part(part) / CHECKPOINTS)

    def calibrator(self, site: str | None) -> Calibrator:
        """What calibrates the confidences of a site's model; nothing if the run says nothing.

        Raises RunError as `result`.
        """
        found = self.result().calibration
        return AS_IS if found is None else found.of(site)

    def is_taken(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "settings.toml").exists()

    def is_finished(self) -> bool:
        """Whether the run here came to its end."""
        return (self.path / RESULT).exists()

    def check(self, settings: Settings, *, resume: bool) -> None:
        """Raise RunError if starting would overwrite a run, or if there is none to resume."""
        if self.is_taken() and not resume:
            raise RunError(
                "there is already a run in this folder",
                where=str(self.path),
                fix="continue it with --resume, or choose another folder with --out",
            )
        if resume and not self.is_taken():
            raise RunError(
                "there is no run to resume in this folder",
                where=str(self.path),
                fix="leave out --resume to start one",
            )
        if resume:
            self._same(settings)

    def begin(self, settings: Settings) -> None:
        """Make the folder with its settings, and a key for the sites if the settings name none.

        The key is random, unless the sites are simulated (or one corpus is dealt to them): then it
        comes from the seed.
        """
        self.close()
        self.write("settings.toml", dump(settings))
        key_file = self.key_file(settings)
        if settings.key in (None, SIMULATED) and not key_file.exists():
            fresh = key_file.with_name("new.key")  # renamed once it is complete
            fresh.unlink(missing_ok=True)
            simulated = settings.split is not None or settings.key == SIMULATED
            key = simulated_key(settings.seed) if simulated else None
            new_key(fresh, key).replace(key_file)

    def close(self) -> None:
        """Make the folder, and close it to everyone but its owner. Raises RunError."""
        with os_errors_as(
            RunError,
            "the run's folder cannot be made, or cannot be made private",
            where=self.path,
            fix="choose another folder with --out",
        ):
            private_folder(self.path)

    @contextmanager
    def writing(self, settings: Settings, *, resume: bool) -> Iterator[None]:
        """Make the folder, and let no other process run in it before the block ends.

        Raises RunError if one does now, and as `check` does. A file system without locks lets every
        process in.
        """
        self.close()
        with os_errors_as(RunError, "the run's folder cannot be locked", where=self.path):
            file = lock(self.path / LOCK, needed=False)
        if file is None:
            raise RunError(
                "a run is under way in this folder",
                where=str(self.path),
                got=f"process {printable(self._text(LOCK)) or 'unknown'}",
                fix="wait until it has ended, or choose another folder with --out",
            )
        with file:
            self.check(settings, resume=resume)  # a run may have begun and ended since
            with os_errors_as(
                RunError,
                f"{LOCK} could not be written",
                where=self.path,
                fix="free some disk space",
            ):
                file.truncate(0)
                os.write(file.fileno(), str(os.getpid()).encode())
            try:
                yield
            finally:
                file.truncate(0)

    def _same(self, settings: Settings) -> None:
        """Raise RunError if the run has other settings, or was written by a newer confide."""
        before, now = decisive(self.settings(as_written=True)), decisive(settings)
        if self.is_finished():
            self.result()
        changed = sorted(
            key for key in before.keys() | now.keys() if before.get(key) != now.get(key)
        )
        if changed:
            raise RunError(
                f"the run was started with another {changed[0]}",
                where=str(self.path),
                expected=repr(before.get(changed[0])),
                got=repr(now.get(changed[0])),
                fix="resume with the settings of the run, or start in another folder",
            )

    def key_file(self, settings: Settings) -> Path:
        """The file of the key that the sites share: the given one, or the one made for this run."""
        given = settings.key not in (None, SIMULATED)
        return Path(str(settings.key)) if given else self.sites / "shared.key"

    def settings(self, *, as_written: bool = False) -> Settings:
        """The settings of the run; relative paths start at its folder, unless taken `as_written`.

        Settings that confide no longer has are passed over, unless taken `as_written`.
        Raises RunError if there is no run.
        """
        path = self.path / "settings.toml"
        if not path.is_file():
            raise RunError(
                "this is not the folder of a run",
                where=str(self.path),
                expected="a settings.toml, written by `confide run`",
                fix="check the path",
            )
        try:
            tree = read_tree(path)
            if as_written:
                return parse(tree)
            return parse(without_removed(tree), folder=path.parent.resolve())
        except SettingsError as error:
            raise RunError(
                f"the run's settings cannot be read: {error}", where=str(self.path)
            ) from error

    def settings_text(self) -> str:
        """The text of settings.toml; empty if there is none. Raises RunError."""
        return self._text("settings.toml")

    def environment(self) -> Tree:
        """What environment.json holds; empty if there is none. Raises RunError."""
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
        """The run's result. Raises RunError as `Result.read` does, or if there is no run."""
        if self.path.is_dir() and not self.is_finished():
            self.settings()
        return Result.read(self.path)

    def part_of(self, result: Result, site: str | None, *, personal: bool = False) -> str:
        """The federation of the run that a site's model belongs to. Raises RunError.

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

    def trained(self, method: type[Method], site: str | None) -> tuple[object, object]:
        """The state of the selected round, and the site's memory that goes with it, if any.

        Raises RunError (also if another version wrote the state), CheckpointError.
        """
        result = self.result()
        part = self.part_of(result, site, personal=method.personal)
        if part not in result.best_rounds:
            raise RunError(
                f"{part} has no checkpoint yet, so it has no model",
                where=str(self.path),
                expected=" or ".join(result.best_rounds),
                fix="continue the run with `confide run … --resume`",
            )
        checkpoint = self.store(part).load(result.best_rounds[part])
        try:
            state: object = decode_file(method.State, checkpoint.state.tobytes())
        except MessageError as error:
            raise RunError(
                f"another version of confide wrote this model: {error.what}",
                where=str(self.path),
                fix="use the version that environment.json names, or train again",
            ) from error
        if not method.personal:
            return state, None
        owner = "pooled" if result.method == "pooled" else str(site)
        return state, memory_of(self.sites / owner, method.Memory)

    def write(self, name: str, content: str | Tree) -> Path:
        """Write a text or JSON file of the run, completely or not at all."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        write_of_run(self.path / name, text.encode())
        return self.path / name


class HeldFolder(RunFolder):
    """The folder of a run that is not being written: settings and result are read only once.

    `so_far` gives what stands for the result of a run that is not finished; without it such a run
    is refused.
    """

    def __init__(self, path: Path, *, so_far: Callable[[Path], Result] | None = None) -> None:
        super().__init__(path)
        self._so_far = so_far

    @cached_property
    def _settings(self) -> Settings:
        return super().settings()

    @cached_property
    def _result(self) -> Result:
        if self._so_far is None or self.is_finished():
            return super().result()
        return self._so_far(self.path)

    def settings(self, *, as_written: bool = False) -> Settings:
        """As in `RunFolder`; `as_written` reads them again."""
        return super().settings(as_written=True) if as_written else self._settings

    def result(self) -> Result:
        """As in `RunFolder`."""
        return self._result


def memory_of(folder: Path, kind: type[T]) -> T:
    """A site's memory at the end of a run; `folder` is the site's own.

    Raises RunError if there is none.
    """
    memory = MemoryStore(folder / "memory", kind).written()
    if memory is None:
        raise RunError(
            "the site's own part of the model is not here",
            where=str(folder / "memory"),
            fix="ask the site: that part of the model never left it",
        )
    return memory


def decisive(settings: Settings) -> dict[str, object]:
    """The settings that decide the numbers of a round, by dotted key.

    Left out are the number of rounds and of workers, the patience, how long a site may take, and
    how much it may upload.
    """
    tree = settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    for key in ("rounds", "workers", "name", "when"):
        tree.pop(key)
    tree["select"].pop("patience")
    for key in ("timeout", "megabytes"):
        tree["federation"].pop(key, None)
    return {".".join(key): value for key, value in leaves(tree)}


def environment(settings: Settings, fingerprint: str) -> Tree:
    """What the numbers depend on besides the settings: versions, machine, data. No host name."""
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
