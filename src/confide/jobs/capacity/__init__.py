"""Would more text help this model at all? The capacity test, to take before federating.

Luboshnikov & Makarov 2020, "Model Capacity" (doi 10.1007/978-3-030-71214-3_8): cut the text at hand
into n equal parts, train on 1, 2, ..., n of them, score held-out text and look at the curve. If it
is flat, more text does not help this model, and more text is all that a federation brings.

What we decide: the parts are nested and drawn anew for each seed. Every training takes as many
steps, at the same learning rates, as one on all the text, so that small parts are not put at a
disadvantage by shorter training. The vocabulary is that of the parts used. The curve is a power law
(`confide.scoring.curves`); its uncertainty comes from resampling seeds and held-out sentences.
Nothing leaves the machine: this is one place's training on its own text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from confide.errors import DataError, SettingsError
from confide.federation.events import Event, Watcher, unwatched
from confide.federation.files import write_atomically
from confide.jobs.capacity.measuring import measure
from confide.jobs.capacity.plot import plot
from confide.jobs.capacity.training import training
from confide.jobs.capacity.verdict import CapacityReport, Point, Verdict, conclude
from confide.learning.devices import computing_at, place_of
from confide.recipes import settings_file
from confide.runs.gathering import gather
from confide.settings import Settings, load
from confide.text.document import Document

__all__ = ["CapacityReport", "Point", "Verdict", "capacity"]


def capacity(
    settings: str | Path | Settings,
    *,
    parts: int = 5,
    seeds: int = 3,
    site: str | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    on_event: Watcher | None = None,
) -> CapacityReport:
    """Train on 1, 2, ..., `parts` equal parts of the text, `seeds` times; say if more would help.

    Args:
        settings: a TOML file or the name of a recipe, with its `[when.pooled]` (`[when.alone]` for
            one site) applied; or settings, used as they are.
        parts: the number of parts, at least 4.
        seeds: the number of draws of parts and first weights, at least 2.
        site: use this site's text only; None: the text of all sites in the settings.
        overrides: `key=value` texts that replace the file's values.
        out: a folder for capacity.json, capacity.svg and capacity.txt; None: write nothing.
        on_event: called at every training.

    The held-out text is that of the development files, or the share that the settings hold out.
    Test text is never used, even if the settings hold it out of the training files.

    Raises:
        SettingsError: there is no such site, or the settings make no sense.
        DataError: too few parts, seeds or documents, or no entity in the held-out text.
    """
    watch = on_event or unwatched
    if not isinstance(settings, Settings):
        method = "alone" if site else "pooled"
        settings = load(settings_file(settings), [f"method={method}", *overrides])
    text = _text(settings, site)
    name = site or settings.name or "capacity"
    watch(Event("start", rounds=parts * seeds, message=f"{name}: capacity"))
    place = place_of(settings.device, settings.precision, at_once=settings.at_once)
    with computing_at(place, threads=settings.threads):
        measured = measure(
            text.train,
            text.held_out,
            learn=training(settings, **text._asdict()),
            parts=parts,
            seeds=seeds,
            seed=settings.seed,
            watch=watch,
        )
    report = conclude(measured, name=name, seed=settings.seed)
    if out is not None:
        _write(report, Path(out))
    watch(Event("end", message=f"{name}: {report.verdict}"))
    return report


class _Text(NamedTuple):
    train: list[Document]
    held_out: list[Document]
    vectors: Path | None


def _text(settings: Settings, site: str | None) -> _Text:
    with TemporaryDirectory() as nowhere:
        everyone = gather(settings, Path(nowhere), key_file=None).specs
    specs = [spec for spec in everyone if site in (None, spec.name)]
    if not specs:
        names = ", ".join(spec.name for spec in everyone)
        raise SettingsError("there is no such site", expected=names, got=repr(site))
    train = [document for spec in specs for document in spec.train]
    held_out = [document for spec in specs for document in spec.dev]
    if not any(document.entities for document in held_out):
        raise DataError("the held-out text has no entity", fix="name `dev` files that have some")
    return _Text(train, held_out, specs[0].vectors)


def _write(report: CapacityReport, folder: Path) -> None:
    text = json.dumps(report.to_json(), indent=1) + "\n"
    for name, content in (
        ("capacity.json", text), ("capacity.svg", plot(report)), ("capacity.txt", report.text)
    ):  # fmt: skip
        write_atomically(folder / name, content.encode())
