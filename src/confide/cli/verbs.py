"""The command line: few verbs, each a thin skin over the public function of the same name.

Nothing heavy is imported before a verb runs, so `confide --help` answers at once.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from confide.cli import screen
from confide.cli.data import data
from confide.cli.files import GoldOptions, NotesOptions, SettingsOptions, reads_as
from confide.cli.screen import (
    As,
    Both,
    Canaries,
    DemoOut,
    Home,
    Json,
    Key,
    Log,
    Overrides,
    Passphrase,
    Quiet,
    Resume,
    RunAndFiles,
    RunFolder,
    RunOut,
    SettingsName,
    Site,
    with_canaries,
)
from confide.cli.sites import consortium, peers, server, site
from confide.cli.tables import titled
from confide.errors import ConfideError, DataError, SettingsError, printable
from confide.removed import VERBS
from confide.version import __version__

if TYPE_CHECKING:
    from rich.table import Table

    from confide.flare.lead import Ending
    from confide.jobs.initialise_files import Match
    from confide.jobs.privacy_plan import PrivacyPlan
    from confide.runs.result import Result
    from confide.settings import Settings


# --- The end of `run` and `coordinate`
#
# They say whether the run has learnt, and name the next commands.
#
# Every command is one line of a shell: names with spaces or other marks are quoted.


MOST = 3
"""The most commands that are proposed."""
_READING = ("format", "scheme")
_UNSAID = ("encoding", "columns", "annotators", "skip_broken")
"""Options for reading a site's files that `evaluate` has no flags for."""


def say_advice(
    folder: Path, result: Result, *, command: tuple[str, Sequence[str], Path | None]
) -> None:
    """Say if the model has not learnt, or was still learning, and what changes that.

    `command` has the settings file, the overrides and the folder of the command that ended.
    """
    from confide.runs.folder import RunFolder
    from confide.runs.result import advice

    found = advice(result, RunFolder(folder).settings())
    if found is None:
        return
    screen.say(f"\n{found.said}", style="bold yellow")
    if not found.changes:
        return
    settings, overrides, out = command
    kept = [one for one in overrides if one.partition("=")[0].strip() not in found.changes]
    changed = [*kept, *_assigned(found.changes)]
    words = ["confide", "run", settings, *(word for one in changed for word in ("--set", one))]
    if found.resumes:
        words += [*([] if out is None else ["--out", str(out)]), "--resume"]
    else:
        words += ["--out", f"{shown(folder)}-again"]
    said = "to train on" if found.resumes else "to try again"
    screen.say(f"{said}: {shlex.join(words)}")


