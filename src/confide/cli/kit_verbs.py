"""The verbs `confide consortium …`, `confide server …` and `confide site …`, for real sites."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from confide.cli import kit_status, screen, unit_verbs
from confide.cli.unit_verbs import UnitFile
from confide.cli.words import Json, Passphrase
from confide.errors import ConfideError, SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from confide.flare.kits.startup import Kit
    from confide.flare.nvidia.clearing import Held

consortium = typer.Typer(no_args_is_help=True, help="Found a consortium and add sites to it.")
server = typer.Typer(no_args_is_help=True, help="Run the server; it only ever sees messages.")
site = typer.Typer(no_args_is_help=True, help="Run a site, where the text is.")

KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit's folder.")]
SiteName = Annotated[str, typer.Argument(metavar="SITE", help="The site's exact name.")]
Wait = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait at most.")]


def _gone(value: object) -> None:
    """Raise SettingsError if an option of the time is given when `start` left processes behind."""
    if value is not None:
        raise SettingsError(
            "`start` has no options --foreground and --wait any more, because it always runs in"
            " the foreground",
            fix="leave the option out; a systemd unit (`--unit FILE` writes one), a container or"
            " `nohup` keeps it running, and `confide site status` or `confide server status` says"
            " when it is connected",
        )


OldForeground = Annotated[bool | None, typer.Option("--foreground", hidden=True, callback=_gone)]
OldWait = Annotated[float | None, typer.Option("--wait", hidden=True, callback=_gone)]

_SAFELY = (
    "Give each kit to its owner alone, over a channel that nobody else can read (an encrypted "
    "medium or your own secure file transfer, not e-mail), then delete it here."
)


# --- consortium ---------------------------------------------------------------------------


@consortium.command("init")
def init(
    name: Annotated[str, typer.Argument(help="The consortium's name.")],
    *,
    sites: Annotated[
        list[str], typer.Option("--site", metavar="NAME", help="A site's name; repeat for each.")
    ],
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The host where sites reach the server.")
    ],
    port: Annotated[int, typer.Option(metavar="PORT", help="The server's only port.")] = 8002,
    lead: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the lead, who starts runs.")
    ] = "lead",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder to write; named after the consortium."),
    ] = None,
    days: Annotated[
        float, typer.Option(metavar="DAYS", help="How long the certificates of the kits are valid.")
    ] = 365,
    passphrase: Passphrase = False,
) -> None:
    """Found a consortium: name its members and make each a startup kit with mutual TLS."""
    from confide.federation.passphrase import new_passphrase_for
    from confide.flare.kits import startup
    from confide.flare.nvidia import founding

    secret = new_passphrase_for((out or Path(name)) / startup.ROOT_KEY) if passphrase else None
    made = founding.init(
        name,
        sites=sites,
        host=host,
        port=port,
        lead=lead,
        out=out,
        days=days,
        passphrase=secret,
    )
    screen.show(_kits_table(made.kits(), title=f"consortium {made.name}, in {made.path}"))
    screen.say(f"\n{_SAFELY}")
    screen.say(f"Open TCP port {port} of {host} to the sites and the lead; a site opens none.")
    screen.say(
        f"{made.authority} is secret: whoever holds it can let anyone in. Keep it offline, with a "
        "backup; `confide consortium add` needs it."
    )
    ends = min(startup.expires(kit) for kit in made.kits())
    screen.say(f"The certificates are valid until {ends:%Y-%m-%d}.")


@consortium.command("add")
def add(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder.")],
    *,
    site: Annotated[str, typer.Option(metavar="NAME", help="The new site's name.")],
) -> None:
    """Make a kit for another site. The others keep theirs and nothing restarts."""
    from confide.flare.kits import startup
    from confide.flare.nvidia import founding

    kit = founding.add(folder, site)
    screen.show(_kits_table((kit,), title=f"consortium {kit.consortium}"))
    screen.say(f"\n{_SAFELY}")
    screen.say(f"The certificate is valid until {startup.expires(kit):%Y-%m-%d}.")


@consortium.command("renew")
def renew(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder.")],
    name: Annotated[str, typer.Argument(help="Whose kit: server, a site or the lead.")],
) -> None:
    """Replace a kit before its certificate expires, or if its key may have leaked."""
    from confide.flare.kits import startup
    from confide.flare.nvidia import founding

    kit = founding.renew(folder, name)
    screen.show(_kits_table((kit,), title=f"consortium {kit.consortium}"))
    screen.say(f"\n{_SAFELY}")
    if kit.kind == "site":
        screen.say(
            "The site moves its own files from the old kit to the new one: local/site.toml, "
            "local/consent.toml, local/consent-runs.jsonl and the folder identity."
        )
    if kit.kind == "server":
        screen.say(
            "Stop the server first; then move identity, runs, store and, if present, "
            "disabled_clients.json (who is revoked) from the old kit to the new one."
        )
    if kit.kind == "lead":
        screen.say("The lead moves the folder identity from the old kit to the new one.")
    screen.say(f"The certificate is valid until {startup.expires(kit):%Y-%m-%d}.")


def _kits_table(kits: tuple[Kit, ...], *, title: str) -> Table:
    from rich.table import Table

    verbs = {
        "server": "confide server start KIT",
        "site": "confide site setup KIT, confide site start KIT",
        "lead": "confide coordinate SETTINGS.toml --kit KIT",
    }
    owners = {"server": "who runs the server", "site": "site {name}", "lead": "the lead"}
    table = Table(title=title, title_justify="left")
    for column in ("kit", "for", "what it is for"):
        table.add_column(column, overflow="fold")
    for kit in kits:
        table.add_row(str(kit.path), owners[kit.kind].format(name=kit.name), verbs[kit.kind])
    return table


# --- server and site ----------------------------------------------------------------------


@server.command("start")
def start_server(
    kit: KitFolder, *, unit: UnitFile = None, wait: OldWait = None, foreground: OldForeground = None
) -> None:
    """Run the server here, until SIGTERM or Ctrl-C; a service manager keeps it alive."""
    _start(kit, "server", unit)


@server.command("stop")
def stop_server(kit: KitFolder, *, wait: Wait = 20.0) -> None:
    """Stop the server and any run in progress."""
    _stop(kit, "server", wait)


@server.command("status")
def server_status(kit: KitFolder, *, as_json: Json = False) -> None:
    """Show whether the server is running and which sites are connected."""
    _status(kit, "server", as_json=as_json)


@server.command("revoke")
def revoke(kit: KitFolder, name: SiteName, *, wait: Wait = 10.0) -> None:
    """Revoke a site, even with a renewed kit, and end any run it is in."""
    from confide.flare.kits import startup
    from confide.flare.nvidia import processes, revoking

    held = startup.open_kit(kit, "server")
    before = processes.status(held)
    fresh = revoking.revoke(held, name)
    screen.say(f"{name} is revoked{'' if fresh else ' already'}", style="bold")
    if fresh and before.running and name not in before.sites:
        others = ", ".join(before.sites) or "none"
        screen.say(f"no site of that name is connected; check the name (connected: {others})")
    _followed(held, wait)


@server.command("admit")
def admit(kit: KitFolder, name: SiteName, *, wait: Wait = 10.0) -> None:
    """Let a revoked site in again."""
    from confide.flare.kits import startup
    from confide.flare.nvidia import revoking

    held = startup.open_kit(kit, "server")
    revoking.admit(held, name)
    screen.say(f"{name} is let in again, with a certificate that is still valid", style="bold")
    _followed(held, wait)


@server.command("tidy")
def tidy(
    kit: KitFolder,
    *,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", help="Choose finished runs at least this old."),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="RUN", help="Choose this run, even if it could be resumed."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the chosen runs; stop the server first.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the runs that the server holds; delete those that are named, or finished and old."""
    from confide.flare.kits import startup
    from confide.flare.nvidia import clearing

    opened = startup.open_kit(kit, "server")
    found = clearing.held(opened)
    those = clearing.chosen(found, older_than=older_than, runs=runs or ())
    if delete:
        clearing.delete(opened, those)
    if as_json:
        names = {one.run for one in those}
        screen.put_json(
            [
                asdict(one) | {"last": one.last.isoformat(), "chosen": one.run in names}
                for one in found
            ]
        )
        return
    screen.show(_held_table(found, those, deleted=delete))
    if those and not delete:
        screen.say(
            "to delete the chosen runs, stop the server and repeat the command with --delete"
        )


