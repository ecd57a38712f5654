"""The command line by itself: what each verb hands on, how it shows, and how it fails."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from cases import each
from confide import __version__, api
from confide.cli.screen import AGAIN, STOPPED, TERMINATED, Terminated
from confide.cli.verbs import PANELS, app
from confide.errors import DataError, RunError
from confide.federation.events import Event
from confide.federation.ledger import LedgerRow
from confide.jobs.comparison import Difference, RunComparison, SideScore
from confide.jobs.demo import DemoExample, DemoMark, DemoPart, DemoResult
from confide.jobs.sweep_table import Cell, Spread, SweepReport
from confide.runs import result as results
from confide.settings import dump, parse
from confide.text.document import Document, Entity

RATES = {"f1": 0.75, "precision": 0.8, "recall": 0.7059, "support": 17, "true": 12, "predicted": 15}
SCORES = {
    "strict": {**RATES, "types": {"DRUG": RATES}},
    "relaxed": {**RATES, "f1": 0.9, "types": {"DRUG": {**RATES, "f1": 0.9}}},
    "sentences": 40,
    "malformed": 0,
}
RESULT = results.Result.model_validate(
    {
        "schema": 1,
        "method": "fedavg",
        "scores": {"overall": SCORES, "sites": {"north": SCORES, "south": SCORES}},
        "bytes": {"up": {"north": 1_234_567, "south": 1_200_000}, "down": {"north": 9, "south": 9}},
    }
)


class Verb:
    """Stands in for a public function: remembers how it was called."""

    def __init__(self, gives: Any = None, *, raises: BaseException | None = None) -> None:
        self.gives, self.raises = gives, raises
        self.args: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.args, self.options = args, options
        if self.raises is not None:
            raise self.raises
        return self.gives


@dataclass(frozen=True)
class Done:
    folder: Path
    result: dict[str, Any]


@dataclass(frozen=True)
class Row:
    step: str
    field: str
    bytes: int


@dataclass(frozen=True)
class Spoken:
    text: str


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a verb in the place of a public function."""

    def place(name: str, gives: Any = None, *, raises: BaseException | None = None) -> Verb:
        verb = Verb(gives, raises=raises)
        monkeypatch.setitem(vars(api), name, verb)
        return verb

    return place


def call(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=input)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from confide.cli.verbs import run_program\n"
        "sys.argv = ['confide', '--help']\n"
        "try:\n    run_program()\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'matplotlib', 'jinja2', 'safetensors',\n"
        " 'transformers', 'tokenizers', 'cryptography', 'markdown_it', 'pygments',\n"
        " 'rich.markdown', 'rich.traceback'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "predict" in done.stdout


def commands(command: Any) -> Any:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from commands(below)


def test_every_verb_stands_in_one_of_five_panels() -> None:
    program = typer.main.get_command(app)
    named = [name for names in PANELS.values() for name in names]
    assert sorted(named) == sorted(program.commands) and len(PANELS) == 5
    lines = call("--help").output.splitlines()
    places = [next(n for n, line in enumerate(lines) if f" {panel} " in line) for panel in PANELS]
    assert places == sorted(places) and next(iter(PANELS)) == "Train"
    verbs = [match[1] for line in lines if (match := re.match(r"│ ([a-z]+)  +[A-Z]", line))]
    assert verbs == named


def test_no_help_speaks_of_types_of_python_or_lists_all_formats() -> None:
    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 50
    for command in found:
        with typer.Context(command) as ctx:
            said = re.sub(r"\s+", " ", ctx.get_help())
        assert not re.search(r"<bool>|list\[|<Path>|<str>", said), (command.name, said)
        assert "pubannotation" not in said, command.name


def test_formats_are_listed_by_a_verb() -> None:
    from confide.text.formats import FORMATS

    lines = call("data", "formats").stdout.splitlines()
    rows = {line.split()[0]: line.rstrip().endswith(" yes") for line in lines if line.strip()}
    assert {name: one.write is not None for name, one in FORMATS.items()}.items() <= rows.items()
    listed = json.loads(call("data", "formats", "--json").stdout)
    assert [one["name"] for one in listed] == list(FORMATS)


def test_every_public_function_says_where_it_lives() -> None:
    assert len(dir(api)) > 30
    assert all(getattr(api, name).__name__ == name for name in dir(api))
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        api.trian  # noqa: B018


def test_version() -> None:
    assert call("--version").stdout == f"confide {__version__}\n"


def test_no_verb_shows_the_help() -> None:
    assert "Usage: confide" in call().output or "Usage: root" in call().output


