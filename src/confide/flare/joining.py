"""Around a method's steps: the lead's order, the steps join, leave and close, events and files.

To join, a site gets the settings of the run, checks that it agreed to the method's wire table,
reads its own text, and says how much it has. To leave, it gets the trained state, keeps it beside
its memory, and counts its own errors. To close, both sides sign the heads of their ledgers. No
method sees these steps.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from confide import files
from confide.errors import ConfideError, GuardError, SettingsError, printable
from confide.federation import seals
from confide.federation.combining import NEEDED
from confide.federation.events import Event
from confide.federation.failures import Refusal
from confide.federation.guards import MOST, Guards, check_bounded, check_mark, check_names
from confide.federation.ledger import MET, OPENED, LedgerLine
from confide.federation.memory import as_array
from confide.federation.messages import Arrays, carries, encode, forms_of
from confide.federation.secure.steps import EXCHANGES, OFFER
from confide.federation.steps import Step, WireRow, wire_table
from confide.flare.kit import OUTCOME, SERVER
from confide.flare.peers import Card, Signer
from confide.methods import Expecting, answered_in, method_named
from confide.recipes import settings_file
from confide.runs.folder import ALONE, CHECKPOINTS
from confide.scoring.calibration import Calibrator
from confide.settings import REFERENCES, Settings, dump, load_settings
from confide.training.encoder import is_encoder_name


@dataclass(frozen=True)
class Join:
    """Take part in a run."""

    version: str = carries("of confide at the server")
    run: str = carries("name of the run")
    settings: str = carries("of the run, as TOML; no path of anybody's text", most=2**20)
    sites: list[str] = carries("names of the sites of this federation")
    wire: str = carries("digest of the method's wire table at the server")
    lead: str = carries("name of the lead who ordered the run; empty if nobody signed the order")
    order: str = carries("the sites of the order, the lead's public key, the lead's signature")


@dataclass(frozen=True)
class Joined:
    """The site takes part, and how much text it has."""

    fingerprint: str = carries(
        "of the site's text and annotation, under a secret of its own", rule="open"
    )
    sentences: dict[str, int] = carries("sentences in train, dev and test")
    entities: dict[str, int] = carries("entities of each type in its training text")
    problems: dict[str, int] = carries("what did not fit in its files, by kind")


@dataclass(frozen=True)
class Leave:
    """The run is over: keep the model."""

    state: NDArray[np.uint8] = carries("what the server ends with, but its weights", legend="B")
    weights: Arrays = carries("the common weights of that state")
    round: int = carries("its round")
    temperature: float = carries("of its confidences")
    offset: float = carries("of their log odds")
    finds: int = carries("how many finds in development text made both")


def leave_ask(state: Any, round: int, calibrator: Sequence[float]) -> Leave:
    """The ask to keep this state: the weights by themselves, since sites may have them.

    `calibrator` is the temperature and the offset of its confidences, and how many finds made them.
    """
    rest = as_array(encode(replace(state, weights={})))
    return Leave(rest, state.weights, round, *Calibrator.read(calibrator))


@dataclass(frozen=True)
class LeaveReply:
    """The site has what it needs to predict."""

    kept: bool = carries("whether the state could be kept")


@dataclass(frozen=True)
class Close:
    """The last ask of a run: its seal acknowledges the site's last reply."""

    lines: int = carries("lines of the server's ledger of the run before this one")


@dataclass(frozen=True)
class Closed:
    """The last reply of a run: its seal signs the head of the site's ledger."""

    lines: int = carries("lines of the site's ledger of the run before this one")


def check_joined(ask: object, reply: Joined) -> None:
    """Raise GuardError if no site can be like this."""
    check_mark("fingerprint", reply.fingerprint)
    if reply.sentences.keys() != {"train", "dev", "test"}:
        raise GuardError("sentences does not name train, dev and test")
    for field in ("sentences", "entities", "problems"):
        counts = getattr(reply, field)
        check_names(field, counts)
        if not all(0 <= count <= MOST for count in counts.values()):
            raise GuardError(f"{field} holds a number that is not a count")


