"""A model card: what a copy of a model was trained on, how well it does, and what it may reveal.

It is a README.md in the form of Hugging Face's model cards: a head of metadata, then Markdown. It
holds names of types and numbers. Sites are numbered, not named; there are no paths, no settings
that say where text is, no words, and no digest of anybody's text.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from confide.errors import printable
from confide.federation.ledger import ledger_files, read_ledger
from confide.files import write_of_run
from confide.runs.folder import RunFolder, audited, shareable, told_epsilon, told_of, told_smallest
from confide.runs.result import Private, Result
from confide.scoring.calibration import AS_IS, Calibrator
from confide.settings import REFERENCES, Settings
from confide.tasks import TASKS, Task
from confide.version import __version__

CARD, OTHER_CARD = "README.md", "MODEL_CARD.md"
"""The card's name, and its name where the folder has a README.md already."""

_MARKS = re.compile(r"([\\`*_\[\]|~])")
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
_USE = """## Use

With confide installed, in this folder:

```console
$ confide predict . note.txt
```"""
MOST_NAMES = 200
"""Types that a card lists."""

Row = Sequence[object]
T = TypeVar("T")


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
    task = TASKS[result.task]
    title = safe(result.name or f"{result.method} model")
    parts = [
        _head(result, task),
        f"# {title}",
        _what(result, task, copied),
        _USE,
        _data(result, task, copied),
        _scores(result, task, copied),
        _training(settings),
        _privacy(settings, copied, result.privacy),
        f"Written by confide {__version__}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def safe(text: object, *, most: int = 100) -> str:
    r"""A name from elsewhere as plain words of Markdown: one line, no mark, no tag.

    >>> safe("ADE|x<b>\n")
    'ADE\\|x&lt;b&gt;?'
    """
    return _MARKS.sub(r"\\\1", html.escape(printable(text, most), quote=False))


def _code(name: str) -> str:
    """A name of confide's own as code."""
    return f"`{name}`" if _PLAIN.fullmatch(name) else safe(name)


def _head(result: Result, task: Task) -> str:
    """The metadata: YAML, whose values are JSON so that no name can break out of them."""
    kind = task.kinds[0]
    pipeline = _PIPELINES[task.learns]
    lines = ["library_name: confide", f"pipeline_tag: {pipeline}"]
    lines.append(f"tags: {json.dumps(['confide', 'federated-learning', task.name, result.method])}")
    score = _of(task, result.scores.overall, kind)
    if score is not None:
        metric = {"type": "f1" if task.words.score else kind, "value": round(score, 4)}
        metric["name"] = task.words.full(kind)
        model = {
            "name": printable(result.name or result.method, 100),
            "results": [
                {
                    "task": {"type": pipeline},
                    "dataset": {"type": "private", "name": "held-out text of the sites"},
                    "metrics": [metric],
                }
            ],
        }
        lines.append(f"model-index: {json.dumps([model])}")
    return "---\n" + "\n".join(lines) + "\n---"


def _what(result: Result, task: Task, copied: Copied) -> str:
    sites = len(result.data.sites)
    who = f"{sites} sites" if sites != 1 else "one site"
    if result.method == "alone":
        how = "It was trained by one site on its own text."
    elif result.method == "pooled":
        how = f"It was trained on the text of {who} in one place."
    elif result.method == "public-only":
        how = "It was trained on public text only."
    else:
        how = (
            f"It was trained by {who} with the method {_code(result.method)}, without sharing text."
        )
    own = " It is the model of one of them." if copied.site and result.personal else ""
    if copied.at_home:
        own = " One of them trained it further at home; the scores are those of the common model."
    size = f" It has {result.parameters:,} parameters." if result.parameters else ""
    return f"A model that can {task.words.does}. {how}{own}{size}"


def _data(result: Result, task: Task, copied: Copied) -> str:
    """Counts of all sites together by type, and of each numbered site by split."""
    sites = result.data.sites
    if not sites:
        return ""
    counts: dict[str, int] = {}
    for site in sites.values():
        own = site.entities if task.learns == "entities" else site.relations
        for name, count in own.items():
            counts[name] = counts.get(name, 0) + count
    rows = [
        (called, *(f"{getattr(site, part):,}" for part in ("train", "dev", "test")))
        for called, site in _numbered(sites, copied)
    ]
    text = "## Data\n\nThe text is not part of this copy. Sentences of each site:\n\n"
    text += _table(("site", "train", "dev", "test"), rows)
    if counts:
        shown = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_NAMES]
        text += f"\n\n{task.words.found.capitalize()} in all training text:\n\n"
        text += _table((task.words.type, "count"), [(safe(n), f"{c:,}") for n, c in shown])
    return text