# --- errors -----------------------------------------------------------------------------


def test_our_own_error_is_one_message_and_code_2(put: Any) -> None:
    error = DataError(
        "a tag outside the set",
        expected="DRUG or ADE",
        got="'[bold]DURG'",
        where="a.tsv:7",
        fix="correct it",
    )
    put("recipes", raises=error)
    done = call("recipes")
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr == (
        "error: a tag outside the set\n  where: a.tsv:7\n  expected: DRUG or ADE\n"
        "  got: '[bold]DURG'\n  to fix it: correct it\n"
    )


def test_an_unexpected_error_keeps_its_trace(put: Any) -> None:
    put("recipes", raises=ZeroDivisionError("a bug"))
    done = call("recipes")
    assert isinstance(done.exception, ZeroDivisionError)


def test_ctrl_c_ends_any_verb_with_130(put: Any) -> None:
    put("recipes", raises=KeyboardInterrupt())
    assert call("recipes").exit_code == STOPPED


def test_sigterm_ends_any_verb_with_143_and_one_sentence(put: Any) -> None:
    put("recipes", raises=Terminated())
    done = call("recipes")
    assert done.exit_code == TERMINATED == 143
    assert done.stderr == f"{AGAIN}\n"


@each(
    ("number", "says"),
    [
        (errno.ENOSPC, "free some disk space"),
        (errno.EDQUOT, "free some disk space"),
        (errno.EFBIG, "free some disk space"),
        (errno.EROFS, "name a place that you may write to"),
        (errno.EACCES, "name a place that you may write to"),
        (errno.EIO, "see that the disk is sound"),
    ],
)
def test_a_disk_that_takes_no_more_is_a_message_of_any_verb(
    put: Any, number: int, says: str
) -> None:
    """It was a page of code."""
    put("recipes", raises=OSError(number, os.strerror(number), "runs/\x1b[2J"))
    done = call("recipes")
    assert done.exit_code == 2 and done.stdout == ""
    assert os.strerror(number) in done.stderr and says in done.stderr
    assert "\x1b" not in done.stderr


def test_an_unknown_verb_is_refused_with_a_near_one() -> None:
    done = call("evalute", "runs/a", "b.tsv")
    assert done.exit_code == 2 and "evaluate" in done.stderr


# --- train ------------------------------------------------------------------------------


def ran(folder: Path, result: results.Result, **tree: Any) -> Done:
    """What a run gives; its folder has settings."""
    settings = parse({"site": [{"name": "north", "train": "a.conll"}], **tree})
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text(dump(settings))
    return Done(folder, result)


def test_run_hands_everything_on(put: Any, tmp_path: Path) -> None:
    verb = put("run", ran(tmp_path / "run", RESULT))
    done = call("run", "a.toml", "--set", "seed=2", "--set", "rounds=3", "--out", "x", "--resume")
    assert done.exit_code == 0, done.output
    assert verb.args == ("a.toml",)
    watcher = verb.options.pop("on_event")
    assert callable(watcher)
    assert verb.options == {"overrides": ["seed=2", "rounds=3"], "out": Path("x"), "resume": True}
    assert "north" in done.stdout and "75.0" in done.stdout and "1.2 MB" in done.stdout
    assert str(tmp_path / "run") in done.stderr


def test_canaries_are_a_setting_like_others(put: Any, tmp_path: Path) -> None:
    verb = put("run", ran(tmp_path / "run", RESULT))
    call("run", "a.toml", "--set", "seed=2", "--canaries", "9")
    assert verb.options["overrides"] == ["seed=2", "data.canaries=9"]


def said_next(shown: str) -> list[list[str]]:
    """The words of the commands that come next, as a shell takes them apart."""
    lines = shown[shown.index("\nnext:\n") :].splitlines()[2:]
    return [shlex.split(line) for line in lines]


