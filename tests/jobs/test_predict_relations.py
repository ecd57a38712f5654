"""Relations of trained models: between entities that are there, and between those just found."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from confide.errors import ConfideError, DataError, KeyFileError, Note, RunError, SettingsError
from confide.federation.keys import new_key
from confide.jobs import predict as module
from confide.jobs.predict import Models, evaluate, predict
from confide.kinds.relations.batches import Rules
from confide.runs.folder import RunFolder
from confide.runs.loading import release
from confide.runs.run import run
from confide.scoring.calibration import AS_IS, Calibrator
from confide.settings import parse
from confide.text.document import Document, Entity, Relation
from confide.text.formats import read, write
from contract.corpus import DRUGS
from contract.learned import learned
from training.encoders import tiny_bert

TEXT = "The aspirin took the nausea .\nThe codeine head the nausea ."


# --- trained models -----------------------------------------------------------------------


def sentence(draw: random.Random, name: str) -> Document:
    """A drug "took" an effect, which it causes, or "head" one, which it does not."""
    drug, cue, effect = (
        draw.choice(words) for words in (DRUGS, ("took", "head"), ("nausea", "rash"))
    )
    text = f"{draw.choice(('the ', 'a ', ''))}{drug} {cue} the {effect} ."
    places = [(text.index(word), text.index(word) + len(word)) for word in (drug, effect)]
    entities = tuple(
        Entity(f"T{n}", kind, (place,))
        for n, (kind, place) in enumerate(zip(("DRUG", "EFFECT"), places, strict=True), 1)
    )
    causes = (Relation("R1", "causes", "T1", "T2"),) if cue == "took" else ()
    return Document(name, text, entities, causes)


def related(folder: Path, *overrides: str) -> Path:
    """The folder of a run that tells the two apart."""
    encoder = tiny_bert(folder / "encoder", initializer_range=0.2)
    sites = []
    for site in ("site-1", "site-2"):
        table: dict[str, Any] = {"name": site}
        for part, count in (("train", 40), ("dev", 10), ("test", 10)):
            draw = random.Random(f"{site}{part}")
            table[part] = str(folder / f"{site}-{part}.jsonl")
            write([sentence(draw, f"{part}-{n}") for n in range(count)], table[part], "jsonl")
        sites.append(table)
    training = {"learning_rate": 0.003, "local_epochs": 4, "batch_size": 8}
    tree = {
        "task": "re", "method": "fedavg", "rounds": 4, "training": training, "site": sites,
        "classifier": {"encoder": str(encoder), "max_length": 28},
    }  # fmt: skip
    return run(parse(tree, overrides), out=folder / "re").folder


@pytest.fixture(scope="module")
def ner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("ner"))


@pytest.fixture(scope="module")
def re(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return related(tmp_path_factory.mktemp("related"))


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text(TEXT)
    return path


def facts(documents: Sequence[Document]) -> list[tuple[str, str, str]]:
    found = []
    for document in documents:
        by_id = {entity.id: document.surface(entity) for entity in document.entities}
        found += [(by_id[one.head], one.type, by_id[one.tail]) for one in document.relations]
    return found


def test_a_chain_finds_relations_between_the_entities_that_it_found(
    ner: Path, re: Path, note: Path
) -> None:
    (document,) = predict(f"{ner}+{re}", [note])
    (alone,) = predict(ner, [note])
    assert document.entities == alone.entities and len(alone.entities) == 4
    assert facts([document]) == [("aspirin", "causes", "nausea")]
    for one in document.relations:
        assert 1 / 2 < (one.confidence or 0) <= 1
    assert [document] == predict([re, str(ner)], [note]) == predict(f"{re}+{ner}", [note])
    assert not alone.relations


def test_the_output_holds_both_confidences(ner: Path, re: Path, note: Path, tmp_path: Path) -> None:
    documents = predict([ner, re], [note])
    (found, *_) = documents[0].relations
    for format, out in (("jsonl", tmp_path / "out.jsonl"), ("brat", tmp_path / "brat")):
        write(documents, out, format)
        (again,) = read(out, format).documents
        assert again.relations == documents[0].relations
        assert again.entities == documents[0].entities
    write(documents, tmp_path / "out.tsv", "table")
    _, *rows = (tmp_path / "out.tsv").read_text().splitlines()
    assert len(rows) == len(documents[0].relations)
    start = "aspirin\tDrug\tcauses\tnausea\tEffect\tThe aspirin took the nausea .\t"
    assert rows[0].startswith(start)
    assert f"\t{found.confidence:.4f}\t" in rows[0]


def test_a_relation_run_keeps_entities_and_replaces_relations(re: Path, tmp_path: Path) -> None:
    text = "aspirin took the rash ."
    ends = (Entity("A", "DRUG", ((0, 7),), concepts=("C1",)), Entity("B", "EFFECT", ((17, 21),)))
    wrong = Relation("X", "prevents", "B", "A")
    write([Document("n", text, ends, (wrong,))], tmp_path / "n.jsonl", "jsonl")
    (document,) = predict(re, [tmp_path / "n.jsonl"])
    assert document.entities == ends
    assert [(one.type, one.head, one.tail) for one in document.relations] == [("causes", "A", "B")]


def test_evaluation_of_a_relation_run_is_that_of_the_run(re: Path) -> None:
    found = evaluate(re, [re.parent / "site-2-test.jsonl"])
    own = RunFolder(re).result().scores.sites["site-2"]
    assert found.pop("confidences").startswith("Confidences are calibrated on")
    assert found.pop("unknown") == []
    assert found == own
    assert found["micro"]["f1"] > 0.9


def test_evaluation_of_a_chain_counts_entities_and_relations(ner: Path, re: Path) -> None:
    """Texts of the relation corpus: its gold types are the relation model's."""
    files = [re.parent / f"site-{n}-test.jsonl" for n in (1, 2)]
    found = evaluate([ner, re], files)
    gold = [document for file in files for document in read(file).documents]
    assert found["entities"]["strict"]["support"] == sum(len(d.entities) for d in gold)
    assert set(found["entities"]["strict"]["types"]) == {"DRUG", "EFFECT"}
    assert found["relations"]["strict"]["support"] == sum(len(d.relations) for d in gold)
    predicted = predict([ner, re], files)
    agree = sum(
        set(facts([one])) == set(facts([other])) != set()
        for one, other in zip(gold, predicted, strict=True)
    )
    assert found["relations"]["strict"]["true"] == agree > 0
    assert found["relations"]["relaxed"]["true"] >= agree


