"""Real sites' homes without a network: an engine that hands each ask to the site's home."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from confide.federation.federation import Delivery
from confide.flare.home import SiteHome
from confide.flare.joining import wire_digest, wire_of
from confide.settings import Settings, dump, dump_site
from confide.settings.sitefile import parse_site


def write_site_files(folder: Path, settings: Settings, **changes: Any) -> dict[str, Path]:
    """What each site of these settings would have in its kit, and consents to their method."""
    paths = {}
    for table in settings.site:
        path = folder / table.name / "site.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        tree = {
            **table.model_dump(mode="json", exclude_none=True),
            "key": settings.key,
            "format": table.format or settings.data.format,
            "scheme": table.scheme or settings.data.scheme,
            "memory": str(folder / table.name / "memory"),
            "guards": settings.guards.model_dump(),
            "consent": {settings.trained_by: {"wire": wire_digest(wire_of(settings.trained_by))}},
            **changes,
        }
        path.write_text(dump_site(parse_site(tree)))
        paths[table.name] = path
    return paths


def of_a_consortium(settings: Settings) -> Settings:
    """The same run without what only a site says."""
    data = settings.data.model_copy(update={"format": None, "scheme": None, "encoding": None})
    files = tuple(Path(path).name for path in settings.public.files)
    public = settings.public.model_copy(update={"files": files})
    own = {"site": (), "split": None, "key": None, "guards": Settings().guards}
    return settings.model_copy(update={**own, "data": data, "public": public})


def public_of(settings: Settings) -> Path | None:
    """The folder of the public files of these settings: what the server's kit would have."""
    return Path(settings.public.files[0]).parent if settings.public.files else None


def as_toml(settings: Settings) -> str:
    """The settings of a run as they travel."""
    return dump(of_a_consortium(settings))


class HomesEngine:
    """Asks the homes one after the other, in this process."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.homes = {name: SiteHome(path) for name, path in files.items()}
        self.asked: list[tuple[str, str, int]] = []

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self.homes))

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        for site in sorted(asks):
            self.asked.append((site, step, round))
            start = time.perf_counter()
            reply = self.homes[site].answer(step, round, bytes(asks[site]))
            yield Delivery(site, reply, time.perf_counter() - start)
