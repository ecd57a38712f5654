"""Verbs for real sites: a site's own file, its consent, and the lead's run across all sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from confide.cli import screen
from confide.cli.kit_verbs import KitFolder, site
from confide.cli.words import Both, Json, Log, Overrides, Quiet, RunOut, SettingsName
from confide.errors import SettingsError

if TYPE_CHECKING:
    from confide.flare.run.ending import Ending
    from confide.flare.run.sitekit import Consent
    from confide.flare.run.standing import Guarded, Standing


class ResumesOrEnds(TyperCommand):
    """A verb with `--resume/--end`, which refuses both at once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the verb. Raises SettingsError."""
        if {"--resume", "--end"} <= set(args):
            raise SettingsError("--end and --resume exclude each other", fix="choose one")
        return super().parse_args(ctx, args)


def coordinate(
    settings: SettingsName,
    *,
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The lead's startup kit.")],
    overrides: Overrides = None,
    sites: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="NAME", help="A site to take part; all by default."),
    ] = None,
    out: RunOut = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--end", help="Continue a stopped run; or stop one, and keep its checkpoints."
        ),
    ] = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Train a model across real sites, each of which keeps its text (NVIDIA FLARE)."""
    from confide.cli import afterwards, tables
    from confide.cli.progress import Progress
    from confide.federation.events import to_all
    from confide.flare.kits.startup import no_engine
    from confide.jobs.logs import Logs

    try:
        from confide.flare.nvidia import lead
    except ModuleNotFoundError as error:
        raise no_engine() from error
    if resume is False:
        _say_ended(lead.end(settings, kit=kit, overrides=overrides or (), out=out))
        return
    try:
        with Progress(quiet=quiet) as progress, Logs(log or (), say=screen.say) as logs:
            done = lead.coordinate(
                settings,
                kit=kit,
                overrides=overrides or (),
                out=out,
                sites=sites or (),
                resume=bool(resume),
                on_event=to_all(progress, logs),
            )
    except KeyboardInterrupt as stop:
        how = (
            "no longer watching, but the run continues; repeat the command with --resume to watch"
            " it again, or with --end to end it"
        )
        raise screen.stopped(stop, how) from None
    screen.show(tables.sites(done.result))
    screen.say(f"run folder: {done.folder}")
    afterwards.say_next(afterwards.lead_commands(done.folder))


def _say_ended(ending: Ending) -> None:
    if ending.finished:
        screen.say(f"nothing to end: {ending.run} is finished; run folder: {ending.folder}")
        return
    if ending.stopped:
        screen.say(f"{ending.run} has ended, at the server and at the sites", style="bold")
    else:
        screen.say(f"nothing to end: {ending.run} is not in progress", style="bold")
    screen.say("its checkpoints are kept; repeat the command with --resume to continue it")


@site.command()
def setup(
    kit: KitFolder,
    *,
    settings: Annotated[
        Path, typer.Option(metavar="FILE", help="The site's own settings, site.toml.")
    ],
) -> None:
    """Check this site's settings and text, then put the settings into its kit."""
    from confide.cli import tables
    from confide.flare.kits.startup import open_kit
    from confide.flare.run import standing
    from confide.flare.run.sitekit import setup as put

    own, gathered = put(open_kit(kit, "site"), settings)
    facts = gathered.facts()["sites"][own.name]
    counts = {f"{part} sentences": facts[part] for part in ("train", "dev", "test")}
    screen.show(tables.mapping(counts, columns=("text", "count"), title=own.name))
    screen.show(tables.mapping(facts["entities"], columns=("entity in training text", "count")))
    if facts["problems"]:
        screen.show(tables.mapping(facts["problems"], columns=("did not fit", "count")))
    held = standing.held_of(open_kit(kit, "site"))
    agreed = ", ".join(sorted(held)) or "no method yet; agree to one with `confide site consent`"
    screen.say(f"consents to {agreed}")


@site.command()
def consent(
    kit: KitFolder,
    method: Annotated[str | None, typer.Argument(help="A method's name, such as fedavg.")] = None,
    *,
    settings: Annotated[
        str | None,
        typer.Option("--for", metavar="SETTINGS", help="Show what the lead's settings need."),
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bound", metavar="KEY=VALUE", help="Change a bound: runs=3, until=2027-01-31."
        ),
    ] = None,
    agree: Annotated[
        bool | None,
        typer.Option("--agree/--withdraw", help="Agree to what is shown, or withdraw."),
    ] = None,
    steps: Annotated[
        list[str] | None,
        typer.Option("--step", metavar="NAME", help="Agree to these steps only; may be repeated."),
    ] = None,
    both: Both = False,
    as_json: Json = False,
) -> None:
    """Show what a method would send from this site, and within what bounds.

    Nothing runs here before the site agrees.
    """
    from confide.cli import agreeing, tables
    from confide.flare.kits.startup import open_kit
    from confide.flare.run import sitekit, standing

    held = open_kit(kit, "site")
    guards = standing.guards(held)
    asked = None if settings is None else sitekit.asked_by(settings, method)
    named = method if asked is None else asked.trained_by
    if named is None:
        if agree is not None or bounds or steps:
            raise SettingsError("no method is named", fix="name one, or give --for SETTINGS")
        _overview(standing.standings(held), guards, as_json=as_json)
        return
    if agree is False:
        found = sitekit.withdraw(held, named)
    elif agree:
        found = sitekit.agree(held, named, steps=steps or (), asked=asked, bounds=bounds or ())
    else:
        found = sitekit.consent(held, named, asked=asked, bounds=bounds or ())
    if as_json:
        screen.put_json({**screen.plain(found), "guards": screen.plain(guards)})
        return
    title = f"What leaves {held.name} under {named} (table {found.wire})"
    screen.show(tables.crossed(found.rows, title=title, both=both))
    screen.show(agreeing.bounds(found), agreeing.guards(guards))
    _say_agreed(found, withdrawn=agree is False)


def _overview(agreed: list[Standing], guards: list[Guarded], *, as_json: bool) -> None:
    from confide.cli import agreeing

    if as_json:
        screen.put_json({"agreements": agreed, "guards": guards})
        return
    screen.show(agreeing.standings(agreed), agreeing.guards(guards))
    screen.say("to see what a method sends from this site, name it or give --for SETTINGS")


def _say_agreed(found: Consent, *, withdrawn: bool) -> None:
    only = f", steps {', '.join(found.steps)} only" if found.steps else ""
    until = f" until {found.until}" if found.until else ""
    screen.say(f"agreed: {found.agreed}{only}{until}", style="bold")
    if found.old:
        screen.say("that agreement predates bounds; --agree records these")
    if found.beyond:
        screen.say(f"the run asks for more than was agreed: {', '.join(found.beyond)}")
    if found.refused:
        screen.say(f"a guard of this site refuses that run: {found.refused}")
    if (found.agreed != "yes" or found.beyond) and not withdrawn:
        screen.say("to agree, repeat the command with --agree")
