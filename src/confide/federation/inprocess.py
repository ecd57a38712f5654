"""The embedded engine: all sites on one machine, one after another, through the same codec.

`SiteSpec` says how to make a site's host. The sequential engine makes hosts here, the engine of
`workers` makes them in its processes, and both give the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from confide.federation.federation import Delivery
from confide.federation.guards import Guards
from confide.federation.memory import MemoryStore
from confide.federation.site import Scratch, Site, SiteHost
from confide.federation.steps import Step
from confide.text.document import Document


@dataclass(frozen=True)
class SiteSpec:
    """A site as plain data, before any process holds it: the fields of `Site`, and its folder."""

    name: str
    train: Sequence[Document]
    folder: Path
    dev: Sequence[Document] = ()
    test: Sequence[Document] = ()
    key_file: Path | None = None
    vectors: Path | None = None
    context: str | None = None
    tag_scheme: str | None = None
    knows: tuple[str, ...] = ()
    test_knows: tuple[str, ...] = ()
    guards: Guards = Guards()
    remote: bool = False

    @property
    def weight(self) -> int:
        """How much work the site is, measured in characters of training text."""
        return sum(len(document.text) for document in self.train)


def site_of(spec: SiteSpec, scratch: Scratch) -> Site:
    """The site itself; sites of one process share `scratch`."""
    common = {one.name: getattr(spec, one.name) for one in fields(spec) if one.name != "folder"}
    return Site(**common, scratch=scratch)


@dataclass(frozen=True)
class Hosting:
    """What all sites of a run share: the method's steps and memory, and the seed.

    Server and sites keep a checkpoint after every `every`-th round and after round `last`.
    """

    steps: Mapping[str, Step]
    memory: type
    seed: int
    every: int = 1
    last: int | None = None

    def host(self, spec: SiteSpec, scratch: Scratch) -> SiteHost:
        """A site, ready to answer."""
        return SiteHost(
            site_of(spec, scratch),
            self.steps,
            memory=MemoryStore(
                spec.folder / "memory", self.memory, every=self.every, last=self.last
            ),
            seed=self.seed,
            log=spec.folder / "site.log",
        )


class SequentialEngine:
    """Asks one site after another, in the order of their names, in this process."""

    def __init__(self, specs: Sequence[SiteSpec], hosting: Hosting) -> None:
        scratch: Scratch = {}
        self._hosts = {spec.name: hosting.host(spec, scratch) for spec in specs}

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        return tuple(sorted(self._hosts))

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply. Ignores `timeout`: nothing here can be interrupted."""
        for site in sorted(asks):
            start = time.perf_counter()
            reply = self._hosts[site].answer(step, round, asks[site])
            yield Delivery(site, reply, time.perf_counter() - start)

    def stop(self) -> None:
        """Do nothing: nothing runs here between asks."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
