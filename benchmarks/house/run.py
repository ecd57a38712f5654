"""How large the house is, and how far it is from `confide run` to the first gradient.

    python benchmarks/house/run.py [--keep benchmarks/house/measured.jsonl]

Counts are of src/confide. A code line holds a token that is neither comment nor docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tempfile
import tokenize
from collections import defaultdict
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "confide"
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="append the counts to this file of JSON lines")
    parser.add_argument("--still", action="store_true", help="count only; trace no run")
    given = parser.parse_args()
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    found: dict[str, Any] = counts(trees) | classes(trees) | names(trees)
    found["circles of files"] = len(circles(trees))
    if not given.still:
        found |= walk()
    for name, value in found.items():
        print(f"{name:52} {value:>8,}" if isinstance(value, int) else f"{name:52} {value:>8.1%}")
    if given.keep:
        with open(given.keep, "a", encoding="utf-8") as file:
            file.write(json.dumps({"date": date.today().isoformat()} | found) + "\n")


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


def walk() -> dict[str, int]:
    """Functions of ours that are called from `confide run` to the first backward, and how deep."""
    import torch

    from confide.runs.run import run

    sys.path.insert(0, str(ROOT / "tests"))
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


if __name__ == "__main__":
    main()
