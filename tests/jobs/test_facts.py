"""Trained models of bags in use: facts with their sentences, scores of files, releases, reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from confide.cli.verbs import app
from confide.errors import KeyFileError, RunError, SettingsError
from confide.federation.keys import new_key
from confide.jobs.comparison import compare
from confide.jobs.predict import COLUMNS, evaluate, facts, predict
from confide.report.folder import errors_of
from confide.runs.loading import release
from confide.runs.run import RunResult, run
from confide.text.document import NO_RELATION
from confide.text.formats import read
from contract.corpus import tiny
from contract.learned import learned

ROUNDS = ("rounds=3", "select.every=1", "training.local_epochs=3")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("bags")
    settings = tiny(folder, "method=lazy-mil-bags", *ROUNDS)
    return run(settings, out=folder / "run")


@pytest.fixture(scope="module")
def files(done: RunResult) -> list[str]:
    return [str(path) for path in sorted((done.folder.parent / "data").glob("site-1/test*"))]


def test_files_are_scored_as_the_site_was(done: RunResult, files: list[str]) -> None:
    found = evaluate(done.folder, files)
    assert found.pop("unknown") == []
    assert found.pop("confidences").startswith("Confidences are calibrated on")
    assert found == done.result.scores.sites["site-1"]
    assert found["auc"] > 0.6


def test_facts_have_their_sentences_best_first(done: RunResult, files: list[str]) -> None:
    found = facts(done.folder, files)
    texts = {document.id: document.text for path in files for document in read(path).documents}
    assert [one.confidence for one in found] == sorted((f.confidence for f in found), reverse=True)
    assert len({(one.head, one.tail) for one in found}) == len(found)
    for one in found:
        assert one.relation != NO_RELATION
        scores = [sentence.score for sentence in one.sentences]
        assert scores == sorted(scores, reverse=True)
        assert one.confidence == pytest.approx(max(scores), abs=1e-6)  # the best sentence's
        assert one.head_name in texts[one.sentences[0].document]
        assert all(sentence.text in texts[sentence.document] for sentence in one.sentences)
    several = facts(done.folder, files, threshold=0.2)
    assert min(one.confidence for one in several) >= 0.2
    assert {(f.head, f.relation) for f in found if f.confidence > 0.2} <= {
        (f.head, f.relation) for f in several
    }


def test_documents_get_the_relation_of_their_bag(done: RunResult, files: list[str]) -> None:
    said = {(f.head, f.tail): (f.relation, f.confidence) for f in facts(done.folder, files)}
    seen = set()
    for document in predict(done.folder, files):
        concepts = {entity.id: entity.concepts[0] for entity in document.entities}
        for relation in document.relations:
            pair = concepts[relation.head], concepts[relation.tail]
            assert said[pair] == (relation.type, pytest.approx(relation.confidence))
            seen.add(pair)
    assert seen == said.keys()


def test_the_command_writes_a_table_or_json_lines(
    done: RunResult, files: list[str], tmp_path: Path
) -> None:
    found = facts(done.folder, files)
    shown = CliRunner().invoke(app, ["predict", str(done.folder), *files, "--to", "facts"])
    head, *rows = [line.split("\t") for line in shown.stdout.splitlines()]
    assert tuple(head) == COLUMNS
    assert rows == [list(one.row()) for one in found]
    out = tmp_path / "facts.jsonl"
    words = ["predict", str(done.folder), *files, "--to", "facts-jsonl", "--out", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(one["sentences"]) for one in records] == [len(one.sentences) for one in found]
    assert "mean P@N" in CliRunner().invoke(app, ["evaluate", str(done.folder), *files]).stdout


def test_a_release_finds_the_same_without_run_and_key(
    done: RunResult, files: list[str], tmp_path: Path
) -> None:
    made = release(done.folder, out=tmp_path / "released")
    assert {path.name for path in made.iterdir()} == {
        "bags.safetensors", "calibration.json", "README.md",
    }  # fmt: skip
    assert facts(made, files) == facts(done.folder, files)
    with pytest.raises(RunError, match="already a release"):
        release(done.folder, out=made)


def test_another_key_is_refused(done: RunResult, files: list[str], tmp_path: Path) -> None:
    new_key(tmp_path / "other.key")
    with pytest.raises(KeyFileError):
        facts(done.folder, files, key=tmp_path / "other.key")


def test_entities_may_be_those_that_a_recogniser_finds(
    done: RunResult, files: list[str], tmp_path: Path
) -> None:
    entities = learned(tmp_path / "ner")
    chain = [done.folder, entities]
    assert isinstance(facts(chain, files, names={"Effect": "Pain"}), list)
    with pytest.raises(SettingsError, match="between annotated entities"):
        evaluate(chain, files, names={"Effect": "Pain"})
    with pytest.raises(RunError, match="finds no facts"):
        facts(entities, files)


def test_a_site_keeps_its_worst_bags_and_what_each_counted(done: RunResult) -> None:
    for site, found in done.result.scores.sites.items():
        own = done.folder / "sites" / site
        errors = json.loads((own / "errors.json").read_text())
        assert (errors["site"], errors["task"]) == (site, "bags")
        for bag in errors_of(errors).worst:
            assert bag.predicted not in bag.gold
            assert bag.gold or bag.predicted != NO_RELATION
            scores = [sentence.score for sentence in bag.sentences]
            assert None not in scores and scores == sorted(scores, reverse=True)
        counted = json.loads((own / "sentences.json").read_text())["best"]
        assert len(counted) == found["bags"]
        micro = found["micro"]
        sums = [sum(column) for column in zip(*counted, strict=True)]
        assert sums == [micro["true"], micro["predicted"], micro["support"]]
    same = compare(done.folder, done.folder)
    assert (same.unit, same.matching, same.overall.difference) == ("bags", "best", 0)
