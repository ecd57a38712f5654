"""Every example of the README and the docs is run; CONTRIBUTING.md says how blocks are marked."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import doctables
from cases import each
from confide.cli.verbs import PANELS
from confide.settings import Settings
from confide.settings.tables import PublicTable, SiteTable, SplitTable
from confide.settings.upgrade import RENAMED

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

BLOCK = re.compile(
    r"(?:^<!-- *test: *(?P<mark>.*?) *-->\n\s*)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
MARKS = ("slow", "data", "file", "demo", "skip", "fails")
SECONDS = 1200
DEFINED = (ast.ClassDef, ast.FunctionDef)
PROTECTION = ("security", "secure-aggregation", "differential-privacy")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its code, its line, and its marks with their values."""

    language: str
    code: str
    line: int
    marks: dict[str, str]

    @property
    def runs(self) -> bool:
        return "skip" not in self.marks and (
            self.language in {"python", "console"} or "file" in self.marks
        )


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        marks = {}
        for part in filter(None, (match["mark"] or "").split(";")):
            name, _, value = part.strip().partition(" ")
            assert name in MARKS, f"{page.name}: unknown mark {name!r}"
            marks[name] = value.strip()
        line = text.count("\n", 0, match.start("code"))
        found.append(Block(match["language"], match["code"], line, marks))
    return found


def run_page(page: Path, chosen: list[Block], folder: Path) -> int:
    """Run blocks in the page's order, in one folder and one namespace; gives how many ran."""
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    ran = 0
    for block in chosen:
        if "data" in block.marks and not os.environ.get("CONFIDE_DATA"):
            continue
        ran += 1
        if "file" in block.marks:
            path = folder / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * block.line + block.code, str(page), "exec"), namespace)
        else:
            run_console(block, page, folder)
    return ran


def commands(code: str) -> Iterator[str]:
    """The lines after `$ `, with the lines that a trailing backslash joins to them."""
    lines = iter(code.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)
            yield command


def run_console(block: Block, page: Path, folder: Path) -> None:
    expected = int(block.marks.get("fails") or 2) if "fails" in block.marks else 0
    for command in commands(block.code):
        said = re.fullmatch(r'echo "([^"]*)" \| (confide .*)', command)
        text, plain = (said[1] + "\n", said[2]) if said else (None, command)
        if plain.startswith("confide ") and not set(plain) & set("|<>$&;*\\"):
            code, shown = in_process(plain, text, folder)
        else:
            code, shown = in_bash(command, folder)
        assert code == expected, f"{page.name}:{block.line}: {command}\n{shown}"
        assert "Traceback" not in shown, shown


def in_process(command: str, text: str | None, folder: Path) -> tuple[int, str]:
    """A plain command with `text` on stdin, without the seconds that a new Python needs."""
    from typer.testing import CliRunner

    from confide.cli.verbs import app

    assert Path.cwd() == folder
    done = CliRunner().invoke(app, shlex.split(command, comments=True)[1:], input=text)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def in_bash(command: str, folder: Path) -> tuple[int, str]:
    """A command with pipes and the like."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{command}"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout + done.stderr


def prepare(chosen: list[Block], folder: Path, request: pytest.FixtureRequest) -> None:
    if any("demo" in block.marks for block in chosen):
        request.getfixturevalue("demo_run")(folder / "demo-run")


LONG = ("docs/cli.md", "docs/privacy-audit.md", "docs/deployment.md", "docs/formats/")
"""Pages whose examples take long: they use every verb, or read whole corpora."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=[pytest.mark.slow] * name.startswith(LONG))
        for page, name in zip(PAGES, NAMES, strict=True)
        if any(block.runs and "slow" not in block.marks for block in blocks(page))
    ],
)
def test_examples_run(page: Path, in_tmp: Path, request: pytest.FixtureRequest) -> None:
    chosen = [block for block in blocks(page) if block.runs and "slow" not in block.marks]
    prepare(chosen, in_tmp, request)
    if not run_page(page, chosen, in_tmp):
        pytest.skip("needs the published corpora under $CONFIDE_DATA")


