"""The command line: few verbs, each a thin skin over the public function of the same name.

Nothing heavy is imported before a verb runs, so `confide --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer.core import TyperGroup

from confide import __version__
from confide.cli import screen
from confide.cli.audit_verbs import audit
from confide.cli.budget_verbs import budget
from confide.cli.data_verbs import data
from confide.cli.export_verbs import export
from confide.cli.home_verbs import home
from confide.cli.key_verbs import keys
from confide.cli.kit_verbs import consortium, server, site
from confide.cli.missing import all_missing
from confide.cli.peer_verbs import peers
from confide.cli.privacy_verbs import privacy
from confide.cli.reading import GoldHow, NotesHow, SettingsHow, reads_as
from confide.cli.report_verbs import report
from confide.cli.serve_verbs import serve
from confide.cli.site_verbs import ResumesOrEnds, coordinate
from confide.cli.words import (
    As,
    Both,
    Canaries,
    DemoOut,
    Home,
    Json,
    Key,
    Log,
    Overrides,
    Quiet,
    Resume,
    RunAndFiles,
    RunFolder,
    RunOut,
    SettingsName,
    Site,
    with_canaries,
)
from confide.errors import ConfideError, DataError, SettingsError, printable
from confide.removed import VERBS

if TYPE_CHECKING:
    from confide.jobs.initialise import Match
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
    """The same, of which flags and arguments show no type in the help."""
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
    home: Home = False,
    canaries: Canaries = 0,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Train a model across the sites that a settings file names."""
    from confide import api
    from confide.cli import afterwards, home_verbs, tables
    from confide.cli.progress import Progress
    from confide.federation.events import to_all

    changes, progress = with_canaries(overrides, canaries), Progress(quiet=quiet)
    try:
        with progress, api.Logs(log or (), say=screen.say) as logs:
            done = api.run(
                settings,
                overrides=changes,
                out=out,
                resume=resume,
                on_event=to_all(progress, logs),
            )
    except KeyboardInterrupt as stop:
        folder = progress.standing.folder
        begun = bool(folder) and (Path(folder) / "settings.toml").exists()
        how = "stopped; repeat the command with --resume to continue from the last checkpoint"
        raise screen.stopped(stop, how if begun else screen.AGAIN) from None
    screen.show(tables.sites(done.result))
    if home:
        home_verbs.home(done.folder, quiet=quiet)
    screen.say(f"run folder: {done.folder}")
    afterwards.say_advice(done.folder, done.result, command=(settings, changes, out))
    afterwards.say_next(afterwards.next_commands(done.folder, done.result))


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
    from confide.cli.progress import Progress
    from confide.cli.showing import demonstration

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
@reads_as(NotesHow)
def predict(
    words: RunAndFiles,
    *,
    how: NotesHow,
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
    from confide.cli.putting import (
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
@reads_as(GoldHow)
def evaluate(
    words: RunAndFiles,
    *,
    how: GoldHow,
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
    from confide.cli.putting import named_types, put_scores, run_and_files, wanted_types

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
    from confide.cli.putting import say_released

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
@reads_as(SettingsHow)
def init(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Your annotated files.")],
    *,
    how: SettingsHow,
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
    from confide.cli.progress import Progress

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