def _answered_by_the_home(*_: object) -> tuple[object, object]:
    raise AssertionError("a site's home answers this before there is memory")


JOIN = Step("join", Join, Joined, _answered_by_the_home, check=check_joined)
LEAVE = Step("leave", Leave, LeaveReply, _answered_by_the_home)
CLOSE = Step("close", Close, Closed, _answered_by_the_home)


_ONLY_A_SITE = (
    "site", "split", "key", "model.vectors", "pcnn.vectors", "data.format", "data.scheme",
    "data.columns", "data.annotators", "data.skip_broken", "data.encoding", "data.mask_common",
    "data.train_share", "data.canaries", "guards",
)  # fmt: skip
_TABLES = {"site": "[[site]]", "split": "[split]"}


def check_suited(settings: Settings, *, where: str | None = None) -> None:
    """Raise SettingsError if settings hold what only a site may say, or would move text.

    `where` is the file that they come from.
    """
    if settings.method in ("pooled", "public-only"):
        raise SettingsError(
            f"{settings.method} puts all test text in one place, and sites' text does not move",
            where=where,
            fix="use `confide run` for it, on text that may be in one place",
        )
    plain = Settings()
    wrong = [
        _TABLES.get(at, at)
        for at in _ONLY_A_SITE
        if attrgetter(at)(settings) != attrgetter(at)(plain)
    ]
    if wrong:
        raise SettingsError(
            f"{', '.join(wrong)}: only a site may say this, in its own file",
            where=where,
            fix="remove it from the settings of the run",
        )
    encoders = {
        "model.context": settings.model.context,
        "classifier.encoder": settings.classifier.encoder,
        "lightner.bart": settings.lightner.bart,
    }
    for key, name in encoders.items():
        if name and not is_encoder_name(name):
            raise SettingsError(
                f"{key}: a run over real sites names an encoder, not a folder",
                expected="'minilm', or a name that the model has everywhere",
                got=repr(name[:100]),
                where=where,
                fix="put the model into the server's kit as `models/NAME`; each site names its own"
                " copy with `context` in its site.toml",
            )
    named = [("public.files", path) for path in settings.public.files]
    named += [("start_from", settings.start_from)] if settings.start_from else []
    for key, path in named:
        try:
            for part in path.split("/"):
                files.plain_name(part, "a public file")
        except GuardError as error:
            raise SettingsError(
                f"{key}: a run over real sites names what lies in the server's folder `public`",
                expected="a path below it, of letters, digits, '.', '_' and '-'",
                got=repr(path[:100]),
                where=where,
                fix="put it into the server's kit, below `public`, and name it relative to that",
            ) from error


def check_guards(settings: Settings, guards: Guards) -> None:
    """Raise Refusal if a guard of a site refuses what these settings will ask of it."""
    expects = Expecting(settings)
    for step in answered_in(settings).values():
        settled = expects(step.name, 1)
        forms = forms_of(step.ask).items()
        check_bounded(((n, form, settled[n]) for n, form in forms if n in settled), guards)


def run_steps(method: str) -> tuple[Step, ...]:
    """Every step of a run of this method over real sites. Raises SettingsError."""
    return (JOIN, *method_named(method).steps, OFFER, *EXCHANGES.values(), LEAVE, CLOSE)


def wire_of(method: str) -> list[WireRow]:
    """The wire table of a method over real sites. Raises SettingsError."""
    return wire_table(run_steps(method))


def wire_digest(rows: Iterable[WireRow]) -> str:
    """The digest that a consent names: 16 hexadecimal digits that change whenever a row does."""
    table = json.dumps([asdict(row) for row in rows], sort_keys=True)
    return hashlib.sha256(table.encode()).hexdigest()[:16]


# --- The lead's order
#
# It names the run, its settings and its sites, and is signed with the lead's key.


