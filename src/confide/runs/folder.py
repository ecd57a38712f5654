"""The folder of a run: where its parts lie, how they are opened and refused, what may be shown.

settings.toml     the settings, resolved
environment.json  versions, seeds, machine, fingerprint of the data
result.json       scores, history, bytes, seconds (docs/result.md)
ledger.jsonl      what crossed the wall
run.lock          the number of the process that runs here; empty once it has ended
lost.json         the sites that sums under masks have lost, each with the round and the step
checkpoints/      the server's state, by round
alone/NAME/       ledger and checkpoints of each site, if the method is "alone"
sites/NAME/       what the site owns, not the server: memory, log, errors, counts by sentence,
                  and the model that it keeps (`confide personalise`)
"""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from confide import files
from confide.errors import MessageError, RunError, SettingsError, os_errors_as, printable
from confide.federation.keys import new_key, simulated_key
from confide.federation.ledger import OPENED, ledger_files, read_lines
from confide.federation.memory import CheckpointStore, MemoryStore
from confide.federation.messages import Arrays, carries, decode_file
from confide.runs.result import RESULT, Private, Result, Whole, read_record
from confide.scoring.calibration import AS_IS, Calibrator
from confide.scoring.intervals import Table
from confide.settings import SIMULATED, Settings, dump, leaves, parse, read_tree
from confide.settings.upgrade import is_old, upgraded_run
from confide.tasks import TASKS, USUAL, Counted
from confide.version import __version__

if TYPE_CHECKING:
    from confide.methods.method import Pair


T = TypeVar("T")

CHECKPOINTS, ALONE, LOCK = "checkpoints", "alone", "run.lock"
LOST, GREETINGS = "lost.json", "greetings.json"
RUNS = "runs"
"""The folder of run folders in a real site's memory folder."""


class RunFolder:
    """The parts of one run on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def sites(self) -> Path:
        """The folder that holds each site's own folder."""
        return self.path / "sites"

    def home(self, site: str) -> Path:
        """The folder that a site keeps for itself after the run (`confide.runs.folder`)."""
        return files.path_inside(self.sites, files.plain_name(site, "site"), "home")

    def part(self, name: str) -> Path:
        """The folder with one federation's checkpoints and ledger: this one, or one in `alone`."""
        return self.path / ALONE / name if name else self.path

    def store(self, part: str = "") -> CheckpointStore:
        """The checkpoints of one federation of the run."""
        return CheckpointStore(self.part(part) / CHECKPOINTS)

    def calibrator(self, site: str | None) -> Calibrator:
        """Return the calibrator of a site's model; the identity if the run says nothing.

        Raises RunError as `result`.
        """
        found = self.result().calibration
        return AS_IS if found is None else found.of(site)

    def is_taken(self) -> bool:
        """True if a run was started here."""
        return (self.path / "settings.toml").exists()

    def is_finished(self) -> bool:
        """True if the run here came to its end."""
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
            files.private_folder(self.path)

    @contextmanager
    def writing(self, settings: Settings, *, resume: bool) -> Iterator[None]:
        """Make the folder, and let no other process run in it before the block ends.

        Raises RunError if one does now, and as `check` does. A file system without locks lets every
        process in.
        """
        self.close()
        with os_errors_as(RunError, "the run's folder cannot be locked", where=self.path):
            file = files.lock(self.path / LOCK, needed=False)
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
        """Raise RunError if the run has other settings, or was written by another confide."""
        if is_old(self._settings_tree()):
            raise RunError(
                "an older confide started this run",
                where=str(self.path),
                fix="resume it with the version that environment.json names, or start in another"
                " folder",
            )
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

        Those of an older confide are upgraded. Raises RunError if there is no run.
        """
        tree = self._settings_tree()
        tree = upgraded_run(tree) if is_old(tree) else tree
        try:
            return parse(tree, folder=None if as_written else self.path.resolve())
        except SettingsError as error:
            raise self._unreadable(error) from error

    def _settings_tree(self) -> files.Tree:
        """The settings as plain values of the schema that they were written in."""
        path = self.path / "settings.toml"
        if not path.is_file():
            raise RunError(
                "this is not the folder of a run",
                where=str(self.path),
                expected="a settings.toml, written by `confide run`",
                fix="check the path",
            )
        try:
            return read_tree(path, old=True)
        except SettingsError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: SettingsError) -> RunError:
        return RunError(f"the run's settings cannot be read: {error}", where=str(self.path))

    def settings_text(self) -> str:
        """The text of settings.toml; empty if there is none. Raises RunError."""
        return self._text("settings.toml")

    def environment(self) -> files.Tree:
        """Read environment.json; empty if there is none. Raises RunError."""
        path = self.path / "environment.json"
        if not path.exists():
            return {}
        return read_record(path, dict, "this does not say what the run's numbers depend on")

    def _text(self, name: str) -> str:
        try:
            return files.file_text(self.path / name)
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

    def trained(self, method: Pair, site: str | None) -> tuple[object, object]:
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
        store = self.store(part)
        if not store.rounds():  # a real site's own folder holds nothing but its part
            store = self.store()
        checkpoint = store.load(result.best_rounds[part])
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

    def write(self, name: str, content: str | files.Tree) -> Path:
        """Write a text or JSON file of the run, completely or not at all."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        files.write_of_run(self.path / name, text.encode())
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
        """Read the settings as `RunFolder` does; `as_written` reads them again."""
        return super().settings(as_written=True) if as_written else self._settings

    def result(self) -> Result:
        """Read the result as `RunFolder` does."""
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
    for key in ("timeout", "max_upload_mb"):
        tree["federation"].pop(key, None)
    return {".".join(key): value for key, value in leaves(tree)}


