"""How large the house is, and how far it is from `confide run` to the first gradient.

    python benchmarks/house/size/run.py [--keep benchmarks/house/size/measured.jsonl]
    python benchmarks/house/size/run.py --walk settings    # or weights: where one object goes

Counts are of the confide that Python imports; PYTHONPATH=OTHER/src measures another checkout. A
code line holds a token that is neither comment nor docstring.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from datetime import date
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_FOUND = importlib.util.find_spec("confide")
assert _FOUND is not None and _FOUND.origin is not None, "confide is not installed"
SOURCE = Path(_FOUND.origin).parent
ROOT = SOURCE.parents[1]
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="append the counts to this file of JSON lines")
    parser.add_argument("--still", action="store_true", help="count only; trace no run")
    parser.add_argument("--walk", choices=WALKS, help="only show where this object goes in a run")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    if given.walk:
        show(given.walk, follow(WALKS[given.walk]()))
        return
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    found: dict[str, Any] = counts(trees) | classes(trees) | names(trees)
    found["circles of files"] = len(circles(trees))
    if not given.still:
        found |= main_path()
        for name, make in WALKS.items():
            numbers = summed(follow(make())).items()
            found |= {f"walk of the {name}: {what}": number for what, number in numbers}
    for name, value in found.items():
        print(f"{name:52} {value:>8,}" if isinstance(value, int) else f"{name:52} {value:>8.1%}")
    if given.keep:
        with open(given.keep, "a", encoding="utf-8") as file:
            at = {"date": date.today().isoformat(), "commit": commit()}
            file.write(json.dumps(at | found) + "\n")


def commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


# --- lines ----------------------------------------------------------------------------------------


def counts(trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Code lines, modules, and lines that only import."""
    code = imports = 0
    for path, tree in trees.items():
        held = code_lines(path.read_text("utf-8"), tree)
        code += len(held)
        imports += len(held & lines_of(tree, ast.Import, ast.ImportFrom))
    return {"code lines": code, "modules": len(trees), "import lines": imports}


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines that hold code."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            held |= set(range(token.start[0], token.end[0] + 1))
    return held - docstrings(tree)


def docstrings(tree: ast.Module) -> set[int]:
    """The lines of strings that stand alone: docstrings of modules, functions and attributes."""
    alone = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return {line for node in alone for line in range(node.lineno, (node.end_lineno or 0) + 1)}


def lines_of(tree: ast.Module, *kinds: type[ast.stmt]) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


# --- concepts -------------------------------------------------------------------------------------


