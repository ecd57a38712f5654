"""A classifier of assertions, trained federated from i2b2's files; in a chain behind a recogniser.

The sentences are made: no word of them is i2b2's.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import DataError, FormatError, RunError, SettingsError
from confide.federation.ledger import read_ledger
from confide.jobs.audit import audit
from confide.jobs.initialise import Wishes, init
from confide.jobs.loading import load
from confide.jobs.personalise import personalise
from confide.jobs.predict import evaluate, predict
from confide.runs.folder import RunFolder
from confide.runs.loading import release
from confide.runs.run import run
from confide.runs.sites import gather
from confide.settings import load_settings, parse
from confide.text.document import Document, Entity, attributes_as_relations, relations_as_attributes
from confide.text.formats import read, write
from contract.corpus import DRUGS, tiny
from contract.learned import learned
from contract.runs import states, without_masks
from runs.test_start_from import last_of
from training.encoders import tiny_bert

SAID = {"the": "present", "took": "absent", "head": "possible"}
"""The word before a problem decides."""
PROBLEMS = ("nausea", "rash", "joint pain")
MASKED = {"sums": "masked"}


def write_notes(
    folder: Path, name: str, count: int, *, fillers: Sequence[str] = (".", "patient")
) -> str:
    """Notes as i2b2/VA 2010 has them: text, concepts, assertions of the problems among them."""
    folder.mkdir(parents=True)
    draw = random.Random(name)
    for number in range(count):
        rows, concepts, assertions = [], [], []
        for line in (1, 2):
            cue, problem = draw.choice(sorted(SAID)), draw.choice(PROBLEMS)
            words = ["aspirin", *draw.choices(fillers, k=draw.randint(0, 2)), cue]
            place = f"{line}:{len(words)} {line}:{len(words) + len(problem.split()) - 1}"
            rows.append(" ".join([*words, problem, "."]))
            concept = f'c="{problem}" {place}||t="problem"'
            concepts += [concept, f'c="aspirin" {line}:0 {line}:0||t="treatment"']
            assertions.append(f'{concept}||a="{SAID[cue]}"')
        for ending, lines in (("txt", rows), ("con", concepts), ("ast", assertions)):
            (folder / f"{number}.{ending}").write_text("\n".join(lines) + "\n")
    return str(folder)


def settings(
    folder: Path, *, held_out: int = 6, fillers: Sequence[str] = (".", "patient"), **more: Any
) -> Any:
    """Settings of a run of three sites if sums are masked, else of two."""
    encoder = tiny_bert(folder / "encoder", initializer_range=0.2)
    masked = more.get("federation") == MASKED
    sites = [
        {"name": site}
        | {part: write_notes(folder / site / part, f"{site} {part}", count, fillers=fillers)
           for part, count in (("train", 24), ("dev", held_out), ("test", held_out))}
        for site in ("north", "south", "west")[: 3 if masked else 2]
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
    said, ((name, sure),) = found.entities[1], found.entities[1].attribute_confidences
    assert name == "assertion" and 0.4 < sure < 1
    assert said == pain.with_attribute("assertion", "absent", confidence=sure)
    assert found.entities[0] == drug and found.attributes == note.attributes
    other = replace(note, entities=(replace(pain, type="Disease"), replace(pain, id="T3")))
    assert [one.said("assertion") for one in predict(trained, [other])[0].entities] == [
        "absent"
    ] * 2
    path = tmp_path / "brat"
    write([found], path, "brat")
    assert "A2\tassertion T2 absent\n" in (path / "n.ann").read_text()
    assert read(path).documents[0].entities == (drug, pain.with_attribute("assertion", "absent"))
    rows = tmp_path / "rows.jsonl"  # an attribute stays a pair, so that earlier versions read it
    assert (
        write([found], rows, "jsonl") == [] and read(rows).documents[0].entities == found.entities
    )
    assert json.loads(rows.read_text())["entities"][1]["attributes"] == [["assertion", "absent"]]
    (rules,) = predict("context", [found])  # which state none
    assert rules.entities[1].attribute_confidences == ()
    assert rules.entities[1].said("assertion") == "present"
    for odd in (2, "x", [["assertion"]], [["assertion", 2]], [[1, 0.5]], {"assertion": True}):
        row = {"text": "pain", "entities": [{"start": 0, "end": 4, "type": "a"}]}
        row["entities"][0]["attribute_confidences"] = odd  # type: ignore[index]
        rows.write_text(json.dumps(row))
        with pytest.raises(FormatError):
            read(rows)
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
    assert 0 < found.entities[0].attribute_confidences["assertion"] < 1
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


@pytest.mark.slow
def test_secure_sums_change_no_bit_of_the_sum_and_round_finer_than_scores_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring's whole numbers with masks and without are the same; plain floats are close.

    After one round: later ones train on from numbers that differ by the rounding.
    """
    given = settings(tmp_path, federation=MASKED, rounds=1)
    masked = run(given, out=tmp_path / "masked").folder
    plain = given.model_copy(update={"federation": settings(tmp_path / "2").federation})
    floats = run(plain, out=tmp_path / "plain").folder
    without_masks(monkeypatch)
    bare = run(given, out=tmp_path / "bare").folder
    assert states(bare) == states(masked)
    close, same = last_of(floats), last_of(masked)
    assert close.keys() == same.keys()
    for name, array in close.items():
        np.testing.assert_allclose(same[name], array, atol=2e-5, err_msg=name)
    scores = [RunFolder(one).result().scores.overall for one in (floats, masked)]
    assert scores[0] == scores[1] and scores[0]["micro"]["support"] == 36
    left = {row.seen for row in read_ledger(masked / "ledger.jsonl") if row.direction == "up"}
    assert "masked" in left and "sum" not in left


