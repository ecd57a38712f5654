"""Methods of relations and bags over real engines, for tests that look at what is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Delivery, Federation
from confide.federation.ledger import Ledger
from confide.federation.messages import decode, encode, fixed, peek
from confide.federation.site import Site
from confide.methods import method_of
from confide.methods.feded import Predicted, TrainAndPredict, columns
from confide.runs.sites import gather
from confide.settings import Settings
from confide.text.document import Document
from contract.corpus import tiny
from contract.relations import write_documents
from kinds.configs import config


class Seen(SequentialEngine):
    """An engine that keeps what it carried last, by step and site, and may change replies."""

    def __init__(self, specs: Any, hosting: Hosting) -> None:
        super().__init__(specs, hosting)
        self._hosting = hosting
        self.asks: dict[tuple[str, str], Any] = {}
        self.replies: dict[tuple[str, str], Any] = {}
        self.sent: dict[tuple[str, str], bytes] = {}
        self.change: Any = lambda step, site, turn, reply: reply

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        kind = self._hosting.steps[step]
        for found in super().deliver(step, round, asks=asks, timeout=timeout):
            place = (step, found.site)
            self.asks[place] = decode(kind.ask, asks[found.site])
            if peek(found.reply).message == kind.reply.__name__:
                self.replies[place] = decode(kind.reply, found.reply)
                self.sent[place] = found.reply
                changed = self.change(step, found.site, round, self.replies[place])
                found = Delivery(
                    found.site,
                    changed if isinstance(changed, bytes) else encode(changed),
                    found.seconds,
                )
            yield found

    def site(self, name: str) -> Site:
        return self._hosts[name].site

    def memory(self, name: str) -> Any:
        """What a site remembers now."""
        return self._hosts[name]._memory.latest()


def started(
    folder: Path, settings: Settings, *, at_least: int = 0, **changes: Any
) -> tuple[Any, Federation, Seen]:
    """The method, a federation of the settings' sites, and its engine."""
    key = Path(settings.key) if settings.key else None
    gathered = gather(settings, folder / "sites", key_file=key)
    method = method_of(settings)(settings, changes.get("public", gathered.public))
    steps = {step.name: step for step in method.pair.steps}
    engine = Seen(gathered.specs, Hosting(steps, method.pair.Memory, settings.seed))
    federation = Federation(engine, seed=settings.seed, ledger=Ledger(), at_least=at_least)
    return method, federation, engine


def with_train(
    folder: Path, method: str, sites: Sequence[Sequence[Document]], *overrides: str, **own: Any
) -> Settings:
    """Settings of sites that train on these documents; `own` are fields of every site's table."""
    usual = tiny(folder, f"method={method}", sites=len(sites))
    tables = []
    for table, documents in zip(usual.site, sites, strict=True):
        path = folder / "own" / f"{table.name}.jsonl"
        train = write_documents(path, documents)
        tables.append({**table.model_dump(exclude_none=True), "train": train})
        tables[-1] |= {key: value[table.name] for key, value in own.items() if table.name in value}
    return tiny(folder, f"method={method}", *overrides, site=tables)


# --- FedED's messages by hand -----------------------------------------------------------------


def asked(S: int = 4, R: int = 3, **changes: Any) -> TrainAndPredict:
    """An ask of the defaults, about S public examples and R classes."""
    ask = TrainAndPredict(
        weights={},
        config=config(learning_rate=0.01, optimiser="adamw", clip=1.0, batch_size=4, epochs=2),
        public="77",
        examples=S,
        classes=R,
        upload="logits",
        average="all",
        wire_dtype="float16",
        most=16.0,
    )
    return replace(ask, **changes)


def reply_of(
    logits_SR: NDArray[Any], ask: TrainAndPredict, knows: Sequence[bool] | None = None
) -> Predicted:
    """What a site says whose model has these logits."""
    knows_R = np.array(knows or [True] * ask.classes)
    found_SQ = columns(logits_SR, knows_R, upload=ask.upload, average=ask.average)
    return Predicted(
        said_SQ=fixed(found_SQ, ask.wire_dtype, most=ask.most),  # type: ignore[arg-type]
        knows={"": knows_R[1:].astype(np.float32)} if ask.average == "known" else {},
        sites=1,
        loss=0.5,
        sentences=8,
    )