@dataclass(frozen=True)
class Order:
    """A lead's order of a run. `settings` is the TOML that the sites get.

    `card` and `signature` are the lead's, both empty if the order is not signed.
    """

    run: str
    settings: str
    sites: tuple[str, ...]
    version: str
    card: str = ""
    signature: str = ""

    @staticmethod
    def signed_by(
        lead: Signer, run: str, settings: Settings, *, sites: Sequence[str], version: str
    ) -> Order:
        """An order of this lead."""
        plain = Order(run, settings_for_sites(settings), tuple(sorted(sites)), version)
        signature = lead.identity.sign(plain.said())
        return replace(plain, card=lead.card.encode(), signature=signature)

    def said(self) -> bytes:
        """The statement that is signed."""
        return seals.statement(
            "order",
            self.run.encode(),
            self.settings.encode(),
            seals.digest(*(site.encode() for site in self.sites)),
            self.version.encode(),
        )

    @property
    def digest(self) -> str:
        """The digest of the order, 64 hexadecimal digits."""
        return seals.digest(self.said()).hex()

    def lead(self) -> Card:
        """The lead's card. Raises Refusal if there is none, or if it did not sign this order."""
        card = Card.decode(self.card)
        if card.kind != "lead" or not seals.is_signed_by(card.public, self.signature, self.said()):
            raise Refusal("bad-signature", "order")
        return card

    def opening(self, at: str, identity: bytes, *, server: str = "") -> files.Tree:
        """The facts in the first line of a ledger of this run, kept by `at`, which has this key.

        A site's ledger names the key of the `server` too.
        """
        lead = Card.decode(self.card)
        return {
            "at": at,
            "run": self.run,
            "identity": identity.hex(),
            **({"server_identity": server} if server else {}),
            "lead": lead.name,
            "lead_identity": lead.key,
            "order": self.digest,
            "sites": list(self.sites),
        }

    def pack(self) -> str:
        """The part of an order that travels beside its run, settings and version."""
        said = {"sites": list(self.sites), "card": self.card, "signature": self.signature}
        return json.dumps(said)

    @staticmethod
    def unpack(text: str, *, run: str, settings: str, version: str) -> Order:
        """The order of which `text` is the packed part. Raises Refusal."""
        try:
            own = {"run": run, "settings": settings, "version": version}
            order = TypeAdapter(Order).validate_python({**files.decode_json(text), **own})
            order.said()
        except (ValueError, TypeError) as error:
            raise Refusal("bad-signature", "order") from error
        return order


