"""The lead's order, and the steps around those of a method: join, leave and close.

To join, a site gets the settings of the run, checks that it agreed to the method's wire table,
reads its own text, and says how much it has. To leave, it gets the trained state, keeps it beside
its memory, and counts its own errors. To close, both sides sign the heads of their ledgers. No
method sees these steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.errors import ConfideError, GuardError, SettingsError, printable
from confide.federation.events import Event
from confide.federation.failures import Refusal
from confide.federation.guards import MOST, Guards, check_mark, check_names, check_settled
from confide.federation.memory import as_array
from confide.federation.messages import Arrays, carries, decode, encode
from confide.federation.seals import digest, is_signed_by, statement
from confide.federation.secure.steps import EXCHANGES, OFFER
from confide.federation.steps import Check, Step, WireRow, wire_table
from confide.files import Tree, plain_name, write_of_run
from confide.flare.peers import Card, Place
from confide.methods import Expecting, answered_in, method_named
from confide.scoring.calibration import Calibrator
from confide.settings import Settings, dump
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


def leaving(state: Any, round: int, calibrator: Sequence[float]) -> Leave:
    """The ask to keep this state: the weights by themselves, since sites may have them.

    `calibrator` is the temperature and the offset of its confidences, and how many finds made them.
    """
    rest = as_array(encode(replace(state, weights={})))
    return Leave(rest, state.weights, round, *Calibrator.read(calibrator))


def state_in(ask: Leave, kind: type) -> Any:
    """The state, of this class, that an ask with whole weights gives. Raises MessageError."""
    return replace(decode(kind, ask.state.data), weights=ask.weights)


@dataclass(frozen=True)
class Left:
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


def _step(name: str, ask: type, reply: type, *, check: Check | None = None) -> Step:
    return Step(name, ask, reply, _answered_by_the_home, check=check)


JOIN = _step("join", Join, Joined, check=check_joined)
LEAVE = _step("leave", Leave, Left)
CLOSE = _step("close", Close, Closed)


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
    named = {
        "[[site]]": bool(settings.site),
        "[split]": settings.split is not None,
        "key": settings.key is not None,
        "model.vectors": settings.model.vectors is not None,
        "pcnn.vectors": settings.pcnn.vectors is not None,
        "data.format": settings.data.format is not None,
        "data.scheme": settings.data.scheme is not None,
        "data.columns": settings.data.columns is not None,
        "data.annotators": settings.data.annotators is not None,
        "data.skip_broken": settings.data.skip_broken,
        "data.encoding": settings.data.encoding is not None,
        "data.mask_common": settings.data.mask_common > 0,
        "data.train_share": settings.data.train_share < 1,
        "data.canaries": settings.data.canaries > 0,
        "guards": settings.guards != plain.guards,
    }
    wrong = [key for key, is_there in named.items() if is_there]
    if wrong:
        raise SettingsError(
            f"{', '.join(wrong)}: only a site may say this, in its own file",
            where=where,
            fix="remove it from the settings of the run",
        )
    _check_names(settings, where=where)


def check_guards(settings: Settings, guards: Guards) -> None:
    """Raise Refusal if a guard of a site refuses what these settings will ask of it."""
    settled = Expecting(settings)
    for step in answered_in(settings).values():
        check_settled(step.ask, settled(step.name, 1), guards)


def encoders_of(settings: Settings) -> dict[str, str]:
    """The encoders that the settings name, by the settings' keys."""
    named = {
        "model.context": settings.model.context,
        "classifier.encoder": settings.classifier.encoder,
        "lightner.bart": settings.lightner.bart,
    }
    return {key: name for key, name in named.items() if name}


def _check_names(settings: Settings, *, where: str | None) -> None:
    """Raise SettingsError if settings name a path: no place opens a path that another one names."""
    for key, name in encoders_of(settings).items():
        if not is_encoder_name(name):
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
                plain_name(part, "a public file")
        except GuardError as error:
            raise SettingsError(
                f"{key}: a run over real sites names what lies in the server's folder `public`",
                expected="a path below it, of letters, digits, '.', '_' and '-'",
                got=repr(path[:100]),
                where=where,
                fix="put it into the server's kit, below `public`, and name it relative to that",
            ) from error


def steps_of(method: str) -> tuple[Step, ...]:
    """Every step of a run of this method over real sites. Raises SettingsError."""
    return (JOIN, *method_named(method).steps, OFFER, *EXCHANGES.values(), LEAVE, CLOSE)


def wire_of(method: str) -> list[WireRow]:
    """The wire table of a method over real sites. Raises SettingsError."""
    return wire_table(steps_of(method))


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

    def said(self) -> bytes:
        """The statement that is signed."""
        return statement(
            "order",
            self.run.encode(),
            self.settings.encode(),
            digest(*(site.encode() for site in self.sites)),
            self.version.encode(),
        )

    @property
    def digest(self) -> str:
        """The digest of the order, 64 hexadecimal digits."""
        return digest(self.said()).hex()

    def lead(self) -> Card:
        """The lead's card. Raises Refusal if there is none, or if it did not sign this order."""
        card = Card.decode(self.card)
        if card.kind != "lead" or not is_signed_by(card.public, self.signature, self.said()):
            raise Refusal("bad-signature", "order")
        return card


def settings_for_sites(settings: Settings) -> str:
    """The settings as sites get them, without the place of the public set at the server."""
    public = settings.public.model_copy(update={"files": ()})
    return dump(settings.model_copy(update={"public": public}))


