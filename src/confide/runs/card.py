"""A model card: what a copy of a model was trained on, how well it does, and what it may reveal.

It is a README.md in the form of Hugging Face's model cards: a head of metadata, then Markdown. It
holds names of types and numbers. Sites are numbered, not named; there are no paths, no settings
that say where text is, no words, and no digest of anybody's text.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from confide.errors import printable
from confide.federation.ledger import ledger_files, read_ledger
from confide.files import write_of_run
from confide.runs.folder import (
    RunFolder,
    audit_sentence,
    audited,
    epsilon_sentence,
    noise_sentence,
    shareable,
    smallest_sentence,
)
from confide.runs.result import Result
from confide.scoring.calibration import AS_IS, Calibrator
from confide.settings import REFERENCES, Settings
from confide.tasks import TASKS, Task
from confide.version import __version__
from confide.words import points, templates

CARD, OTHER_CARD = "README.md", "MODEL_CARD.md"
"""The card's name, and its name where the folder has a README.md already."""

_MARKS = re.compile(r"([\\`*_\[\]|~])")
_PARTS = ("train", "dev", "test")
_PLAIN = re.compile(r"[\w.]+", re.ASCII)
_PIPELINES = {"entities": "token-classification", "relations": "text-classification"}
_OF_ALL = ("training", "select", "options", "privacy")
_OF_KINDS = {
    "tagger": ("model", "vocabulary"),
    "encoder": ("classifier", "encoder"),
    "spans": ("classifier", "encoder"),
    "lightner": ("lightner",),
    "linear": ("linear",),
    "relations": ("classifier", "encoder", "pairs"),
    "bags": ("bags", "pairs"),
}
_OF_READERS = {"pcnn": {"pcnn", "vocabulary"}, "encoder": {"classifier", "encoder"}}
"""Tables of settings that make a model what it is: any model, a kind, a reader of bags."""
_KEYS = {
    "task", "method", "seed", "rounds", "precision", "model.kind", "federation.fraction",
    "federation.combine", "federation.up", "federation.down",
}  # fmt: skip
MOST_NAMES = 200
"""Types that a card lists."""


@dataclass(frozen=True)
class Copied:
    """The source of a release: the run's folder, and the site whose own model it is, if any.

    `tells` says what the copy reveals to whoever has it; `at_home`: the site trained it further;
    `calibrator` is that of its confidences.
    """

    run: Path
    site: str | None
    tells: str
    at_home: bool = False
    calibrator: Calibrator = AS_IS


def write_card(out: Path, copied: Copied) -> Path:
    """Write the card of the release in `out`, beside it. Gives its path.

    A README.md that is there already is kept. Raises RunError, DataError.
    """
    folder = RunFolder(copied.run)
    text = card(folder.settings(as_written=True), folder.result(), copied)
    path = out / (OTHER_CARD if (out / CARD).exists() else CARD)
    write_of_run(path, text.encode())
    return path