def test_run_ends_with_the_next_three_commands(put: Any, tmp_path: Path) -> None:
    """Names with blanks and quotes come through a shell; the file is read as the run read it."""
    folder, test = tmp_path / "it's a run", tmp_path / "my notes" / "test.conll"
    site = {"name": "north", "train": "a", "test": str(test), "scheme": "iob2"}
    plain = put("run", ran(folder, RESULT, site=[site]))
    evaluate, predict, report = said_next(call("run", "a.toml").stderr)
    assert evaluate == ["confide", "evaluate", str(folder), str(test), "--scheme", "iob2"]
    assert predict[0] == "echo" and predict[2:] == ["|", "confide", "predict", str(folder), "-"]
    assert report == ["confide", "report", str(folder)]
    assert plain.args == ("a.toml",)

    own = RESULT.model_copy(
        update={"personal": True, "data": results.Data(sites={"north": results.SiteData()})}
    )
    put("run", ran(tmp_path / "fedner", own, method="fedner"))
    predict, report, home = said_next(call("run", "a.toml").stderr)  # no test text to score
    assert predict[-3:] == ["-", "--site", "north"]
    assert (report[1], home[1:]) == ("report", ["personalise", str(tmp_path / "fedner")])

    pairs = RESULT.model_copy(update={"task": "re"})
    put("run", ran(tmp_path / "re", pairs, task="re", site=[{**site, "relations": {"a": "b"}}]))
    evaluate, predict, _ = said_next(call("run", "a.toml").stderr)
    assert evaluate[3:6] == predict[3:6] == [str(test), "--site", "north"]


def test_run_says_that_it_was_still_learning_and_how_to_train_on(put: Any, tmp_path: Path) -> None:
    turns = [results.RoundRecord(round=n, dev={"strict": 0.2 * n}) for n in range(1, 4)]
    put("run", ran(tmp_path / "run", RESULT.model_copy(update={"history": turns})))
    words = ("run", "my settings.toml", "--set", "rounds=3", "--set", "seed=2", "--out", "my run")
    shown = call(*words).stderr
    assert "still learning" in shown
    (line,) = [one for one in shown.splitlines() if one.startswith("to train on: ")]
    again = ["--set", "seed=2", "--set", "rounds=6", "--out", "my run", "--resume"]
    assert shlex.split(line.removeprefix("to train on: ")) == ["confide", *words[:2], *again]


def test_all_that_a_command_lacks_is_said_with_a_line_to_paste() -> None:
    done = call("consortium", "init", "my hospitals", "--port", "80")
    assert done.exit_code == 2 and "--host is missing" in done.stderr
    assert "confide consortium init 'my hospitals' --host HOST --port 80" in done.stderr
    assert "RUN FILE is missing" in call("evaluate").stderr
    wrong = call("server", "stop", "kit", "--wait", "no")
    assert wrong.exit_code == 2 and "Invalid value for '--wait'" in wrong.stderr


def test_run_that_is_stopped_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(settings: str, *, on_event: Any, **_: Any) -> Done:
        on_event(Event("start", folder=str(tmp_path)))
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "run", run)
    early = call("run", "a.toml")  # nothing is in the folder yet, and --resume would be refused
    assert early.exit_code == STOPPED and "--resume" not in early.stderr
    (tmp_path / "settings.toml").touch()
    done = call("run", "a.toml")
    assert done.exit_code == STOPPED
    assert "--resume" in done.stderr


def test_progress_degrades_to_plain_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = iter(ran(tmp_path / name, RESULT) for name in ("loud", "quiet"))

    def run(settings: str, *, on_event: Any, **_: Any) -> Done:
        on_event(Event("start", rounds=2))
        on_event(Event("ask", round=1, rounds=2, site="north", step="train"))
        on_event(
            Event(
                "round",
                round=1,
                loss=3.25,
                dev_f1=0.5,
                best_f1=0.5,
                bytes_up=2_000,
                bytes_down=10,
                seconds=1.0,
            )
        )
        on_event(Event("failed", round=2, site="south", message="site south: not-finite"))
        on_event(Event("round", round=2, loss=2.5, dev_f1=0.25, best_f1=0.5, seconds_left=61))
        return next(made)

    monkeypatch.setitem(vars(api), "run", run)
    assert call("run", "a.toml").stderr.splitlines()[:3] == [
        "round 1/2 · loss 3.25 · dev F1 50.0 (best 50.0) · up 2.0 kB, down 10 B",
        "site south: not-finite",
        "round 2/2 · loss 2.5 · dev F1 25.0 (best 50.0) · up 2.0 kB, down 10 B · 1 min 1 s left",
    ]
    quiet = call("run", "a.toml", "--quiet").stderr.splitlines()
    assert quiet[0] == "site south: not-finite" and quiet[1].startswith("run folder: ")


def test_progress_on_a_terminal_names_site_and_time() -> None:
    from rich.console import Console

    from confide.cli.screen import ProgressDisplay

    screen = Console(force_terminal=True, width=160, record=True, file=io.StringIO())
    with ProgressDisplay(screen=screen) as progress:
        progress(Event("ask", round=2, rounds=4, site="north", step="train", seconds_left=30))
        progress._bar.refresh()  # type: ignore[union-attr]
    shown = screen.export_text()
    assert "round 2/4" in shown and "north · train" in shown and "30.0 s left" in shown