@pytest.mark.slow
def test_noise_has_an_account(tmp_path: Path) -> None:
    """The settings name everything, the values among them: no site tells what its text has."""
    noise = {
        "data": {"types": ["problem", "treatment"], "relations": sorted(SAID.values())},
        "pairs": {"attribute": "assertion", "types": [["problem", "problem"]]},
        "federation": MASKED,
        "guards": {"max_epsilon": 1000.0},
        "privacy": {"unit": "document", "noise": 2.0, "rate": 0.8, "rounds": 60, "units": 72},
        "rounds": 2,
    }
    for method in ("dp-fedsgd", "dp-fedner", "dp-feded"):
        public = {"public": {"files": write_notes(tmp_path / method / "public", "public", 20)}}
        more = public if method == "dp-feded" else {}
        given = settings(tmp_path / method, method=method, **noise, **more)
        found = run(given, out=tmp_path / method / "run").result
        assert found.privacy is not None and 0 < found.privacy.epsilon < 10, method
        assert found.privacy.rounds == 2
        note = Document("n", "took nausea .", (Entity("T1", "problem", ((5, 11),)),))
        (said,) = predict(tmp_path / method / "run", [note], site="north")
        assert {key for key, _ in said.entities[0].attributes} <= {"assertion"}


@pytest.mark.slow
def test_training_goes_on_alone_at_home_and_under_attack(tmp_path: Path) -> None:
    given = settings(tmp_path, held_out=24, fillers=(".", "patient", *DRUGS))
    before = run(given, out=tmp_path / "run").folder
    after = given.model_copy(update={"start_from": str(before), "rounds": 1})
    assert run(after, out=tmp_path / "after").result.scores.overall["micro"]["f1"] > 0.9
    for run_folder in (before, run(given.model_copy(update={"method": "alone", "rounds": 1}),
                                   out=tmp_path / "alone").folder):  # fmt: skip
        kept = personalise(run_folder, passes=1, alone=run_folder == before)
        assert kept.keys() == {"north", "south"}
        assert all(one.candidates["tuned"].test is not None for one in kept.values())
        assert evaluate(run_folder, [str(tmp_path / "north/test")], site="north")["micro"]
    found = audit(before, most=40, references=2).sites["north"]
    assert found.membership.units == "pairs" and 0 <= found.membership.auc.value <= 1
    relations = run(
        tiny(tmp_path / "re", "method=fedavg-relations", sites=2), out=tmp_path / "other"
    )
    same = {"encoder": RunFolder(relations.folder).settings().classifier.encoder, "max_length": 32}
    tree = {"classifier": same, "start_from": str(relations.folder)}
    with pytest.raises(SettingsError, match=r"learnt something else.*got relations between"):
        run(settings(tmp_path / "from", **tree), out=tmp_path / "from/run")


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'pairs\.attribute is for task = "re"'):
        settings(tmp_path / "ner", task="ner")
    with pytest.raises(SettingsError, match=r"pairs\.types name each type twice"):
        of_two = {"attribute": "assertion", "types": [["problem", "treatment"]]}
        settings(tmp_path / "two", pairs=of_two)
    other = settings(tmp_path / "other", pairs={"attribute": "polarity"})
    with pytest.raises(DataError, match="has the attribute 'polarity'"):
        run(other, out=tmp_path / "run")


def test_init_offers_attributes_and_writes_settings_that_learn_one(tmp_path: Path) -> None:
    """Of i2b2, of brat and of JSON; an attribute that holds text is not offered."""
    folders = [write_notes(tmp_path / site, site, 8) for site in ("north", "south")]
    for number in (0, 1):
        documents = read(folders[number]).documents
        brat, rows = str(tmp_path / f"brat-{number}"), str(tmp_path / f"rows-{number}.jsonl")
        write(documents, brat, "brat")
        note = ("note", "the mother says so")
        write([replace(one, entities=tuple(
            replace(mark, attributes=(*mark.attributes, note)) for mark in one.entities
        )) for one in documents], rows, "jsonl")  # fmt: skip
        folders += [brat, rows]
    for pair in (folders[:2], folders[2::2], folders[3::2]):
        plain = init(pair, out=tmp_path / "plain.toml", force=True)
        assert "not learnt: assertion; --attribute assertion writes settings" in plain.why
        assert parse(tomllib.loads(plain.settings)).task == "ner"
        wishes = Wishes(attribute="assertion")
        drafted = init(pair, out=tmp_path / "learns.toml", force=True, wishes=wishes)
        assert "16 entities with the attribute assertion: " in drafted.found
        found = load_settings(drafted.path)
        assert (found.task, found.pairs.attribute, found.method) == ("re", "assertion", "fedavg")
        gathered = gather(found, tmp_path, key_file=None)
        values = {
            one.type for spec in gathered.specs for doc in spec.train for one in doc.relations
        }
        assert values == {*SAID.values()}
    with pytest.raises(DataError, match="entities with the attribute 'polarity'"):
        init(folders[:1], out=tmp_path / "none.toml", wishes=Wishes(attribute="polarity"))
    with pytest.raises(SettingsError, match="does not count what is said of entities"):
        init((), out=tmp_path / "none.toml", survey=tmp_path / "s.json", wishes=wishes)


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
