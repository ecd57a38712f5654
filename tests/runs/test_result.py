"""result.json: one reader, one writer; what is read is written again byte for byte."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import RunError
from confide.files import MOST_JSON
from confide.runs.folder import RunFolder
from confide.runs.result import RESULT, SCHEMA, Result, RoundRecord, Scores
from confide.tasks import TASKS
from contract.corpus import tiny
from contract.runs import steady
from report.folders import bag_result, relation_result, result

WHOLE = {
    "schema": 1,
    "task": "ner",
    "seconds": 2,  # an int where others have a float
    "new": {"in": ["a", "later", {"version": None}]},
    "scores": {"overall": {"strict": {"f1": 1, "types": {"types": {"f1": 0.5}}}, "own": [1]}},
    "history": [
        {
            "pseudo": 3,  # a method's own, before and between the others
            "round": 1,
            "model_dump": 4,
            "loss": 0.25,
            "_keys": [],
            "bytes": {"down": 3, "up": 2},
            "faults": [{"why": "late", "site": "a", "step": "train", "code": "timeout", "x": 1}],
        }
    ],
    "copy": 2,
}


def written(folder: Path, tree: object) -> Path:
    (folder / RESULT).write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return folder


def with_value(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """A whole result with one value changed."""
    tree: Any = copy.deepcopy(WHOLE)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return tree


@each(
    "tree",
    [
        WHOLE,
        {"schema": 1},
        result("fedavg", 0.8),
        relation_result("feded", 9),
        bag_result("lazy-mil", 1.0),
        {"schema": 1, "method": "alone", "scores": {"sites": {}}, "dev": None, "history": []},
        *(
            {"schema": 1, "task": task, "dev": scoring.scores(scoring.nothing)}
            for task, scoring in TASKS.items()
        ),
    ],
)
def test_what_is_read_is_written_again(tmp_path: Path, tree: dict[str, Any]) -> None:
    found = Result.read(written(tmp_path, tree))
    text = json.dumps(json.loads(json.dumps(tree)), indent=1) + "\n"
    assert found.to_json() == text
    found.write(tmp_path)
    assert (tmp_path / RESULT).read_text() == text
    assert Result.read(tmp_path) == found


def test_what_an_older_one_does_not_say_has_a_default(tmp_path: Path) -> None:
    found = Result.read(written(tmp_path, {"schema": 1, "history": [{"round": 2}]}))
    assert (found.task, found.method, found.rounds, found.bytes) == ("ner", "?", None, None)
    assert (found.scores.overall, found.data.sites, found.best_rounds) == ({}, {}, {})
    (turn,) = found.history
    assert (turn.round, turn.dev, turn.failed, turn.faults, turn.bytes) == (2, None, {}, [], None)


def test_it_is_typed(tmp_path: Path) -> None:
    found = Result.read(written(tmp_path, relation_result("feded", 9)))
    assert found.history[0].dev is not None and found.history[0].dev["micro"] > 0
    assert found.data.sites["practice"].relations["treats"] == 70
    assert found.data.public is not None and found.data.public.documents == 55
    assert found.scores.overall["micro"]["support"] > 0
    assert found.bytes is not None and found.bytes.up["practice"] == 168_000
    with pytest.raises(ValueError, match="frozen"):
        found.seed = 2  # type: ignore[misc]


def test_a_copy_is_written_with_what_it_got(tmp_path: Path) -> None:
    found = Result.read(written(tmp_path, WHOLE)).model_copy(update={"seed": 7})
    assert list(json.loads(found.to_json())) == [*WHOLE, "seed"]


def test_a_run_that_is_made_here_has_the_keys_in_the_order_they_are_given() -> None:
    made = Result(
        schema=SCHEMA, seed=3, method="fedavg", history=[RoundRecord(round=1, seconds=2.0)]
    )
    assert json.loads(made.to_json()) == {
        "schema": 1, "seed": 3, "method": "fedavg", "history": [{"round": 1, "seconds": 2.0}],
    }  # fmt: skip
    assert list(json.loads(made.to_json())) == ["schema", "seed", "method", "history"]


@each(
    ("path", "value", "says"),
    [
        (("seed",), "x", r"result\.json: this is not the result.*a whole number at seed; got 'x'"),
        (("seconds",), True, r"expected a number at seconds; got True"),
        (("seconds",), float("nan"), r"a finite number at seconds; got nan"),
        (("seconds",), float("-inf"), r"a finite number at seconds; got -inf"),
        (("seconds",), 10**400, r"expected a number at seconds; got 1000.*…"),
        (("rounds",), 1 << 63, r"less than 9223372036854775808 at rounds; got 9223372036854775808"),
        (("rounds",), -1, r"at least 0 at rounds; got -1"),
        (("best_rounds",), [], r"an object at best_rounds; got a list"),
        (("history",), {}, r"a list at history; got an object"),
        (("history", 0, "round"), None, r"a whole number at history\[0\]\.round; got None"),
        (("history", 0), {"seconds": 1}, r"a value at history\[0\]\.round; got none"),
        (("history", 0, "faults", 0, "site"), 1, r"text at history\[0\]\.faults\[0\]\.site; got 1"),
        (
            ("history", 0, "bytes", "up"),
            1.5,
            r"a whole number at history\[0\]\.bytes\.up; got 1\.5",
        ),
        (("history", 0, "dev"), {"strict": "a"}, r"number at history\[0\]\.dev\.strict; got 'a'"),
        (("scores", "overall", "strict"), 3, r"an object at scores\.overall\.strict; got 3"),
        (("scores", "overall", "strict", "f1"), "1", r"at scores\.overall\.strict\.f1; got '1'"),
        (("scores", "overall", "strict", "types", "types"), 1, r"object at .*types\.types; got 1"),
        (("scores", "sites"), {"a\x1b[2J": 3}, r"object at scores\.sites\.a\?\[2J; got 3"),
        (
            ("scores", "overall", "curve"),
            [[0.5]],
            r"at least 2 items at scores\.overall\.curve\[0\]",
        ),
        (("dev",), [], r"an object at dev; got a list"),
        (("data",), {"sites": {"a": {"train": "many"}}}, r"at data\.sites\.a\.train; got 'many'"),
        (("schema",), 0, r"at least 1 at schema; got 0"),
        (("schema",), True, r'expected a "schema" number'),
        (("schema",), 2, r"newer confide.*schema 1 or older; got schema 2.*upgrade"),
        (("schema",), 10**60, r"newer confide.*got schema 1000.*…"),
        (("task",), "qa", r"ner or re or bags; got 'qa'.*upgrade"),
        (("task",), ["ner"], r"got \['ner'\]"),
    ],
)
def test_the_first_wrong_value_is_named(
    tmp_path: Path, path: tuple[Any, ...], value: object, says: str
) -> None:
    with pytest.raises(RunError, match=says) as caught:
        Result.read(written(tmp_path, with_value(path, value)))
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


@each(
    ("text", "says"),
    [
        ("", "cannot be read as JSON"),
        ("[1]", "does not hold a JSON object"),
        ("[" * 100_000, "nested deeper than 64"),
        ('{"schema": 1, "new": ' + "[" * 70 + "]" * 70 + "}", "nested deeper than 64"),
        ('{"schema": 1, "seconds": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        ("\udcff", "cannot be read as JSON"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / RESULT).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=rf"not the result of a run.*{says}"):
        Result.read(tmp_path)


def test_neither_a_pipe_nor_a_file_without_end_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RESULT)
    with pytest.raises(RunError, match="a named pipe"):
        Result.read(tmp_path)
    (tmp_path / RESULT).unlink()
    with open(tmp_path / RESULT, "wb") as file:
        file.truncate(MOST_JSON + 1)
    with pytest.raises(RunError, match="larger than 64 MiB"):
        Result.read(tmp_path)


def test_a_run_that_goes_on_has_no_result(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match=r"not finished.*--resume"):
            Result.read(folder)


def test_a_number_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a finite number at seconds; got inf"):
        Result.read(written(tmp_path, '{"schema": 1, "seconds": 1e999}'))


def test_a_loss_may_be_no_number(tmp_path: Path) -> None:
    text = json.dumps(with_value(("history", 0, "loss"), float("nan")), indent=1) + "\n"
    assert Result.read(written(tmp_path, text)).to_json() == text


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
NAMES = st.sampled_from(
    [
        *Result.model_fields,
        "schema",
        *RoundRecord.model_fields,
        "overall",
        "sites",
        "strict",
        "up",
        "x",
    ]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, TREES, max_size=6))
def test_whatever_is_in_the_file_it_is_a_result_or_refused(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]
) -> None:
    folder = written(tmp_path_factory.mktemp("run"), {"schema": 1, **tree})
    try:
        found = Result.read(folder)
    except RunError:
        return
    text = json.dumps(json.loads((folder / RESULT).read_text()), indent=1) + "\n"
    assert found.to_json() == text


def test_a_run_gives_what_it_writes(tmp_path: Path) -> None:
    from confide.runs.run import run

    done = run(tiny(tmp_path, "rounds=1", "method=alone"), out=tmp_path / "run")
    assert (done.folder / RESULT).read_text() == done.result.to_json()
    assert RunFolder(done.folder).result() == done.result
    assert steady(done.result.model_dump())["history"][0]["sites"] == ["site-1", "site-2", "site-3"]
    scores: Scores = done.result.scores.overall
    assert 0 <= scores["strict"]["f1"] <= 1


def test_it_needs_nothing_heavy() -> None:
    code = (
        "import sys; import confide.runs.result;"
        "assert not {'torch', 'matplotlib'} & sys.modules.keys();"
        "import confide.runs.folder; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_of_several_wrong_values_the_first_is_named(tmp_path: Path) -> None:
    tree = {**with_value(("history", 0, "round"), "x"), "parameters": "many"}
    with pytest.raises(RunError, match=r"a whole number at history\[0\]\.round; got 'x'"):
        Result.read(written(tmp_path, tree))