def test_recipes_as_table_and_as_json(put: Any) -> None:
    put("recipes", [Row("a", "b", 2_500)])
    assert "2.5 kB" in call("recipes").stdout
    assert json.loads(call("recipes", "--json").stdout) == [
        {"step": "a", "field": "b", "bytes": 2500}
    ]


# --- use a run --------------------------------------------------------------------------


def test_evaluate_hands_everything_on(put: Any) -> None:
    verb = put("evaluate", SCORES)
    words = ("evaluate", "runs/a", "x.tsv", "y.tsv", "--site", "north", "--format", "conll")
    how = ("--key", "k", "--mode", "n2c2", "--as", "Drug=DRUG", "--types", "DRUG, Age")
    done = call(*words, *how)
    assert verb.args == (Path("runs/a"), ["x.tsv", "y.tsv"])
    assert verb.options == {
        "site": "north", "format": "conll", "key": Path("k"), "mode": "n2c2",
        "types": ["DRUG", "Age"], "names": {"Drug": "DRUG"},
    }  # fmt: skip
    assert "DRUG" in done.stdout and "75.0" in done.stdout and "90.0" in done.stdout
    assert json.loads(call("evaluate", "runs/a", "x.tsv", "--json").stdout) == SCORES


def test_evaluate_reads_files_by_their_scheme(put: Any, tmp_path: Path) -> None:
    verb = put("evaluate", SCORES)
    file = tmp_path / "two.tsv"
    file.write_text("took\tO\naspirin\tI-DRUG\ncodeine\tB-DRUG\n")
    assert call("evaluate", "runs/a", str(file), "--scheme", "iob1").exit_code == 0
    (document,) = verb.args[1]
    assert [document.surface(one) for one in document.entities] == ["aspirin", "codeine"]
    assert "scheme" not in verb.options
    refused = call("evaluate", "runs/a", str(file), "--scheme", "iobes")
    assert (refused.exit_code, "are not IOBES" in refused.stderr) == (2, True)


def test_evaluate_shows_relations_and_a_chain(put: Any) -> None:
    micro = {**RATES, "types": {"treats": RATES}}
    found = {"micro": micro, "macro": RATES, "examples": 40, "confusion": {}, "missed": {}}
    put("evaluate", {**found, "unknown": []})
    assert "treats" in call("evaluate", "runs/re", "x.tsv").stdout
    treats = {kind: {**SCORES[kind], "types": {"treats": RATES}} for kind in ("strict", "relaxed")}
    chain = {"entities": SCORES, "relations": treats, "unknown": ["Age", "Dose"]}
    put("evaluate", chain)
    done = call("evaluate", "runs/ner+runs/re", "x.tsv")
    for shown in ("DRUG", "treats", "Entities", "end to end", "relation ", "both overlap"):
        assert shown in done.stdout, shown
    assert "does not know the type Age or Dose" in done.stderr
    assert json.loads(call("evaluate", "ner+re", "x.tsv", "--json").stdout) == chain


def test_predict_reads_a_table_of_notes_by_its_columns(put: Any, tmp_path: Path) -> None:
    table = tmp_path / "notes.csv"
    table.write_bytes("NR;TEXT;ART\n7;Übelkeit.;x\n8;Kein Fieber.;y\n".encode("windows-1252"))
    verb = put("predict", [Document("n1", "No rash.")])
    words = ("predict", "ner", str(table), "--columns", "NR,TEXT", "--encoding", "windows-1252")
    assert call(*words).exit_code == 0
    (_, sources), how = verb.args, verb.options
    assert [(one.id, one.text) for one in sources] == [("7", "Übelkeit."), ("8", "Kein Fieber.")]
    assert how["format"] is None
    refused = call("predict", "ner", str(table), "--columns", "NR")
    assert (refused.exit_code, "takes two columns" in refused.stderr) == (2, True)
    missing = call(*words[:3], "--columns", "NR,BRIEF", "--encoding", "windows-1252")
    assert (missing.exit_code, "BRIEF" in missing.stderr) == (2, True)


