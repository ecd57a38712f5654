"""The verbs for real sites: `consortium`, `server`, `site` and `peers`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from confide.cli import screen
from confide.cli.screen import Both, Json, Passphrase
from confide.cli.tables import titled
from confide.errors import ConfideError, SettingsError

if TYPE_CHECKING:
    from confide.flare.kit import Kit
    from confide.flare.nvidia.cleanup import HeldRun
    from confide.flare.nvidia.processes import Status
    from confide.flare.peers import Known
    from confide.flare.sitekit import Consent
    from confide.flare.standing import Guarded, Standing


# --- Units of `confide server start` and `confide site start`
#
# The option `--unit` writes them.


UnitFile = Annotated[
    Path | None,
    typer.Option("--unit", metavar="FILE", help="Write a hardened systemd unit; start nothing."),
]


def write(path: Path, kind: Literal["server", "site"], file: Path) -> None:
    """Write the unit of this kit, and say how to install it."""
    from confide.flare import kit as startup
    from confide.flare.kit import write_unit
    from confide.flare.standing import site_of

    kit = startup.open_kit(path, kind)
    writable = [Path(site_of(kit).memory)] if kind == "site" else []
    write_unit(kit, file, writable=writable)
    screen.say(f"{file}: read it, then, as root:", style="bold")
    screen.say(f"  install -m 644 {file} /etc/systemd/system/")
    screen.say(f"  systemctl daemon-reload && systemctl enable --now {file.name}")


# --- The status of a server or a site as a table


def status_table(now: Status) -> Table:
    """Everything that `status` knows, a row each."""
    from rich.table import Table

    rows: list[tuple[str, object]] = [("running", f"since {local(now)}" if now.running else "no")]
    if now.running:
        ready = "ready" if now.kind == "server" else "connected"
        rows += [
            (ready, "yes" if now.connected else "no"),
            ("process", now.pid),
            ("memory", f"{now.memory / 2**20:.0f} MB"),
            ("runs", now.runs),
        ]
    if now.running and now.kind == "server":
        rows.append(("sites", ", ".join(now.sites) or "none"))
    if now.revoked:
        rows.append(("revoked", ", ".join(now.revoked)))
    rows.append(("certificate", f"{now.days_left} days left" if now.days_left >= 0 else "expired"))
    table = Table(title=now.name, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def local(now: Status) -> str:
    """Since when it runs, by this machine's clock; empty if it does not."""
    return "" if now.since is None else f"{now.since.astimezone():%Y-%m-%d %H:%M:%S}"


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
    from confide.federation.keys import new_passphrase_for
    from confide.flare import kit as startup
    from confide.flare.nvidia import consortium as members

    secret = new_passphrase_for((out or Path(name)) / startup.ROOT_KEY) if passphrase else None
    made = members.create_consortium(
        name, sites=sites, host=host, port=port, lead=lead, out=out, days=days, passphrase=secret
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
    from confide.flare import kit as startup
    from confide.flare.nvidia import consortium as members

    kit = members.add_site(folder, site)
    screen.show(_kits_table((kit,), title=f"consortium {kit.consortium}"))
    screen.say(f"\n{_SAFELY}")
    screen.say(f"The certificate is valid until {startup.expires(kit):%Y-%m-%d}.")


@consortium.command("renew")
def renew(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder.")],
    name: Annotated[str, typer.Argument(help="Whose kit: server, a site or the lead.")],
) -> None:
    """Replace a kit before its certificate expires, or if its key may have leaked."""
    from confide.flare import kit as startup
    from confide.flare.nvidia import consortium as members

    kit = members.renew_kit(folder, name)
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
    from confide.flare import kit as startup
    from confide.flare.nvidia import processes

    held = startup.open_kit(kit, "server")
    before = processes.status(held)
    fresh = processes.revoke_site(held, name)
    screen.say(f"{name} is revoked{'' if fresh else ' already'}", style="bold")
    if fresh and before.running and name not in before.sites:
        others = ", ".join(before.sites) or "none"
        screen.say(f"no site of that name is connected; check the name (connected: {others})")
    _followed(held, wait)


@server.command("admit")
def admit(kit: KitFolder, name: SiteName, *, wait: Wait = 10.0) -> None:
    """Let a revoked site in again."""
    from confide.flare import kit as startup
    from confide.flare.nvidia import processes

    held = startup.open_kit(kit, "server")
    processes.admit_site(held, name)
    screen.say(f"{name} is let in again, with a certificate that is still valid", style="bold")
    _followed(held, wait)


@server.command("tidy")
def tidy(
    kit: KitFolder,
    *,
    older_than: Annotated[
        float | None, typer.Option(metavar="DAYS", help="Choose finished runs at least this old.")
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
    from confide.flare import kit as startup
    from confide.flare.nvidia import cleanup

    opened = startup.open_kit(kit, "server")
    found = cleanup.held_runs(opened)
    those = cleanup.choose_runs(found, older_than=older_than, runs=runs or ())
    if delete:
        cleanup.delete_runs(opened, those)
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


def _held_table(found: tuple[HeldRun, ...], those: tuple[HeldRun, ...], *, deleted: bool) -> Table:
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
        write(path, kind, unit)
        return
    from confide.flare import kit as startup
    from confide.flare.nvidia import processes

    kit = startup.open_kit(path, kind)
    who = "the server" if kind == "server" else f"site {kit.name}"
    screen.say(f"{who} runs here until you stop it; its log: {kit.path / 'log.txt'}")
    processes.start(kit)


def _stop(path: Path, kind: Literal["server", "site"], wait: float) -> None:
    from confide.flare import kit as startup
    from confide.flare.nvidia import processes

    kit = startup.open_kit(path, kind)
    screen.say("stopped" if processes.stop(kit, wait=wait) else "it was not running")


def _status(path: Path, kind: Literal["server", "site"], *, as_json: bool) -> None:
    from confide.flare import kit as startup
    from confide.flare import peers
    from confide.flare.nvidia import processes

    kit = startup.open_kit(path, kind)
    now, known = processes.status(kit), peers.known_to(kit).peers
    if as_json:
        since = None if now.since is None else now.since.isoformat()
        pins = {name: asdict(pin) for name, pin in known.items()}
        own = _own_json(kit) if kind == "site" else {}
        screen.put_json({**asdict(now), "since": since, "peers": pins, **own})
        return
    table, strangers = (status_table(now), [n for n, pin in known.items() if not pin.compared])
    table.add_row("peers", ", ".join(known) or "none yet")
    if strangers:
        table.add_row("not compared", f"{', '.join(strangers)} (`confide peers KIT`)")
    screen.show(table)
    if kind == "site":
        _show_own(kit)
    if now.trouble:
        screen.say(now.trouble)


def _own_json(kit: Kit) -> dict[str, object]:
    from confide.flare import standing

    own: dict[str, object] = {"agreements": None, "guards": None, "summed": None, "keeps": None}
    with suppress(ConfideError):
        own |= {"agreements": standing.standings(kit), "guards": standing.guards(kit)}
        own["summed"] = standing.summed(kit)
        own["keeps"] = {run: one.model_dump() for run, one in standing.kept(kit).items()}
    return own


def _show_own(kit: Kit) -> None:
    """Show what the site agreed to, refuses and keeps, or why its own file cannot be read."""
    from confide.cli import tables
    from confide.flare import standing

    try:
        held = standing.standings(kit)
        screen.show(standings_table(held), guards_table(standing.guards(kit)))
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
            screen.show(tables.home_table(kept, first="run"))
    except ConfideError as error:
        screen.say(str(error))


# --- Verbs for real sites
#
# A site's own file, its consent, and the lead's run across all sites.


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
    from confide.flare import standing
    from confide.flare.kit import open_kit
    from confide.flare.sitekit import setup as put

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
        bool | None, typer.Option("--agree/--withdraw", help="Agree to what is shown, or withdraw.")
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
    from confide.cli import tables
    from confide.flare import sitekit, standing
    from confide.flare.kit import open_kit

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
    screen.show(bounds_table(found), guards_table(guards))
    _say_agreed(found, withdrawn=agree is False)


def _overview(agreed: list[Standing], guards: list[Guarded], *, as_json: bool) -> None:

    if as_json:
        screen.put_json({"agreements": agreed, "guards": guards})
        return
    screen.show(standings_table(agreed), guards_table(guards))
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


# --- The verb `confide peers`
#
# The identity keys that a server, a site or a lead has pinned.


def peers(
    kit: KitFolder,
    *,
    pin: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--pin",
            metavar="NAME FINGERPRINT",
            help="Pin a peer whose fingerprint you have compared.",
        ),
    ] = None,
    compared: Annotated[
        str | None,
        typer.Option("--compared", metavar="NAME", help="Record that you have compared this pin."),
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option("--forget", metavar="NAME", help="Unpin; the next key it shows gets pinned."),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new identity key; peers must pin it again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the fingerprints of this kit and its peers, to compare by telephone."""
    from confide.flare import peers as held
    from confide.flare.kit import open_kit

    opened = open_kit(kit)
    if renew:
        held.renew(opened)
    if forget is not None:
        held.forget(opened, forget)
    if pin is not None:
        held.pin(opened, pin[0], pin[1])
    if compared is not None:
        held.mark_compared(opened, compared)
    known = held.known_to(opened)
    if as_json:
        screen.put_json(asdict(known))
        return
    screen.show(_table(known))
    if not known.fingerprint:
        screen.say("no identity key yet; setup, start or the first run makes one")
    elif any(not one.compared for one in known.peers.values()):
        screen.say(
            "read the groups to each other by telephone, on a number you already know; if they"
            " match, record it with `--compared NAME`"
        )


def _table(known: Known) -> Table:
    from rich.table import Table

    from confide.flare.peers import shown

    table = Table(title=f"{known.name} and its peers", title_justify="left")
    for column in ("name", "fingerprint", ""):
        table.add_column(column, overflow="fold")
    if known.fingerprint:
        table.add_row(known.name, _grouped(shown(known.fingerprint)), "this place")
    for name, one in known.peers.items():
        state = "compared" if one.compared else "not compared"
        table.add_row(name, _grouped(shown(one.fingerprint)), state)
    return table


def _grouped(text: str) -> str:
    """The sixteen groups on two lines of eight."""
    groups = text.split()
    return " ".join(groups[:8]) + "\n" + " ".join(groups[8:])


# --- Tables of consent
#
# A site's agreements and refusals, in plain words.


_EMPTY = {"sites": "no one in particular", "private": "none"}


def bounds_table(found: Consent) -> Table:
    """A table of the agreed bounds, beside what a run asks where it differs."""
    table = titled(f"How far a run of {found.method} may go here")
    differ = [line for line in found.lines if found.agreed != "no" and line.agreed != line.asked]
    table.add_column("")
    names = (
        ("agreed", "asked", "") if differ else ("proposed" if found.agreed == "no" else "agreed",)
    )
    for name in names:
        table.add_column(name, overflow="fold")
    for line in found.lines:
        cells = [_words(line.name, line.asked)]
        if differ:
            more = "more than agreed" if line.outside else ""
            cells = [_words(line.name, line.agreed), *cells, more]
        table.add_row(f"{line.name}: {line.says}", *cells)
    return table


def guards_table(held: Sequence[Guarded]) -> Table:
    """A site's guards, and which of them its own file sets."""
    table = titled("What this site refuses, whatever it has agreed to")
    for name in ("guard", "value", "from", "the site"):
        table.add_column(name, overflow="fold")
    for guard in held:
        table.add_row(guard.name, _words(guard.name, guard.value), guard.source, guard.says)
    return table


def standings_table(held: Sequence[Standing]) -> Table:
    """A site's agreements: until when, for how many runs, with which lead."""
    table = titled("What this site has agreed to")
    for name in ("method", "until", "runs", "lead", ""):
        table.add_column(name, overflow="fold")
    for one in held:
        used = "?" if one.used is None else one.used
        lead = _words("lead", one.lead)
        table.add_row(one.method, f"{one.until}", f"{used} of {one.runs}", lead, one.warning)
    return table


def _words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        shown = ("anyone" if name == "lead" and one == "*" else str(one) for one in value)
        return ", ".join(shown) or _EMPTY.get(name, "")
    return f"{value:g}" if isinstance(value, float) else str(value)
