"""The steps that every run over real sites has around those of its method: join, leave and close.

To join, a site gets the settings of the run, checks that it agreed to the method's wire table,
reads its own text, and says how much it has. To leave, it gets the trained state, keeps it beside
its memory, and counts its own errors. To close, both sides sign the heads of their ledgers. No
method sees these steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError, SettingsError
from confide.federation.checkpoints import as_array
from confide.federation.files import plain_name
from confide.federation.guards import MOST, Guards, check_mark, check_names, check_settled
from confide.federation.messages import Arrays, carries, decode, encode
from confide.federation.secure.exchanges import EXCHANGES, OFFER
from confide.federation.steps import Check, Step
from confide.federation.wire import WireRow, wire_table
from confide.learning.encoder_files import is_encoder_name
from confide.methods import Expecting, answered_in, method_named
from confide.scoring.calibration import Calibrator
from confide.settings import Settings


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