def new_run_name(settings: Settings, name: str) -> str:
    """A new name, unique at the server and the sites, that begins like the run's."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    plain = plain.lstrip("-_.")[:40] or "run"
    return f"{plain}-{settings.method}-{settings.seed}-{secrets.token_hex(3)}"


def masks_unless_told(settings: Settings, sites: int) -> bool:
    """Return whether settings that say nothing of it mean masked sums, among this many sites.

    Fewer than three cannot mask, and neither can rules that look at single replies or draw the
    sites of a round.
    """
    own = settings.federation
    looks = own.combine != "mean" or own.max_norm_ratio is not None or own.fraction < 1
    reference = settings.method in REFERENCES
    return own.sums is None and not (looks or reference or sites < NEEDED)


def read_for_sites(settings: str | Path, overrides: Sequence[str]) -> tuple[Settings, str]:
    """The settings of a run over real sites, and its name. Raises SettingsError.

    Public files are named relative to the server's folder: loading made them paths below the folder
    of the settings file.
    """
    path = settings_file(settings)
    chosen, here = load_settings(path, overrides), path.parent.resolve()
    named = tuple(one.removeprefix(f"{here}/") for one in chosen.public.files)
    public = chosen.public.model_copy(update={"files": named})
    chosen = chosen.model_copy(update={"public": public})
    check_suited(chosen, where=str(path))
    return chosen, chosen.name or path.stem


def settings_for_sites(settings: Settings) -> str:
    """The settings as sites get them, without the place of the public set at the server."""
    public = settings.public.model_copy(update={"files": ()})
    return dump(settings.model_copy(update={"public": public}))


def identities_in(lines: Iterable[LedgerLine]) -> dict[str, str]:
    """The identity keys that a ledger names, by place, each as it was met last."""
    met: dict[str, str] = {}
    for tree in (line.tree for line in lines):
        if tree.get("note") == OPENED:
            met = {SERVER: tree.get("server_identity", ""), tree["at"]: tree["identity"]}
        elif tree.get("note") == MET:
            met[str(tree["peer"])] = str(tree["identity"])
    return met


def seal_facts(
    seal: seals.AskSeal | seals.ReplySeal,
    *,
    run: str,
    sites: Sequence[str],
    without: Sequence[str] = (),
) -> files.Tree:
    """The facts of a seal for its line in a ledger, but those that its first line says.

    `run` and `sites` are in the first line: an audience of all `sites` is not written out.
    """
    facts = asdict(seal)
    if list(facts.get("audience", ())) == list(sites):
        facts.pop("audience", None)
    left_out = {"nonce", "card", *without} | ({"run"} if facts["run"] == run else set())
    return {name: value for name, value in facts.items() if name not in left_out}


# --- Files of a run that travel
#
# Those that a run writes, by name, and nothing else.
#
# The server copies them to where FLARE collects what the lead may download; the lead takes the
# same files, and no others, from the download.


FILES = ("environment.json", "ledger.jsonl", OUTCOME, "result.json")
"""The files of a run, or of one site's part of it. The result comes last, since it marks the run as
finished. The settings do not travel: they are the lead's own."""
_CHECKPOINT = re.compile(r"round-\d{6}\.ckpt")


def files_to_carry(folder: Path) -> Iterator[tuple[str, ...]]:
    """The files of this run that travel, as names below the folder, the result last."""
    for part in (*((ALONE, site) for site in _plain_names(folder / ALONE)), ()):
        own = folder.joinpath(*part)
        for name in _plain_names(own / CHECKPOINTS):
            if _CHECKPOINT.fullmatch(name) and files.is_regular(own / CHECKPOINTS / name):
                yield (*part, CHECKPOINTS, name)
        yield from ((*part, name) for name in FILES if files.is_regular(own / name))


def collect(folder: Path, into: Path) -> None:
    """Copy the files of a run that travel, readable by their owner only."""
    with files.for_the_owner():
        for names in files_to_carry(folder):
            place = files.path_inside(into, *names)
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh = place.with_name(f"{place.name}.new")
            shutil.copyfile(files.path_inside(folder, *names), fresh)
            fresh.replace(place)


def bring_home(source: Path, target: Path) -> None:
    """Copy a downloaded run into its folder, each file whole or not at all.

    Earlier checkpoints that the download lacks are deleted: the run keeps its last and its best.
    """
    new = set(files_to_carry(source))
    for names in files_to_carry(target):
        if CHECKPOINTS in names and names not in new and (source / Path(*names).parent).is_dir():
            files.path_inside(target, *names).unlink()
    collect(source, target)


def _plain_names(folder: Path) -> list[str]:
    """The plain names in a folder that are no links; none if it is a link itself."""
    paths = sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return files.plain_names(path.name for path in paths if not path.is_symlink())


# --- Events for the lead
#
# The server tells it of a run under way by the events of the run, by number.
#
# The lead asks for the events after the last one it has seen, and gets numbers and names only. It
# checks what it hears before using it: a server may not be what it says it is.


TOPIC = "confide"
MOST_OUTCOME = 100_000
"""The most bytes of an outcome that are read."""
_KEPT = 2000
_AT_ONCE = 500
_KINDS = ("start", "failed", "round", "scores", "end")
_MOST_SCORES = 32
_STATES = ("running", "finished", "failed")
_MOST = 10**15


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) <= _MOST else None


def _finite(value: object) -> float | None:
    return value if type(value) is float and abs(value) <= _MOST else _whole(value)