def test_the_words_of_a_relation_model_are_not_keyed(
    ner: Path, re: Path, note: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(re, tmp_path / "copy")
    for key in copy.rglob("*.key"):
        key.unlink()
    assert facts(predict([ner, copy], [note])) == facts(predict([ner, re], [note]))
    with pytest.raises(KeyFileError, match=r"other\.key: .*not the key"):
        predict([ner, copy], [note], key=new_key(tmp_path / "other.key"))
    assert predict(copy, [re.parent / "site-1-test.jsonl"], key=tmp_path / "other.key")


def test_a_site_may_be_one_of_one_run_only(
    re: Path, note: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = learned(tmp_path_factory.mktemp("alone"), "method=alone", sites=3)
    with pytest.raises(RunError, match=r"--site: site-1, site-2, site-3"):
        predict([alone, re], [note])
    assert predict([alone, re], [note], site="site-3")[0].entities
    with pytest.raises(RunError, match="no site 'site-9'"):
        predict([alone, re], [note], site="site-9")


def test_alone_has_a_relation_model_for_each_site(ner: Path, note: Path, tmp_path: Path) -> None:
    alone = related(tmp_path, "method=alone", "rounds=2")
    with pytest.raises(RunError, match=r"a model of its own.*--site: site-1, site-2"):
        predict([ner, alone], [note])
    for site in ("site-1", "site-2"):
        found = evaluate(alone, [tmp_path / f"{site}-test.jsonl"], site=site)
        assert found["micro"] == RunFolder(alone).result().scores.sites[site]["micro"]
    one, two = (predict([ner, alone], [note], site=site)[0] for site in ("site-1", "site-2"))
    assert one.entities == two.entities and one.relations != two.relations


# --- releases ---------------------------------------------------------------------------------


def test_a_release_of_a_relation_run_finds_the_same(
    ner: Path, re: Path, note: Path, tmp_path: Path
) -> None:
    out = release(re, out=tmp_path / "released")
    assert {path.name for path in out.iterdir()} == {
        "relations.safetensors", "calibration.json", "README.md",
    }  # fmt: skip
    both = f"{release(ner, out=tmp_path / 'words')}+{out}"
    assert facts(predict(both, [note])) == facts(predict([ner, re], [note]))
    assert predict(f"{ner}+{out}", [note]) == predict([ner, re], [note])
    files = [re.parent / "site-1-test.jsonl"]
    assert evaluate(out, files) == evaluate(re, files)
    with pytest.raises(RunError, match="already a release in this folder"):
        release(ner, out=out)
    with pytest.raises(RunError, match="two models find relations"):
        predict([out, re], [note])


def test_a_release_of_feded_holds_no_public_text(note: Path, tmp_path: Path) -> None:
    public = [sentence(random.Random(f"p{n}"), f"p{n}") for n in range(20)]
    text = "heparin took the nausea canary ."
    ends = (Entity("T1", "DRUG", ((0, 7),)), Entity("T2", "EFFECT", ((17, 23),)))
    write([*public, Document("p", text, ends)], tmp_path / "public.jsonl", "jsonl")
    files = f'public.files=["{tmp_path / "public.jsonl"}"]'
    feded = related(tmp_path, "method=feded", files, "rounds=1")
    assert any(b"canary" in path.read_bytes() for path in feded.rglob("*.ckpt"))
    out = release(feded, out=tmp_path / "released")
    assert b"canary" not in (out / "relations.safetensors").read_bytes()
    test = [tmp_path / "site-1-test.jsonl"]
    assert facts(predict(out, test)) == facts(predict(feded, test))


def test_a_release_needs_the_very_encoder(re: Path, note: Path, tmp_path: Path) -> None:
    """The marks' rows stand behind those of the vocabulary that was trained with."""
    copy = shutil.copytree(re.parent, tmp_path / "copy")
    out = release(copy / "re", out=tmp_path / "released")
    file = out / "relations.safetensors"
    other = str(tmp_path / "another")[: len(str(re.parent))].ljust(len(str(re.parent)), "x")
    file.write_bytes(file.read_bytes().replace(str(re.parent).encode(), other.encode()))
    with pytest.raises(ConfideError, match="no such folder"):
        predict(out, [re.parent / "site-1-test.jsonl"])


# --- which runs are meant -----------------------------------------------------------------


def test_a_folder_with_a_plus_in_its_name_is_that_folder(
    ner: Path, re: Path, note: Path, tmp_path: Path
) -> None:
    plus = shutil.copytree(ner, tmp_path / "dev+test")
    assert predict(plus, [note]) == predict(str(plus), [note]) == predict(ner, [note])
    assert facts(predict(Path(f"{plus}+{re}"), [note])) == facts(predict([ner, re], [note]))


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ("{ner}+{ner}", "two models recognise entities.*NER_RUN.RE_RUN"),
        ("{ner}+{re}+{re}", "two models find relations"),
        ("{ner}+{tmp}/none", "none: this is not the folder of a run"),
        ("{ner}+", r"\+: this is not the folder of a run"),
        ("+", "not the folder of a run"),
    ],
)
def test_other_chains_are_refused(ner: Path, re: Path, note: Path, pieces: str, said: str) -> None:
    with pytest.raises(RunError, match=said):
        predict(pieces.format(ner=ner, re=re, tmp=note.parent), [note])
    with pytest.raises(RunError, match="no run is named"):
        predict([], [note])


