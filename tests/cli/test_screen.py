"""The one exit to the terminal: nothing that comes from elsewhere can make it do something."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cases import each
from confide import api
from confide.cli import screen
from confide.cli.screen import ProgressDisplay, SafeStream, guarded_streams, sanitise
from confide.cli.verbs import app
from confide.errors import Note, RunError
from confide.federation.events import Event
from confide.federation.ledger import Ledger
from confide.federation.messages import FieldSize
from confide.runs.run import run
from contract.corpus import tiny

SRC = Path(__file__).resolve().parents[2] / "src" / "confide"
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""All marks that change the direction of writing, the last two the wrong way round."""
HOSTILE = (
    "\x1b[2J\x1b[8m\x1b]0;owned\x07\x1b]8;;http://evil/\x1b\\\x1bP1$q\x9b31m\x9d0;x\x9c"
    + "".join(map(chr, range(0x80, 0xA0)))
    + BIDI[:-2] + "\u2069\u2068"
    + "\x00\x08\r\x7f\u2028\ufeff[red][/none][link=http://evil/]:bomb:"
)  # fmt: skip
NAME = HOSTILE.replace("\x00", "").replace("/", "|")[:80] + "\u202e\u2069\udcff"
"""The same as a file's name can be; the last is a byte that is not UTF-8."""


def raw(shown: str) -> list[str]:
    """What a terminal would obey, or could not show."""
    isolated = re.sub("\u2068([^\u2066-\u2069\n]*)\u2069", r"\1", shown)
    return [repr(one) for one in isolated if not (one.isprintable() or one in "\n\t")]


