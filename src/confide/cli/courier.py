"""The verbs of a run without a network: `courier pack`, `answer` and `collect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from confide.cli import screen, tables
from confide.cli.options import command
from confide.errors import ConfideError, SettingsError
from confide.files import size_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confide.flare.courier import Question, Standing

courier = typer.Typer(
    no_args_is_help=True, help="Run over real sites without a network, by files that people carry."
)
EVERY = 2.0
"""Seconds between two looks into a watched folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The parts of a new run.

    Options:
        settings (SETTINGS): Begin a run with these settings, in a new folder.
        kit (DIR): The server's startup kit.
        lead (DIR): The lead's startup kit, which signs the order.
        cards (--card FILE): A site's identity/card.json; repeat for each.
    """

    settings: str | None = None
    kit: Path | None = None
    lead: Path | None = None
    cards: list[Path] | None = None
    overrides: list[str] | None = None

    def begin(self, run: Path) -> None:
        """Begin the run in a folder, if settings are given. Raises SettingsError."""
        from confide.flare import courier as couriers

        if self.settings is None:
            return
        if not (self.kit and self.lead and self.cards):
            raise SettingsError(
                "a new run needs more",
                expected="--settings, --kit, --lead and the --card of each site",
            )
        couriers.begin(
            run,
            self.settings,
            kit=self.kit,
            lead=self.lead,
            cards=self.cards,
            overrides=self.overrides or (),
        )


@command(courier, "pack")
def courier_pack(
    run: Path,
    *,
    new: Beginning,
    to: Path = Path(),
    again: bool = False,
    without: list[str] | None = None,
) -> None:
    """Write one file for each site: what the run asks next.

    Options:
        to (DIR): Where to write the files; here by default.
        again: Ask once more where sites failed.
        without (--without SITE): Do not wait for this site's reply to its last file.
    """
    from confide.flare import courier as couriers

    new.begin(run)
    now = couriers.go_on(run, again=again, without=without or ())
    _say_standing(now, to)


@command(courier, "collect")
def courier_collect(
    run: Path, files: list[Path] | None = None, *, to: Path = Path(), watch: Path | None = None
) -> None:
    """Take in the sites' replies, and go on: new files, or the result.

    Options:
        files (FILE...): Files from sites.
        to (DIR): Where to write the next files; here by default.
        watch (DIR): Take replies from a folder and leave asks there, until the run has ended.
    """
    from confide.errors import printable
    from confide.flare import courier as couriers

    now = couriers.go_on(run, files or ())
    _say_standing(now, watch or to)
    if watch is None:
        return
    for new in couriers.new_files(watch, f"{now.run}.*.reply", every=EVERY):
        sound = []
        for path in new:
            try:
                couriers.take_in(run, path)
                path.unlink()
                sound.append(path)
            except ConfideError as error:
                screen.say(f"left alone: {printable(error, 500)}")
        if sound:
            now = couriers.go_on(run)
            _say_standing(now, watch)
        if now.result is not None:
            return


@command(courier, "answer")
def courier_answer(
    files: list[Path] | None = None,
    *,
    kit: Path,
    to: Path | None = None,
    ask: bool = False,
    watch: Path | None = None,
) -> None:
    """Check what a file asks of this site, do it, and write the reply's file.

    Options:
        files (FILE...): Files from the server.
        kit (DIR): The site's startup kit.
        to (DIR): Where to write the reply; by default beside the file.
        ask (--ask): Show what is asked, and ask before anything is done.
        watch (DIR): Answer what comes into a folder, there, until Ctrl-C.
    """
    from confide.errors import printable
    from confide.flare import courier as couriers

    site = couriers.CourierSite(kit, stays=watch is not None)
    if not files and watch is None:
        raise SettingsError("no file is named", expected="FILE or --watch DIR")
    for path in files or ():
        asked = site.question(path)
        _show_question(asked)
        if ask and not screen.confirm("Do this, and write the reply?"):
            raise typer.Exit(1)
        made = site.answer(path, to=to or path.parent, seen=asked)
        screen.say(f"{made}: {size_in_words(made.stat().st_size)}, for the server", style="bold")
    if watch is None:
        return
    for new in couriers.new_files(watch, f"*.{site.name}.*.ask", every=EVERY):
        for path in new:
            try:
                _show_question(site.question(path))
                made = site.answer(path, to=to or watch)
                screen.say(f"{made}: {size_in_words(made.stat().st_size)}, for the server")
            except ConfideError as error:
                screen.say(f"left alone: {printable(error, 500)}")


def _say_standing(now: Standing, to: Path) -> None:
    """Copy the next files to where they leave from, and say what is waited for."""
    from confide.flare.courier import copy_to

    if now.result is not None:
        screen.show(tables.site_table(now.result))
        screen.say(f"run folder: {now.folder}")
        return
    for path in copy_to(now, to):
        screen.say(f"{path}: {size_in_words(path.stat().st_size)}")
    screen.say(f"waiting for {', '.join(now.waiting)}", style="bold")


def _show_question(asked: Question) -> None:
    """Show the steps that a file asks and, of a run that begins, the agreement beside them."""
    steps = ", ".join(f"{step} (round {round})" if round else step for step, round in asked.steps)
    screen.say(f"{asked.head.run}, file {asked.head.exchange}: {steps}", style="bold")
    if not asked.settings:
        return
    screen.say(
        f"lead {asked.lead}; sites {', '.join(asked.sites)}; method {asked.method}; with",
        *(f"  {line}" for line in asked.settings),
    )
    if not asked.lines:
        screen.say(
            f"this site has not agreed to {asked.method}, and will refuse:"
            f" `confide site consent KIT {asked.method}`"
        )
        return
    rows = (
        (f"{one.name}: {one.says}", _word(one.agreed), _word(one.asked),
         "more than agreed" if one.outside else "")
        for one in asked.lines
    )  # fmt: skip
    columns = ("", "agreed", "asked", " ")
    screen.show(tables.table_of(columns, rows, title="What the site agreed to, and what is asked"))


def _word(value: object) -> str:
    several: Sequence[object] = value if isinstance(value, (tuple, list)) else (value,)
    return ", ".join(map(str, several))