def card(settings: Settings, result: Result, copied: Copied) -> str:
    """The card's text."""
    task, overall = TASKS[result.task], result.scores.overall
    kind, learns = task.kinds[0], task.learns
    pipeline, score = _PIPELINES[learns], _of(task, overall, kind)
    index = None
    if score is not None:
        metric = {"type": "f1" if task.words.score else kind, "value": round(score, 4)}
        found = {
            "task": {"type": pipeline},
            "dataset": {"type": "private", "name": "held-out text of the sites"},
            "metrics": [metric | {"name": task.words.full(kind)}],
        }
        name = printable(result.name or result.method, 100)
        index = json.dumps([{"name": name, "results": [found]}])
    # sites by number, in alphabetical order; the one whose own model this is says so
    called, scored = (
        {
            name: f"site {number}" + (", whose model this is" if name == copied.site else "")
            for number, name in enumerate(sorted(sites), 1)
        }
        for sites in (result.data.sites, result.scores.sites)
    )
    counts = Counter[str]()
    for site in result.data.sites.values():
        counts.update(site.entities if learns == "entities" else site.relations)
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_NAMES]
    rows = {told: result.scores.sites[name] for name, told in scored.items()}
    rows = {told: own for told, own in rows.items() if _of(task, own, kind) is not None}
    types = overall.get(task.typed[0], {}).get("types", {})
    federated = settings.method not in REFERENCES
    changed = settings.guards.model_dump(exclude_defaults=True)
    environment = templates("confide.runs")  # what is named elsewhere goes through `safe`
    environment.filters |= {"plain": safe, "code": _code}
    text = environment.get_template("card.md.j2").render(
        version=__version__,
        task=task,
        result=result,
        copied=copied,
        pipeline=pipeline,
        tags=json.dumps(["confide", "federated-learning", task.name, result.method]),
        index=index,
        title=result.name or f"{result.method} model",
        who="one site" if len(called) == 1 else f"{len(called)} sites",
        sites=[
            (told, *(f"{getattr(result.data.sites[name], part):,}" for part in _PARTS))
            for name, told in called.items()
        ],
        counts=[(safe(name), f"{count:,}") for name, count in ranked],
        score=score,
        scores_head=("site", *(task.words.full(kind) for kind in task.kinds)),
        scores=[
            (told, *(points(_of(task, own, kind)) for kind in task.kinds))
            for told, own in (*rows.items(), ("all", overall))
        ],
        types=[
            (safe(name), *(points(one.get(rate)) for rate in ("f1", "precision", "recall")))
            for name, one in sorted(types.items())[:MOST_NAMES]
        ],
        settings=[
            (f"`{k}`", safe(value)) for k, value in sorted(settings_of_model(settings).items())
        ],
        federated=federated,
        noise=safe(noise_sentence(settings, result.privacy), most=1000),
        guards=", ".join(f"{name} {safe(value)}" for name, value in sorted(changed.items())),
        audit=list(_audited(copied.run, called)),
        left=list(_left(copied.run)) if federated else [],
    )
    return text + "\n"


def safe(text: object, *, most: int = 100) -> str:
    r"""A name from elsewhere as plain words of Markdown: one line, no mark, no tag.

    >>> safe("ADE|x<b>\n")
    'ADE\\|x&lt;b&gt;?'
    """
    return _MARKS.sub(r"\\\1", html.escape(printable(text, most), quote=False))


def _code(name: str) -> str:
    """A name of confide's own as code."""
    return f"`{name}`" if _PLAIN.fullmatch(name) else safe(name)


def settings_of_model(settings: Settings) -> dict[str, str]:
    """The settings that made a model: of its kind, its training and its federation; no paths."""
    tables = {*_OF_ALL, *_OF_KINDS.get(settings.kind, ())}
    tables |= _OF_READERS[settings.bags.reader] if settings.kind == "bags" else set()
    alone = {"base"} if settings.method in REFERENCES else set[str]()
    return {
        key: value
        for key, value in shareable(settings).items()
        if key.partition(".")[0] in tables or key in {*_KEYS, *alone}
    }


def _audited(run: Path, called: Mapping[str, str]) -> Iterator[str]:
    """The three numbers of the run's audit, if there is one, with its sites as they are called."""
    found = audited(RunFolder(run))
    if found is not None:
        lines = [f"S{called[name][1:]}: {audit_sentence(found.sites[name])}." for name in called
                 if name in found.sites]  # fmt: skip
        lines += [f"{epsilon_sentence(found)}.", f"{smallest_sentence(found.crossed)}."]
        yield from (safe(line, most=400) for line in lines)


def _left(run: Path) -> Iterator[tuple[str, ...]]:
    """Each field that left a site once, in the ledger's order."""
    entries = (entry for file in ledger_files(run) for entry in read_ledger(file))
    up = ((e.step, e.field, e.kind, e.seen) for e in entries if e.direction == "up")
    for row in dict.fromkeys(up):
        if not row[1].startswith("("):
            yield (_code(row[0]), _code(row[1]), safe(row[2]), safe(row[3]))


def _of(task: Task, scores: Mapping[str, object], kind: str) -> float | None:
    return None if task.empty(dict(scores)) else task.value(dict(scores), kind)
