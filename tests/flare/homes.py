"""Real sites' homes without a network: an engine that hands each ask to the site's home."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from confide import __version__
from confide.errors import EngineError
from confide.federation.failures import Failure
from confide.federation.federation import Delivery
from confide.federation.messages import encode
from confide.flare.agreements import CONSENT_FILE, write_agreements
from confide.flare.joining import Order, wire_digest, wire_of
from confide.flare.peers import Card, Pins, Signer, make_identity, read_identity
from confide.flare.site import SignedHome, SiteHome
from confide.settings import Settings, dump, dump_site, parse
from confide.settings.sitefile import parse_consent, parse_site

WIDE: dict[str, Any] = {
    "rounds": 10**6, "local_epochs": 10**6, "local_steps": 10**6, "batch_size": 1, "fraction": 1e-9,
    "at_least": 1, "combine": ["mean", "trimmed", "median", "clipped"], "max_norm_ratio": 10**6,
    "rows": ["all", "seen"], "lead": "*", "sites": [], "others": True, "runs": 10**6,
    "until": date(9999, 12, 31), "agreed": datetime(2026, 1, 1, tzinfo=UTC),
}  # fmt: skip
"""An agreement that no run is outside of."""


def write_consent(path: Path, **methods: Mapping[str, Any]) -> None:
    """Let the site whose own file is `path` agree to these methods, with other bounds than WIDE."""
    held = {
        method: {"wire": wire_digest(wire_of(method)), **WIDE, **bounds}
        for method, bounds in methods.items()
    }
    tree = {"site": path.parent.name, "method": held}
    write_agreements(path.parent, parse_consent(tree))


def withdraw(path: Path) -> None:
    """Let the site whose own file is `path` agree to nothing more."""
    consent = path.with_name(CONSENT_FILE)
    consent.write_text(consent.read_text().split("[method")[0])


def write_site_files(folder: Path, settings: Settings, **changes: Any) -> dict[str, Path]:
    """What each site of these settings would have in its kit, and consents to their method.

    Guards are those of the settings, all of which a site's file then says: on a machine of its own
    a site refuses tiny runs.
    """
    paths = {}
    consent = changes.pop("consent", {settings.trained_by: {}})
    guards = settings.guards.model_dump() | changes.pop("guards", {})
    for table in settings.site:
        path = folder / table.name / "site.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        tree = {
            **table.model_dump(mode="json", exclude_none=True),
            "key": settings.key,
            "format": table.format or settings.data.format,
            "scheme": table.scheme or settings.data.scheme,
            "memory": str(folder / table.name / "memory"),
            "guards": guards,
            **changes,
        }
        path.write_text(dump_site(parse_site(tree)))
        write_consent(path, **consent)
        paths[table.name] = path
    return paths


def of_a_consortium(settings: Settings) -> Settings:
    """The same run without what only a site says."""
    data = settings.data.model_copy(update={"format": None, "scheme": None, "encoding": None})
    files = tuple(Path(path).name for path in settings.public.files)
    public = settings.public.model_copy(update={"files": files})
    sums = settings.federation.sums or "plain"  # real sites would mask
    own = {
        "site": (),
        "split": None,
        "key": None,
        "guards": Settings().guards,
        "federation": settings.federation.model_copy(update={"sums": sums}),
    }
    return settings.model_copy(update={**own, "data": data, "public": public})


def public_of(settings: Settings) -> Path | None:
    """The folder of the public files of these settings: what the server's kit would have."""
    return Path(settings.public.files[0]).parent if settings.public.files else None


def as_toml(settings: Settings) -> str:
    """The settings of a run as they travel."""
    return dump(of_a_consortium(settings))


def place_in(folder: Path, name: str, kind: str = "site") -> Signer:
    """A place without a kit: its card says of itself whose it is."""
    path = folder / "identity" / "identity.key"
    identity = read_identity(path) if path.exists() else make_identity(path)
    card = Card(kind, name, identity.public.hex(), f"certificate of {name}", "")
    pins = Pins(folder / "identity" / "peers.json")
    return Signer(name, identity, card, pins, lambda one: one.certificate.endswith(f" {one.name}"))


def ordered(settings: str, sites: Sequence[str], lead: Signer, *, run: str = "trial") -> Order:
    """The order of a run, signed by this lead."""
    chosen = parse(tomllib.loads(settings))
    return Order.signed_by(lead, run, chosen, sites=sites, version=__version__)


class HomesEngine:
    """Asks the homes one after the other, in this process."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.homes = {name: SiteHome(path) for name, path in files.items()}
        self.asked: list[tuple[str, str, int]] = []

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self.homes))

    def deliver(
        self,
        step: str,
        round: int,
        *,
        asks: Mapping[str, bytes],
        timeout: float | None,
        seals: Mapping[str, bytes] | None = None,
    ) -> Generator[Delivery, None, None]:
        for site in sorted(asks):
            self.asked.append((site, step, round))
            start = time.perf_counter()
            reply, seal = self.answer(site, step, round, asks[site], seal=(seals or {}).get(site))
            yield Delivery(site, reply, time.perf_counter() - start, seal)

    def answer(
        self, site: str, step: str, round: int, ask: bytes, *, seal: bytes | None
    ) -> tuple[bytes, bytes]:
        return self.homes[site].answer(step, round, bytes(ask)), b""


class Away(HomesEngine):
    """Some sites are not connected, until the rounds from the one that is named for them."""

    def __init__(self, files: Mapping[str, Path], **until: int) -> None:
        super().__init__(files)
        self.files = files
        self.until = {name.replace("_", "-"): round for name, round in until.items()}
        self.started = 0

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], **asked: Any
    ) -> Generator[Delivery, None, None]:
        away = [site for site in asks if self.started < self.until.get(site, 0)]
        for site in away:
            yield Delivery(site, encode(Failure("absent", "", "", "")), 0.0, heard=False)
        there = {site: ask for site, ask in asks.items() if site not in away}
        yield from super().deliver(step, round, asks=there, **asked)

    def recheck(self, sites: Sequence[str]) -> None:
        """Begin again, as real sites do, where one has come back."""
        self.started += 1
        if back := [site for site in sites if self.until.get(site) == self.started]:
            raise EngineError(f"{', '.join(back)}: back")


class Stops(HomesEngine):
    """Dies after so many answers: before or after the server hears the last one."""

    def __init__(self, files: Mapping[str, Path], after: int) -> None:
        super().__init__(files)
        self._left = after

    def deliver(self, step: str, round: int, **asked: Any) -> Generator[Delivery, None, None]:
        for delivery in super().deliver(step, round, **asked):
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            yield delivery


class SealedHomes(HomesEngine):
    """The same with seals: every home has an identity, and answers signed asks only."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__(files)
        self.places = {name: place_in(path.parent, name) for name, path in files.items()}
        self.sealed = {
            name: SignedHome(home, self.places[name]) for name, home in self.homes.items()
        }

    def answer(
        self, site: str, step: str, round: int, ask: bytes, *, seal: bytes | None
    ) -> tuple[bytes, bytes]:
        assert seal is not None
        return self.sealed[site].answer(step, round, ask, seal=seal)


class SealedStops(Stops, SealedHomes):
    """The same with seals."""