def _held_table(found: tuple[Held, ...], those: tuple[Held, ...], *, deleted: bool) -> Table:
    from rich.table import Table

    table = Table(title="runs at this server", title_justify="left")
    for column in ("run", "state", "last written", "MB", ""):
        table.add_column(column, justify="right" if column == "MB" else "left", overflow="fold")
    for one in found:
        table.add_row(
            one.run,
            "finished" if one.over else "can be resumed",
            f"{one.last.astimezone():%Y-%m-%d}",
            f"{one.bytes / 1e6:.1f}",
            "" if one not in those else "deleted" if deleted else "chosen",
        )
    return table


def _followed(kit: Kit, wait: float) -> None:
    """Say so if a running server missed the change; a stopped one will read it at its start."""
    from confide.flare.nvidia import processes

    if processes.status(kit).sites and not processes.follows(kit, wait=wait):
        screen.say(
            "the running server has not noticed yet; restart it (`confide server stop`, "
            "then `confide server start`) to apply the change"
        )


@site.command("start")
def start_site(
    kit: KitFolder, *, unit: UnitFile = None, wait: OldWait = None, foreground: OldForeground = None
) -> None:
    """Run the site here, until SIGTERM or Ctrl-C; a service manager keeps it alive."""
    _start(kit, "site", unit)