def environment(settings: Settings, fingerprint: str) -> files.Tree:
    """Describe what the numbers depend on but settings: versions, machine, data. No host name."""
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


# --- Settings without paths
#
# They may be shown outside: none says where text is, or names it.


_OWN = {"site", "split", "public", "key", "data", "types", "relations", "name", "tags", "annotates"}
"""Tables and keys that hold paths, or names that come from a site's text or annotation."""


def shareable(settings: Settings) -> dict[str, str]:
    """The settings by dotted key, without paths, sites, and lists of names.

    Give settings as they are written: an absolute path is left out wherever it stands.
    """
    return dict(_shareable(settings))


def _shareable(settings: Settings) -> Iterator[tuple[str, str]]:
    for key, value in decisive(settings).items():
        is_path = isinstance(value, str) and ("/" in value or "\\" in value)
        if not set(key.split(".")) & _OWN and not is_path and not isinstance(value, (list, tuple)):
            yield key, str(value)
    yield "rounds", str(settings.rounds)


# --- sites/NAME/sentences.json
#
# Counts of each sentence of a site's test text. Numbers, no text.
#
# docs/result.md describes it.


SENTENCES = "sentences.json"
SENTENCES_SCHEMA = 1

Matching = Counted
Counts = Annotated[list[Whole], Field(min_length=3, max_length=3)]

_NO_SENTENCES = "this file does not hold the counts of a site's sentences"


class Sentences(NamedTuple):
    """(true, predicted, gold) of each of a site's sentences, and a digest of its test text."""

    site: str
    fingerprint: str
    counts_N3: Table


class SentencesFile(BaseModel):
    """A site's sentences.json, as docs/result.md describes it."""

    model_config = ConfigDict(strict=True, frozen=True)

    schema_: Annotated[int, Field(alias="schema", ge=1)]
    site: str
    fingerprint: str
    strict: list[Counts] | None = None
    relaxed: list[Counts] | None = None
    micro: list[Counts] | None = None
    best: list[Counts] | None = None
    ranked: list[list[Whole]] | None = None
    types: dict[str, list[Counts]] = {}

    @property
    def task(self) -> str:
        """The task whose kinds of counts the file holds."""
        kinds = self.model_fields_set
        known = (task.name for task in TASKS.values() if kinds & set(task.counted[:1]))
        return next(known, USUAL)


def sentences_file(file: Path) -> SentencesFile:
    """A site's sentences.json. Raises RunError if it is damaged or has a newer schema."""
    return read_record(file, SentencesFile.model_validate, _NO_SENTENCES, schema=SENTENCES_SCHEMA)


def read_sentences(file: Path, matching: Matching = "strict") -> Sentences:
    """The counts of one site's sentences.

    Raises RunError if the file is damaged or has a newer schema.
    """
    held = sentences_file(file)
    counts_N3 = np.array(getattr(held, matching) or (), dtype=np.int64).reshape(-1, 3)
    true_N, predicted_N, gold_N = counts_N3.T
    if not len(counts_N3) or (true_N > np.minimum(predicted_N, gold_N)).any():
        raise RunError(
            _NO_SENTENCES,
            where=str(file),
            expected=f"{matching} counts (true, predicted, gold) of each sentence",
        )
    return Sentences(held.site, held.fingerprint, counts_N3)


