"""Verbs of real sites: a site's own file, its consent, and the lead's run over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confide.console import screen
from confide.console.kit_verbs import KitFolder, site
from confide.console.words import Both, Json, Overrides, Quiet, Resume, RunOut, SettingsName
from confide.errors import SettingsError

if TYPE_CHECKING:
    from confide.flare.ending import Ending


def coordinate(
    settings: SettingsName,
    *,
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The lead's startup kit.")],
    overrides: Overrides = None,
    sites: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="NAME", help="Who takes part; all, if none is named."),
    ] = None,
    out: RunOut = None,
    resume: Resume = False,
    end: Annotated[
        bool, typer.Option("--end", help="End a run that goes on; what it has so far stays.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model across real sites, each of which keeps its text (NVIDIA FLARE)."""
    from confide.console import tables
    from confide.console.progress import Progress
    from confide.flare.kits import no_engine

    try:
        from confide.flare import lead
    except ModuleNotFoundError as error:
        raise no_engine() from error
    if end:
        if resume:
            raise SettingsError("--end and --resume do not go together", fix="choose one")
        _say_ended(lead.end(settings, kit=kit, overrides=overrides or (), out=out))
        return
    try:
        with Progress(quiet=quiet) as progress:
            done = lead.coordinate(
                settings,
                kit=kit,
                overrides=overrides or (),
                out=out,
                sites=sites or (),
                resume=resume,
                on_event=progress,
            )
    except KeyboardInterrupt:
        screen.say(
            "\nno longer watching, and the run goes on; the same command with --resume watches, "
            "with --end it ends the run"
        )
        raise typer.Exit(screen.STOPPED) from None
    screen.show(tables.sites(done.result))
    screen.say(f"run folder: {done.folder}")


def _say_ended(ending: Ending) -> None:
    if ending.finished:
        screen.say(f"nothing to end: {ending.run} is finished; run folder: {ending.folder}")
        return
    if ending.stopped:
        screen.say(f"{ending.run} is ended, at the server and at the sites", style="bold")
    else:
        screen.say(f"nothing to end: {ending.run} does not go on", style="bold")
    screen.say("what it has so far stays; the same command with --resume goes on with it")


@site.command()
def setup(
    kit: KitFolder,
    *,
    settings: Annotated[Path, typer.Option(metavar="FILE", help="The site's own file: site.toml.")],
) -> None:
    """Check where this site's text is, and put its own file into its kit."""
    from confide.console import tables
    from confide.flare.kits import open_kit
    from confide.flare.sitekit import setup as put

    own, gathered = put(open_kit(kit, "site"), settings)
    facts = gathered.facts()["sites"][own.name]
    counts = {f"{part} sentences": facts[part] for part in ("train", "dev", "test")}
    screen.show(tables.mapping(counts, columns=("text", "count"), title=own.name))
    screen.show(tables.mapping(facts["entities"], columns=("entity in training text", "count")))
    if facts["problems"]:
        screen.show(tables.mapping(facts["problems"], columns=("did not fit", "count")))
    agreed = ", ".join(sorted(own.consent)) or "no method yet: `confide site consent`"
    screen.say(f"consents to {agreed}")


@site.command()
def consent(
    kit: KitFolder,
    method: Annotated[str, typer.Argument(help="A method's name, as fedavg.")],
    *,
    agree: Annotated[bool, typer.Option("--agree", help="Agree to exactly this table.")] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take a consent back.")] = False,
    steps: Annotated[
        list[str] | None,
        typer.Option("--step", metavar="NAME", help="Agree to these steps only; may be repeated."),
    ] = None,
    both: Both = False,
    as_json: Json = False,
) -> None:
    """What a method would let leave this site; nothing runs before the site agreed to it."""
    from confide.console import tables
    from confide.flare import sitekit
    from confide.flare.kits import open_kit

    held = open_kit(kit, "site")
    if withdraw:
        found = sitekit.withdraw(held, method)
    elif agree:
        found = sitekit.agree(held, method, steps=steps or ())
    else:
        found = sitekit.consent(held, method)
    if as_json:
        screen.put_json(found)
        return
    title = f"What leaves {held.name} under {method} (table {found.wire})"
    screen.show(tables.crossed(found.rows, title=title, both=both))
    only = f", steps {', '.join(found.steps)} only" if found.steps else ""
    screen.say(f"agreed: {found.agreed}{only}", style="bold")
    if found.agreed != "yes" and not withdraw:
        screen.say("to agree, give the same command with --agree")