def test_predict_names_what_is_broken_and_left_out(put: Any, tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text('{"text": "No rash."}\n{"text": 3}\n')
    verb = put("predict", [Document("n1", "No rash.")])
    done = call("predict", "ner", str(file), "--skip-broken")
    assert (done.exit_code, "broken-document" in done.stderr) == (0, True)
    assert [one.text for one in verb.args[1]] == ["No rash."]


def test_predict_hands_everything_on(put: Any) -> None:
    verb = put("predict", [Document("n1", "No rash.")])
    words = ("predict", "ner+re", "a.txt", "--as", "Drug=CHEMICAL", "--as", " Age = ")
    how = ("--threshold", "0.8", "--site", "north", "--key", "k", "--types", "eases")
    assert call(*words, *how).exit_code == 0
    assert verb.args == (Path("ner+re"), ["a.txt"])
    assert verb.options == {
        "site": "north", "format": None, "key": Path("k"), "types": ["eases"],
        "names": {"Drug": "CHEMICAL", "Age": ""}, "threshold": 0.8,
    }  # fmt: skip
    for wrong in ("Drug", "=X", "Drug=A"):
        refused = call("predict", "ner+re", "a.txt", "--as", "Drug=B", "--as", wrong)
        assert refused.exit_code == 2 and "--as" in refused.stderr
    for word in ("predict", "evaluate"):
        refused = call(word, "runs/a")
        assert refused.exit_code == 2 and "no file is named" in refused.stderr


def test_compare_hands_on_two_sides_and_says_who_is_better(put: Any) -> None:
    one, two = SideScore(0.5, 0.51, 0.02), SideScore(0.7512, 0.75, 0.01)
    north = Difference(one, two, 0.2512, 0.2, 0.3, p=0.001, sentences=1400, verdict="better")
    overall = Difference(
        two, two, -0.0001, -0.1, 0.1, p=1, sentences=9, verdict="no clear difference"
    )
    pairs = (("a-1", "b-1"), ("a-2", "b-2"))
    names, options = ("alone", "fedner"), ("relaxed", 0.9, 500, 3)
    found = RunComparison(*names, pairs, False, *options, overall, {"north": north})
    verb = put("compare", found)
    words = ("compare", "a-1", "a-2", "b-1", "b-2", "--matching", "relaxed", "--level", "0.9")
    done = call(*words, "--samples", "500", "--seed", "3")
    assert verb.args == ([Path("a-1"), Path("a-2")], [Path("b-1"), Path("b-2")])
    assert verb.options == {"matching": "relaxed", "level": 0.9, "samples": 500, "seed": 3}
    for shown in (
        "relaxed F1", "90% interval", "51.0 ± 2.0", "75.0 ± 1.0", "+25.1",
        "+20.0 to +30.0", "0.001", "1,400", "fedner is better", "no clear difference", " 0.0 ",
        "-10.0 to +10.0", "fedner minus alone", "over all 2 runs",
        "of 2 runs, each with its own held-out text",
    ):  # fmt: skip
        assert shown in done.stdout, shown
    as_json = json.loads(call(*words, "--json").stdout)
    assert as_json["sites"]["north"]["second"]["f1"] == 0.7512
    assert as_json["pairs"] == [["a-1", "b-1"], ["a-2", "b-2"]]


def test_compare_shows_single_runs_of_one_method_by_their_folders(put: Any) -> None:
    score = SideScore(0.5, 0.5, None)
    row = Difference(score, score, -0.1, -0.2, -0.05, p=0.01, sentences=9, verdict="worse")
    sides = ("/runs/a", "b")
    found = RunComparison(*sides, (sides,), True, "strict", 0.95, 500, 0, row, {"north": row})
    put("compare", found)
    shown = call("compare", "/runs/a", "b").stdout
    assert "b is worse" in shown and "/runs/a" in shown and "±" not in shown


def test_release_needs_a_folder(put: Any, in_tmp: Path) -> None:
    verb = put("release", Path("open"))
    assert call("release", "runs/a").exit_code == 2
    (in_tmp / "open").mkdir()
    (in_tmp / "open" / "model.safetensors").touch()
    done = call("release", "runs/a", "--out", "open", "--key", "k")
    assert verb.options == {"out": Path("open"), "site": None, "key": Path("k")}
    assert "anyone who has this folder can read" in done.stderr
    (in_tmp / "open" / "model.safetensors").rename(in_tmp / "open" / "relations.safetensors")
    assert "no key" in call("release", "runs/a", "--out", "open").stderr


def test_report_prints_the_path_of_its_page(put: Any) -> None:
    verb = put("report", Path("runs/a/report.html"))
    assert call("report", "runs/a", "runs/b").stdout == "runs/a/report.html\n"
    assert verb.args == ([Path("runs/a"), Path("runs/b")],)


def test_dossier_prints_the_paths_of_both_forms(put: Any) -> None:
    verb = put("dossier", (Path("a/dossier.md"), Path("a/dossier.html")))
    assert call("dossier", "a", "--kit", "kit").stdout == "a/dossier.md\na/dossier.html\n"
    assert verb.args == (Path("a"),)
    assert verb.options == {"out": None, "kit": Path("kit")}


def test_report_watches_one_run(put: Any) -> None:
    verb = put("watch_report", Path("runs/a/report.html"))
    done = call("report", "runs/a", "--watch", "--no-text")
    assert verb.args == (Path("runs/a"),)
    assert verb.options["text"] is False and done.exit_code == 0
    assert "only one run can be watched" in call("report", "runs/a", "runs/b", "--watch").stderr


def test_run_is_told_to_its_logs(put: Any, tmp_path: Path) -> None:
    put("run", raises=KeyboardInterrupt())
    done = call("run", "ours", "--log", "tensorbord")
    assert done.exit_code == 2 and "did you mean 'tensorboard'" in done.stderr


def test_evaluate_names_types_that_the_model_cannot_find(put: Any) -> None:
    put("evaluate", {**SCORES, "unknown": ["Age"]})
    done = call("evaluate", "runs/a", "x.tsv")
    assert "the model does not know the type Age, so it counts as not found" in done.stderr


@each("words", [("data", "check"), ("data", "convert"), ("predict",)])
def test_help_says_where_the_formats_are_listed(words: tuple[str, ...]) -> None:
    assert "confide data formats" in re.sub(r"[\s│]+", " ", call(*words, "--help").stdout)


@each("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_verbs_and_options(shell: str) -> None:
    """Asked for by name: typer asks the process for its shell only without one."""
    done = CliRunner().invoke(app, ["--show-completion", shell], prog_name="confide")
    if done.exit_code:
        pytest.skip("this typer detects the shell itself")
    assert "_CONFIDE_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("line", "at", "offered"),
    [
        ("confide rel", 1, "release"),
        pytest.param("confide report --wa", 2, "--watch", marks=pytest.mark.slow),
        pytest.param("confide data ", 2, "check", marks=pytest.mark.slow),
    ],
)
def test_bash_completion_offers(line: str, at: int, offered: str) -> None:
    asked = {"_CONFIDE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    environment = {**os.environ, **asked}
    code = "from confide.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert offered in done.stdout.split(), done


@each("words", [("ledger", "runs/a"), ("wire", "fedavg")])
def test_ledger_and_wire_show_what_leaves_and_on_demand_both(
    put: Any, words: tuple[str, str]
) -> None:
    up = LedgerRow("train", "up", "weights", 4_000_000, 1, sites=2, rounds=3, seen="sum")
    down = LedgerRow("train", "down", "clip", 9, 1, sites=2, rounds=3, seen="by the site")
    put(words[0], [down, up])
    shown = call(*words).stdout
    assert "4.0 MB up, 9 B down" in shown and "weights" in shown and "clip" not in shown
    assert "clip" in call(*words, "--both").stdout
    assert [row["field"] for row in json.loads(call(*words, "--json").stdout)] == [
        "clip",
        "weights",
    ]


def test_a_run_folder_that_is_none(put: Any) -> None:
    put("ledger", raises=RunError("this folder holds no ledger", where="x"))
    assert "holds no ledger" in call("ledger", "x").stderr


def test_capacity_hands_everything_on(put: Any) -> None:
    verb = put("capacity", Spoken("flat\n"))
    words = ("capacity", "a.toml", "--parts", "4", "--seeds", "2", "--site", "north", "--out", "c")
    done = call(*words, "--set", "rounds=1")
    assert done.stdout == "flat\n" and "capacity.svg" in done.stderr
    assert verb.options.pop("on_event") and verb.args == ("a.toml",)
    assert verb.options == {
        "parts": 4, "seeds": 2, "site": "north", "overrides": ["rounds=1"], "out": Path("c"),
    }  # fmt: skip


REPORT = SweepReport(
    "tiny", ("method",), (1,), "ner", "strict", 1, False,
    (Cell(1, {"method": "fedavg"}, 1, True, Spread(0.5, None, 0.5, 0.5), None, 9.0, 2.0),),
)  # fmt: skip


class Swept:
    """Stands in for a sweep: remembers what it was asked."""

    def __init__(self, folder: Path, **failed: str) -> None:
        self.folder, self.failed = folder, failed
        self.trained: list[dict[str, Any]] = []
        self.shown: list[dict[str, Any]] = []

    def train(self, **how: Any) -> dict[str, str]:
        del how["on_event"]
        self.trained.append(how)
        return self.failed

    def report(self, **how: Any) -> SweepReport:
        self.shown.append(how)
        return REPORT

    def slurm(self) -> Path:
        return self.folder / "slurm.sh"


def test_sweep_hands_everything_on(put: Any) -> None:
    swept = Swept(Path("s"))
    verb = put("sweep", swept)
    words = ("--grid", "method=a,b", "--grid", "rounds=1,2", "--seeds", "3", "--set", "workers=2")
    done = call("sweep", "a.toml", *words, "--out", "s", "--workers", "2", "--against", "2")
    assert done.exit_code == 0 and "1 *" in done.stdout and "fedavg" in done.stdout
    assert verb.args == ("a.toml",)
    assert verb.options == {
        "grid": ["method=a,b", "rounds=1,2"], "seeds": 3, "overrides": ["workers=2"],
        "out": Path("s"),
    }  # fmt: skip
    assert swept.trained == [{"workers": 2, "cell": None}]
    assert swept.shown == [{"against": 2, "every": False}]


def test_a_sweep_that_is_only_looked_at_trains_nothing(put: Any, in_tmp: Path) -> None:
    swept = Swept(Path("s"))
    put("sweep", swept)
    assert call("sweep", "s", "--table", "csv").stdout == REPORT.csv()
    assert call("sweep", "s", "--table", "markdown", "--all").stdout == REPORT.markdown()
    assert call("sweep", "s", "--plot", "plots/a.svg").exit_code == 0
    assert (in_tmp / "plots" / "a.svg").read_text() == REPORT.svg()
    assert "sbatch s/slurm.sh" in call("sweep", "s", "--slurm").stderr
    assert swept.trained == [] and swept.shown[1] == {"against": 1, "every": True}
    assert call("sweep", "s", "--cell", "1-1").stdout == ""
    call("sweep", "s")
    assert swept.trained == [{"workers": 1, "cell": one} for one in ("1-1", None)]


def test_a_failed_cell_ends_with_exit_code_1(put: Any) -> None:
    put("sweep", Swept(Path("s"), **{"2-1": "no such file"}))
    done = call("sweep", "a.toml")
    assert done.exit_code == 1 and "failed: 2-1: no such file" in done.stderr
    assert "try again with: confide sweep s" in done.stderr and "fedavg" in done.stdout


# --- keys -------------------------------------------------------------------------------


def test_new_key_is_secret_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "sites" / "shared.key"
    assert call("key", "new", str(path)).exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    again = call("key", "new", str(path))
    assert again.exit_code == 2 and path.read_bytes() == before


# --- data, with the real functions ------------------------------------------------------

CONLL = """\
Stopped\tO
varelozil\tB-DRUG
after\tO
severe\tB-ADE
headache\tI-ADE

Rash\tB-ADE
gone\tO

"""


@pytest.fixture
def notes(in_tmp: Path) -> Path:
    """A little annotated file in the current folder."""
    path = in_tmp / "notes.conll"
    path.write_text(CONLL, encoding="utf-8")
    return path


def test_check_counts_and_names(notes: Path) -> None:
    done = call("data", "check", "notes.conll", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["counts"]["entities"] == 3 and found["types"] == {"ADE": 2, "DRUG": 1}
    assert "documents" not in found, "text does not belong into a summary"
    notes.write_text(CONLL.replace("B-ADE\nheadache", "O\nheadache"), encoding="utf-8")
    shown = call("data", "check", "notes.conll", "--scheme", "iob2").stdout
    assert "notes.conll:5" in shown


def test_check_names_a_few_problems_of_a_kind_or_all(in_tmp: Path) -> None:
    nested = '{"text": "severe headache", "label": [[0, 15, "ADE"], [7, 15, "ADE"]]}\n'
    Path("notes.jsonl").write_text(nested * 9, encoding="utf-8")
    few = call("data", "check", "notes.jsonl").stdout
    every = call("data", "check", "notes.jsonl", "--all").stdout
    assert few.count("  notes.jsonl:") == 3 and "9 lost" in few and "and 6 more" in few
    assert every.count("  notes.jsonl:") == 9


def test_check_refuses_a_type_that_was_not_declared(notes: Path) -> None:
    done = call("data", "check", "notes.conll", "--type", "DRUG")
    assert done.exit_code == 2 and "ADE" in done.stderr and "notes.conll:1 [24:39]" in done.stderr


def test_a_missing_file_is_one_message(in_tmp: Path) -> None:
    done = call("data", "stats", "nowhere.conll")
    assert done.exit_code == 2 and done.stderr.startswith("error: ")


def test_convert_there_and_back(notes: Path) -> None:
    done = call("data", "convert", "notes.conll", "--to", "brat", "--out", "brat")
    assert done.exit_code == 0 and done.stdout == "brat\n"
    assert call("data", "convert", "brat", "--to", "conll", "--out", "back.conll").exit_code == 0
    tags = [line.split("\t")[-1] for line in Path("back.conll").read_text().splitlines() if line]
    assert [tag for tag in tags if tag != "O"] == ["B-DRUG", "B-ADE", "I-ADE", "B-ADE"]


def test_split_is_reproducible(notes: Path) -> None:
    for folder in ("one", "two"):
        words = ("data", "split", "notes.conll", "--sites", "2", "--seed", "4", "--out", folder)
        assert call(*words).exit_code == 0
    for path in Path("one").iterdir():
        assert path.read_bytes() == (Path("two") / path.name).read_bytes()


def test_stats_as_table_and_as_json(notes: Path) -> None:
    assert "DRUG" in call("data", "stats", "notes.conll").stdout
    found = json.loads(call("data", "stats", "notes.conll", "--json").stdout)
    assert found["total"]["tokens"] == 7 and found["total"]["entities"] == {"ADE": 2, "DRUG": 1}


def test_documents_go_to_stdout_or_to_a_folder(put: Any, in_tmp: Path) -> None:
    put("predict", [Document("n1", "No rash.", (Entity("T1", "ADE", ((3, 7),), 0.91),))])
    done = call("predict", "runs/a", "-")
    assert json.loads(done.stdout)["entities"][0]["confidence"] == 0.91
    refused = call("predict", "runs/a", "-", "--to", "brat")
    assert refused.exit_code == 2 and "--out" in refused.stderr
    assert call("predict", "runs/a", "-", "--to", "brat", "--out", "out").exit_code == 0
    assert "ADE 3 7" in Path("out/n1.ann").read_text()
    for words in ((), ("--out", "tasks.json")):
        done = call("predict", "runs/a", "-", "--to", "labelstudio", *words)
        (task,) = json.loads(Path("tasks.json").read_text() if words else done.stdout)
        assert task["predictions"][0]["score"] == 0.91 and "annotations" not in task


def part(
    *, method: str, scores: dict[str, float] | None = None, bytes: dict[str, int] | None = None
) -> DemoPart:
    return DemoPart(
        name=method,
        title="Relations",
        paper="",
        text="",
        pair="",
        runs={method: method},
        federated=method,
        folders={},
        scores=scores or {},
        score="micro F1",
        left=(),
        bytes=bytes or {},
        report=Path("report.html"),
    )


def test_the_demo_ends_with_scores_examples_and_what_left(
    put: Any, small_demo: Path, tmp_path: Path
) -> None:
    run = small_demo / "federated"
    shown = DemoResult(
        folder=small_demo,
        settings=small_demo / "corpus" / "settings.toml",
        runs=dict.fromkeys(("alone", "federated", "pooled"), run),
        f1={},
        left={},
        examples=(
            DemoExample(
                "practice",
                "rash [after] sprofen",
                (
                    DemoMark("rash", "ADE", "REASON", 0.5, 0),
                    DemoMark("sprofen", "DRUG", "", None, 13),
                ),
            ),
        ),
        report=tmp_path / "report.html",
        parts=(
            part(method="feded", scores={"alone": 0.5, "feded": 0.75}, bytes={"practice": 4000}),
            part(method="lazy-mil", scores={"lazy-mil": 0.5}, bytes={"practice": 7}),
        ),
        page=tmp_path / "index.html",
        seconds=61.0,
    )
    verb = put("demo", shown)
    done = call("demo", "--out", "d", "--seed", "3")
    assert done.exit_code == 0, done.output
    assert verb.options.pop("on_event")
    assert verb.options == {"out": Path("d"), "seed": 3, "every": False}
    assert "SYNTHETIC" in done.stdout and "cardiology" in done.stdout
    assert "rash [after] sprofen" in done.stdout and "not found" in done.stdout
    assert "word_digests_W16" in done.stdout and "index.html" in done.stdout
    (row,) = (line for line in done.stdout.splitlines() if "feded" in line)
    assert "50.0" in row and "75.0" in row and "4.0 kB" in row
    call("demo", "--all")
    assert verb.options["every"] is True