# --- audit.json
#
# Measurements of `confide audit`, and sentences on them. Numbers, no text.
#
# docs/privacy-audit.md describes it. On one machine the file covers all sites; a real site's own
# run folder holds the numbers of that site alone.


AUDIT = "audit.json"
AUDIT_SCHEMA = 1

_Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
_NO_AUDIT = "this file does not hold an audit"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class AuditInterval(_Record):
    """A share and its 95 % interval."""

    value: Share
    low: Share
    high: Share

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def in_a_hundred(self) -> str:
        """The share found, as a number of a hundred, with the interval."""
        value, low, high = (f"{100 * one:.0f}" for one in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


class Membership(_Record):
    """An attacker's success in telling a site's training text from its other text.

    `units` says what is told apart, and `members` and `others` how many there were. `found` is the
    share of members found if one other in a hundred is accused falsely. `references`: models that
    the attacker trained on text like the site's, to know what is hard for any model; 0: none.
    """

    units: str
    members: _Whole
    others: _Whole
    auc: AuditInterval
    found: AuditInterval
    references: _Whole = 0


class Canaried(_Record):
    """The result of guessing canaries: the ε that it refutes at 95 %, of one document.

    `exposure` is the median of those let in, in bits: 1 by chance, at most `most`. `auc`: how often
    one that was let in looks likelier than one that was left out; nothing but the coins tells them
    apart.
    """

    canaries: _Whole
    guesses: _Whole
    right: _Whole
    epsilon: Annotated[float, Field(ge=0)]
    delta: Annotated[float, Field(ge=0, le=1)]
    auc: AuditInterval
    exposure: float
    most: float


class SiteAudit(_Record):
    """One site's part: by losses alone, by losses beside those of references, by canaries."""

    membership: Membership
    referenced: Membership | None = None
    canaries: Canaried | None = None

    @property
    def strongest(self) -> Membership:
        """The attack that finds most; an attacker may choose."""
        every = [one for one in (self.membership, self.referenced) if one is not None]
        return max(every, key=lambda one: one.found.value)


class Crossed(_Record):
    """A summary of the ledger. `smallest`: the fewest sites in any sum that the server read.

    It is 1 where the server could look at single replies, and None where no array left a site.
    `digests` counts keyed digests of words or characters, `asks` what was asked of sites.
    """

    digests: _Whole
    asks: _Whole
    masked: bool
    smallest: _Whole | None


def crossed(run: Path, *, group: int = 0) -> Crossed:
    """Read what left a run's sites from the ledger; `group` is the size of sums (0: all sites).

    The ledger of a real site has its own messages alone: the sets of its sums lie in its memory
    folder. If they are gone, the smallest that it can have opened counts. Raises RunError if the
    ledger is damaged.
    """
    from confide.federation.secure.messages import Offered, Shares, threshold
    from confide.federation.secure.site import SUMS, Sets, SumTurn

    # fields that sums exchange and nobody can open; they tell nothing of text
    shares = {one.name for kind in (Offered, Shares) for one in fields(kind)}
    lines = [line for file in ledger_files(run) for line in read_lines(file)]
    entries = [line.entry for line in lines if line.entry is not None and not line.again]
    opened = next((line.tree for line in lines if line.tree.get("note") == OPENED), {})
    up = [entry for entry in entries if entry.direction == "up"]
    asks = {(one.round, one.step, one.site) for one in entries if one.direction == "down"}
    sizes, hidden = [], defaultdict(set)
    for one in up:
        if one.kind not in ("array", "arrays"):
            continue
        if one.seen == "masked":
            hidden[one.round, one.step].add(one.site)
        elif one.field not in shares:
            sizes.append(1)
    if hidden and opened.get("at", "server") != "server":
        turns = {SumTurn(opened["run"], one.round, one.step, b"") for one in up}
        sets = Sets(run.resolve().parent.parent / SUMS)
        known = [size for turn in turns if (size := sets.size(turn))]
        sizes += known or [threshold(group or len(opened["sites"]), 1)]
    else:
        sizes += [min(len(sites), group or len(sites)) for sites in hidden.values()]
    return Crossed(
        digests=sum(one.count for one in up if one.kind == "array" and "digest" in one.field),
        asks=len(asks),
        masked=any(entry.seen == "masked" for entry in up),
        smallest=min(sizes, default=None),
    )


class Promised(_Record):
    """The promise of the settings about one unit of text.

    `simulated`: keys came from the seed, so it is what keys of the sites' own would promise.
    """

    unit: str
    epsilon: float
    delta: float
    simulated: bool = False


class Audit(_Record):
    """An audit of a run; `rounds` are those of the models that were measured, as in result.json."""

    schema_: Annotated[int, Field(alias="schema", ge=1)] = AUDIT_SCHEMA
    rounds: Mapping[str, int]
    sites: Mapping[str, SiteAudit]
    crossed: Crossed
    promised: Promised | None = None

    @property
    def measured(self) -> Canaried | None:
        """The canaries of the site that shows the largest ε; None without any."""
        found = [one.canaries for one in self.sites.values() if one.canaries is not None]
        return max(found, key=lambda one: one.epsilon, default=None)

    @property
    def broken(self) -> bool:
        """True if the canaries refute what was promised."""
        if self.promised is None or self.measured is None or self.promised.unit == "sentence":
            return False  # a document may have many sentences
        return self.measured.epsilon > self.promised.epsilon

    def write(self, folder: RunFolder) -> None:
        """Write audit.json, completely or not at all. Raises RunError."""
        folder.write(AUDIT, self.model_dump_json(by_alias=True, indent=1) + "\n")


def audited(folder: RunFolder) -> Audit | None:
    """The audit of the model that a run has now; None if there is none.

    Raises RunError if the file is damaged.
    """
    path = folder.path / AUDIT
    if not path.is_file():
        return None
    fix = "audit the run again with `confide audit`, or delete the file"
    found = read_record(path, Audit.model_validate, _NO_AUDIT, schema=AUDIT_SCHEMA, fix=fix)
    return found if dict(found.rounds) == dict(folder.result().best_rounds) else None


# --- in words ---------------------------------------------------------------------------------


def audit_sentence(one: SiteAudit) -> str:
    """Say in a sentence what an attacker finds at a site."""
    best = one.strongest
    return (
        f"of 100 {best.units} of ours an attacker allowed one false accusation in a hundred finds"
        f" {best.found.in_a_hundred}; by chance it would be 1"
    )


def _canaried(own: Canaried) -> str:
    guesses = f"{own.right} right guesses of {own.guesses}"
    if own.epsilon < 0.005:
        return f"none above 0 could be shown ({guesses}, {own.canaries} canaries)"
    sure = f"(δ = {_small(own.delta)}, 95 % sure)"
    return f"at least {own.epsilon:.2f} for one document {sure}, from {guesses}"


def _small(number: float) -> str:
    """A small number as people write it: 1e-5, not 1e-05."""
    return f"{number:g}".replace("e-0", "e-")


def epsilon_sentence(found: Audit) -> str:
    """ε promised beside ε measured."""
    promised, measured = "none", "not measured, for want of canaries"
    if found.promised is not None:
        own = found.promised
        promised = f"{own.epsilon:.2f} for one {own.unit} (δ = {_small(own.delta)})"
        promised += ", if keys were not from the seed" if own.simulated else ""
    if found.measured is not None:
        measured = _canaried(found.measured)
    said = f"ε promised: {promised}; ε measured: {measured}"
    return f"{said}. The promise was broken" if found.broken else said


def noise_sentence(settings: Settings, spent: Private | None) -> str:
    """Say what noise a run was trained under, and what it promises; `spent` is of its result."""
    own = settings.privacy
    if spent is None and own is None:
        return "No noise was added: this is not differential privacy."
    if spent is None:  # a real site's own result does not say
        assert own is not None
        limit = "" if own.epsilon is None else f"an ε of at most {own.epsilon:g} at "
        said = f"{limit}δ = {_small(own.delta)} for one {own.unit} of the training text"
        return f"Trained under noise, by its settings with {said}; the lead's result says the ε."
    if spent.simulated:
        return (
            "Trained under noise whose keys were made from the seed, to be repeatable: this is not"
            " differential privacy."
        )
    told = (
        f"Trained under noise: ({spent.epsilon:.2f}, {spent.delta:g})-differential privacy for one"
        f" {spent.unit} of the training text, in {spent.rounds} rounds of noise {spent.noise:g}"
        f" clips, each drawing a {spent.unit} with probability {spent.rate:g}. It covers this run"
        " alone, and sites and code that are honest as docs/differential-privacy.md says."
    )
    held_out = {
        "open": " Scores of held-out text left the sites without noise, and are not covered.",
        "closed": " No score of held-out text left a site.",
    }
    return told + held_out.get(spent.held_out, "")


def smallest_sentence(crossed: Crossed) -> str:
    """The fewest sites in any sum that the server could read."""
    few = crossed.smallest
    what = "The smallest number of sites in any sum that the server could read"
    if few is None:
        return f"{what}: none, no weights left a site"
    how = " (it could read single replies)" if few == 1 else ""
    return f"{what}: {few}{how}"


def audit_sentences(found: Audit) -> Iterator[str]:
    """The audit in sentences: the three numbers, and what they rest on."""
    for name, one in found.sites.items():
        yield f"{name}: {audit_sentence(one)}"
        for by, kind in (("losses", one.membership), ("references", one.referenced)):
            if kind is not None:
                yield (
                    f"  by {by}: AUC {kind.auc}; {kind.found.in_a_hundred} in a hundred;"
                    f" {kind.members} {kind.units} of training text, {kind.others} others"
                )
        if one.canaries is not None:
            own = one.canaries
            yield (
                f"  by {own.canaries} canaries: AUC {own.auc}; ε at least {own.epsilon:.2f}; median"
                f" exposure {own.exposure:.1f} bits (chance 1.0, at most {own.most:.1f})"
            )
    yield epsilon_sentence(found)
    yield smallest_sentence(found.crossed)


# --- Personal models: what a site keeps for itself after a run (`confide.jobs.personalise`)


CANDIDATES = FEDERATED, TUNED, TRAINED_ALONE = "federated", "tuned", "alone"
"""The model of the run; the same, trained on at home; one trained at home alone."""

HOME = "home.json"
"""The comparison of personal models, and its outcome."""
KEPT = "kept.safetensors"
"""The weights that a site keeps, where they are not those of the run."""


class Candidate(_Record):
    """A model that a site could keep. `passes` over its training text, at home.

    `dev` is the score that decides, `test` the same of test text; None without such text.
    """

    passes: int
    dev: float | None
    test: float | None
    seconds: float


class AtHome(_Record):
    """The model that a site came to keep: `federated`, `tuned` or `alone`. `why` says what decided.

    `undecided`: another scored better, but there was too little development text to tell.

    `by` is the kind of score, `round` that of the run's model.
    """

    site: str
    kept: str
    by: str
    why: str
    undecided: bool = False
    round: int
    candidates: dict[str, Candidate]


@dataclass(frozen=True)
class KeptAtHome:
    """A site's own weights, of the form of the run's model. They never leave the site."""

    model: str = carries("tuned or alone")
    round: int = carries("the round of the run's model that it was compared with")
    weights: Arrays = carries("the weights that are best on the site's development text")
    temperature: float = carries("of its confidences, from the site's development text")
    offset: float = carries("of their log odds, from the same")
    finds: int = carries("how many finds made both", before=-1)

    @property
    def calibrator(self) -> Calibrator:
        """The calibrator of its confidences."""
        return Calibrator(self.temperature, self.offset, self.finds)


def kept_at_home(folder: RunFolder, site: str | None) -> KeptAtHome | None:
    """The model that a site keeps; None if it keeps those of the run, or did not compare.

    A run that was continued since, and has another model now, is not compared yet: None as well.
    Raises RunError if the file is damaged.
    """
    if site is None:
        return None
    path = folder.home(site) / KEPT
    if not path.is_file():
        return None
    try:
        kept = decode_file(KeptAtHome, path.read_bytes())
        return kept if kept.round == round_of(folder, site) else None
    except (MessageError, OSError) as error:
        raise RunError(
            "the weights that the site keeps cannot be read",
            where=str(path),
            fix="compare again (`confide personalise`), or delete the file to use the run's model",
        ) from error


def compared_at_home(folder: RunFolder, site: str) -> AtHome | None:
    """Read a site's comparison; None if it has not compared the model that the run has now.

    Raises RunError if the file is damaged.
    """
    path = folder.home(site) / HOME
    if not path.is_file():
        return None
    what, fix = "what the site compared cannot be read", "compare again with `confide personalise`"
    found = read_record(path, AtHome.model_validate, what, fix=fix)
    return found if found.round == round_of(folder, site) else None


def round_of(folder: RunFolder, site: str) -> int:
    """The round of the run's model for a site; -1 if the run has none yet."""
    rounds = folder.result().best_rounds
    return rounds.get(site, rounds.get("", -1))