def _assigned(changes: Mapping[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def say_next(lines: Sequence[str]) -> None:
    """Say which commands come next."""
    screen.say("next:")
    for line in lines:
        screen.say(f"  {line}")


def next_commands(folder: Path, result: Result) -> list[str]:
    """Three commands for a run that has ended here, with the run's own files and sites."""
    from confide.runs.folder import RunFolder
    from confide.tasks import TASKS

    run, settings, task = shown(folder), RunFolder(folder).settings(), TASKS[result.task]
    file, site, reading = _held_out(settings, result)
    lines = [_line("evaluate", run, file, *site, *reading)] if file else []
    if task.learns == "entities":
        text = shlex.quote("Write a sentence of your own here.")
        lines.append(f"echo {text} | {_line('predict', run, '-', *site)}")
    elif file:
        to = ["--to", "facts"] if task.bags else []
        read = reading[:2] if reading[:1] == ["--format"] else []
        lines.append(_line("predict", run, file, *site, *read, *to))
    lines.append(_line("report", run))
    if settings.method not in ("pooled", "public-only"):
        lines.append(_line("home", run))
    return lines[:MOST]


def lead_commands(folder: Path) -> list[str]:
    """Commands for a lead, who has a run's numbers and no text."""
    return [_line(verb, shown(folder)) for verb in ("report", "ledger")]


def _line(*words: str) -> str:
    return shlex.join(["confide", *words])


def shown(path: Path) -> str:
    """The path from here if it lies below, as a shell that stays here would name it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _held_out(settings: Settings, result: Result) -> tuple[str, list[str], list[str]]:
    """A test file of the run's own, the site whose model to use, and how the file is read.

    There is no file if none was named, or if `evaluate` cannot be told how to read it.
    """
    from confide.settings import SplitTable

    sites = sorted(result.data.sites)
    tables = [settings.split] if settings.split else list(settings.site)
    for table in tables:
        own = settings.data if isinstance(table, SplitTable) else table
        how = [(name, getattr(own, name) or getattr(settings.data, name)) for name in _READING]
        odd = any(getattr(one, name) for one in (own, settings.data) for name in _UNSAID)
        if not table.test or odd:
            continue
        named = min(sites, default="") if isinstance(table, SplitTable) else table.name
        maps = not isinstance(table, SplitTable) and bool(table.tags or table.relations)
        wanted = result.personal or maps
        reading = [word for name, value in how if value for word in (f"--{name}", value)]
        return shown(Path(table.test[0])), ["--site", named] * wanted, reading
    return "", ["--site", *sites[:1]] if result.personal else [], []


# --- Missing arguments of a command
#
# All are named at once, with a line to paste.
#
# Typer stops at the first argument or option that is missing.


def all_missing(error: BadParameter) -> SettingsError | None:
    """The error for missing arguments of a command; None if the error is about something else."""
    context: Any = error.ctx
    if type(error).__name__ != "MissingParameter" or context is None:
        return None
    words, missing = context.command_path.split()[1:], []
    for one in context.command.params:
        flag = one.opts[0] if one.param_type_name == "option" else ""
        value = context.params.get(one.name)
        shown = [word.rstrip(".").upper() for word in (one.metavar or one.name).split()]
        if one.required and one.name not in context.params:
            missing.append(flag or " ".join(shown))
            words += [flag] * bool(flag) + shown
        elif str(context.get_parameter_source(one.name)).endswith("COMMANDLINE"):
            values = value if isinstance(value, (list, tuple)) else [value]
            given = [[flag, str(each)] if flag else [str(each)] for each in values]
            words += [flag] if value is True else [word for pair in given for word in pair]
    listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return SettingsError(
        f"{listed} {'is' if len(missing) == 1 else 'are'} missing",
        expected=shlex.join(["confide", *words]),
        fix="fill in the words in capitals;"
        f" `confide {context.command_path.partition(' ')[2]} --help` explains them",
    )


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
    from confide.cli import tables
    from confide.cli.screen import Progress
    from confide.federation.events import to_all
    from confide.flare.kit import no_engine
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
    say_next(lead_commands(done.folder))


def _say_ended(ending: Ending) -> None:
    if ending.finished:
        screen.say(f"nothing to end: {ending.run} is finished; run folder: {ending.folder}")
        return
    if ending.stopped:
        screen.say(f"{ending.run} has ended, at the server and at the sites", style="bold")
    else:
        screen.say(f"nothing to end: {ending.run} is not in progress", style="bold")
    screen.say("its checkpoints are kept; repeat the command with --resume to continue it")


# --- The verb `confide home`
#
# Each site keeps the model that is best for it.


def home(
    run: RunFolder,
    *,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this site; all by default.")
    ] = None,
    passes: Annotated[
        int, typer.Option(metavar="N", min=0, help="Most passes to tune the run's model; 0: none.")
    ] = 10,
    alone: Annotated[
        bool, typer.Option("--alone/--no-alone", help="Also train a model at home from the start.")
    ] = True,
    key: Key = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let each site compare the run's model with its own, and keep the best. Nothing is sent."""
    from confide import api
    from confide.cli import tables

    found = api.home(
        Path(run),
        site=site,
        passes=passes,
        alone=alone,
        key=key,
        say=None if quiet or as_json else screen.say,
    )
    if as_json:
        screen.put_json({name: one.model_dump() for name, one in found.items()})
    else:
        screen.show(tables.home_table(found))


# --- The verb `confide budget`
#
# It proposes how often sites talk, for the bytes that they may send.


def budget(
    run: RunFolder,
    *,
    megabytes: Annotated[
        float, typer.Option(metavar="MB", help="What a site may upload in the whole run.")
    ],
    passes: Annotated[
        float | None, typer.Option(metavar="N", help="Over the text; by default those of the run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Propose how often sites should talk, from a run and the bytes that a site may upload."""
    from dataclasses import asdict

    from confide import api

    found = api.budget(Path(run), megabytes=megabytes, passes=passes)
    if as_json:
        screen.put_json(asdict(found))
        return
    screen.say(
        f"one upload: {found.each:.3g} MB; {found.rounds} rounds of {found.local_steps} batches:"
        f" {found.passes:.3g} passes, {found.megabytes:.4g} MB a site"
    )
    typer.echo(" ".join(f"--set {one}" for one in found.overrides()))


# --- The verb `confide audit`
#
# It shows what a run's model and its ledger tell.


def audit(
    run: RunFolder,
    *,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this site; all by default.")
    ] = None,
    references: Annotated[
        int,
        typer.Option(
            metavar="K", min=0, help="Models trained on halves of the text, for a stronger attack."
        ),
    ] = 0,
    most: Annotated[
        int, typer.Option(metavar="N", min=20, help="Most documents of each side.")
    ] = 1000,
    key: Key = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure what a run's model and ledger tell of its sites' text. Nothing is sent."""
    from confide import api
    from confide.runs.folder import told

    found = api.audit(
        run,
        site=site,
        most=most,
        references=references,
        key=key,
        say=None if quiet or as_json else screen.say,
    )
    if as_json:
        screen.put_json(found.model_dump(by_alias=True))
    else:
        for line in told(found):
            typer.echo(line)


# --- The verb `confide export`
#
# A trained model for other programs.


def export(
    run: RunFolder,
    *,
    to: Annotated[
        Literal["onnx", "hf", "peft", "spacy"], typer.Option(help="The program it is for.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new or empty folder.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="ONNX only: a byte for each weight of linear layers.")
    ] = False,
    site: Site = None,
    key: Key = None,
) -> None:
    """Write the model for other programs: ONNX, transformers, peft or spaCy."""
    from confide import api

    folder = api.export(run, to=to, out=out, site=site, key=key, int8=int8, say=screen.say)
    screen.say(f"{folder}: written for {to}")


# --- `confide report`
#
# The page of finished runs, and of one that goes on.


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One or more run folders.")],
    *,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page to write.")] = None,
    text: Annotated[
        bool, typer.Option("--text/--no-text", help="Show sites' text: right and wrong answers.")
    ] = True,
    watch: Annotated[
        bool, typer.Option("--watch", help="Renew the page of one run until it is finished.")
    ] = False,
) -> None:
    """Write one self-contained HTML page that shows and compares runs."""
    from confide import api

    if not watch:
        typer.echo(str(api.report(runs, out=out, text=text)))
        return
    if len(runs) > 1:
        raise SettingsError("only one run can be watched", got=f"{len(runs)} runs")
    api.watch_report(
        runs[0], out=out, text=text, on_page=lambda page, where: screen.say(f"{page}: {where}")
    )


# --- The verb `confide serve`
#
# A page and a REST interface at one local address.


HELP = "Runs, releases or NER_RUN+RE_RUN; RUN@SITE for a site's own. A folder of runs is watched."


def serve(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help=HELP)] = None,
    *,
    corrections: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Correct, and keep corrections here.")
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="Text to correct; may be repeated."),
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A site's kit: see and agree in a browser.")
    ] = None,
    asked: Annotated[
        str | None,
        typer.Option("--for", metavar="SETTINGS", help="With --kit: what the lead asks for."),
    ] = None,
    key: Key = None,
    at: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address; port 0 is any that is free.")
    ] = "127.0.0.1:8765",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the token here, for the next start too; `none`: every account of this"
            " machine may enter.",
        ),
    ] = None,
) -> None:
    """Read, correct and watch in a browser, and predict by REST. Stop it with Ctrl-C."""
    try:
        from confide.serve import app
        from confide.serve import app as running
    except ModuleNotFoundError as error:
        raise SettingsError(
            "the server is not installed", got=str(error.name), fix="pip install 'confide[serve]'"
        ) from error
    pages = app.Shown({}, corrections=corrections, kit=kit, asked=asked)
    where = running.Address.of(at, token_file)
    running.serve(runs or (), where, pages=pages, key=key, texts=texts or (), say=screen.say)


# --- The verb `confide privacy plan`
#
# It proposes the noise of a run for the ε that it may spend.


privacy = typer.Typer(no_args_is_help=True, help="Work out noise and ε before a run.")


@privacy.callback()
def _plan_options() -> None:
    pass


@privacy.command("plan")
def plan(
    settings: SettingsName,
    *,
    overrides: Overrides = None,
    units: Annotated[
        int | None, typer.Option(metavar="N", help="How many units all sites have together, about.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", help="The ε that may be spent; the rest is proposed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the noise, ε by round, and what colluding and lost sites change. Reads no text.

    What the settings leave open is proposed, with its reason, as lines to add.
    """
    from confide import api

    found = api.privacy_plan(settings, overrides=overrides or (), units=units, epsilon=epsilon)
    screen.answer(found, *planned(found), as_json=as_json)
    if not as_json:
        for line in said(found):
            screen.say(line)
        typer.echo("\n".join(lines_to_add(found, settings)))


# --- Tables and words for `confide privacy plan`


def planned(plan: PrivacyPlan) -> list[Table]:
    """ε by round, ε against more or fewer colluders, and what noise cost elsewhere."""
    spent = titled(f"ε at δ = {plan.delta:g}, for one {plan.unit}")
    spent.add_column("after round", justify="right")
    spent.add_column("ε", justify="right")
    for row in plan.rounds_spent:
        spent.add_row(str(row.rounds), _short(row.epsilon))
    against = titled("ε of the whole run, by who is in league with the server")
    for name in ("colluding sites", "sites in a sum", "ε"):
        against.add_column(name, justify="right")
    for one in plan.against:
        against.add_row(str(one.colluding), str(one.sites), _short(one.epsilon))
    elsewhere = titled("F1 on published corpora, at δ = 1e-05 (docs/differential-privacy.md)")
    elsewhere.add_column("corpus")
    for name in ("units", "no noise", "ε = 8", "ε = 3", "ε = 1"):
        elsewhere.add_column(name, justify="right")
    for cell in plan.elsewhere:
        scores = (cell.without, cell.at_8, cell.at_3, cell.at_1)
        elsewhere.add_row(f"{cell.corpus}, {cell.model}", str(cell.units), *map(str, scores))
    more = [against] * bool(plan.against) + [elsewhere] * bool(plan.elsewhere)
    return [spent, *more]


def said(plan: PrivacyPlan) -> Iterator[str]:
    """The plan in sentences."""
    yield (
        f"σ = {plan.noise:g} clips, rate {plan.rate:g}, {plan.rounds} rounds:"
        f" ε = {_short(plan.epsilon)} at δ = {plan.delta:g}"
    )
    if plan.steps:
        yield (
            f"{plan.sites} sites, each in {plan.steps} steps of its own in a round: each adds all"
            f" of the noise, {plan.site_noise:.3g} clips, whoever colludes"
        )
    else:
        yield _together(plan)
    if plan.drawn:
        what = "a step of a site" if plan.steps else "a round"
        yield (
            f"{what} draws about {plan.drawn:.3g} units; on each number of their mean gradient the"
            f" noise has a standard deviation of {plan.per_number:.2g}"
        )
    if not plan.proposed:
        able = '"dp-feded"' if plan.steps else '"dp-fedsgd", or "dp-fedner"'
        yield f"train under it with method = {able}"


def lines_to_add(plan: PrivacyPlan, settings: str) -> Iterator[str]:
    """Lines with the proposed TOML and its reasons, then open points, and the command to run."""
    if not plan.proposed and not plan.unsaid:
        return
    yield f"\n# Add these lines to {settings}, or change those that are there:"
    tables: dict[str, list[str]] = {}
    for one in plan.proposed:
        table, _, key = one.key.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {json.dumps(one.value)}  # {one.why}")
    for said in plan.unsaid:
        table, _, key = said.key.rpartition(".")
        example = f"# {key} = {json.dumps(said.example)}  # YOU SAY: {said.why}"
        tables.setdefault(table, []).append(example)
    for table in sorted(tables):
        yield from ([f"\n[{table}]"] if table else [])
        yield from tables[table]
    words = [f"{one.key}={json.dumps(one.value)}" for one in plan.proposed]
    words += [f"{one.key}={json.dumps(one.example)}" for one in plan.unsaid if one.needed]
    yield "\n# Or all on one line (your own values for those that YOU SAY):"
    yield shlex.join(["confide", "run", settings, *(w for one in words for w in ("--set", one))])
    for why in plan.blocked:
        yield f"\n# A run would still be refused: {why}"


def _together(plan: PrivacyPlan) -> str:
    return (
        f"{plan.sites} sites, a sum over at least {plan.least}, up to {plan.colluding} colluding:"
        f" each site adds {plan.site_noise:.3g} clips; with nobody lost the sum has"
        f" {plan.whole_noise:.3g}"
    )


def _short(epsilon: float) -> str:
    return "no bound" if math.isinf(epsilon) or epsilon > 1000 else f"{epsilon:.3g}"


# --- The verbs `confide key …`
#
# The key that the sites share, and keys at rest.


keys = typer.Typer(
    no_args_is_help=True, help="Make the sites' shared key; encrypt keys with a passphrase."
)

KeyPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="The sites' shared key, or a private key (PEM).")
]


@keys.command("new")
def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the key.")],
    *,
    passphrase: Passphrase = False,
) -> None:
    """Make a random key for the sites to share; only its owner can read the file."""
    from confide import api
    from confide.federation.keys import new_passphrase_for

    secret = new_passphrase_for(path) if passphrase else None
    made = api.new_key(path, passphrase=secret)
    screen.say(f"{made}: give it to the other sites, never to the server")


@keys.command("protect")
def protect(path: KeyPath) -> None:
    """Encrypt a key with a passphrase."""
    from confide import api

    screen.say(f"{api.protect_key(path)} is encrypted", style="bold")
    screen.say("the unencrypted key may still be on the disk and in backups")


@keys.command("unprotect")
def unprotect(path: KeyPath) -> None:
    """Remove a key's encryption."""
    from confide import api

    screen.say(
        f"{api.unprotect_key(path)} is no longer encrypted; only its owner can read it",
        style="bold",
    )


PANELS = {
    "Start here": ("demo", "init", "run", "predict", "evaluate", "serve"),
    "Inspect and plan": (
        "wire", "ledger", "report", "compare", "audit", "home", "capacity", "budget", "privacy",
        "recipes",
    ),
    "Data": ("data", "export"),
    "Real sites": ("consortium", "server", "site", "peers", "coordinate"),
    "Keys": ("key", "release"),
}  # fmt: skip
"""The panels of `confide --help`, and the verbs of each, in this order."""


class Verbs(TyperGroup):
    """All verbs; the one place where errors become messages."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for panel, names in PANELS.items():
            for name in names:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
        for command in self.commands.values():
            _without_types(command)

    def get_params(self, ctx: Any) -> list[Any]:
        """The program's own options."""
        return _untyped(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of the help."""
        order = [name for names in PANELS.values() for name in names]
        return list(dict.fromkeys((*order, *self.commands)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb of these words. Raises SettingsError for one that was removed."""
        if args and args[0] in VERBS:
            raise SettingsError(f"confide {args[0]} was removed", fix=VERBS[args[0]])
        return super().resolve_command(ctx, args)

    def main(self, *given: Any, **options: Any) -> Any:
        """Run the program, of which only what is printable gets out."""
        with screen.closed_in():
            return super().main(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Our errors and those of disks end in a message and code 2.

        Others keep their trace. Ctrl-C and SIGTERM end in a sentence.

        Notes about a result are printed, each once.
        """
        try:
            with screen.saying_notes():
                done = super().invoke(ctx)
                sys.stdout.flush()  # or a full disk would be told when nobody listens any more
                return done
        except typer.BadParameter as error:
            if (found := all_missing(error)) is None:
                raise
            screen.fail(found)
            raise typer.Exit(2) from error
        except ConfideError as error:
            screen.fail(error)
            raise typer.Exit(2) from error
        except UnicodeEncodeError as error:
            screen.fail(no_unicode(error))
            raise typer.Exit(2) from error
        except OSError as error:
            if (full := screen.disk_error(error)) is None:
                raise
            screen.fail(full)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stop:
            raise screen.stopped(stop, screen.AGAIN) from None


def no_unicode(error: UnicodeEncodeError) -> DataError:
    """The error for a text or a file's name with half a character, which no file can hold."""
    return DataError(
        "a name or a text has a part that is not Unicode, so it cannot be written",
        got=printable(ascii(error.object[max(0, error.start - 30) : error.end + 30])),
        fix="rename the file, or read it with the --encoding that it has",
    )


def _without_types(command: Any) -> None:
    """Leave Python's types, such as <bool>, out of the help of a command and all below it."""
    _untyped(command.get_params(typer.Context(command)))
    for below in getattr(command, "commands", {}).values():
        _without_types(below)


def _untyped(params: list[Any]) -> list[Any]:
    """Hide the types of flags and arguments in the help."""
    for one in params:
        if one.param_type_name == "argument" or one.is_flag:
            vars(one)["display_type_rich"] = lambda ctx: None
    return params


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train information extraction across organisations whose text may not leave them.",
)
app.add_typer(data, name="data")
app.add_typer(keys, name="key")
app.add_typer(privacy, name="privacy")
app.add_typer(consortium, name="consortium")
app.add_typer(site, name="site")
app.add_typer(server, name="server")
app.command(cls=ResumesOrEnds)(coordinate)
for verb in (audit, budget, export, home, peers, report, serve):
    app.command()(verb)


def main() -> None:
    """The console script `confide`."""
    screen.close_in()  # for good: the trace of an error gets out last
    words, groups = sys.argv[1:], [one.name for one in app.registered_groups]
    if "--help" in words or " ".join(words) in ("", *groups):
        screen.import_help()
    app(prog_name="confide")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"confide {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# --- train ------------------------------------------------------------------------------


@app.command()
def run(
    settings: SettingsName,
    *,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
    and_home: Home = False,
    canaries: Canaries = 0,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Train a model across the sites that a settings file names."""
    from confide import api
    from confide.cli import tables
    from confide.cli.screen import Progress
    from confide.federation.events import to_all

    changes, progress = with_canaries(overrides, canaries), Progress(quiet=quiet)
    try:
        with progress, api.Logs(log or (), say=screen.say) as logs:
            done = api.run(
                settings, overrides=changes, out=out, resume=resume, on_event=to_all(progress, logs)
            )
    except KeyboardInterrupt as stop:
        folder = progress.standing.folder
        begun = bool(folder) and (Path(folder) / "settings.toml").exists()
        how = "stopped; repeat the command with --resume to continue from the last checkpoint"
        raise screen.stopped(stop, how if begun else screen.AGAIN) from None
    screen.show(tables.sites(done.result))
    if and_home:
        home(done.folder, quiet=quiet)
    screen.say(f"run folder: {done.folder}")
    say_advice(done.folder, done.result, command=(settings, changes, out))
    say_next(next_commands(done.folder, done.result))


@app.command()
def demo(
    *,
    out: DemoOut = Path("demo-run"),
    seed: Annotated[int, typer.Option(help="Seed of the corpus.")] = 1,
    every: Annotated[
        bool, typer.Option("--all", help="Show the methods of five papers, not one.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train on a small made-up corpus of three sites and show the results."""
    from confide import api
    from confide.cli.screen import Progress
    from confide.cli.tables import demonstration

    with Progress(quiet=quiet) as progress:
        shown = api.demo(out=out, seed=seed, every=every, on_event=progress)
    screen.show(*demonstration(shown))


@app.command()
def recipes(*, as_json: Json = False) -> None:
    """List the built-in settings for published experiments."""
    from confide import api
    from confide.cli import tables

    found = api.recipes()
    screen.answer(found, tables.rows(found), as_json=as_json)


# --- use a run --------------------------------------------------------------------------


@app.command()
@reads_as(NotesOptions)
def predict(
    words: RunAndFiles,
    *,
    how: NotesOptions,
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="Output format, or facts, facts-jsonl.")
    ] = "jsonl",
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Output path; stdout by default.")
    ] = None,
    site: Site = None,
    key: Key = None,
    names: As = None,
    threshold: Annotated[
        float, typer.Option(metavar="P", help="Drop relations less likely than P.")
    ] = 0.0,
) -> None:
    """Annotate text with entities, relations or both, each with a confidence."""
    from confide import api
    from confide.cli.files import (
        FACTS,
        named_types,
        put_documents,
        put_facts,
        run_and_files,
        wanted_types,
    )

    run, files = run_and_files(words)
    given: dict[str, Any] = {"site": site, "format": how.format, "key": key}
    given |= {"types": wanted_types(how.types), "names": named_types(names), "threshold": threshold}
    put, found = cast(Any, (put_facts, api.facts) if to in FACTS else (put_documents, api.predict))
    put(found(run, how.read(files), **given), out, format=to)


@app.command()
@reads_as(GoldOptions)
def evaluate(
    words: RunAndFiles,
    *,
    how: GoldOptions,
    site: Site = None,
    key: Key = None,
    mode: Annotated[
        Literal["default", "n2c2"], typer.Option(help="How to match spans.")
    ] = "default",
    names: As = None,
    as_json: Json = False,
) -> None:
    """Score a run's model, or a chain of two, on annotated files: by type and by relation."""
    from confide import api
    from confide.cli.files import named_types, put_scores, run_and_files, wanted_types

    run, files = run_and_files(words)
    given: dict[str, Any] = {"site": site, "format": how.format, "key": key, "mode": mode}
    given |= {"types": wanted_types(how.types), "names": named_types(names)}
    found = api.evaluate(run, how.read(files), **given)
    put_scores(found, as_json=as_json)


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="FIRST... SECOND...", help="Run folders: one side, then the other."),
    ],
    *,
    matching: Annotated[
        Literal["strict", "relaxed", "micro"] | None,
        typer.Option(help="The F1 to compare; by default strict, or micro for relations."),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the interval.")] = 0.95,
    samples: Annotated[int, typer.Option(metavar="N", help="Number of resamples.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
    as_json: Json = False,
) -> None:
    """Test whether the second run beats the first on the same test text.

    For repeated runs, name all runs of the first side, then as many of the second.
    """
    from confide import api
    from confide.cli import tables

    half = len(runs) // 2
    found = api.compare(
        runs[:half], runs[half:], matching=matching, level=level, samples=samples, seed=seed
    )
    screen.answer(found, tables.compared(found), as_json=as_json)


@app.command()
def release(
    run: RunFolder,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the copy.")],
    site: Site = None,
    key: Key = None,
) -> None:
    """Write a copy of the model that needs no key. No other command does."""
    from confide import api
    from confide.cli.files import say_released

    say_released(api.release(run, out=out, site=site, key=key))


@app.command()
def ledger(
    run: RunFolder,
    *,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Verify against a real site's ledger: MEMORY/runs/RUN."),
    ] = None,
    both: Both = False,
    as_json: Json = False,
) -> None:
    """Show what left each site in a run: step, field, bytes, count."""
    from confide import api
    from confide.cli import tables

    if against is not None:
        found = api.compare_ledgers(run, against)
        if as_json:
            screen.put_json(found)
        else:
            screen.say(tables.two_ledgers(found))
        raise typer.Exit(0 if found.agree else 1)
    entries = api.ledger(run)
    table = tables.crossed(entries, title="What left the sites", both=both)
    screen.answer(entries, table, as_json=as_json)


# --- look before you leap -----------------------------------------------------------------


@app.command()
@reads_as(SettingsOptions)
def init(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Your annotated files.")],
    *,
    how: SettingsOptions,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The settings file to write.")] = Path(
        "confide.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    names: Annotated[
        bool,
        typer.Option(
            "--map/--no-map", help="Propose common names where sites name one thing differently."
        ),
    ] = True,
    public: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Public text on which sites predict: no weights leave."),
    ] = None,
    own_types: Annotated[
        bool, typer.Option("--own-types", help="Each site keeps a model of its own types.")
    ] = False,
    megabytes: Annotated[
        float | None, typer.Option(help="What a site may upload in the whole run.")
    ] = None,
) -> None:
    """Look at your files, say what is in them and write settings that work.

    It proposes common names where sites name one thing differently, and a method, and says why.
    """
    from confide import api
    from confide.cli import tables

    def accept(found: str, maps: Sequence[Match]) -> bool:
        typer.echo(found)
        if not names or not maps:
            return False
        screen.show(tables.named_alike(maps))
        return screen.agreed("Write these common names into the settings?")

    report = api.init(
        files,
        out=out,
        force=force,
        wishes=api.Wishes(tuple(public or ()), own_types, megabytes),
        format=how.format,
        options=how.options(),
        accept=accept,
    )
    typer.echo(report.why)
    screen.say(f"\nwrote {report.path}; train with: confide run {report.path}", style="bold")


@app.command()
def wire(
    method: Annotated[str, typer.Argument(help="A method's name, such as fedavg.")],
    *,
    both: Both = False,
    as_json: Json = False,
) -> None:
    """Show what leaves a site under a method: every step and field."""
    from confide import api
    from confide.cli import tables

    fields = api.wire(method)
    table = tables.crossed(fields, title=f"What leaves a site under {method}", both=both)
    screen.answer(fields, table, as_json=as_json)


@app.command()
def capacity(
    settings: SettingsName,
    *,
    parts: Annotated[int, typer.Option(metavar="N", help="Number of parts.")] = 5,
    seeds: Annotated[int, typer.Option(metavar="N", help="Repeats per part.")] = 3,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this site's text only.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the plot and the numbers.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Would more text help this model? Train on growing parts of it to find out."""
    from confide import api
    from confide.cli.screen import Progress

    with Progress(quiet=quiet) as progress:
        found = api.capacity(
            settings,
            parts=parts,
            seeds=seeds,
            site=site,
            overrides=overrides or (),
            out=out,
            on_event=progress,
        )
    typer.echo(found.text, nl=False)
    if out is not None:
        screen.say(f"plot: {out / 'capacity.svg'}")
