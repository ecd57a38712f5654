"""The verbs for real sites: `consortium`, `server`, `site` and `peers`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from confide.cli import screen
from confide.cli.options import command
from confide.cli.tables import field_table, home_table, mapping, table_of
from confide.errors import ConfideError, SettingsError

if TYPE_CHECKING:
    from confide.flare.kit import Kit
    from confide.flare.sitekit import Consent
    from confide.flare.status import AgreementStatus, GuardValue

consortium = typer.Typer(no_args_is_help=True, help="Found a consortium and add sites to it.")
server = typer.Typer(no_args_is_help=True, help="Run the server; it only ever sees messages.")
site = typer.Typer(no_args_is_help=True, help="Run a site, where the text is.")


def _open(path: Path, kind: Literal["server", "site"] | None = None) -> Kit:
    from confide.flare.kit import open_kit

    return open_kit(path, kind)


# --- Consortium


@dataclass(frozen=True, slots=True, kw_only=True)
class KitOptions:
    """The kits that a founder makes.

    Options:
        sites (--site NAME): For trials: make this site's key and kit too; repeat for each.
        own_keys: Make no kit: server and lead make their keys themselves, as sites do.
    """

    sites: list[str] | None = None
    own_keys: bool = False


@command(consortium, "init")
def consortium_init(
    name: str,
    *,
    kits: KitOptions,
    host: str,
    port: int = 8002,
    lead: str = "lead",
    out: Path | None = None,
    days: float = 365,
    passphrase: bool = False,
) -> None:
    """Make a consortium; for trials, with startup kits for the server and the lead.

    Options:
        name: The consortium's name.
        host (HOST): The host where sites reach the server.
        port (PORT): The server's only port.
        lead (NAME): The name of the lead, who starts runs.
        out (DIR): The folder to write; named after the consortium.
        days (DAYS): How long the certificates of the kits are valid.
    """
    from confide.federation.keys import new_passphrase_for
    from confide.flare.kit import ROOT_KEY
    from confide.flare.nvidia import consortium as members

    if kits.own_keys and kits.sites:
        raise SettingsError(
            "--own-keys makes no kit, and --site makes one",
            fix="leave out --site: `confide consortium add` makes a kit later",
        )
    secret = new_passphrase_for((out or Path(name)) / ROOT_KEY) if passphrase else None
    made = members.create_consortium(
        name,
        sites=None if kits.own_keys else kits.sites or (),
        host=host,
        port=port,
        lead=lead,
        out=out,
        days=days,
        passphrase=secret,
    )
    title = f"consortium {made.name}, in {made.path}"
    lines = (
        f"Open TCP port {port} of {host} to the sites and the lead; a site opens none.",
        f"{made.authority} is secret: whoever holds it can let anyone in. Keep it offline, with a"
        " backup; `confide consortium approve` needs it.",
    )
    if kits.own_keys:
        screen.say(title, *lines)
    else:
        _show_kits(made.kits(), title, *lines)


@command(consortium, "approve")
def consortium_approve(folder: Path, file: Path, *, compared: bool = False) -> None:
    """Certify the key that a site, server or lead made; the first time, after a telephone call.

    Options:
        folder: The consortium's folder.
        file (REQUEST): The request.json that came.
        compared: It was read to you, this fingerprint, and it is the same.
    """
    from confide.flare.nvidia import certificates

    found = certificates.approve(folder, file, compared=compared)
    place = _place(found.kind, found.site)
    _show_fingerprints({place: found.fingerprint, "authority": found.authority})
    if found.before not in (None, found.fingerprint):
        screen.say(
            "This is another key than the one that was approved under this name; certificates of"
            " that one stay valid until they end."
        )
    if found.file is None:
        screen.say(
            f"Nothing is approved yet. Call {place} on a number that you knew before: it reads its"
            " fingerprint, you read the authority's. If its is the same, repeat with --compared."
        )
        return
    screen.say(f"approved; send this file to {place}, by any channel: {found.file}", style="bold")


def _place(kind: str, name: str) -> str:
    """The words for a place of a consortium."""
    return f"the {name}" if name == kind else f"{kind} {name}"


def _show_fingerprints(found: dict[str, str]) -> None:
    """Show fingerprints as people compare them, in sixteen groups on two lines."""
    rows = [(name, _in_groups(fingerprint)) for name, fingerprint in found.items()]
    screen.show(table_of(("", "fingerprint"), rows))


def _in_groups(fingerprint: str) -> str:
    from confide.flare.peers import grouped_fingerprint

    groups = grouped_fingerprint(fingerprint).split()
    return " ".join(groups[:8]) + "\n" + " ".join(groups[8:])


@command(consortium, "add")
def consortium_add(folder: Path, *, site: str) -> None:
    """For trials: make another site's key and kit. Real sites ask for approval.

    Options:
        folder: The consortium's folder.
        site (NAME): The new site's name.
    """
    from confide.flare.nvidia import consortium as members

    kit = members.add_site(folder, site)
    _show_kits((kit,), f"consortium {kit.consortium}")


@command(consortium, "adopt")
def consortium_adopt(kit: Path, *, lead: str) -> None:
    """Let confide use a kit of a consortium that already runs FLARE.

    Options:
        kit: The startup kit that FLARE's provisioner made.
        lead (NAME@HOST): Who starts runs, by the name in FLARE's project.
    """
    from confide.flare.kit import CLASSES, adopt_kit
    from confide.flare.peers import open_signer

    adopted = adopt_kit(kit, lead=lead)
    open_signer(adopted, make=True)
    who = {"site": f"site {adopted.name}", "lead": f"the lead {adopted.name}"}
    screen.say(f"{kit}: {who.get(adopted.kind, 'the server')}", style="bold")
    if adopted.kind != "lead":
        screen.say("class_allow_list in local/resources.json must have:", *CLASSES)


@command(consortium, "submission")
def consortium_submission(
    settings: str,
    *,
    kit: Path,
    sites: list[str],
    into: Path,
    overrides: list[str] | None = None,
    out: Path | None = None,
) -> None:
    """Write a run as a job folder, which FLARE's own tools submit.

    Options:
        kit (DIR): The lead's startup kit.
        sites (--site NAME): A site to take part; repeat for each.
        into (DIR): Where the folder is written.
        out (DIR): The run's folder; under runs/ by default.
    """
    from confide.flare.nvidia import lead

    written = lead.write_run(
        settings, kit=kit, sites=sites, into=into, overrides=overrides or (), out=out
    )
    screen.say(f"{written}: submit it with FLARE's own tools; it holds no code", style="bold")
    screen.say("then `confide coordinate --resume` brings home what it left")


_MOVES = {
    "site": "The site moves its own files from the old kit to the new one: local/site.toml,"
    " local/consent.toml, local/consent-runs.jsonl and the folder identity.",
    "server": "Stop the server first; then move identity, runs, store and, if present,"
    " disabled_clients.json (who is revoked) from the old kit to the new one. Once it runs, every"
    " site stops and starts again.",
    "lead": "The lead moves the folder identity from the old kit to the new one.",
}
"""Files that go from an old kit to the one that replaces it."""


@command(consortium, "renew")
def consortium_renew(folder: Path, name: str) -> None:
    """Replace a kit that was made here: its certificate expires, or its key leaked.

    Options:
        folder: The consortium's folder.
        name: Whose kit: server, a site or the lead.
    """
    from confide.flare.nvidia import consortium as members

    kit = members.renew_kit(folder, name)
    _show_kits((kit,), f"consortium {kit.consortium}", _MOVES[kit.kind])


def _show_kits(kits: Sequence[Kit], title: str, *lines: str) -> None:
    """Show new kits, who gets them, and until when they are valid."""
    from confide.flare.kit import expires

    verbs = {
        "server": "confide server start KIT",
        "site": "confide site setup KIT, confide site start KIT",
        "lead": "confide coordinate SETTINGS.toml --kit KIT",
    }
    owners = {"server": "who runs the server", "site": "site {name}", "lead": "the lead"}
    rows = [
        (str(one.path), owners[one.kind].format(name=one.name), verbs[one.kind]) for one in kits
    ]
    screen.show(table_of(("kit", "for", "what it is for"), rows, title=title))
    certificates = "The certificate is" if len(kits) == 1 else "The certificates are"
    if made := [one.name for one in kits if one.kind == "site"]:
        lines += (
            f"For trials only: the private key of {', '.join(made)} was made here. A site with"
            " text of its own makes its keys itself, by `confide site request`.",
        )
    screen.say(
        "\nGive each kit to its owner alone, over a channel that nobody else can read (an encrypted"
        " medium or your own secure file transfer, not e-mail), then delete it here.",
        *lines,
        f"{certificates} valid until {min(map(expires, kits)):%Y-%m-%d}.",
    )


# --- Start, stop and status of a server or a site


def _removed(value: object) -> None:
    """Raise SettingsError if an option of the time is given when `start` left processes behind."""
    if value is not None:
        raise SettingsError(
            "`start` has no options --foreground and --wait any more, because it always runs in"
            " the foreground",
            fix="leave the option out; a systemd unit (`--unit FILE` writes one), a container or"
            " `nohup` keeps it running, and `confide site status` or `confide server status` says"
            " when it is connected",
        )


OldForeground = Annotated[bool | None, typer.Option("--foreground", hidden=True, callback=_removed)]
OldWait = Annotated[float | None, typer.Option("--wait", hidden=True, callback=_removed)]


@command(server, "start")
def server_start(
    kit: Path, *, unit: Path | None = None, wait: OldWait = None, foreground: OldForeground = None
) -> None:
    """Run the server here, until SIGTERM or Ctrl-C."""
    _start(kit, "server", unit)


@command(site, "start")
def site_start(
    kit: Path, *, unit: Path | None = None, wait: OldWait = None, foreground: OldForeground = None
) -> None:
    """Run the site here, until SIGTERM or Ctrl-C."""
    _start(kit, "site", unit)


def _start(path: Path, kind: Literal["server", "site"], unit: Path | None) -> None:
    from confide.flare.kit import write_unit

    kit = _open(path, kind)
    if unit is not None:
        from confide.flare.status import read_site_file

        write_unit(kit, unit, writable=[Path(read_site_file(kit).memory)] if kind == "site" else [])
        screen.say(f"{unit}: read it, then, as root:", style="bold")
        screen.say(
            f"  install -m 644 {unit} /etc/systemd/system/",
            f"  systemctl daemon-reload && systemctl enable --now {unit.name}",
        )
        return
    from confide.flare.nvidia import processes

    who = "the server" if kind == "server" else f"site {kit.name}"
    screen.say(f"{who} runs here until you stop it; its log: {kit.path / 'log.txt'}")
    processes.start(kit)


@command(server, "stop")
def server_stop(kit: Path, *, wait: float = 20.0) -> None:
    """Stop the server and any run in progress."""
    _stop(kit, "server", wait)


@command(site, "stop")
def site_stop(kit: Path, *, wait: float = 20.0) -> None:
    """Stop the site. A run in progress loses it."""
    _stop(kit, "site", wait)


def _stop(path: Path, kind: Literal["server", "site"], wait: float) -> None:
    from confide.flare.nvidia import processes

    stopped = processes.stop(_open(path, kind), wait=wait)
    screen.say("stopped" if stopped else "it was not running")


@command(server, "status")
def server_status(kit: Path, *, as_json: bool = False) -> None:
    """Show if the server runs, and which sites are connected."""
    _status(kit, "server", as_json=as_json)


@command(site, "status")
def site_status(kit: Path, *, as_json: bool = False) -> None:
    """Show if the site runs, what it agreed to and what it refuses."""
    _status(kit, "site", as_json=as_json)


def _status(path: Path, kind: Literal["server", "site"], *, as_json: bool) -> None:
    from confide.flare import peers
    from confide.flare.nvidia import processes

    kit = _open(path, kind)
    now, known = processes.status(kit), peers.list_peers(kit).peers
    if as_json:
        since = None if now.since is None else now.since.isoformat()
        pins = {name: asdict(pin) for name, pin in known.items()}
        own = _own_json(kit) if kind == "site" else {}
        screen.put_json({**asdict(now), "since": since, "peers": pins, **own})
        return
    since = "" if now.since is None else f"{now.since.astimezone():%Y-%m-%d %H:%M:%S}"
    rows: dict[str, object] = {"running": f"since {since}" if now.running else "no"}
    if now.running:
        rows["ready" if kind == "server" else "connected"] = "yes" if now.connected else "no"
        rows |= {"process": now.pid, "memory": f"{now.memory / 2**20:.0f} MB", "runs": now.runs}
    if now.running and kind == "server":
        rows["sites"] = ", ".join(now.sites) or "none"
    if now.revoked:
        rows["revoked"] = ", ".join(now.revoked)
    rows["certificate"] = f"{now.days_left} days left" if now.days_left >= 0 else "expired"
    rows["peers"] = ", ".join(known) or "none yet"
    if strangers := [name for name, pin in known.items() if not pin.compared]:
        rows["not compared"] = f"{', '.join(strangers)} (`confide peers KIT`)"
    table = table_of(("", ""), ((name, str(one)) for name, one in rows.items()), title=now.name)
    table.show_header = False
    screen.show(table)
    if kind == "site":
        _show_own(kit)
    if now.trouble:
        screen.say(now.trouble)


def _own_json(kit: Kit) -> dict[str, object]:
    from confide.flare import status

    own: dict[str, object] = {"agreements": None, "guards": None, "summed": None, "keeps": None}
    with suppress(ConfideError):
        own |= {"agreements": status.agreement_status(kit), "guards": status.guard_values(kit)}
        own["summed"] = status.secure_sum_status(kit)
        own["keeps"] = {run: one.model_dump() for run, one in status.models_kept(kit).items()}
    return own


def _show_own(kit: Kit) -> None:
    """Show what the site agreed to, refuses and keeps, or why its own file cannot be read."""
    from confide.flare import status

    try:
        agreed = status.agreement_status(kit)
        screen.show(_agreement_table(agreed), _guard_table(status.guard_values(kit)))
        screen.say(*(f"{one.method}: {one.warning}" for one in agreed if one.warning))
        if (summed := status.secure_sum_status(kit)).sums:
            screen.say(
                f"secure sums: {summed.sums} opened with this site's help, each over at least"
                f" {summed.fewest} sites"
            )
        spent, limit = status.budget_status(kit)
        if spent.charges:
            screen.say(
                f"under noise: {spent.charges} sums have spent ε = {spent.epsilon:.3g} at"
                f" δ = {limit.delta:g}, of at most {limit.epsilon:g}, over all runs"
            )
        if kept := status.models_kept(kit):
            screen.show(home_table(kept, first="run"))
    except ConfideError as error:
        screen.say(str(error))


# --- The server: who may connect, and which runs it holds


@command(server, "revoke")
def server_revoke(kit: Path, name: str, *, wait: float = 10.0) -> None:
    """Keep a site out, even with a renewed kit, and end its runs.

    Options:
        name (SITE): The site's exact name.
    """
    from confide.flare.nvidia import processes

    opened = _open(kit, "server")
    before = processes.status(opened)
    fresh = processes.revoke_site(opened, name)
    screen.say(f"{name} is revoked{'' if fresh else ' already'}", style="bold")
    if fresh and before.running and name not in before.sites:
        others = ", ".join(before.sites) or "none"
        screen.say(f"no site of that name is connected; check the name (connected: {others})")
    _wait_for_server(opened, wait)


@command(server, "admit")
def server_admit(kit: Path, name: str, *, wait: float = 10.0) -> None:
    """Let a revoked site in again.

    Options:
        name (SITE): The site's exact name.
    """
    from confide.flare.nvidia import processes

    opened = _open(kit, "server")
    processes.admit_site(opened, name)
    screen.say(f"{name} is let in again, with a certificate that is still valid", style="bold")
    _wait_for_server(opened, wait)


def _wait_for_server(kit: Kit, wait: float) -> None:
    """Say so if a running server missed the change; a stopped one will read it at its start."""
    from confide.flare.nvidia import processes

    if processes.status(kit).sites and not processes.follows(kit, wait=wait):
        screen.say(
            "the running server has not noticed yet; restart it (`confide server stop`, "
            "then `confide server start`) to apply the change"
        )


@command(server, "tidy")
def server_tidy(
    kit: Path,
    *,
    older_than: float | None = None,
    runs: list[str] | None = None,
    delete: bool = False,
    as_json: bool = False,
) -> None:
    """Show the server's runs; delete named ones, or finished old ones.

    Options:
        older_than (DAYS): Choose finished runs at least this old.
        runs (--run RUN): Choose this run, even if it could be resumed.
        delete: Delete the chosen runs; stop the server first.
    """
    from confide.flare.nvidia import processes

    opened = _open(kit, "server")
    found = processes.stored_runs(opened)
    those = processes.choose_runs(found, older_than=older_than, runs=runs or ())
    if delete:
        processes.delete_runs(opened, those)
    if as_json:
        screen.put_json(
            [asdict(one) | {"last": one.last.isoformat(), "chosen": one in those} for one in found]
        )
        return
    rows = [
        (
            one.run,
            "finished" if one.over else "can be resumed",
            f"{one.last.astimezone():%Y-%m-%d}",
            f"{one.bytes / 1e6:.1f}",
            "" if one not in those else "deleted" if delete else "chosen",
        )
        for one in found
    ]
    columns = ("run", "state", "last written", "MB", "")
    screen.show(table_of(columns, rows, title="runs at this server", right=("MB",)))
    if those and not delete:
        screen.say(
            "to delete the chosen runs, stop the server and repeat the command with --delete"
        )


# --- The site: its kit, its own settings and its consent


@command(site, "request")
def site_request(
    kit: Path,
    *,
    name: str | None = None,
    consortium: str | None = None,
    kind: Literal["site", "server", "lead"] | None = None,
) -> None:
    """Make the keys of this site, server or lead, which stay here, and ask for a certificate.

    Options:
        name (NAME): The site's name, for its first request; the lead's, if it is not lead.
        consortium (NAME): The consortium's name, for the first request.
        kind (--as KIND): Whose kit it is to be: site (by default), server or lead.
    """
    from confide.flare.nvidia import certificates

    asked = certificates.ask_to_join(kit, site=name, consortium=consortium, kind=kind)
    _show_fingerprints({_place(asked.kind, asked.site): asked.fingerprint})
    screen.say(
        f"Send {asked.file} to the founder; it holds no secret. Read this fingerprint to the"
        " founder when called. Then: `confide site accept KIT ANSWER`."
    )


@command(site, "accept")
def site_accept(kit: Path, file: Path, *, compared: bool = False) -> None:
    """Complete the kit with the founder's answer; the first time, after a telephone call.

    Options:
        file (ANSWER): The file that the founder sent.
        compared: The founder read this fingerprint to you, and it is the same.
    """
    from confide.flare.kit import expires
    from confide.flare.nvidia import certificates

    found = certificates.accept(kit, file, compared=compared)
    _show_fingerprints({"authority": found.authority})
    if found.kit is None:
        screen.say(
            "Nothing is accepted yet. The founder reads the authority's fingerprint to you, by"
            " telephone, on a number that you knew before. If it is the same, repeat with"
            " --compared."
        )
        return
    screen.say(
        f"the kit is complete; its certificate is valid until {expires(found.kit):%Y-%m-%d}",
        style="bold",
    )
    if found.kit.kind == "server":
        screen.say("If it has run with another key, start it and then every site again.")


@command(site, "setup")
def site_setup(kit: Path, *, settings: Path) -> None:
    """Check this site's settings and text; put the settings into its kit.

    Options:
        settings (FILE): The site's own settings, site.toml.
    """
    from confide.flare import sitekit, status

    own, gathered = sitekit.setup_site(_open(kit, "site"), settings)
    facts = gathered.facts()["sites"][own.name]
    counts = {f"{part} sentences": facts[part] for part in ("train", "dev", "test")}
    screen.show(mapping(counts, columns=("text", "count"), title=own.name))
    screen.show(mapping(facts["entities"], columns=("entity in training text", "count")))
    if facts["problems"]:
        screen.show(mapping(facts["problems"], columns=("did not fit", "count")))
    agreed = ", ".join(sorted(status.read_agreements(_open(kit, "site"))))
    none = "no method yet; agree to one with `confide site consent`"
    screen.say(f"consents to {agreed or none}")


@command(site, "consent")
def site_consent(
    kit: Path,
    method: str | None = None,
    *,
    settings: str | None = None,
    bounds: list[str] | None = None,
    agree: bool | None = None,
    steps: list[str] | None = None,
    both: bool = False,
    as_json: bool = False,
) -> None:
    """Show what a method may send from this site; agree to it.

    Nothing runs here before the site agrees.

    Options:
        method: A method's name, such as fedavg.
        settings (--for SETTINGS): Show what the lead's settings need.
        bounds (--bound KEY=VALUE): Change a bound: runs=3, until=2027-01-31.
        agree (--agree/--withdraw): Agree to what is shown, or withdraw.
        steps (--step NAME): Agree to these steps only; may be repeated.
    """
    from confide.flare import sitekit, status

    opened = _open(kit, "site")
    guards = status.guard_values(opened)
    asked = None if settings is None else sitekit.settings_asked(settings, method)
    named = method if asked is None else asked.trained_by
    if named is None:
        if agree is not None or bounds or steps:
            raise SettingsError("no method is named", fix="name one, or give --for SETTINGS")
        agreed = status.agreement_status(opened)
        if as_json:
            screen.put_json({"agreements": agreed, "guards": guards})
            return
        screen.show(_agreement_table(agreed), _guard_table(guards))
        screen.say("to see what a method sends from this site, name it or give --for SETTINGS")
        return
    if agree is False:
        found = sitekit.withdraw_from(opened, named)
    elif agree:
        found = sitekit.agree_to(opened, named, steps=steps or (), asked=asked, bounds=bounds or ())
    else:
        found = sitekit.propose_consent(opened, named, asked=asked, bounds=bounds or ())
    if as_json:
        screen.put_json({**asdict(found), "guards": guards})
        return
    title = f"What leaves {opened.name} under {named} (table {found.wire})"
    screen.show(field_table(found.rows, title=title, both=both))
    screen.show(_bound_table(found), _guard_table(guards))
    only = f", steps {', '.join(found.steps)} only" if found.steps else ""
    until = f" until {found.until}" if found.until else ""
    screen.say(f"agreed: {found.agreed}{only}{until}", style="bold")
    if found.old:
        screen.say("that agreement predates bounds; --agree records these")
    if found.beyond:
        screen.say(f"the run asks for more than was agreed: {', '.join(found.beyond)}")
    if found.refused:
        screen.say(f"a guard of this site refuses that run: {found.refused}")
    if (found.agreed != "yes" or found.beyond) and agree is not False:
        screen.say("to agree, repeat the command with --agree")


def _bound_table(found: Consent) -> Table:
    """A table of the agreed bounds, beside what a run asks where it differs."""
    differ = [line for line in found.lines if found.agreed != "no" and line.agreed != line.asked]
    columns = ["proposed" if found.agreed == "no" else "agreed"]
    columns += ["asked", ""] if differ else []
    rows = []
    for line in found.lines:
        cells = [_in_words(line.name, line.asked)]
        if differ:
            more = "more than agreed" if line.outside else ""
            cells = [_in_words(line.name, line.agreed), *cells, more]
        rows.append([f"{line.name}: {line.says}", *cells])
    return table_of(["", *columns], rows, title=f"How far a run of {found.method} may go here")


def _guard_table(guards: Iterable[GuardValue]) -> Table:
    """A site's guards, and which of them its own file sets."""
    rows = ((one.name, _in_words(one.name, one.value), one.source, one.says) for one in guards)
    title = "What this site refuses, whatever it has agreed to"
    return table_of(("guard", "value", "from", "the site"), rows, title=title)