# --- types and thresholds -----------------------------------------------------------------


@dataclass
class Linker:
    """Relates every two entities that its rules allow, surely if they are neighbours."""

    finds: ClassVar[str] = "relations"
    calibrator: ClassVar[Calibrator] = AS_IS
    types: tuple[str, ...] = ("CHEMICAL", "GENE")
    rules: Rules = Rules(types=frozenset({("CHEMICAL", "GENE")}))  # noqa: RUF009
    relations: tuple[str, ...] = ("no-relation", "binds")

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        from confide.kinds.relations.batches import candidates

        self.seen = {entity.type for document in documents for entity in document.entities}
        found = candidates([replace(one, relations=()) for one in documents], self.rules)
        links: list[list[Relation]] = [[] for _ in documents]
        for one in found.examples:
            own = links[one.document]
            gap = one.tail[0][0] - one.head[0][1]
            sure = 0.9 if 0 <= gap <= 1 else 0.6
            own.append(Relation(f"R{len(own) + 1}", "binds", *one.pair, confidence=sure))
        return [
            replace(one, relations=tuple(own)) for one, own in zip(documents, links, strict=True)
        ]


@pytest.fixture
def linker(monkeypatch: pytest.MonkeyPatch) -> Linker:
    made = Linker()

    def opened(*args: Any, **options: Any) -> Models:
        return Models(None, made, {}, {})  # type: ignore[arg-type]

    monkeypatch.setattr(module, "open_models", opened)
    return made