def _scores(result: Result, task: Task, copied: Copied) -> str:
    """Scores of all, of each numbered site and of each type, on test text."""
    kinds, overall = task.kinds, result.scores.overall
    if _of(task, overall, kinds[0]) is None:
        return "## Scores\n\nNothing was held out for testing, so there are no scores."
    rows = [
        (called, *(_points(_of(task, scores, kind)) for kind in kinds))
        for called, scores in _numbered(result.scores.sites, copied)
        if _of(task, scores, kinds[0]) is not None
    ]
    rows.append(("all", *(_points(_of(task, overall, kind)) for kind in kinds)))
    text = "## Scores\n\nOn the sites' held-out text, in points of 100.\n\n"
    text += _table(("site", *(task.words.full(kind) for kind in kinds)), rows)
    typed = task.typed[0]
    types = overall.get(typed, {}).get("types", {})
    if types:
        of_types = [
            (safe(name), *(_points(one.get(rate)) for rate in ("f1", "precision", "recall")))
            for name, one in sorted(types.items())[:MOST_NAMES]
        ]
        head = (task.words.type, f"F1, {typed}", "precision", "recall")
        text += "\n\n" + _table(head, of_types)
    doubt = copied.calibrator.doubt
    return f"{text}\n\n{doubt}" if doubt else text


def _training(settings: Settings) -> str:
    rows = [(f"`{key}`", safe(value)) for key, value in sorted(_of_the_model(settings).items())]
    return (
        "## Training\n\n<details><summary>Settings</summary>\n\n"
        + _table(("setting", "value"), rows)
        + "\n\n</details>"
    )


def _of_the_model(settings: Settings) -> dict[str, str]:
    """The settings that made this model: of its kind, its training and its federation."""
    tables = {*_OF_ALL, *_OF_KINDS.get(settings.kind, ())}
    tables |= _OF_READERS[settings.bags.reader] if settings.kind == "bags" else set()
    alone = {"base"} if settings.method in REFERENCES else set[str]()
    return {
        key: value
        for key, value in shareable(settings).items()
        if key.partition(".")[0] in tables or key in {*_KEYS, *alone}
    }


def _privacy(settings: Settings, copied: Copied, spent: Private | None) -> str:
    """Text on what the server saw, what guarded it, and what this copy tells."""
    text = "## Privacy\n\n"
    lines = [f"This copy: {copied.tells}. Trained weights can carry traces of their text."]
    if settings.method not in REFERENCES:
        lines.append(_noise(spent))
        lines.append(
            "A field that was seen as a sum was added up by the server's code; no cryptography hid"
            " the single ones, unless the table says masked."
        )
        changed = settings.guards.model_dump(exclude_defaults=True)
        set_ = ", ".join(f"{name} {safe(value)}" for name, value in sorted(changed.items()))
        lines.append(f"Guards of the run: {set_ or 'the defaults'}.")
    text += "\n".join(f"- {line}" for line in lines)
    text += _audited(copied)
    if settings.method not in REFERENCES and (rows := list(_left(copied.run))):
        text += "\n\nWhat left the sites, from the ledger:\n\n"
        text += _table(("step", "field", "kind", "seen by the server"), rows)
    return text


def _noise(spent: Private | None) -> str:
    """Text on the promise of noise, or that there is none."""
    if spent is None:
        return "No noise was added: this is not differential privacy."
    if spent.simulated:
        return (
            "Trained under noise whose keys were made from the seed, to be repeatable: this is not"
            " differential privacy."
        )
    held_out = {
        "open": "Scores of held-out text left the sites without noise, and are not covered.",
        "closed": "No score of held-out text left a site.",
    }
    return (
        f"Trained under noise: ({spent.epsilon:.2f}, {spent.delta:g})-differential privacy for one"
        f" {safe(spent.unit)} of the training text, in {spent.rounds} rounds of noise"
        f" {spent.noise:g} clips, each drawing a {safe(spent.unit)} with probability"
        f" {spent.rate:g}. It covers this run alone, and sites and code that are honest as"
        f" docs/differential-privacy.md says. {held_out.get(spent.held_out, '')}"
    )


def _audited(copied: Copied) -> str:
    """The three numbers of the run's audit, if there is one, with its sites by number."""
    folder = RunFolder(copied.run)
    found = audited(folder)
    if found is None:
        return ""
    every = dict(_numbered({name: name for name in folder.result().data.sites}, copied))
    lines = [
        f"Site{called.removeprefix('site')}: {told_of(found.sites[name])}."
        for called, name in every.items()
        if name in found.sites
    ]
    lines += [f"{told_epsilon(found)}.", f"{told_smallest(found.crossed)}."]
    head = "\n\nWhat a trial attack on the run's model found (`confide audit`, 95 % intervals):\n\n"
    return head + "\n".join(f"- {safe(line, most=400)}" for line in lines)


def _left(run: Path) -> Iterator[Row]:
    """Each field that left a site once, in the ledger's order."""
    entries = (entry for file in ledger_files(run) for entry in read_ledger(file))
    up = ((e.step, e.field, e.kind, e.seen) for e in entries if e.direction == "up")
    for row in dict.fromkeys(up):
        if not row[1].startswith("("):
            yield (_code(row[0]), _code(row[1]), safe(row[2]), safe(row[3]))


def _numbered(sites: Mapping[str, T], copied: Copied) -> list[tuple[str, T]]:
    """Sites by number, in alphabetical order; the one whose own model this is says so."""
    return [
        (f"site {number}" + (", whose model this is" if name == copied.site else ""), sites[name])
        for number, name in enumerate(sorted(sites), 1)
    ]


def _of(task: Task, scores: Mapping[str, object], kind: str) -> float | None:
    return None if task.empty(dict(scores)) else task.value(dict(scores), kind)


def _points(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}"


def _table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
