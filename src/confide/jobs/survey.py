"""Text of all sites in numbers, before a run: is it worth it, and which types have enough?

Nothing is trained (`confide.methods.survey`). Over real sites it is a run like any other: each site
has agreed to it, and notes what left it. What comes back is checked before anybody uses it: other
places computed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple, Self

import pydantic

from confide.errors import GuardError, RunError, SettingsError
from confide.federation.combining import NEEDED
from confide.federation.events import Watcher
from confide.federation.guards import MOST, check_names
from confide.files import Tree
from confide.recipes import settings_file
from confide.runs.folder import RunFolder
from confide.runs.result import FEWEST, Result, ResultTable, first_wrong, read_record
from confide.runs.run import run
from confide.settings import SCHEMA, Settings, dump, load_settings, overlaid, parse
from confide.text.segment import CODES

_KEPT = ("seed", "key", "site", "split", "data", "guards", "vocabulary", "threads")
_SUMS = ("at_least", "timeout", "sums", "colluding")
_WHERE = ("key", "site", "split", "data", "guards", "vocabulary")
_AGREED = ("at_least", "timeout", "colluding")


def survey_settings(settings: str | Path | None, overrides: Sequence[str] = ()) -> Settings:
    """A survey of the text of these settings: of models and training, nothing is kept.

    None: of real sites, of which there is nothing to say. Three or more simulated sites sum under
    masks, as real ones do, unless the settings say otherwise. Raises SettingsError,
    MissingDataError.
    """
    plain = Settings()
    if settings is None:
        chosen, name = parse(overlaid({"schema": SCHEMA}, overrides)), "sites"
    else:
        chosen, name = load_settings(settings_file(settings), overrides), Path(settings).stem
    own = {name: getattr(chosen.federation, name) for name in _SUMS}
    simulated = len(chosen.site) or (chosen.split.sites if chosen.split else 0)
    if own["sums"] is None and simulated >= NEEDED:
        own["sums"] = "masked"
    federation = plain.federation.model_copy(update=own)
    kept = {name: getattr(chosen, name) for name in _KEPT}
    more = {"name": chosen.name or name, "method": "survey", "rounds": 1, "federation": federation}
    return plain.model_copy(update=kept | more)


class Surveyed(NamedTuple):
    """The counts of a survey in plain values, and its run's folder if that was kept."""

    counts: Tree
    folder: Path | None


def survey(
    settings: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    kit: Path | None = None,
    sites: Sequence[str] = (),
    out: Path | None = None,
    on_event: Watcher | None = None,
) -> Surveyed:
    """Count the text of all sites together.

    Args:
        settings: a TOML file, or the name of a recipe; real sites need none.
        overrides: `key=value` texts that replace values in the file.
        kit: the lead's startup kit, for real sites; None: the settings' own files.
        sites: the real sites that take part; all that are connected, if none is named.
        out: the run's folder, with its ledger; None: it is kept only for real sites, below `runs`.
        on_event: is told what happens.

    Raises SettingsError, and what `run` and `coordinate_run` raise.
    """
    if settings is None and kit is None:
        raise SettingsError("no text is named", expected="settings, or the lead's kit with --kit")
    chosen = survey_settings(settings, overrides)
    with TemporaryDirectory() as nowhere:
        if kit is None:
            done = run(chosen, out=out or Path(nowhere) / "run", on_event=on_event)
        else:
            from confide.flare.nvidia.lead import coordinate_run

            file = Path(nowhere) / f"{chosen.name}.toml"
            file.write_text(dump(chosen), encoding="utf-8")
            done = coordinate_run(file, kit=kit, out=out, sites=sites, on_event=on_event)
        counts = survey_of(done.result, where=done.folder)
        return Surveyed(counts.model_dump(), done.folder if out or kit else None)


def survey_of(result: Result, *, where: Path) -> SurveyCounts:
    """The counts in a survey's result. Raises RunError if it is no survey's, or cannot be."""
    turn = dict(result.history[0]) if result.history else {}
    found = turn.get("survey")
    if not isinstance(found, dict):
        raise RunError("this is not the run of a survey", where=str(where))
    try:
        return SurveyCounts.model_validate(found)
    except pydantic.ValidationError as error:
        raise first_wrong(error, "no survey counts this", where) from error


# --- Counts, checked, and what follows from them

Count = Annotated[int, pydantic.Field(ge=0, le=MOST)]


class SurfaceCounts(ResultTable):
    """Surfaces of entities, those that two or more sites have, and the mentions of both."""

    distinct: Count
    common: Count
    mentions: Count
    common_mentions: Count


class TypeCounts(ResultTable):
    """An entity type: sites that annotate it, those with enough to count, and its entities.

    None: not counted, so that nobody learns one site's count.
    """

    sites: Count
    sites_counted: Count | None = None
    entities: Count | None = None
    surfaces: SurfaceCounts | None = None