def marked(folder: Path, text: str, *types: str) -> Path:
    """A file with one document whose words have these types; "" has none."""
    path, entities, at = folder / "marked.jsonl", [], 0
    for number, (word, kind) in enumerate(zip(text.split(), types, strict=True), 1):
        if kind:
            entities.append(Entity(f"T{number}", kind, ((at, at + len(word)),)))
        at += len(word) + 1
    write([Document("d", text, tuple(entities))], path, "jsonl")
    return path


def test_names_that_agree_but_for_case_are_matched(linker: Linker, tmp_path: Path) -> None:
    path = marked(tmp_path, "x y z", "Chemical", "gene", "")
    (document,) = predict("re", [path])
    assert facts([document]) == [("x", "binds", "y")]
    assert [entity.type for entity in document.entities] == ["Chemical", "gene"]


def test_other_names_are_given_or_left_out(linker: Linker, tmp_path: Path) -> None:
    path = marked(tmp_path, "x y z", "Drug", "Gene", "Age")
    with pytest.raises(DataError) as caught:
        predict("re", [path])
    said = str(caught.value)
    assert all(part in said for part in ("CHEMICAL and GENE", "Age, Drug, Gene", "--as"))
    with pytest.warns(Note) as told:
        (document,) = predict("re", [path], names={"Drug": "CHEMICAL"})
    assert facts([document]) == [("x", "binds", "y")]
    assert [entity.type for entity in document.entities] == ["Drug", "Gene", "Age"]
    assert linker.seen == {"CHEMICAL", "GENE"}
    (line,) = map(str, [one.message for one in told])
    assert "Age" in line and "Drug" not in line
    predict("re", [path], names={"Drug": "CHEMICAL", "Age": ""})  # a warning would be an error


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"Drugs": "CHEMICAL"}, "no entity has the type 'Drugs'.*expected Drug, Gene"),
        ({"Drug": "Chem"}, "does not know the type 'Chem'.*expected CHEMICAL, GENE"),
    ],
)
def test_names_that_nobody_has_are_refused(
    linker: Linker, tmp_path: Path, types: Mapping[str, str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        predict("re", [marked(tmp_path, "x y", "Drug", "Gene")], names=types)


def test_files_without_entities_need_a_chain(linker: Linker, note: Path) -> None:
    with pytest.raises(DataError, match=r"no entity in these files.*NER_RUN\+RE_RUN"):
        predict("re", [note])


def test_a_threshold_leaves_out_relations(linker: Linker, tmp_path: Path) -> None:
    path = marked(tmp_path, "x y and z", "CHEMICAL", "GENE", "", "GENE")
    assert len(facts(predict("re", [path]))) == 2
    assert facts(predict("re", [path], threshold=0.7)) == [("x", "binds", "y")]
    assert len(facts(predict("re", [path], threshold=0.6))) == 2
    assert facts(predict("re", [path], threshold=1)) == []
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(SettingsError, match="from 0 to 1"):
            predict("re", [path], threshold=wrong)


@pytest.mark.parametrize(("options", "said"), [({"threshold": 0.5}, "--threshold"),
                                               ({"names": {"A": "B"}}, "--as")])  # fmt: skip
def test_options_of_relations_need_relations(
    ner: Path, note: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=f"{said} is for relations"):
        predict(ner, [note], **options)


# --- end to end ---------------------------------------------------------------------------


@dataclass
class Finder:
    """Finds what it is told to find in the document of each name."""

    finds: dict[str, tuple[Entity, ...]]
    calibrator: ClassVar[Calibrator] = AS_IS

    @property
    def types(self) -> tuple[str, ...]:
        return tuple({entity.type for entities in self.finds.values() for entity in entities})

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        return [replace(one, entities=self.finds[one.id], relations=()) for one in documents]


def entity(name: str, kind: str, start: int, end: int) -> Entity:
    return Entity(name, kind, ((start, end),), confidence=0.9)


def test_end_to_end_a_relation_is_true_only_if_its_entities_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exact; too short; of another type; not found; found where nothing holds."""
    text = "zinc finger and iron"
    gold = (entity("A", "chemical", 0, 4), entity("B", "Gene", 5, 11))
    other = entity("C", "Chemical", 16, 20)
    holds = (Relation("R", "binds", "A", "B"),)
    documents = [
        Document(name, text, entities, relations)
        for name, entities, relations in (
            ("exact", gold, holds),
            ("short", gold, holds),
            ("type", gold, holds),
            ("none", gold, holds),
            ("more", (gold[1], other), ()),
        )
    ]
    finds = {
        "exact": (entity("T1", "Chemical", 0, 4), entity("T2", "Gene", 5, 11)),
        "short": (entity("T1", "Chemical", 0, 4), entity("T2", "Gene", 5, 8)),
        "type": (entity("T1", "Gene", 0, 4), entity("T2", "Gene", 5, 11)),
        "none": (),
        "more": (entity("T1", "Gene", 5, 11), entity("T2", "Chemical", 16, 20)),
    }
    models = Models(Finder(finds), Linker(), {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(module, "open_models", lambda *args, **options: models)
    write(documents, tmp_path / "gold.jsonl", "jsonl")
    found = evaluate("ner+re", [tmp_path / "gold.jsonl"])
    strict, relaxed = found["relations"]["strict"], found["relations"]["relaxed"]
    assert [strict[key] for key in ("true", "predicted", "support")] == [1, 3, 4]
    assert [relaxed[key] for key in ("true", "predicted", "support")] == [2, 3, 4]
    assert strict["types"]["binds"]["f1"] == pytest.approx(2 / 7)
    entities = found["entities"]["strict"]
    assert [entities[key] for key in ("true", "predicted", "support")] == [6, 8, 10]
    assert set(entities["types"]) == {"CHEMICAL", "GENE"}


def test_files_without_a_relation_of_the_model_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pair = (entity("A", "Chemical", 0, 4), entity("B", "Gene", 5, 11))
    document = Document("one", "zinc finger", pair, (Relation("R", "eases", "A", "B"),))
    models = Models(None, Linker(), {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(module, "open_models", lambda *args, **options: models)
    write([document], tmp_path / "gold.jsonl", "jsonl")
    with pytest.raises(DataError, match=r"no relation in common.*model's: binds.*files: eases"):
        evaluate("re", [tmp_path / "gold.jsonl"])


def test_gold_relations_that_no_pair_covers_are_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "zinc finger"
    ends = (entity("A", "CHEMICAL", 0, 4), entity("B", "GENE", 5, 11))
    wrong_way = (Relation("R", "binds", "B", "A"),)
    models = Models(Finder({"d": ends}), Linker(), {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(module, "open_models", lambda *args, **options: models)
    write([Document("d", text, ends, wrong_way)], tmp_path / "gold.jsonl", "jsonl")
    strict = evaluate("ner+re", [tmp_path / "gold.jsonl"])["relations"]["strict"]
    assert [strict[key] for key in ("true", "predicted", "support")] == [0, 1, 1]
    write([Document("d", text, ends)], tmp_path / "gold.jsonl", "jsonl")
    with pytest.raises(DataError, match="no relation is annotated"):
        evaluate("ner+re", [tmp_path / "gold.jsonl"])


def test_the_pairs_that_a_file_states_are_not_those_of_found_entities(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = (entity("T1", "CHEMICAL", 0, 4), entity("T2", "GENE", 5, 11))
    stated = Document("d", "zinc finger", attributes=(("pair", "X Y"), ("ward", "b")))
    models = Models(Finder({"d": ends}), Linker(), {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(module, "open_models", lambda *args, **options: models)
    (tmp_path / "d.jsonl").write_text(
        json.dumps({"id": "d", "text": stated.text, "attributes": stated.attributes})
    )
    (document,) = predict("ner+re", [tmp_path / "d.jsonl"])
    assert facts([document]) == [("zinc", "binds", "finger")]
    assert document.attributes == (("ward", "b"),)


def test_names_of_a_site_are_put_on_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = Models(None, Linker(), {"Med": "CHEMICAL"}, {"verbindet": "binds", "?": ""})  # type: ignore[arg-type]
    monkeypatch.setattr(module, "open_models", lambda *args, **options: models)
    ends = (entity("A", "Med", 0, 4), entity("B", "GENE", 5, 11))
    relations = (Relation("R", "verbindet", "A", "B"), Relation("S", "?", "B", "A"))
    write([Document("d", "zinc finger", ends, relations)], tmp_path / "d.jsonl", "jsonl")
    found = evaluate("re", [tmp_path / "d.jsonl"])
    assert found["micro"]["f1"] == 1.0 and found["missed"] == {}
