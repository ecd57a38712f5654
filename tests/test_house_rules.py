"""The rules of CONTRIBUTING.md that a program can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cases import each

SRC = Path(__file__).resolve().parent.parent / "src" / "confide"
MODULES = sorted(SRC.rglob("*.py"))

PARAMETERS, POSITIONAL = 8, 2

# Words that CONTRIBUTING.md's table replaces, as they would stand in a name.
NEVER = {
    "client": "site", "clients": "sites", "party": "site", "parties": "sites", "worker": "site",
    "platform": "site", "platforms": "sites", "master": "server", "aggregator": "server",
    "coordinator": "server", "cluster": "federation", "cohort": "federation",
    "strategy": "method", "strategies": "methods", "algorithm": "method",
    "rpc": "step", "handler": "step", "handlers": "steps", "request": "ask", "requests": "asks",
    "payload": "ask or reply", "payloads": "asks or replies", "job": "run", "jobs": "runs",
    "trial": "run", "trials": "runs", "eval": "evaluate", "log": "ledger",
}  # fmt: skip
TWO_WORDS = {("global", "model"): "state", ("client", "state"): "memory"}

# Every step's answer is called with these, by the site.
ANSWER = ["site", "memory", "ask", "turn"]

# The same letters with an unrelated, technical meaning. Each needs its reason.
ALLOWED: dict[str, str] = {
    "eval": "torch.nn.Module.eval",
    "log": "the logarithm",
    "worker": "a process of the in-process engine, as in the setting `workers`",
    "platform": "the standard library's module",
}

# What NVIDIA FLARE calls by these names, and how.
FLARES = {
    "execute": ["task_name", "shareable", "fl_ctx", "abort_signal"],
    "received": ["client_task", "fl_ctx"],
}
OTHERS_WORDS = {"client_task", "launch_job", "job_meta", "SigningRequest", "site_request"}
"""Names with a word of NVIDIA FLARE or of X.509, which knows certificate signing requests."""


@cache
def _trees() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple((path, ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES)


@cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in _nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(SRC)}:{getattr(node, 'lineno', 1)}"


# Tests that are about the whole house, or about what crosses all of its rooms.
ACROSS = {"contract", "fuzz", "wire"}


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 10


def test_functions_take_few_parameters() -> None:
    broken = [
        f"{_where(path, function)} {function.name} {why}"
        for path, tree in _trees()
        for function in _functions(tree)
        for why in _arity(function)
    ]
    assert not broken


def _positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"], ["ctx"]) else names


def _arity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    positional = _positional(function)
    count = len(positional) + len(function.args.kwonlyargs)
    if count > PARAMETERS:
        yield f"takes {count} parameters"
    first_optional = len(positional) - len(function.args.defaults)
    options = positional[max(first_optional, POSITIONAL) :]
    if options:
        yield f"takes the options {', '.join(options)} by position"


def test_few_parameters_go_by_position() -> None:
    """What is needed may go by position up to a third one; what is optional never after two."""
    broken = []
    for path, tree in _trees():
        for function in _functions(tree):
            names = _positional(function)
            public = not function.name.startswith("_")
            if (
                public
                and len(names) > POSITIONAL + 1
                and names not in (ANSWER, FLARES.get(function.name))
            ):
                broken.append(f"{_where(path, function)} {function.name}({', '.join(names)})")
    assert not broken


def test_every_def_is_annotated_and_every_public_one_documented() -> None:
    broken = []
    for path, tree in _trees():
        if ast.get_docstring(tree) is None and tree.body:
            broken.append(f"{_where(path, tree)} the module says nothing")
        for node in tree.body:
            if (
                isinstance(node, (ast.FunctionDef, ast.ClassDef))
                and not node.name.startswith("_")
                and ast.get_docstring(node) is None
            ):
                broken.append(f"{_where(path, node)} {node.name} says nothing")
    assert not broken


# A docstring begins with what a thing does or with a noun, and names numbers, things and roles.
NOT_FIRST = re.compile(r"(What|How|Whether|The same|As)\b")
NOT_SAID = re.compile(r"\b(so many|those of which|somebody|as large as)\b", re.IGNORECASE)


def _docstrings(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Those of modules, classes and functions, and those below a name."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                yield one, str(one.value.value).strip()


def _unplain(text: str, tree: ast.AST) -> Iterator[str]:
    """First words of docstrings, and phrases of a whole file, that have a plainer word."""
    for node, words in _docstrings(tree):
        if found := NOT_FIRST.match(words):
            yield f"{getattr(node, 'lineno', 1)} begins with {found[0]!r}"
    for found in NOT_SAID.finditer(re.sub(r"\s+(?:# )?\s*", " ", text)):
        yield f" says {found[0]!r}"


def test_docstrings_begin_with_what_is_done_and_say_plain_words() -> None:
    broken = [
        f"{path.relative_to(SRC)}:{complaint}"
        for path, tree in _trees()
        for complaint in _unplain(path.read_text(encoding="utf-8"), tree)
    ]
    assert not broken


def test_nothing_can_run_what_it_reads() -> None:
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    broken = []
    for path, tree in _trees():
        for node in _nodes(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            if forbidden & {module.split(".")[0] for module in modules}:
                broken.append(f"{_where(path, node)} imports {modules}")
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                called = ast.unparse(node.func)
                if called in {"eval", "exec", "compile", "torch.load", "np.load", "numpy.load"}:
                    broken.append(f"{_where(path, node)} calls {called}")
    assert not broken


def _names(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every name that a module gives to something of its own."""
    for node in _nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node, node.name
        elif isinstance(node, ast.arg):
            yield node, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node, node.id