def classes(trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Protocols, TypeVars, and what a method and a kind consist of."""
    defined = [
        node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    protocols = sum(
        any("Protocol" in ast.unparse(base).split("[")[0] for base in node.bases)
        for node in defined
    )
    variables = {
        ast.unparse(node.targets[0])
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("TypeVar")
    }
    found = {"Protocols": protocols, "TypeVars": len(variables)}
    for name in ("Method", "Kind"):
        (node,) = (node for node in defined if node.name == name)
        found[f"{name}: class variables"] = sum(isinstance(one, ast.AnnAssign) for one in node.body)
        found[f"{name}: methods"] = sum(isinstance(one, ast.FunctionDef) for one in node.body)
    return found


def names(trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Public functions and classes whose name is defined in several modules."""
    places: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            named = isinstance(node, ast.ClassDef | ast.FunctionDef)
            if named and not node.name.startswith("_"):
                places[node.name].add(path)
    shared = sum(len(paths) > 1 for paths in places.values())
    return {"public names in several modules": shared}


def circles(trees: dict[Path, ast.Module]) -> list[set[str]]:
    """Groups of files that import each other, however far round; imports for types count too."""
    modules = {module_of(path): tree for path, tree in trees.items()}
    graph = {name: set(imported(name, tree, modules)) for name, tree in modules.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:  # Tarjan 1972
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            place = stack.index(name)
            if len(stack) - place > 1:
                found.append(set(stack[place:]))
            del stack[place:]

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, tree: ast.Module, modules: dict[str, ast.Module]) -> set[str]:
    """The modules of ours that a module imports at its top."""
    found = set()
    for node in tree.body:
        inner = node.body if isinstance(node, ast.If) else [node]
        for one in inner:
            if isinstance(one, ast.ImportFrom) and one.module:
                wide = {f"{one.module}.{alias.name}" for alias in one.names}
                found |= wide & modules.keys() or {one.module} & modules.keys()
            elif isinstance(one, ast.Import):
                found |= {alias.name for alias in one.names} & modules.keys()
    return found - {name}


# --- the main path --------------------------------------------------------------------------------


def main_path() -> dict[str, int]:
    """Functions of ours that are called from `confide run` to the first backward, and how deep."""
    import torch

    from confide.runs.run import run
    from contract.corpus import tiny

    called: set[tuple[str, str]] = set()
    reached: list[int] = []

    class Reached(BaseException):
        pass

    def look(frame: FrameType, event: str, given: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            if not code.co_name.startswith("<"):
                called.add((code.co_filename, code.co_qualname))
        elif event == "c_call" and getattr(given, "__name__", "") == "run_backward":
            depth = 0
            up: FrameType | None = frame
            while up is not None:
                depth += up.f_code.co_filename.startswith(str(SOURCE))
                up = up.f_back
            reached.append(depth)
            sys.setprofile(None)
            raise Reached

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        settings = tiny(Path(place), "rounds=1")
        sys.setprofile(look)
        try:
            run(settings, out=Path(place) / "run")
        except Reached:
            pass
        finally:
            sys.setprofile(None)
    return {"functions to the first backward": len(called), "frames of ours there": reached[0]}


# --- where one object goes in a run ---------------------------------------------------------------


@dataclass(frozen=True)
class Stop:
    """A function that has the object in hand, at the first call for which it has."""

    file: str
    function: str
    caller: str
    """The file of the nearest of our functions that called it."""


class Reached(BaseException):
    """The end of a walk."""


class SettingsWalk:
    """Settings from TOML to the optimiser: a table of them, what training makes of it, a message
    that holds such a thing, or the bytes of such a message."""

    classes = frozenset({"Settings", "Table", "How", "TrainConfig", "Optimiser"})
    begun = True

    def held(self, value: object) -> bool:
        return any(one.__name__ in self.classes for one in type(value).__mro__)

    def called(self, code: CodeType, values: Mapping[str, Any]) -> None:
        """Nothing: the walk begins with the first call."""

    def returned(self, code: CodeType, value: object) -> None:
        if code.co_name == "build" and code.co_filename.endswith("optimisers.py"):
            raise Reached


class WeightsWalk:
    """The common weights from the server's state to a site's model and back into the state: their
    arrays by name, a message that holds them, or its bytes."""

    names: frozenset[str] = frozenset()
    begun = False

    def held(self, value: object) -> bool:
        return type(value) is dict and bool(value) and value.keys() == self.names

    def called(self, code: CodeType, values: Mapping[str, Any]) -> None:
        if code.co_name == "round" and "/methods/" in code.co_filename and not self.begun:
            self.names, self.begun = frozenset(values["state"].weights), True

    def returned(self, code: CodeType, value: object) -> None:
        if self.begun and code.co_name == "round" and "/methods/" in code.co_filename:
            raise Reached


WALKS: dict[str, Callable[[], SettingsWalk | WeightsWalk]] = {
    "settings": SettingsWalk,
    "weights": WeightsWalk,
}


def follow(walk: SettingsWalk | WeightsWalk) -> list[Stop]:
    """The functions of a small run that get the object as an argument or return it, in the order of
    their first such call."""
    import torch

    from confide.runs.run import run
    from confide.settings import dump
    from contract.corpus import tiny

    stops: dict[CodeType, Stop] = {}
    encoded: dict[int, object] = {}  # by id; held here, so that no id is used twice

    def has(value: object) -> bool:
        if isinstance(value, bytes | bytearray | memoryview):
            return id(value) in encoded
        if walk.held(value):
            return True
        if isinstance(value, dict):
            return any(walk.held(one) or id(one) in encoded for one in value.values())
        if is_dataclass(value) and not isinstance(value, type):
            inner = (getattr(value, one, None) for one in type(value).__dataclass_fields__)
            return any(walk.held(one) or id(one) in encoded for one in inner)
        return False

    def look(frame: FrameType, event: str, given: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(SOURCE)):
            return
        if event == "call":
            walk.called(code, frame.f_locals)
        if walk.begun and not code.co_name.startswith("<"):
            values = list(frame.f_locals.values()) if event == "call" else [given]
            if any(map(has, values)):
                stops.setdefault(code, Stop(path_of(code), code.co_qualname, above(frame)))
        if event == "return":
            if code.co_name == "encode" and isinstance(given, bytes) and code in stops:
                encoded[id(given)] = given
            walk.returned(code, given)

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "settings.toml"
        file.write_text(dump(tiny(Path(place), "rounds=1")), encoding="utf-8")
        sys.setprofile(look)
        try:
            with suppress(Reached):
                run(file, out=Path(place) / "run")
        finally:
            sys.setprofile(None)
    return list(stops.values())


def path_of(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(SOURCE).as_posix()


def above(frame: FrameType) -> str:
    """The file of the nearest frame of ours above this one; empty if there is none."""
    up = frame.f_back
    while up is not None:
        if up.f_code.co_filename.startswith(str(SOURCE)):
            return path_of(up.f_code)
        up = up.f_back
    return ""


@cache
def heights() -> dict[str, int]:
    """How high each room lies: that of the contract of imports in pyproject.toml."""
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(one["layers"] for one in tree["contracts"] if one.get("exhaustive"))
    return {room.strip(): -n for n, layer in enumerate(layers) for room in layer.split("|")}


def height(file: str) -> int:
    return heights().get(file.split("/")[0].removesuffix(".py"), 1)


def climbs(stops: list[Stop]) -> list[str]:
    """By stop, how the walk climbs back there: "up" if a call goes from a lower room to an upper
    one, "back" if the walk returns to a file that it had left, else an empty word."""
    found, seen, now = list[str](), set[str](), ""
    for stop in stops:
        up = stop.caller and height(stop.file) > height(stop.caller)
        back = stop.file != now and stop.file in seen
        found.append("up" if up else "back" if back else "")
        seen.add(stop.file)
        now = stop.file
    return found


def summed(stops: list[Stop]) -> dict[str, int]:
    return {
        "calls": len(stops),
        "files": len({stop.file for stop in stops}),
        "climbs back": sum(map(bool, climbs(stops))),
    }


def show(name: str, stops: list[Stop]) -> None:
    for stop, climb in zip(stops, climbs(stops), strict=True):
        print(f"{climb:4}  {stop.file:34}  {stop.function}")
    print(f"\nwalk of the {name}:", ", ".join(f"{n} {what}" for what, n in summed(stops).items()))


if __name__ == "__main__":
    main()