class SurveyCounts(ResultTable):
    """Counts over all sites; `languages`: how many sites' text is in each."""

    sites: Annotated[int, pydantic.Field(ge=1, le=MOST)]
    documents: Count
    sentences: Count
    tokens: Count
    languages: dict[str, Count] = pydantic.Field(default_factory=dict)
    types: dict[str, TypeCounts]
    surfaces: SurfaceCounts | None = None

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            check_names("types", self.types)
        except GuardError as error:
            raise ValueError(str(error)) from error
        of_types = [(one.sites, one.sites_counted or 0) for one in self.types.values()]
        if any(not counted <= sites <= self.sites for sites, counted in of_types):
            raise ValueError("no type is at more sites than there are")
        if not self.languages.keys() <= CODES or sum(self.languages.values()) > self.sites:
            raise ValueError("languages are those of ISO 639-1, one a site")
        return self

    @property
    def each(self) -> int:
        """Training sentences of a site, on average."""
        return round(self.sentences / self.sites)

    @property
    def language(self) -> str:
        """The language of most sites, or ""."""
        return max(self.languages, key=lambda one: (self.languages[one], one), default="")

    def lacking(self, *, rare: float, by_chance: float) -> list[str]:
        """Types that not every site annotates, apart from those that a site may lack by chance.

        By chance: they are `rare`, or a site with the mean number of entities would be without with
        at least this probability. A type that was not counted is taken not to lack by chance.
        """
        mean = sum(one.entities or 0 for one in self.types.values()) / self.sites
        found = []
        for name, one in self.types.items():
            if one.sites in (0, self.sites):
                continue
            share = 1.0 if one.entities is None else one.entities / (mean * one.sites + 1)
            if share >= rare and (1 - min(share, 1)) ** mean < by_chance:
                found.append(name)
        return found


def read_survey(path: Path) -> SurveyCounts:
    """The counts in a survey's run folder, or in what `confide survey --json` wrote.

    Raises RunError if there is none, or it cannot be.
    """
    if path.is_dir():
        return survey_of(RunFolder(path).result(), where=path)
    return read_record(
        path, SurveyCounts.model_validate, "this is not what `confide survey --json` wrote"
    )


def kept_settings(path: Path) -> Tree:
    """Where a survey found the text, from its run folder, as plain values; of a file nothing."""
    if not path.is_dir():
        return {}
    plain = (
        RunFolder(path)
        .settings()
        .model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    )
    known = {name: plain[name] for name in _WHERE if name in plain}
    federation = {name: one for name, one in plain.get("federation", {}).items() if name in _AGREED}
    return known | ({"federation": federation} if federation else {})


_ALIKE = "ten sites with equal shares of one corpus gained 14 to 18 points over training alone"
_UNLIKE = "five sites with text of five domains 3.0, and one of them lost 2"
_OWN_TYPES = ((430, 1.2), (1080, 1.0), (2160, 0.7), (4310, 0.5))
"""Training sentences of a site, and the points that FedNER gained over training alone."""
_MOST_ALIKE = 540
"""The most training sentences of a site of `_ALIKE`."""


def survey_verdict(counts: SurveyCounts | Tree) -> list[str]:
    """Say if a run is worth it: sentences on what was counted, and on what was measured elsewhere.

    Raises pydantic.ValidationError for plain values that no survey gives.
    """
    found, said = SurveyCounts.model_validate(counts), []
    all_sites = f"all {found.sites} sites"
    for name, one in found.types.items():
        at = f"{one.sites} of {found.sites} sites" if one.sites < found.sites else all_sites
        parts = [f"{name}: {at} annotate{'s' if one.sites == 1 else ''} it"]
        if one.sites_counted is not None and one.sites_counted < one.sites:
            parts.append(
                f"{one.sites - one.sites_counted} with fewer than the guard min_token_count,"
                " which count as none"
            )
        if one.entities is None:
            parts.append("its number is kept back, for it would be that of one site")
        elif one.entities < FEWEST:
            parts.append(f"fewer than {FEWEST} in all: no score can tell whether it is learnt")
        if len(parts) > 1 or one.sites < found.sites:
            said.append("; ".join(parts))
    if any(one.surfaces for one in found.types.values()):
        said.append(
            "surfaces in common do not decide: measured, the gain of a federated model did not"
            " depend on them (benchmarks/papers/fedner)"
        )
    each = f"{found.each:,} training sentences a site on average"
    if any(one.sites < found.sites for one in found.types.values()):
        near, gain = min(_OWN_TYPES, key=lambda row: abs(row[0] - found.each))
        said.append(
            f"{each}, and types differ: four corpora of about {near:,}, each with its own types,"
            f" gained {gain} points over training alone (FedNER, benchmarks/papers/fedner); one"
            " model of all types needs training.unannotated_types, which gained 22 and 36 points"
            " over FedAvg without it (benchmarks/papers/tags)"
        )
    elif found.each <= _MOST_ALIKE:
        said.append(
            f"{each}, all with the same types: worth a run. With 340 to {_MOST_ALIKE}, {_ALIKE};"
            f" with 100 to 200, {_UNLIKE} (benchmarks/papers/fedavg)"
        )
    else:
        said.append(
            f"{each}, all with the same types: more than where gains were measured"
            f" (benchmarks/papers/fedavg: 340 to {_MOST_ALIKE}). `confide capacity` on your own"
            " text tells whether more would help"
        )
    return said
