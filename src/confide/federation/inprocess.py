"""The embedded engine: all sites on one machine, one after the other, through the same codec.

`SiteSpec` says how a site's host is made; the sequential engine makes them here, the engine of
`workers` in its processes, and both give the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.federation.federation import Delivery
from confide.federation.guards import Guards
from confide.federation.memory import MemoryStore
from confide.federation.site import Site, SiteHost
from confide.federation.steps import Step
from confide.text.document import Document


@dataclass(frozen=True)
class SiteSpec:
    """A site as plain data, before any process holds it. `folder` is what the site owns.

    `knows` are the relations or entity types that it annotates; none: all of them. `test_knows` are
    those that are annotated in its test text besides.
    """

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
        """A measure of how much work the site is: the characters of its training text."""
        return sum(len(document.text) for document in self.train)


def site_of(spec: SiteSpec, scratch: dict[Hashable, Any]) -> Site:
    """The site itself; sites of one process share `scratch`."""
    return Site(
        name=spec.name,
        train=spec.train,
        dev=spec.dev,
        test=spec.test,
        key_file=spec.key_file,
        vectors=spec.vectors,
        context=spec.context,
        tag_scheme=spec.tag_scheme,
        knows=spec.knows,
        test_knows=spec.test_knows,
        guards=spec.guards,
        remote=spec.remote,
        scratch=scratch,
    )


@dataclass(frozen=True)
class Hosting:
    """What every site of a run has in common: the method's steps and memory, and the seed.

    The server keeps a checkpoint after every `every` rounds and after the `last` one; so do sites.
    """

    steps: Mapping[str, Step]
    memory: type
    seed: int
    every: int = 1
    last: int | None = None

    def host(self, spec: SiteSpec, scratch: dict[Hashable, Any]) -> SiteHost:
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
    """Asks one site after the other, in the order of their names, in this process."""

    def __init__(self, specs: Sequence[SiteSpec], hosting: Hosting) -> None:
        scratch: dict[Hashable, Any] = {}
        self._hosts = {spec.name: hosting.host(spec, scratch) for spec in specs}

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        return tuple(sorted(self._hosts))

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply. `timeout` is ignored: nothing here can be interrupted."""
        for site in sorted(asks):
            start = time.perf_counter()
            reply = self._hosts[site].answer(step, round, asks[site])
            yield Delivery(site, reply, time.perf_counter() - start)

    def stop(self) -> None:
        """Nothing goes on here that could be stopped."""

    def close(self) -> None:
        """Nothing to let go of."""
