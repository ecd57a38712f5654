"""From a user's own files to working settings: what they hold, whose they are, what does not fit.

One corpus is dealt to simulated sites; several files or folders are one site each. Files whose
names say train, dev or test and otherwise agree belong to one site. Formats that serve relations
only give settings for a relation extractor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.errors import SettingsError
from confide.jobs.initialise.draft import draft, finds_apart
from confide.jobs.initialise.files import SiteFiles, look, verdict
from confide.jobs.initialise.proposal import Wishes, advice, propose
from confide.settings import load
from confide.text.document import Problem
from confide.text.parts import grouped

__all__ = ["InitReport", "Wishes", "init"]

NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class InitReport:
    """What `init` found and wrote.

    Attributes:
        found: for people: each file's format, scheme, types and counts, and what does not fit.
        problems: every annotation that was lost, changed or doubtful, and what else to look at.
        settings: the text of the settings file.
        path: the settings file.
    """

    found: str
    problems: list[Problem]
    settings: str
    path: Path


def init(
    files: Sequence[Path | str],
    *,
    out: Path | str = Path("confide.toml"),
    force: bool = False,
    wishes: Wishes = NO_WISHES,
) -> InitReport:
    """Look at annotated files, and write a short commented settings file that works.

    Args:
        files: files and folders. One corpus is dealt to three simulated sites; otherwise each
            file or folder is a site, unless it is a part (train, dev, test) of one.
        out: the settings file.
        force: overwrite the settings file.
        wishes: what only the user knows, and which method is proposed depends on.

    Raises:
        SettingsError: no file is named, `out` exists, or a wish does not go with the files.
        DataError: a file holds raw text without annotation.
        ConfideError: a file cannot be read.
    """
    out = Path(out)
    if out.exists() and not force:
        raise SettingsError(
            "the settings file already exists",
            where=str(out),
            fix="choose another name, or remove it",
        )
    sites = _sites([Path(path) for path in files])
    problems: list[Problem] = []
    lines: list[str] = []
    for site in sites:
        lines += look(site, problems)
    lines += verdict(sites, problems)
    proposal = propose(sites, wishes, apart=finds_apart(sites))
    lines += [f"proposes {reason}" if n == 0 else reason for n, reason in enumerate(proposal.why)]
    lines += advice(sites, wishes)
    text = draft(sites, out, proposal=proposal, wishes=wishes)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    load(out)
    return InitReport("\n".join(lines), problems, text, out)


def _sites(paths: Sequence[Path]) -> list[SiteFiles]:
    """The files grouped into sites, in the order in which they were given."""
    found = grouped(paths)
    if not found:
        raise SettingsError("no file was named", expected="at least one file or folder")
    return [SiteFiles(name, parts) for name, parts in found.items()]
