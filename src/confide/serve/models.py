"""The models that are served: opened once, each with its own thread and its own queue.

Inference never runs on the event loop. Asks for one model are answered in turn, in pieces, so a
long one does not hold up the others; a full queue is refused.

A reply is held back until a multiple of a time that depends on the text's length alone. The time
that one text takes then says nothing of whether its words were in the training text (Ali et al.,
"Unintended Memorization and Timing Attacks in Named Entity Recognition Models", arXiv 2211.02245).
It hides one ask's time, not how busy the server is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from confide.errors import ConfideError, printable
from confide.jobs.loading import LoadedModel, load
from confide.serve.gate import USUAL, Limits, Refused
from confide.text.document import Document

PIECE_TEXTS, PIECE_CHARACTERS = 16, 20_000
"""The most that a model reads before it is another ask's turn."""
PACE = 500
"""Characters that one padded time is meant for; longer texts have a multiple of it."""


class Annotates(Protocol):
    """A model that is loaded."""

    def __call__(
        self, documents: Sequence[Document], *, types: Sequence[str] | None = None
    ) -> list[Document]:
        """The documents, annotated; `types` are the labels among which to decide."""
        ...


@dataclass
class Served:
    """One model: its name here, what it finds, and its thread."""

    name: str
    finds: str
    types: tuple[str, ...]
    annotate: Annotates
    limits: Limits = USUAL
    waiting: int = 0
    thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="model")
    )

    async def found(
        self, documents: Sequence[Document], *, types: Sequence[str] | None = None
    ) -> list[Document]:
        """The documents, annotated. Raises Refused if too many asks are waiting."""
        return [one async for piece in self.pieces(documents, types=types) for one in piece]

    async def pieces(
        self, documents: Sequence[Document], *, types: Sequence[str] | None = None
    ) -> AsyncIterator[list[Document]]:
        """The documents in order, annotated, a few at a time, each few at its padded time.

        With `types`, the model decides among these alone. Raises Refused if it has not all of them.
        """
        if self.waiting >= self.limits.waiting:
            raise Refused(503, "busy", "too many asks are waiting for this model; try again")
        loop = asyncio.get_running_loop()
        work = self.annotate if types is None else partial(self.annotate, types=types)
        self.waiting += 1
        start = loop.time()
        try:
            for piece in _pieces(documents):
                try:
                    found = await loop.run_in_executor(self.thread, work, piece)
                except ConfideError as error:
                    raise Refused(422, "data", printable(error.what)) from None
                size = sum(len(one.text) for one in piece)
                until = padded(loop.time() - start, pad=self.limits.pad, characters=size)
                await asyncio.sleep(start + until - loop.time())
                yield found
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Stop the thread after what it is doing."""
        self.thread.shutdown(wait=False, cancel_futures=True)


def padded(seconds: float, *, pad: float, characters: int) -> float:
    """When to answer: the next multiple of a step that depends on the length of the text alone.

    >>> padded(0.003, pad=0.02, characters=100), padded(0.021, pad=0.02, characters=100)
    (0.02, 0.04)
    """
    step = pad * max(1, math.ceil(characters / PACE))
    return step * max(1, math.ceil(seconds / step)) if step else seconds


def _pieces(documents: Iterable[Document]) -> Iterator[list[Document]]:
    piece: list[Document] = []
    size = 0
    for document in documents:
        if piece and (len(piece) == PIECE_TEXTS or size + len(document.text) > PIECE_CHARACTERS):
            yield piece
            piece, size = [], 0
        piece.append(document)
        size += len(document.text)
    if piece:
        yield piece


def named(runs: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """Names for what is to be served, short and different: folder and site by name.

    `RUN@SITE` is a site's own model; a folder whose name contains an @ wins.

    >>> list(named(["runs/ours", "other/ours", "runs/ours@north"]))
    ['ours', 'ours-2', 'ours@north']
    """
    found: dict[str, tuple[str, str | None]] = {}
    for given in runs:
        run, at, site = given.rpartition("@")
        if not at or not run or not site or Path(given).expanduser().is_dir():
            run, site = given, ""
        short = "+".join(Path(part).name or part for part in run.split("+"))
        short = printable(short + (f"@{site}" if site else ""), 60)
        name, count = short, 1
        while name in found:
            count += 1
            name = f"{short}-{count}"
        found[name] = (run, site or None)
    return found


def serve_models(
    runs: Sequence[str], *, key: Path | None = None, limits: Limits = USUAL
) -> dict[str, Served]:
    """The models by name, each read once before the first ask. Raises as `confide.load` does."""
    return {
        name: served(name, load(run, site=site, key=key), limits=limits)
        for name, (run, site) in named(runs).items()
    }


def served(name: str, model: LoadedModel, *, limits: Limits = USUAL) -> Served:
    """A loaded model, warm: the first ask takes no longer than the others."""

    def annotate(
        documents: Sequence[Document], *, types: Sequence[str] | None = None
    ) -> list[Document]:
        used = model if types is None else model.only(types)
        return [one.document for one in used.pipe(documents)]

    if model.entity_types:
        annotate([Document("warm", "One sentence.")])
    return Served(name, " and ".join(model.finds), model.entity_types, annotate, limits)