SLOW = [page for page in PAGES if any("slow" in block.marks for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=[str(page.relative_to(ROOT)) for page in SLOW])
def test_slow_examples_run(page: Path, in_tmp: Path, request: pytest.FixtureRequest) -> None:
    chosen = [block for block in blocks(page) if block.runs]
    prepare(chosen, in_tmp, request)
    run_page(page, chosen, in_tmp)


@each("page", PAGES)
def test_no_command_hides_in_a_block_that_is_not_run(page: Path) -> None:
    for block in blocks(page):
        if block.language in {"bash", "sh", "shell", ""} and "skip" not in block.marks:
            assert not re.search(r"^\s*(\$ )?confide ", block.code, re.MULTILINE), block.line
        if "skip" in block.marks:
            assert len(block.marks["skip"]) > 3, f"{page.name}:{block.line}: skipped, but why?"


@each("page", PAGES)
def test_toml_examples_are_settings(page: Path) -> None:
    from confide.settings import parse

    for block in blocks(page):
        if block.language == "toml" and "skip" not in block.marks:
            parse(tomllib.loads(block.code))


@each("page", [*PAGES, *(ROOT / "benchmarks").rglob("README.md")])
def test_settings_in_the_text_have_names_of_today(page: Path) -> None:
    """`apart = "file"` stood on a page long after the key was `disjoint_by`."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    keys = {key.rpartition(".")[2] for key in re.findall(r"`([\w.]+) = [^`\n]+`", text)}
    old = {key.rpartition(".")[2]: new for key, (new, _) in RENAMED.items()}
    assert not {key: old[key] for key in keys if old.get(key, key) != key}


@each("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = page.parent / path if path else page
        known = there.exists() and (not anchor or anchor in anchors(there))
        if not known:
            broken.append(target)
    assert not broken


@each("page", PAGES)
def test_functions_that_a_page_links_are_in_their_files(page: Path) -> None:
    """A link from a name in code, such as [`Rounds.run`](….py), leads to the file that has it."""
    text, missing = page.read_text(encoding="utf-8"), []
    for name, target in re.findall(r"\[`([\w.]+)`\]\(([^)#]+\.py)\)", text):
        path = (page.parent / target).resolve()
        inside: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
        if name == ".".join(path.relative_to(ROOT / "src").with_suffix("").parts):
            continue  # the module itself
        for part in name.split("."):
            found = [one for one in inside if getattr(one, "name", None) == part]
            inside = found[0].body if found and isinstance(found[0], DEFINED) else []
        if not found:
            missing.append(f"{name} in {target}")
    assert not missing


def test_the_tour_is_short() -> None:
    assert len((ROOT / "docs/extend/tour.md").read_text(encoding="utf-8").split()) <= 600


@each("page", PAGES)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    """A promise names the test that holds it: `tests/….py`, or `tests/….py::test_…`."""
    text, missing = page.read_text(encoding="utf-8"), []
    for named in re.findall(r"[`\s(](tests/[\w/.]*(?:::\w+)?|test_\w+\.py)", text):
        path, _, test = named.rstrip(".").partition("::")
        there = ROOT / path
        said = f"\ndef {test}(" if test else ""
        if not there.exists() or (said and said not in there.read_text(encoding="utf-8")):
            missing.append(named)
    assert not missing


@each("name", PROTECTION)
def test_pages_on_protection_say_first_what_is_not_promised(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    before, _, after = text.partition("hat is not promised")
    assert after and len(before) < 1500
    assert len(re.findall(r"`tests/", text)) > 4


def anchors(page: Path) -> set[str]:
    """Headings as the anchors that Markdown hosts give them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reachable_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    missing = [
        name
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if (name := str(page.relative_to(ROOT / "docs"))) != "index.md" and f"({name}" not in index
    ]
    assert not missing


def test_every_verb_is_on_the_page_of_the_command_line_or_on_the_one_that_it_links() -> None:
    from confide.cli.courier import courier
    from confide.cli.data import data
    from confide.cli.sites import consortium, server, site
    from confide.cli.verbs import app

    docs = ROOT / "docs"
    page = (docs / "cli.md").read_text(encoding="utf-8")
    verbs = [f"confide {verb.name or verb.callback.__name__}" for verb in app.registered_commands]
    groups = {"data": data, "consortium": consortium, "server": server, "site": site}
    groups["courier"] = courier
    verbs += [
        f"confide {name} {verb.name or verb.callback.__name__}"
        for name, group in groups.items()
        for verb in group.registered_commands
    ]
    missing = [verb for verb in verbs if f"$ {verb}" not in page]
    for verb in missing[:]:
        place = doctables.place_of(verb.removeprefix("confide "))
        own = docs / place.partition("#")[0]
        if place and f"({place})" in page and verb in own.read_text(encoding="utf-8"):
            missing.remove(verb)
    assert not missing


@each("page", doctables.PAGES)
def test_tables_that_come_from_the_code_are_those_of_the_code(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == doctables.written(page), "make tables"


def test_every_setting_has_words() -> None:
    """Those without are tables, or read as in `[data]` or `[[site]]`, and shown in one row."""
    alike = (SiteTable, SplitTable, PublicTable)
    missing = [
        f"{table.__name__}.{key}"
        for table in (Settings, *doctables.TABLES.values())
        for key, words in doctables.words_of(table).items()
        if not words
        and key not in doctables.TABLES
        and not (table in alike and key in SiteTable.model_fields)
    ]
    assert not missing


NON_IID = ("fedprox", "scaffold", "feddyn", "ditto", "fedbn")
METHODS_PAGES = {
    "feddf": "feded", "fedatt": "feded", "dp-fedner": "dp-feded", "fedex": "fedavg",
    **dict.fromkeys(NON_IID, "non-iid"),
}  # fmt: skip


def test_every_option_of_a_method_is_on_its_page_with_its_default() -> None:
    """An option that several methods have may be on a page that this one links."""
    from confide.methods import METHODS

    folder, wrong = ROOT / "docs" / "methods", []
    for name, method in {one.method: one.of for one in METHODS.values()}.items():
        page = folder / f"{METHODS_PAGES.get(name, name)}.md"
        if not page.exists():
            continue
        text = page.read_text(encoding="utf-8")
        linked = [folder / one for one in re.findall(r"\]\(([\w-]+\.md)[)#]", text)]
        known = text + "".join(one.read_text(encoding="utf-8") for one in linked)
        for option, field in method.Settings.model_fields.items():
            if not re.search(rf"\b{option}\b", known):
                wrong.append(f"{name}: {option}")
            said = re.search(rf"^\| `{option}` \| `?\"?(.*?)\"?`? \|", text, re.MULTILINE)
            shown = str(field.default).lower().removesuffix(".0")
            own = page.stem in (name, "non-iid")
            if own and said and field.default is not None and said[1] != shown:
                wrong.append(f"{name}: {option} is {shown}, not {said[1]}")
    assert not wrong


def test_the_table_of_methods_and_kinds_is_that_of_the_code() -> None:
    from confide.methods import METHODS

    text = (ROOT / "docs" / "methods" / "choosing.md").read_text(encoding="utf-8")
    head, *rows = re.findall(r"^\| (.*×.*|\| tagger .*) \|$", text, re.MULTILINE)
    kinds = [cell.strip().lower() for cell in head.split("|")[1:]]
    shown = {
        (name, kind)
        for row in rows
        for name in re.findall(r"[a-z][a-z-]+", re.sub(r"\(.*?\)", "", row.split("|")[0]))
        for kind, cell in zip(kinds, row.split("|")[1:], strict=False)
        if cell.strip() == "×"
    }
    there = {(pair.method, pair.kind.name) for pair in METHODS.values()}
    assert {(name, kind) for name, kind in shown if name not in ("pooled", "alone")} == there


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """`make docs` is strict: a page that the navigation lacks stops it."""
    root = Path(__file__).parents[1]
    named = set(
        re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (root / "mkdocs.yml").read_text(), re.MULTILINE)
    )
    pages = {str(page.relative_to(root / "docs")) for page in (root / "docs").rglob("*.md")}
    assert not {page for page in pages if not page.startswith("_")} - named


def test_every_panel_of_the_help_is_on_the_page_of_the_command_line() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.findall("<!-- table: (.*) -->", text) == list(PANELS)


def test_every_room_is_on_the_map() -> None:
    (rooms,) = (block.code for block in blocks(ROOT / "docs" / "extend" / "architecture.md")
                if block.code.startswith("cli "))  # fmt: skip
    named = set(re.findall(r"^([a-z][a-z, ]*?)  ", rooms, re.MULTILINE))
    named = {word for words in named for word in words.split(", ")}
    source = ROOT / "src" / "confide"
    there = {path.stem for path in source.iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert named == there
