"""Random mutants of the rooms that decide numbers and walls, and which of them the tests kill.

    python benchmarks/house/mutants/run.py map [--only ROOM...]  # which test runs which line; once
    python benchmarks/house/mutants/run.py kill [--count 300] [--seed 1] [--only NAME...] \
        [--share 1/2]

A mutant is one small change of one line: a comparison turned, an operator swapped, a number moved
by one, a condition negated, a statement left out. Against each run the tests that execute its line,
those of its own module first and then the quickest, for at most `WITHIN` seconds, until one fails.
What stands in `measured.jsonl` is not run again. Text of errors, types and names are never mutated:
no test should hold them to the letter. Two processes with `--share 1/2` and `2/2` take half as
long. Needs the package `coverage`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SRC, TESTS = ROOT / "src", ROOT / "tests"
MEASURED = Path(__file__).parent / "measured.jsonl"
USUAL = ("scoring", "federation", "kinds", "methods")
ROOMS: dict[str, tuple[str, ...]] = {
    **{room: (room,) for room in USUAL},
    "serve": ("serve",),
    "report": ("report",),
    "text/formats": ("text/formats",),
    "federation/secure": ("federation/secure",),
    "jobs/demo": ("jobs/test_demo.py",),
    "jobs/loading": ("jobs/loading", "jobs/test_loading.py"),
    "jobs/logs": ("jobs/test_logs.py", "flare/test_coordinating.py"),
}
"""The tests of each room; mutants are drawn from the usual rooms, or from those that are named."""
MAP = ROOT / "build" / "mutants.json"
WITHIN = 25.0
"""Seconds of tests, as they take without a mutant, that run against one."""
BROKEN = 99
PATIENCE = 4.0
"""So many times as long may they take, and forty seconds more; then the mutant hangs: killed."""
SOUND: set[str] = set()
"""Tests that killed a mutant and pass without one, in a process that was forked as for mutants."""

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And, ast.FloorDiv: ast.Div, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the characters `start` to `end` of a file become `after`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """What tells it from the others, as long as the file is the same."""
        return f"{self.path}:{self.line}+{self.start}: {self.before} -> {self.after}"

    def put(self, tree: Path) -> None:
        """Write the file with this change below `tree`."""
        text = (SRC / self.path).read_text(encoding="utf-8")
        changed = text[: self.start] + self.after + text[self.end :]
        (tree / self.path).write_text(changed, encoding="utf-8")


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    raw = text.encode()

    def place(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    for node in _acting(ast.parse(text)):
        for changed in _changes(node):
            first = place(node.lineno, node.col_offset)  # type: ignore[attr-defined]
            last = place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
            yield Mutant(
                str(path.relative_to(SRC)),
                node.lineno,  # type: ignore[attr-defined]
                first,
                last,
                text[first:last],
                changed,
            )


def _acting(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that do something: no annotations, no text of errors, no declarations of fields."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise):
            continue
        if isinstance(node, ast.Call) and _called(node.func) in ("carries", "field", "TypeVar"):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef):
            yield from chain.from_iterable(map(_within, (*node.body, *node.args.defaults)))
            continue
        if isinstance(node, ast.ClassDef):
            yield from chain.from_iterable(map(_within, node.body))
            continue
        if isinstance(node, ast.AnnAssign):
            yield from _within(node.value) if node.value else ()
            continue
        yield node
        yield from _acting(node)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    return _acting(ast.Module([node], []))  # type: ignore[list-item]


def _called(function: ast.AST) -> str:
    return ast.unparse(function).rsplit(".", 1)[-1]


def _changes(node: ast.AST) -> Iterator[str]:
    """What the text of a node may become."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        turned = ast.Compare(
            node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators
        )
        yield f"({ast.unparse(turned)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield f"({ast.unparse(ast.BinOp(node.left, SWAPS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.BoolOp):
        yield f"({ast.unparse(ast.BoolOp(SWAPS[type(node.op)](), node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.IfExp):
        yield f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield str(node.value + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "pass"
    elif isinstance(node, ast.Continue):
        yield "break"


# --- which test runs which line ------------------------------------------------------------------


class Mapper:
    """A plugin of pytest: the lines of the rooms that each test runs, and its seconds."""

    def __init__(self) -> None:
        import coverage

        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(
            data_file=None,
            include=[f"{SRC}/confide/{room}{end}" for room in ROOMS for end in ("/**", ".py")],
        )

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """From here on lines are this test's."""
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part's seconds; a test that fails without a mutant kills none."""
        before = self.seconds.get(report.nodeid, 0.0)
        self.seconds[report.nodeid] = before + (1e9 if report.failed else report.duration)

    def lines(self) -> dict[str, dict[str, list[str]]]:
        """By file and line, the tests."""
        data = self.coverage.get_data()
        return {
            str(Path(file).relative_to(SRC)): {
                str(line): [test for test in tests if test]
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }


def make_map(only: list[str]) -> None:
    """Run the fast tests, or those of some rooms, and write which of them run which line."""
    mapper = Mapper()
    mapper.coverage.start()
    chosen = [str(TESTS / test) for room in only for test in ROOMS.get(room, (room,))]
    pytest.main(["-q", "-m", "not slow", "-p", "no:cacheprovider", *chosen], plugins=[mapper])
    mapper.coverage.stop()
    MAP.parent.mkdir(exist_ok=True)
    lines = {
        file: {line: _first(file, tests, mapper.seconds) for line, tests in found.items()}
        for file, found in mapper.lines().items()
    }
    MAP.write_text(json.dumps({"seconds": mapper.seconds, "lines": lines}), encoding="utf-8")


# --- killing ------------------------------------------------------------------------------------


def _own(path: str) -> str:
    """The name of a module's own test file."""
    module = Path(path).with_suffix("")
    return f"test_{module.parent.name if module.name == '__init__' else module.name}.py"


def _first(path: str, tests: list[str], seconds: dict[str, float]) -> list[str]:
    """Of the tests that run a line, those of its module first and then the quickest, `WITHIN`."""
    own, left, chosen = _own(path), WITHIN, []
    for test in sorted(set(tests), key=lambda one: (own not in one, seconds[one])):
        if seconds[test] <= left:
            chosen.append(test)
            left -= seconds[test]
    return chosen


def tests_of(mutant: Mutant, known: dict[str, Any], most: int) -> list[str]:
    """The tests that run against a mutant, in their order, of at most so many files.

    They are the files that run the line with the most tests.
    """
    lines, seconds = known["lines"].get(mutant.path, {}), known["seconds"]
    if found := lines.get(str(mutant.line)):
        own, per_file = _own(mutant.path), Counter(test.partition("::")[0] for test in found)
        files = sorted(per_file, key=lambda file: (own not in file, -per_file[file]))[:most]
        return [test for test in found if test.partition("::")[0] in files]
    own = [one for one in seconds if _own(mutant.path) in one]  # a line that is run at import
    return _first(mutant.path, own, seconds)


def killed(
    mutant: Mutant, known: dict[str, Any], unsound: set[str], *, most: int
) -> dict[str, object]:
    """Which test killed it, if any; one that fails without the mutant too joins `unsound`."""
    began = time.monotonic()
    tests = tests_of(mutant, known, most)
    within = 40 + PATIENCE * sum(known["seconds"][one] for one in tests)
    with tempfile.TemporaryDirectory(prefix="mutant") as made:
        tree = Path(made) / "src"
        shutil.copytree(SRC, tree, ignore=shutil.ignore_patterns("__pycache__"))
        mutant.put(tree)
        while True:
            tests = [one for one in tests if one not in unsound]
            by = _failed(tests, tree, within=within) if tests else ""
            if by not in tests or by in SOUND or not _failed([by], SRC, within=within):
                break
            unsound.add(by)
    SOUND.add(by)
    found = {"mutant": mutant.name, **asdict(mutant), "killed": by, "tests": len(tests)}
    return found | {"seconds": round(time.monotonic() - began, 1)}


def _failed(tests: list[str], tree: Path, *, within: float) -> str:
    """The first test that fails of these, run in a process forked from this one; or nothing."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        _test(tests, tree, tell)
    os.close(tell)
    deadline = time.monotonic() + within
    ended = status = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.05)
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(told) as pipe:
        found = pipe.read()
    if ended and status and not found:
        raise SystemExit(f"pytest itself ended with {os.waitstatus_to_exitcode(status)}: {tests}")
    return found or ("" if ended else "hangs")


def _test(tests: list[str], tree: Path, tell: int) -> None:
    """In the forked process: run the tests, say which failed first, and end."""
    sys.path[:0] = [str(tree), str(TESTS)]
    os.environ["PYTHONPATH"] = str(tree)
    os.chdir(ROOT)

    class Listener:
        """Says which test failed."""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os.write(tell, report.nodeid.encode())
                os._exit(1)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                os.write(tell, b"import")
                os._exit(1)

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
        loaded = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        try:
            code = int(pytest.main([*options, *loaded, *tests], plugins=[Listener()]))
        except BaseException:  # whatever it is, this process may not go on as its parent
            code = BROKEN
    os._exit(code)


def main() -> None:
    """Draw, kill, and say how many survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("map", "kill"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="rooms; or parts of mutants' names")
    parser.add_argument("--share", default="1/1", metavar="PART/OF")
    parser.add_argument("--files", type=int, default=5, help="of tests against one mutant")
    parser.add_argument("--again", action="store_true", help="try what survived once more")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    if given.what == "map":
        make_map(given.only)
        return
    import torch  # noqa: F401  imported once, before all forks
    import transformers  # noqa: F401

    known = json.loads(MAP.read_text(encoding="utf-8"))
    rooms = [room for room in given.only if room in ROOMS] or USUAL
    files = sorted(path for room in rooms for path in (SRC / "confide" / room).rglob("*.py"))
    parts = [f"{room}/" if room in ROOMS else room for room in given.only] or [""]
    mutants = [one for path in files for one in mutants_of(path)]
    every = [one for one in mutants if any(part in one.name for part in parts)]
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
    lines = MEASURED.read_text(encoding="utf-8").splitlines() if MEASURED.exists() else []
    done = {found["mutant"]: found for found in map(json.loads, lines)}
    todo = [
        one
        for one in drawn
        if one.name not in done or (given.again and not done[one.name]["killed"])
    ]
    unsound: set[str] = set()
    share, of = map(int, given.share.split("/"))
    for one in todo[share - 1 :: of]:
        found = killed(one, known, unsound, most=given.files)
        done[one.name] = found
        with MEASURED.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(found["killed"] or "SURVIVED", "|", one.name, flush=True)
    drawn = [one for one in drawn if one.name in done]
    alive = [one.name for one in drawn if not done[one.name]["killed"]]
    print(f"{len(drawn) - len(alive)} of {len(drawn)} killed, of {len(every)} that there are")
    for name in alive:
        print("survived:", name)


if __name__ == "__main__":
    main()