def _words(name: str) -> list[str]:
    """`GlobalModel`, `global_model` -> ["global", "model"]."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _forbidden_words(name: str) -> Iterator[str]:
    words = _words(name)
    for word in words:
        if word in NEVER and word not in ALLOWED:
            yield f"{name!r}: say {NEVER[word]!r}, not {word!r}"
    for pair in zip(words, words[1:], strict=False):
        if pair in TWO_WORDS:
            yield f"{name!r}: say {TWO_WORDS[pair]!r}, not {' '.join(pair)!r}"


def test_one_word_per_thing() -> None:
    broken = [
        f"{_where(path, node)} {complaint}"
        for path, tree in _trees()
        for node, name in _names(tree)
        if name not in OTHERS_WORDS
        for complaint in _forbidden_words(name)
    ]
    broken += [
        f"{path.relative_to(SRC)} {complaint}"
        for path in MODULES
        for complaint in _forbidden_words(path.stem)
    ]
    assert not broken


def test_the_word_check_sees_what_it_should() -> None:
    assert list(_forbidden_words("ClientTrainer")) and list(_forbidden_words("global_model"))
    assert not list(_forbidden_words("site_memory"))


ASK_A_TASK = {"tasks.py", "settings"}
ASK_A_KIND = {"kinds"}
TASK_NAMES = {"ner", "re", "bags"}


def _said(node: ast.AST) -> set[str]:
    """The strings that a comparison may be with."""
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)} & TASK_NAMES


def _asks_which_task(tree: ast.AST) -> Iterator[ast.AST]:
    """Comparisons of something called task with a name of one, and matches on it."""
    for node in _nodes(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            about = any("task" in ast.unparse(side).lower() for side in sides)
            if about and any(map(_said, sides)):
                yield node
        elif isinstance(node, ast.Match) and "task" in ast.unparse(node.subject).lower():
            yield node


def _asks_which_extractor(tree: ast.AST) -> Iterator[ast.AST]:
    """isinstance and issubclass of what is called an extractor."""
    for node in _nodes(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"isinstance", "issubclass"}
            and re.search(r"Extractor\b", ast.unparse(node.args[-1]))
        ):
            yield node


def test_nobody_asks_which_task_or_which_extractor_it_is() -> None:
    """What differs by task stands in tasks.py, and what differs by kind in kinds."""
    broken = []
    for path, tree in _trees():
        room = path.relative_to(SRC).parts[0]
        if room not in ASK_A_TASK:
            broken += [_where(path, node) for node in _asks_which_task(tree)]
        if room not in ASK_A_KIND:
            broken += [_where(path, node) for node in _asks_which_extractor(tree)]
    assert not broken


@each(
    "line",
    ['if settings.task == "ner": ...', 'x = 1 if "bags" != task else 2', 'task in ("re", "bags")',
     'found.get("task") == "re"', "isinstance(model, BagExtractor)",
     "isinstance(model, (bags.BagExtractor, RelationExtractor))"],
)  # fmt: skip
def test_the_check_of_tasks_and_extractors_sees_what_it_should(line: str) -> None:
    tree = ast.parse(line)
    assert [*_asks_which_task(tree), *_asks_which_extractor(tree)]
    for right in ("of == task", "learns == 'relations'", "isinstance(model, Trained)"):
        tree = ast.parse(right)
        assert not [*_asks_which_task(tree), *_asks_which_extractor(tree)]
