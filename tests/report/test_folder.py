"""Run folders are read whole, and refused in words where they cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cases import each
from confide.errors import RunError
from confide.report.folder import load_run, load_runs, task_of, totals
from report.folders import SITES, errors, ledger, relation_result, result, write_run


def test_a_run_is_read_whole(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, result("fedavg", 0.8), ledger=ledger()))
    assert run.sites == list(SITES)
    assert run.overall["strict"]["f1"] == 0.8
    assert run.bytes("up") == sum(run.bytes("up", site) for site in SITES) == 10_803_000
    assert totals(run.ledger, lambda line: line.direction) == {"up": 1_861_440, "down": 1_800_000}
    assert run.environment["cores"] == 2
    assert 'method = "fedavg"' in run.settings


def test_parts_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"schema": 1, "method": "fedavg"}')
    run = load_run(tmp_path)
    assert (run.sites, run.history, run.overall, run.ledger, run.errors) == ([], [], {}, (), ())
    assert run.bytes("up") == 0


def test_the_ledgers_of_sites_alone_are_joined(tmp_path: Path) -> None:
    for site in SITES:
        write_run(tmp_path / "alone" / site, {}, ledger=ledger((site,)))
    run = load_run(write_run(tmp_path, result("alone", 0.8)))
    assert {line.site for line in run.ledger} == set(SITES)


def test_bytes_that_the_result_does_not_say_are_the_ledgers(tmp_path: Path) -> None:
    said = {key: value for key, value in result("fedavg", 0.8).items() if key != "bytes"}
    run = load_run(write_run(tmp_path, said, ledger=ledger()))
    assert (run.bytes("up"), run.bytes("down")) == (1_861_440, 1_800_000)
    assert run.senders == list(SITES)
    for site in SITES:
        lines = [line for line in run.ledger if line.site == site and line.direction == "up"]
        assert run.bytes("up", site) == sum(line.bytes for line in lines) > 0


def test_failed_sites_are_counted(tmp_path: Path) -> None:
    made = result("fedavg", 0.8)
    made["history"][2]["failed"] = {"oncology": "not-finite"}
    made["history"][5]["failed"] = {"oncology": "timeout", "practice": "timeout"}
    assert load_run(write_run(tmp_path, made)).failed == {"oncology": 2, "practice": 1}


def test_labels_tell_runs_apart(tmp_path: Path) -> None:
    methods = ("alone", "fedavg", "fedavg")
    paths = [
        write_run(tmp_path / f"run{n}", result(method, 0.7)) for n, method in enumerate(methods)
    ]
    assert [run.label for run in load_runs(paths[:2])] == ["alone", "fedavg"]
    assert [run.label for run in load_runs(paths)] == [
        "alone (run0)", "fedavg (run1)", "fedavg (run2)"
    ]  # fmt: skip
    assert [run.label for run in load_runs(paths[:1])] == ["demo: alone"]
    same = load_runs([paths[0], paths[0]])
    assert len({run.label for run in same}) == 2


def test_text_is_left_unread(tmp_path: Path) -> None:
    folder = write_run(tmp_path, result("fedavg", 0.8), errors=[errors("oncology")])
    assert [found.site for found in load_run(folder).errors] == ["oncology"]
    (folder / "sites/oncology/errors.json").write_text("not even JSON")
    assert load_run(folder, text=False).errors == ()


@each(
    ("file", "content", "says"),
    [
        ("result.json", None, "not finished"),
        ("result.json", "{", "cannot be read as JSON"),
        ("result.json", "[1]", "does not hold a JSON object"),
        ("result.json", "{}", "not the result of a run"),
        ("result.json", '{"schema": 1, "task": "qa"}', "re or bags; got 'qa'.*upgrade"),
        ("result.json", '{"schema": 2}', "newer confide.*schema 1.*schema 2.*upgrade"),
        ("ledger.jsonl", '{"round": 1}\n', r"ledger\.jsonl:1: a line of the ledger is damaged"),
        ("ledger.jsonl", "\n[]\n", r"ledger\.jsonl:2"),
        ("environment.json", "\udcff", "cannot be read"),
        ("settings.toml", "\udcff", "cannot be read"),
    ],
)
def test_a_damaged_run_is_refused(
    tmp_path: Path, file: str, content: str | None, says: str
) -> None:
    write_run(tmp_path, result("fedavg", 0.8), ledger=ledger())
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=says):
        load_run(tmp_path)


def test_no_folder_and_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such run folder"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match="no run to report on"):
        load_runs([])


def test_a_ledger_with_a_half_line_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, result("fedavg", 0.8))
    (tmp_path / "ledger.jsonl").write_text(json.dumps(ledger()[0]) + '\n{"round": 1, "st')
    with pytest.raises(RunError, match=r"ledger\.jsonl:2"):
        load_run(tmp_path)


def test_the_task_says_which_kinds_of_scores_there_are(tmp_path: Path) -> None:
    entities = load_run(write_run(tmp_path / "e", result("fedavg", 0.8)))  # says no task: older
    relations = load_run(write_run(tmp_path / "r", relation_result("feded", 30)))
    assert (entities.task, entities.scoring.kinds) == ("ner", ("strict", "relaxed"))
    assert (relations.task, relations.scoring.kinds) == ("re", ("micro", "macro"))
    assert relations.overall["micro"]["support"] == 333
    with pytest.raises(RunError, match=r"\(ner\) and .*\(re\): these runs have different tasks"):
        load_runs([entities.path, relations.path])
    assert task_of([]) == "ner"


def test_bytes_of_a_round_are_the_mean(tmp_path: Path) -> None:
    made = result("fedavg", 0.8, rounds=2)
    made["history"][1]["bytes"] = {"up": 100_000, "down": 0}
    run = load_run(write_run(tmp_path, made))
    assert (run.bytes_per_round("up"), run.bytes_per_round("down")) == (500_000, 450_000)
    made["history"] = []
    assert load_run(write_run(tmp_path / "none", made)).bytes_per_round("up") is None
