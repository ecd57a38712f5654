"""From a user's own files to working settings: what they hold, whose they are, what does not fit.

One corpus is dealt to simulated sites; several files or folders are one site each. Files whose
names say train, dev or test and otherwise agree belong to one site. Formats that serve relations
only give settings for a relation extractor. All files are read on this machine, so names that
sites have for one thing can be told from the text that they mark (`maps`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.errors import DataError, SettingsError
from confide.jobs.initialise.draft import draft
from confide.jobs.initialise.files import SiteFiles, lacking, look, shares, verdict
from confide.jobs.initialise.maps import Match, matches
from confide.jobs.initialise.proposal import Wishes, advice, of_bags, propose
from confide.jobs.initialise.rule import Amount, rule
from confide.settings import Settings, SiteGuards, load
from confide.text.document import Problem
from confide.text.files import write_text
from confide.text.formats import Options
from confide.text.formats.sniff import grouped

__all__ = ["InitReport", "Match", "Wishes", "init"]

NO_WISHES = Wishes()
DETECTED = Options()

Accept = Callable[[str, Sequence[Match]], bool]


def _always(found: str, maps: Sequence[Match]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class InitReport:
    """What `init` found and wrote.

    Attributes:
        found: for people: each file's format, scheme, types and counts, and what does not fit.
        maps: what sites call by another name than a site before them, written as their `tags`.
        why: for people: what is proposed for these sites, and why.
        problems: every annotation that was lost, changed or doubtful, and what else to look at.
        settings: the text of the settings file.
        path: the settings file.
    """

    found: str
    maps: list[Match]
    why: str
    problems: list[Problem]
    settings: str
    path: Path


def init(
    files: Sequence[Path | str],
    *,
    out: Path | str = Path("confide.toml"),
    force: bool = False,
    wishes: Wishes = NO_WISHES,
    format: str | None = None,
    options: Options = DETECTED,
    accept: Accept = _always,
) -> InitReport:
    """Look at annotated files, and write a short commented settings file that works.

    Args:
        files: files and folders. One corpus is dealt to three simulated sites; otherwise each
            file or folder is a site, unless it is a part (train, dev, test) of one.
        out: the settings file.
        force: overwrite the settings file.
        wishes: what only the user knows, and which method is proposed depends on.
        format: the files' format; None: detect it from the content.
        options: how to read the files, which the settings then say too; `bare_type` and `types`
            they cannot say.
        accept: decides whether the common names are written, given what was found in the files, in
            words, and the names, which may be none.

    Raises:
        SettingsError: no file is named, `out` exists, or a wish does not go with the files.
        DataError: a file holds raw text without annotation, or no file holds an entity or relation.
        ConfideError: a file cannot be read.
    """
    out = Path(out)
    if out.exists() and not force:
        raise SettingsError(
            "the settings file already exists",
            where=str(out),
            fix="choose another name with --out, or overwrite it with --force",
        )
    if options.columns is not None and options.columns[1] is None:
        raise SettingsError("text without a column of tags teaches nothing", expected="TOKEN,TAG")
    parts = grouped([Path(path) for path in files])
    if not parts:
        raise SettingsError("no file was named", expected="at least one file or folder")
    sites = [SiteFiles(name, own, format, options) for name, own in parts.items()]
    problems: list[Problem] = []
    found = "\n".join(line for site in sites for line in look(site, problems))
    _must_teach(sites)
    maps = [] if of_bags(sites) or wishes.own_types else matches(sites)
    if not accept(found, maps):
        maps = []
    for site in sites:
        site.names = {one.name: one.common for one in maps if one.site == site.name}
    lines = [_told(site) for site in sites if site.names] + verdict(sites, problems)
    apart = not of_bags(sites) and any(any(lacking(site, sites).values()) for site in sites)
    proposal = propose(sites, wishes, apart=apart)
    amounts = amount_of(sites, proposal.finds) if proposal.finds else None
    chosen = rule(amounts) if amounts else None
    lines += [f"proposes {reason}" if n == 0 else reason for n, reason in enumerate(proposal.why)]
    lines += chosen.why if chosen else ()
    lines += advice(sites, wishes)
    text = draft(sites, out, proposal=proposal, rule=chosen, wishes=wishes)
    write_text(out, text)
    lines += _real_sites(load(out), sites)
    return InitReport(found, maps, "\n".join(lines), problems, text, out)


def amount_of(sites: Sequence[SiteFiles], finds: str) -> Amount:
    """What the sites' files hold, as the rule counts it; one corpus is dealt to several sites."""
    languages = Counter({site.language: site.sentences for site in sites})
    return Amount(
        finds=finds,
        sites=len(sites) if len(sites) > 1 else shares(sites[0]),
        examples=sum(site.sentences for site in sites),
        held_out=sum(
            one.report.counts["sentences"]
            for site in sites
            for one in site.read
            if one.part != "train"
        ),
        language=max(languages, key=lambda one: languages[one]),
    )


def _real_sites(settings: Settings, sites: Sequence[SiteFiles]) -> list[str]:
    """What to change for a run over real sites, whose guards' defaults refuse."""
    least = SiteGuards().min_batch
    if len(sites) == 1 or settings.training.batch_size >= least:
        return []
    return [
        f"for a run over real sites, set training.batch_size = {least}: by default they refuse"
        " smaller batches (their guard `min_batch`)"
    ]


def _told(site: SiteFiles) -> str:
    names = ", ".join(f"{kind} as {name}" for kind, name in site.names.items())
    return f"site {site.name} is read with common names: {names}"


def _must_teach(sites: Sequence[SiteFiles]) -> None:
    """Raise DataError if there is nothing to learn, before settings are written."""
    if not any(site.types for site in sites):
        named = [path for site in sites for path in site.parts["train"]]
        raise DataError(
            "nothing is annotated in these files, so nothing can be learnt from them",
            expected="at least one entity or relation in training text",
            where=str(named[0]) if len(named) == 1 else None,
            fix="look at how they were read: confide data check FILE",
        )