def _text(value: object) -> str | None:
    return printable(value, 500) if isinstance(value, str) else None


def _scores(value: object) -> dict[str, float | None] | None:
    """Scores by kind, without what is none."""
    if not isinstance(value, dict):
        return None
    return {
        printable(kind, 100): score
        for kind, score in list(value.items())[:_MOST_SCORES]
        if score is None or _finite(score) is not None
    }


_FIELDS: dict[str, Callable[[object], object]] = {
    **dict.fromkeys(("round", "rounds", "bytes_up", "bytes_down"), _whole),
    **dict.fromkeys(("loss", "dev_f1", "best_f1", "seconds", "seconds_left"), _finite),
    **dict.fromkeys(("site", "step", "message", "score"), _text),
    "dev": _scores,
}
"""The keys of an event that reach the lead; the scores of single sites stay at the server."""


class EventBuffer:
    """A watcher that keeps the last events; other threads may ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[tuple[int, files.Tree]] = deque(maxlen=_KEPT)
        self._number = 0
        self._outcome = {"state": "running"}

    def __call__(self, event: Event) -> None:
        """Keep an event, unless it is a single ask or reply: there are too many of these."""
        if event.kind not in _KINDS:
            return
        with self._lock:
            self._number += 1
            all = asdict(event)
            found = {key: all[key] for key in ("kind", *_FIELDS) if all[key] is not None}
            self._events.append((self._number, found))

    def since(self, number: int) -> files.Tree:
        """The events after that number, the number of the last one, and the state of the run."""
        with self._lock:
            later = [(at, event) for at, event in self._events if at > number][:_AT_ONCE]
            return {
                "events": [event for _, event in later],
                "last": later[-1][0] if later else number,
                **self._outcome,
            }

    def again(self, why: str) -> None:
        """Note why the lead is to submit the run again, for it to go on."""
        with self._lock:
            self._outcome = {"state": "running", "why": why}

    def end(self) -> None:
        """Note that the run is finished."""
        with self._lock:
            self._outcome = {"state": "finished"}

    def fail(self, error: ConfideError) -> None:
        """Note why the run cannot continue; what the error says of a site is from a fixed list."""
        with self._lock:
            self._outcome = {"state": "failed", "kind": type(error).__name__, "why": str(error)}

    def write(self, folder: Path) -> None:
        """Write how the run ended into its folder. Raises RunError."""
        files.write_of_run(folder / OUTCOME, json.dumps(self._outcome, indent=1).encode())


def read_event(told: object) -> Event | None:
    """An event as the server told it, without what is malformed; None if it is not an event."""
    if not isinstance(told, dict) or told.get("kind") not in _KINDS:
        return None
    found = {name: _FIELDS[name](value) for name, value in told.items() if name in _FIELDS}
    sound = {name: value for name, value in found.items() if value is not None}
    if told["kind"] == "round" and not {"round", "rounds", "seconds", "bytes_up"} <= sound.keys():
        return None
    return Event(told["kind"], **sound)  # type: ignore[arg-type]


def read_events(said: object, since: int) -> files.Tree | None:
    """A run's answer when asked for the events after number `since`; None if it makes no sense."""
    if not isinstance(said, dict) or not isinstance(said.get("events"), list):
        return None
    last = said.get("last")
    if type(last) is not int or not since <= last <= _MOST:
        return None
    return {"events": said["events"][:_AT_ONCE], "last": last, **_state(said)}


def read_outcome(data: bytes) -> files.Tree:
    """Read a run's outcome from the file that the server left; empty if the file makes no sense."""
    try:
        said = json.loads(data[:MOST_OUTCOME])
    except (ValueError, RecursionError):
        return {}
    return _state(said) if isinstance(said, dict) else {}


def _state(said: files.Tree) -> files.Tree:
    if said.get("state") not in _STATES:
        return {}
    return {"state": said["state"]} | {
        key: printable(said[key], 2000) for key in ("kind", "why") if key in said
    }
