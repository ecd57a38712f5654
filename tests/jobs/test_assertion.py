"""A classifier of assertions, trained federated from i2b2's files; in a chain behind a recogniser.

The sentences are made: no word of them is i2b2's.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confide.errors import DataError, RunError, SettingsError
from confide.jobs.loading import load
from confide.jobs.predict import evaluate, predict
from confide.runs.folder import RunFolder
from confide.runs.loading import release
from confide.runs.run import run
from confide.runs.sites import gather
from confide.settings import parse
from confide.text.document import Document, Entity, attributes_as_relations, relations_as_attributes
from confide.text.formats import read, write
from contract.learned import learned
from training.encoders import tiny_bert

SAID = {"the": "present", "took": "absent", "head": "possible"}
"""The word before a problem decides."""
PROBLEMS = ("nausea", "rash", "joint pain")


def write_notes(folder: Path, name: str, count: int) -> str:
    """Notes as i2b2/VA 2010 has them: text, concepts, assertions of the problems among them."""
    folder.mkdir(parents=True)
    draw = random.Random(name)
    for number in range(count):
        rows, concepts, assertions = [], [], []
        for line in (1, 2):
            cue, problem = draw.choice(sorted(SAID)), draw.choice(PROBLEMS)
            words = ["aspirin", *draw.choices((".", "patient"), k=draw.randint(0, 2)), cue]
            place = f"{line}:{len(words)} {line}:{len(words) + len(problem.split()) - 1}"
            rows.append(" ".join([*words, problem, "."]))
            concept = f'c="{problem}" {place}||t="problem"'
            concepts += [concept, f'c="aspirin" {line}:0 {line}:0||t="treatment"']
            assertions.append(f'{concept}||a="{SAID[cue]}"')
        for ending, lines in (("txt", rows), ("con", concepts), ("ast", assertions)):
            (folder / f"{number}.{ending}").write_text("\n".join(lines) + "\n")
    return str(folder)


def settings(folder: Path, **more: Any) -> Any:
    """Settings of a run of two sites."""
    encoder = tiny_bert(folder / "encoder", initializer_range=0.2)
    sites = [
        {"name": site}
        | {part: write_notes(folder / site / part, f"{site} {part}", count)
           for part, count in (("train", 24), ("dev", 6), ("test", 6))}
        for site in ("north", "south")
    ]  # fmt: skip
    return parse({
        "task": "re",
        "method": "fedavg",
        "rounds": 3,
        "pairs": {"attribute": "assertion"},
        "classifier": {"encoder": str(encoder), "max_length": 32, "dropout": 0.0},
        "training": {"learning_rate": 0.01, "batch_size": 6, "local_epochs": 2},
        "site": sites,
        **more,
    })  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assertions")
    return run(settings(folder), out=folder / "run").folder


def test_it_is_learnt_from_files_of_i2b2_and_scored_by_value(trained: Path, tmp_path: Path) -> None:
    result = RunFolder(trained).result()
    assert result.scores.overall["micro"]["f1"] > 0.9
    assert set(result.scores.overall["micro"]["types"]) == {"absent", "possible", "present"}
    assert result.data.sites["north"].relations.keys() == {"absent", "possible", "present"}
    notes = write_notes(tmp_path / "new", "new", 8)
    scores = evaluate(trained, [notes])
    assert scores["micro"]["f1"] > 0.9 and scores["micro"]["support"] == 16
    rules = evaluate("context", [notes])["micro"]  # they know none of these cues
    assert rules["types"]["absent"]["recall"] == 0 < rules["types"]["present"]["recall"] == 1


def test_it_speaks_of_the_entities_of_its_type_and_leaves_the_rest(
    trained: Path, tmp_path: Path
) -> None:
    text = "aspirin took nausea ."
    drug = Entity("T1", "treatment", ((0, 7),), attributes=(("dose", "1"),))
    pain = Entity("T2", "problem", ((13, 19),))
    note = Document("n", text, (drug, pain), attributes=(("ward", "a"),))
    (found,) = predict(trained, [note])
    said = replace(pain, attributes=(("assertion", "absent"),))
    assert found.entities == (drug, said) and found.attributes == note.attributes
    other = replace(note, entities=(replace(pain, type="Disease"), replace(pain, id="T3")))
    assert [one.said("assertion") for one in predict(trained, [other])[0].entities] == [
        "absent"
    ] * 2
    path = tmp_path / "brat"
    write([found], path, "brat")
    assert "A2\tassertion T2 absent\n" in (path / "n.ann").read_text()
    assert read(path).documents[0].entities == found.entities
    (few,) = predict(trained, [note], types=["present", "possible"])
    assert few.entities[1].said("assertion") in ("present", "possible")
    # a flag is a relation of its name
    said = Entity("T1", "sign", ((0, 4),), attributes=(("Negated", ""), ("x", "y")))
    note = Document("n", "pain cough", (said, Entity("T2", "sign", ((5, 10),))))
    turned = attributes_as_relations(note, "Negated")
    assert [(one.type, one.head, one.tail) for one in turned.relations] == [("Negated", "T1", "T1")]
    again = relations_as_attributes(replace(note, entities=(said,)), "Negated", turned)
    assert set(again.entities[0].attributes) == set(said.attributes)


def test_it_stands_behind_a_recogniser_in_a_chain_and_its_release_too(
    trained: Path, tmp_path: Path
) -> None:
    entities = learned(tmp_path / "ner")
    text = "The patient took severe joint pain ."
    nlp = load(f"{trained}+{entities}")
    assert nlp.finds == ("entities", "attributes")
    found = nlp(text)
    assert {one.text: one.attributes["assertion"] for one in found.entities} == {
        "severe joint pain": "absent"
    }
    out = release(trained, out=tmp_path / "out")
    assert load([entities, out])(text).to_dict() == found.to_dict()
    assert json.loads(json.dumps(found.to_dict()))["entities"][0]["attributes"]
    for both in ([trained, out], [trained, "context", entities]):
        with pytest.raises(RunError, match="two models give entities an attribute"):
            load(both)


@pytest.mark.slow
def test_methods_for_relations_train_it_as_it_is(tmp_path: Path) -> None:
    """Weights, predictions of a public set, a layer of each site's own, completed labels."""
    public = {"files": write_notes(tmp_path / "public", "public", 20)}
    ways: dict[str, dict[str, Any]] = {
        "feded": {"public": public},
        "fedner": {},
        "pseudo-complete": {},
        "pooled": {},
    }
    for method, more in ways.items():
        given = settings(tmp_path / method, method=method, rounds=2, **more)
        result = run(given, out=tmp_path / method / "run")
        scores = RunFolder(result.folder).result().scores.overall
        assert scores["micro"]["support"] == 24, method
        note = Document("n", "took nausea .", (Entity("T1", "problem", ((5, 11),)),))
        (said,) = predict(result.folder, [note], site="north")
        assert said.relations == () and {key for key, _ in said.entities[0].attributes} <= {
            "assertion"
        }, method


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'pairs\.attribute is for task = "re"'):
        settings(tmp_path / "ner", task="ner")
    other = settings(tmp_path / "other", pairs={"attribute": "polarity"})
    with pytest.raises(DataError, match="has the attribute 'polarity'"):
        run(other, out=tmp_path / "run")


def test_values_that_are_text_never_leave_as_names(tmp_path: Path) -> None:
    """Settings that come from elsewhere may name an attribute that holds an annotator's notes."""
    many = [f"value{n}" for n in range(21)]
    for values in (["says that Mrs Smith has no rash"], ["x" * 61], many):
        marks = tuple(
            Entity(f"T{n}", "sign", ((0, 4),), attributes=(("note", value),))
            for n, value in enumerate(values)
        )
        write([Document("n", "Rash", marks)], tmp_path / "a.jsonl", "jsonl")
        site = {"name": "north", "train": str(tmp_path / "a.jsonl")}
        tree = {"task": "re", "pairs": {"attribute": "note"}, "site": [site]}
        with pytest.raises(DataError, match="they would leave the site") as caught:
            gather(parse(tree), tmp_path, key_file=None)
        assert "Smith" not in str(caught.value)
        renamed = dict.fromkeys(values, "said")
        assert gather(
            parse({**tree, "site": [{**site, "relations": renamed}]}), tmp_path, key_file=None
        )