@site.command("stop")
def stop_site(kit: KitFolder, *, wait: Wait = 20.0) -> None:
    """Stop the site. A run in progress loses it."""
    _stop(kit, "site", wait)


@site.command("status")
def site_status(kit: KitFolder, *, as_json: Json = False) -> None:
    """Show whether the site is running and connected, and what it has agreed to and refuses."""
    _status(kit, "site", as_json=as_json)


def _start(path: Path, kind: Literal["server", "site"], unit: Path | None) -> None:
    if unit is not None:
        unit_verbs.write(path, kind, unit)
        return
    from confide.flare.kits import startup
    from confide.flare.nvidia import processes

    kit = startup.open_kit(path, kind)
    who = "the server" if kind == "server" else f"site {kit.name}"
    screen.say(f"{who} runs here until you stop it; its log: {kit.path / 'log.txt'}")
    processes.start(kit)


def _stop(path: Path, kind: Literal["server", "site"], wait: float) -> None:
    from confide.flare.kits import startup
    from confide.flare.nvidia import processes

    kit = startup.open_kit(path, kind)
    screen.say("stopped" if processes.stop(kit, wait=wait) else "it was not running")


def _status(path: Path, kind: Literal["server", "site"], *, as_json: bool) -> None:
    from confide.flare.kits import peers, startup
    from confide.flare.nvidia import processes

    kit = startup.open_kit(path, kind)
    now, known = processes.status(kit), peers.known_to(kit).peers
    if as_json:
        since = None if now.since is None else now.since.isoformat()
        pins = {name: asdict(pin) for name, pin in known.items()}
        own = _own_json(kit) if kind == "site" else {}
        screen.put_json({**asdict(now), "since": since, "peers": pins, **own})
        return
    table, strangers = (
        kit_status.status_table(now),
        [n for n, pin in known.items() if not pin.compared],
    )
    table.add_row("peers", ", ".join(known) or "none yet")
    if strangers:
        table.add_row("not compared", f"{', '.join(strangers)} (`confide peers KIT`)")
    screen.show(table)
    if kind == "site":
        _show_own(kit)
    if now.trouble:
        screen.say(now.trouble)


def _own_json(kit: Kit) -> dict[str, object]:
    from confide.flare.run import standing

    own: dict[str, object] = {"agreements": None, "guards": None, "summed": None, "keeps": None}
    with suppress(ConfideError):
        own |= {"agreements": standing.standings(kit), "guards": standing.guards(kit)}
        own["summed"] = standing.summed(kit)
        own["keeps"] = {run: one.model_dump() for run, one in standing.kept(kit).items()}
    return own


def _show_own(kit: Kit) -> None:
    """Show what the site agreed to, refuses and keeps, or why its own file cannot be read."""
    from confide.cli import agreeing, home_verbs
    from confide.flare.run import standing

    try:
        held = standing.standings(kit)
        screen.show(agreeing.standings(held), agreeing.guards(standing.guards(kit)))
        for one in held:
            if one.warning:
                screen.say(f"{one.method}: {one.warning}")
        if (summed := standing.summed(kit)).sums:
            screen.say(
                f"secure sums: {summed.sums} opened with this site's help, each over at least"
                f" {summed.fewest} sites"
            )
        if (spent := standing.spent(kit)).charges:
            screen.say(
                f"under noise: {spent.charges} sums have spent ε = {spent.epsilon:.3g} at"
                f" δ = {spent.delta:g}, of at most {spent.most:g}, over all runs"
            )
        if kept := standing.kept(kit):
            screen.show(home_verbs.table_of(kept, first="run"))
    except ConfideError as error:
        screen.say(str(error))