def signed_order(
    place: Place, *, run: str, settings: Settings, sites: Sequence[str], version: str
) -> dict[str, str]:
    """The lead's signature of an order, as it travels with a submission: `card`, `signature`."""
    order = Order(run, settings_for_sites(settings), tuple(sorted(sites)), version)
    return {"card": place.card.encode(), "signature": place.identity.sign(order.said())}


def submitted(signed: Mapping[str, str]) -> str:
    """A signed order as one argument of a submission, in hex: FLARE would interpret braces."""
    return json.dumps(dict(signed)).encode().hex()


def card_and_signature(text: str) -> tuple[str, str]:
    """The lead's card and signature in a submission. Raises Refusal if they are not there."""
    try:
        tree = json.loads(bytes.fromhex(text))
        card, signature = tree["card"], tree["signature"]
        if not (isinstance(card, str) and isinstance(signature, str) and signature):
            raise TypeError("text is expected")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refusal("bad-signature", "order") from error
    return card, signature


def packed(order: Order) -> str:
    """The part of an order that a `Join` has no other field for; "" if it is not signed."""
    if not order.signature:
        return ""
    said = {"sites": list(order.sites), "card": order.card, "signature": order.signature}
    return json.dumps(said)


def unpacked(text: str, *, run: str, settings: str, version: str) -> Order:
    """The order that a `Join` with these fields passes on. Raises Refusal."""
    try:
        tree = json.loads(text)
        sites, card, signature = tree["sites"], tree["card"], tree["signature"]
        if not all(isinstance(one, str) for one in [*sites, card, signature]):
            raise TypeError("text is expected")
        order = Order(run, settings, tuple(sites), version, card, signature)
        order.said()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refusal("bad-signature", "order") from error
    return order


# --- Events for the lead
#
# The server tells it of a run under way by the events of the run, by number.
#
# The lead asks for the events after the last one it has seen, and gets numbers and names only. It
# checks what it hears before using it: a server may not be what it says it is.


TOPIC = "confide"
OUTCOME = "outcome.json"
MOST_HEARD = 100_000
"""The most bytes of an outcome that are read."""
_KEPT = 2000
_AT_ONCE = 500
_TOLD = ("start", "failed", "round", "scores", "end")
_WHOLE = ("round", "rounds", "bytes_up", "bytes_down")
_NUMBERS = ("loss", "dev_f1", "best_f1", "seconds", "seconds_left")
_WORDS = ("site", "step", "message", "score")
_SCORES = ("dev",)
_HEARD = (*_WHOLE, *_NUMBERS, *_WORDS, *_SCORES)
"""The keys of an event that reach the lead; the scores of single sites stay at the server."""
_MOST_SCORES = 32
_STATES = ("running", "finished", "failed")
_MOST = 10**15


class Bulletin:
    """A watcher that keeps the last events; other threads may ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[tuple[int, Tree]] = deque(maxlen=_KEPT)
        self._number = 0
        self._outcome = {"state": "running"}

    def __call__(self, event: Event) -> None:
        """Keep an event, unless it is a single ask or reply: there are too many of these."""
        if event.kind not in _TOLD:
            return
        with self._lock:
            self._number += 1
            all = asdict(event)
            found = {key: all[key] for key in ("kind", *_HEARD) if all[key] is not None}
            self._events.append((self._number, found))

    def since(self, number: int) -> Tree:
        """The events after that number, the number of the last one, and the state of the run."""
        with self._lock:
            later = [(at, event) for at, event in self._events if at > number][:_AT_ONCE]
            return {
                "events": [event for _, event in later],
                "last": later[-1][0] if later else number,
                **self._outcome,
            }

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
        write_of_run(folder / OUTCOME, json.dumps(self._outcome, indent=1).encode())


def heard_event(told: object) -> Event | None:
    """An event as the server told it; None if it is not an event."""
    if not isinstance(told, dict) or told.get("kind") not in _TOLD:
        return None
    kept: Tree = {"kind": told["kind"]}
    for name, value in told.items():
        if name in _WORDS and isinstance(value, str):
            kept[name] = printable(value, 500)
        elif (name in _WHOLE and type(value) is int and abs(value) <= _MOST) or (
            name in _NUMBERS and type(value) in (int, float) and math.isfinite(value)
        ):
            kept[name] = value
        elif name in _SCORES and isinstance(value, dict):
            kept[name] = _scores(value)
    if kept["kind"] == "round" and not {"round", "rounds", "seconds", "bytes_up"} <= kept.keys():
        return None
    return Event(**kept)


def _scores(told: Tree) -> dict[str, float | None]:
    """Scores by kind, without what is none."""
    return {
        printable(kind, 100): score
        for kind, score in list(told.items())[:_MOST_SCORES]
        if score is None or (type(score) in (int, float) and math.isfinite(score))
    }


def heard_told(said: object, since: int) -> Tree | None:
    """A run's answer when asked for the events after number `since`; None if it makes no sense."""
    if not isinstance(said, dict) or not isinstance(said.get("events"), list):
        return None
    last = said.get("last")
    if type(last) is not int or not since <= last <= _MOST:
        return None
    return {"events": said["events"][:_AT_ONCE], "last": last, **_state(said)}


def heard_outcome(data: bytes) -> Tree:
    """Read a run's outcome from the file that the server left; empty if the file makes no sense."""
    try:
        said = json.loads(data[:MOST_HEARD])
    except (ValueError, RecursionError):
        return {}
    return _state(said) if isinstance(said, dict) else {}


def _state(said: Tree) -> Tree:
    if said.get("state") not in _STATES:
        return {}
    return {"state": said["state"]} | {
        key: printable(said[key], 2000) for key in ("kind", "why") if key in said
    }