def _agreement_table(agreed: Iterable[AgreementStatus]) -> Table:
    """A site's agreements: until when, for how many runs, with which lead."""
    rows = []
    for one in agreed:
        used = f"{'?' if one.used is None else one.used} of {one.runs}"
        rows.append((one.method, f"{one.until}", used, _in_words("lead", one.lead), one.warning))
    columns = ("method", "until", "runs", "lead", "")
    return table_of(columns, rows, title="What this site has agreed to")


def _in_words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        none = {"sites": "no one in particular", "private": "none"}.get(name, "")
        parts = ("anyone" if name == "lead" and one == "*" else str(one) for one in value)
        return ", ".join(parts) or none
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- Peers: the identity keys that a server, a site or a lead has pinned


def peers_command(
    kit: Path,
    *,
    pin: tuple[str, str] | None = None,
    compared: str | None = None,
    forget: str | None = None,
    renew: bool = False,
    as_json: bool = False,
) -> None:
    """Show fingerprints of identity keys, to compare by telephone.

    Options:
        pin (--pin NAME FINGERPRINT): Pin a peer whose fingerprint you have compared.
        compared (--compared NAME): Record that you have compared this pin.
        forget (--forget NAME): Unpin; the next key it shows gets pinned.
        renew: Make a new identity key; peers must pin it again.
    """
    from confide.flare import peers

    opened = _open(kit)
    if renew:
        peers.renew_identity(opened)
    if forget is not None:
        peers.pins_of(opened).forget(forget)
    if pin is not None:
        peers.pin_peer(opened, pin[0], pin[1])
    if compared is not None:
        peers.pins_of(opened).mark_compared(compared)
    known = peers.list_peers(opened)
    if as_json:
        screen.put_json(known)
        return

    rows = [(known.name, _in_groups(known.fingerprint), "this place")] if known.fingerprint else []
    for name, one in known.peers.items():
        state = "compared" if one.compared else "not compared"
        rows.append((name, _in_groups(one.fingerprint), state))
    columns = ("name", "fingerprint", "")
    screen.show(table_of(columns, rows, title=f"{known.name} and its peers"))
    if not known.fingerprint:
        screen.say("no identity key yet; setup, start or the first run makes one")
    elif any(not one.compared for one in known.peers.values()):
        screen.say(
            "read the groups to each other by telephone, on a number you already know; if they"
            " match, record it with `--compared NAME`"
        )