def leaves(group: Any = None, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb, by its words."""
    command = group or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, one in command.commands.items():
        yield from leaves(one, *path, name)


VERBS = dict(leaves())


def called(*words: str) -> str:
    """What a command shows on both streams; errors that are none of ours show their trace."""
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every public function warns, then fails, with words that come from elsewhere."""

    def fails(*args: Any, **options: Any) -> Any:
        warnings.warn(HOSTILE, Note, stacklevel=1)
        raise RunError(HOSTILE, expected=HOSTILE, got=HOSTILE, where=NAME, fix=HOSTILE)

    for name in dir(api):
        if not name[0].isupper():
            monkeypatch.setitem(vars(api), name, fails)


# --- every verb -----------------------------------------------------------------------------


def test_the_tree_is_whole() -> None:
    assert len(VERBS) > 35
    assert {("ledger",), ("data", "check"), ("site", "consent"), ("key", "new")} <= set(VERBS)


@each("verb", VERBS)
def test_what_a_verb_is_given_gets_out_printable(
    verb: tuple[str, ...], refusing: None, in_tmp: Path
) -> None:
    """Each verb with a hostile word in every place, one after the other."""
    arguments: list[str] = []
    for one in VERBS[verb].params:
        if one.param_type_name == "argument":
            arguments += [NAME] * max(1, one.nargs)
    shown = [called(*verb, "--help"), called(*verb, *arguments)]
    for one in VERBS[verb].params:
        if one.param_type_name == "option" and not one.is_flag and not one.is_eager:
            given = [NAME] * max(1, one.nargs)
            shown.append(called(*verb, *arguments, one.opts[0], *given))
    shown += [called(*verb, *arguments, "--" + NAME), called(*verb[:-1], NAME)]
    assert raw("".join(shown)) == []
    assert any("evil" in one or "?[2J" in one for one in shown)


# --- what other places say ------------------------------------------------------------------


def row(**more: Any) -> str:
    return json.dumps(more) + "\n"


@pytest.fixture
def notes(in_tmp: Path) -> Path:
    """Annotated text of which every name, the words and the file's name are hostile."""
    path = in_tmp / (NAME.replace(".", "") + ".jsonl")
    named = HOSTILE.replace("\n", " ")
    mark = {"id": "T1", "type": named, "start": 0, "end": 4}
    path.write_text(
        row(id=named, text=f"Rash {named} .", entities=[mark])
        + row(id="2", text="Rash", entities=[{**mark, "end": 99}]),
        encoding="utf-8",
    )
    return path


@each(
    "words",
    [
        ("check",), ("check", "--all"), ("check", "--json"), ("stats",), ("stats", "--json"),
        ("split", "--sites", "2", "--out", "dealt"), ("convert", "--to", "brat", "--out", NAME),
        ("convert", "--to", NAME, "--out", "x"),
    ],
)  # fmt: skip
def test_what_a_file_holds_gets_out_printable(words: tuple[str, ...], notes: Path) -> None:
    shown = called("data", words[0], str(notes), *words[1:])
    assert shown and raw(shown) == []
    if "--json" in words:
        assert json.loads(shown)  # nothing is lost: it is escaped
        assert "\\u001b[2J" in shown


def test_settings_that_were_drafted_from_hostile_files(notes: Path) -> None:
    assert raw(called("init", str(notes), "--out", "a.toml")) == []


def test_ledgers(in_tmp: Path) -> None:
    for place, site in (("run", "north"), ("other", HOSTILE)):
        (in_tmp / place).mkdir()
        ledger = Ledger(in_tmp / place / "ledger.jsonl")
        ledger.record(
            [FieldSize(HOSTILE, HOSTILE, 3, 1)],
            round=1,
            step=HOSTILE,
            direction="up",
            site=site,
            seen=HOSTILE,
        )
        ledger.flush()
    for words in (("--json",), ("--both",), ("--against", "other"), ("--against", "run")):
        shown = called("ledger", "run", *words)
        assert shown and raw(shown) == []


def test_runs_that_are_compared(in_tmp: Path) -> None:
    """A site and its types with hostile names, in a result that came from elsewhere."""
    done = run(tiny(in_tmp), out=in_tmp / "one").folder
    for folder in (done, Path(shutil.copytree(done, in_tmp / "two"))):
        for file in (folder / "result.json", *folder.glob("sites/*/sentences.json")):
            text = file.read_text(encoding="utf-8")
            for own in ("site-1", "Drug"):
                text = text.replace(f'"{own}"', json.dumps(own + HOSTILE))
            file.write_text(text, encoding="utf-8")
    shown = called("compare", "one", "two") + called("report", "one", "--out", "r.html")
    assert "?[2J" in shown and raw(shown) == []


def test_a_markup_in_a_name_is_no_markup() -> None:
    from confide.cli.tables import record_table

    buffer = io.StringIO()
    table = record_table([FieldSize("[red]a[/red]", ":bomb: [/x]", 1, 1)], title="[bold]t[/bold]")
    screen.console(buffer).print(table)
    shown = buffer.getvalue()
    assert all(part in shown for part in ("[red]a[/red]", ":bomb: [/x]", "[bold]t[/bold]"))


# --- the exit itself ------------------------------------------------------------------------


def test_one_character_at_a_time() -> None:
    odd = [*BIDI, *map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\ud800\udfff\u2028\u200b"]
    for one in odd:
        assert raw(sanitise(f"a{one}b")) == []
        assert json.loads(screen.json_text(f"a{one}b")) == f"a{one}b"
        assert raw(screen.json_text(f"a{one}b")) == []


def test_what_runs_from_right_to_left_stays_apart() -> None:
    told = f"a {screen.isolate('שלום')} b"
    assert sanitise(told) == told
    assert raw(sanitise(screen.isolate("שלום" + HOSTILE))) == []
    assert raw(sanitise("\u2068" + told)) == []


@each("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stream_that_is_not_utf_8(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(found, encoding=encoding))
    with guarded_streams():
        typer.echo("\u202eσ – naïve")
        screen.put_json({"a": "σ – naïve\x1b"})
        screen.show("σ – naïve", screen_table())
        sys.stdout.flush()
    shown = found.getvalue().decode(encoding)
    assert raw(shown) == []
    assert '"a": "\\u03c3 \\u2013 na\\u00efve\\u001b"' in shown


def screen_table() -> Any:
    from confide.cli.tables import table_of

    return table_of(["σ"], [["–"]], title="…")


def test_what_others_print_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    found = io.StringIO()
    monkeypatch.setattr(sys, "stderr", found)
    with guarded_streams():
        assert isinstance(sys.stdout, SafeStream) and not sys.stderr.isatty()
        for handler in (logging.lastResort, logging.StreamHandler()):
            handler.emit(logging.makeLogRecord({"msg": HOSTILE}))
        sys.stderr.writelines([HOSTILE])
        with pytest.warns(UserWarning):
            warnings.warn("fine", stacklevel=1)
    assert found.getvalue().count("?[2J") == 3 and raw(found.getvalue()) == []


def test_a_file_goes_into_a_pipe_as_it_is(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from confide.text.document import Document

    documents = [Document("1", f"Rash {BIDI} σ .")]
    monkeypatch.setitem(vars(api), "predict", lambda *args, **options: documents)
    done = CliRunner().invoke(app, ["predict", "run", str(notes)])
    api.write(documents, Path("same.jsonl"), "jsonl")
    assert done.stdout_bytes == Path("same.jsonl").read_bytes()


# --- at a terminal --------------------------------------------------------------------------


def at_a_terminal(code: str, *, folder: Path) -> str:
    """What a program shows at a terminal of its own."""
    leader, follower = pty.openpty()
    path = os.pathsep.join(str(Path(one).resolve()) for one in sys.path)
    own = {"TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": path}
    environment = {name: one for name, one in os.environ.items() if name != "NO_COLOR"} | own
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=follower, stdout=follower, stderr=follower, cwd=folder, env=environment,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    process.wait(60)
    os.close(leader)
    return shown.decode("utf-8")


OURS = re.compile(r"\x1b\[(\d+(;\d+)*m|\?25[lh]|2K|\d*A|1G)|\r(?=\n|\x1b)")
"""What rich itself says to a terminal: colours, and where the bar goes."""
BEGIN = "import sys, warnings\nfrom confide.cli.verbs import app, run_program\nH = {!r}\n"


AT_A_TERMINAL = [
    ("sys.argv = ['confide', 'data', 'check', H[:40] + H[-3:]]; run_program()", True),
    ("sys.argv = ['confide', 'data', H]; run_program()", False),
    ("sys.argv = ['confide', 'data', 'check', '--help']; run_program()", True),
    ("sys.argv = ['confide']; run_program()", True),
    ("from confide import api\ndef odd(*a, **k): raise ValueError(H)\n"
     "vars(api)['ledger'] = odd\nsys.argv = ['confide', 'ledger', 'x']; run_program()", False),
    ("from confide.cli import screen\nscreen.guard_streams(); screen.put_file(H)", False),
    ("from confide.cli import screen\nfrom confide.cli.screen import ProgressDisplay\n"
     "from confide.federation.events import Event\nscreen.guard_streams()\n"
     "with ProgressDisplay() as told:\n"
     "    told(Event(kind='step', round=1, rounds=2, site=H, step=H, message=H))\n"
     "    print(H, file=sys.stderr); print(H); screen.say(H); warnings.warn(H)\n", True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "coloured"),
    [
        pytest.param(*one, marks=[pytest.mark.slow] * (number not in (0, 4, 6)))
        for number, one in enumerate(AT_A_TERMINAL)
    ],
    ids=range(len(AT_A_TERMINAL)),
)
def test_at_a_terminal(code: str, coloured: bool, tmp_path: Path) -> None:
    shown = at_a_terminal(BEGIN.format(NAME) + code, folder=tmp_path)
    ours = {one[0] for one in OURS.finditer(shown)}
    assert coloured == any(one.endswith("m") for one in ours)
    assert "\x1b[8m" not in ours
    rest = OURS.sub("", shown)
    assert len(rest) > 20 and raw(rest.replace("\r\n", "\n")) == []


# --- there is no other ----------------------------------------------------------------------


def test_nothing_else_writes_to_the_terminal() -> None:
    """`quiet` speaks for processes in the background, whose streams are files."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        place = path.relative_to(SRC).as_posix()
        if place in ("cli/screen.py", "flare/nvidia/service.py"):
            continue
        text = path.read_text(encoding="utf-8")
        if not re.search(r"print\(|Console\(|sys\.std(out|err)|\.write\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            whole = ast.unparse(node.func) if getattr(node.func, "attr", "") == "write" else ""
            if name in ("print", "Console") or re.match(r"sys\.std(out|err)", whole):
                found.append(f"{place}:{node.lineno}")
    assert found == []


def test_events_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = io.StringIO()
    monkeypatch.setattr(sys, "stderr", found)
    with guarded_streams(), ProgressDisplay() as told:
        told(Event(kind="failed", site=HOSTILE, step=HOSTILE, message=HOSTILE))
        told(Event(kind="round", round=1, rounds=2, site=HOSTILE))
    assert "?[2J" in found.getvalue() and raw(found.getvalue()) == []
