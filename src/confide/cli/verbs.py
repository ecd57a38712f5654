"""The command line: few verbs, each a thin skin over the public function of the same name.

Nothing heavy is imported before a verb runs, so `confide --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, cast

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
from confide.cli.pretrain_verbs import pretrain
from confide.cli.privacy_verbs import privacy
from confide.cli.reading import NotesHow, reads_as
from confide.cli.report_verbs import report
from confide.cli.serve_verbs import serve
from confide.cli.site_verbs import ResumesOrEnds, coordinate
from confide.cli.words import (
    As,
    Both,
    Canaries,
    DemoOut,
    Format,
    Home,
    Json,
    Key,
    Log,
    Overrides,
    Quiet,
    ReadsFiles,
    Resume,
    RunAndFiles,
    RunFolder,
    RunOut,
    Scheme,
    SettingsName,
    Site,
    with_canaries,
)
from confide.errors import ConfideError


class Verbs(TyperGroup):
    """All verbs; the one place where errors become messages."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Our own errors end in a message and code 2; others keep their trace."""
        try:
            with screen.saying_warnings():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            if (found := all_missing(error)) is None:
                raise
            screen.fail(found)
            raise typer.Exit(2) from error
        except ConfideError as error:
            screen.fail(error)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            screen.say("stopped")
            raise typer.Exit(screen.STOPPED) from None


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train information extraction across organisations whose text may not leave them.",
)
app.add_typer(data, name="data", rich_help_panel="Data and keys")
app.add_typer(keys, name="key", rich_help_panel="Data and keys")
_TRAIN, _USE, _LOOK = "Train", "Use a run", "Look before you leap"
_REAL = "Real sites"
app.add_typer(pretrain, name="pretrain", rich_help_panel=_TRAIN)
app.command(rich_help_panel=_USE)(audit)
app.command(rich_help_panel=_USE)(export)
app.command(rich_help_panel=_USE)(home)
app.command(rich_help_panel=_USE)(report)
app.command(rich_help_panel=_USE)(serve)
app.command(rich_help_panel=_LOOK)(budget)
app.add_typer(privacy, name="privacy", rich_help_panel=_LOOK)
app.command(rich_help_panel=_REAL, cls=ResumesOrEnds)(coordinate)
app.add_typer(consortium, name="consortium", rich_help_panel=_REAL)
app.add_typer(site, name="site", rich_help_panel=_REAL)
app.add_typer(server, name="server", rich_help_panel=_REAL)
app.command(rich_help_panel=_REAL)(peers)


def main() -> None:
    """The console script `confide`."""
    if "--help" in sys.argv:
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


@app.command(rich_help_panel=_TRAIN)
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

    changes = with_canaries(overrides, canaries)
    try:
        with Progress(quiet=quiet) as progress, api.Logs(log or (), say=screen.say) as logs:
            done = api.run(
                settings,
                overrides=changes,
                out=out,
                resume=resume,
                on_event=to_all(progress, logs),
            )
    except KeyboardInterrupt:
        screen.say(
            "\nstopped; repeat the command with --resume to continue from the last checkpoint"
        )
        raise typer.Exit(screen.STOPPED) from None
    screen.show(tables.sites(done.result))
    if home:
        home_verbs.home(done.folder, quiet=quiet)
    screen.say(f"run folder: {done.folder}")
    afterwards.say_advice(done.folder, done.result, command=(settings, changes, out))
    afterwards.say_next(afterwards.next_commands(done.folder, done.result))


@app.command(rich_help_panel=_TRAIN)
def demo(
    *,
    out: DemoOut = Path("demo-run"),
    seed: Annotated[int, typer.Option(help="Seed of the corpus.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Train on a small made-up corpus of three sites and show the results."""
    from confide import api
    from confide.cli.progress import Progress
    from confide.cli.showing import demonstration

    with Progress(quiet=quiet) as progress:
        shown = api.demo(out=out, seed=seed, on_event=progress)
    screen.show(*demonstration(shown))


@app.command(rich_help_panel=_TRAIN)
def recipes(*, as_json: Json = False) -> None:
    """List the built-in settings for published experiments."""
    from confide import api
    from confide.cli import tables

    found = api.recipes()
    screen.answer(found, tables.rows(found), as_json=as_json)


# --- use a run --------------------------------------------------------------------------


@app.command(rich_help_panel=_USE, cls=ReadsFiles)
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
    types: As = None,
    threshold: Annotated[
        float, typer.Option(metavar="P", help="Drop relations less likely than P.")
    ] = 0.0,
) -> None:
    """Annotate text with entities, relations or both, each with a confidence."""
    from confide import api
    from confide.cli.putting import FACTS, named_types, put_documents, put_facts, run_and_files

    run, files = run_and_files(words)
    given: dict[str, Any] = {"site": site, "format": how.format, "key": key, "say": screen.say}
    given |= {"threshold": threshold, "types": named_types(types)}
    put, found = cast(Any, (put_facts, api.facts) if to in FACTS else (put_documents, api.predict))
    put(found(run, how.read(files), **given), out, format=to)


@app.command(rich_help_panel=_USE, cls=ReadsFiles)
def evaluate(
    words: RunAndFiles,
    *,
    site: Site = None,
    format: Format = None,
    scheme: Scheme = None,
    key: Key = None,
    mode: Annotated[
        Literal["default", "n2c2"], typer.Option(help="How to match spans.")
    ] = "default",
    types: As = None,
    as_json: Json = False,
) -> None:
    """Score a run's model, or a chain of two, on annotated files: by type and by relation."""
    from confide import api
    from confide.cli.putting import named_types, put_scores, run_and_files

    run, files = run_and_files(words)
    names = named_types(types)
    found = api.evaluate(
        run, files, site=site, format=format, scheme=scheme, key=key, mode=mode, types=names
    )
    put_scores(found, as_json=as_json)


@app.command(rich_help_panel=_USE)
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


@app.command(rich_help_panel=_USE)
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


@app.command(rich_help_panel=_USE)
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


@app.command(rich_help_panel=_LOOK)
def init(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Your annotated files.")],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The settings file to write.")] = Path(
        "confide.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
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

    It proposes a method, and says why.
    """
    from confide import api

    wishes = api.Wishes(tuple(public or ()), own_types, megabytes)
    found = api.init(files, out=out, force=force, wishes=wishes)
    typer.echo(found.found)
    screen.say(f"\nwrote {found.path}; train with: confide run {found.path}", style="bold")


@app.command(rich_help_panel=_LOOK)
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


@app.command(rich_help_panel=_LOOK)
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
