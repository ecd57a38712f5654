"""Using a model: the right key or a clear error, and never a model that silently knows no word."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cases import each
from confide.cli.options import ReadingOptions
from confide.errors import DataError, KeyFileError, MissingDataError, Note, RunError, SettingsError
from confide.federation.keys import new_key, read_key
from confide.jobs.loading import load
from confide.jobs.predict import evaluate, predict
from confide.runs import folder
from confide.runs.folder import RunFolder
from confide.runs.loading import release
from confide.runs.result import Result
from confide.runs.run import run
from confide.runs.sites import gather
from confide.serve.models import answer_of, serve_model
from confide.text.document import Document, Entity
from confide.text.formats import read
from contract.corpus import tiny, write_sites
from contract.learned import LEARNING, learned

TEXT = "The patient took aspirin and then had severe joint pain .\nCodeine was given again today ."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("alone"), "method=alone")


NOTED = "The patient took aspirin , without severe joint pain ."


def test_a_chain_with_context_says_what_is_absent(model: Path, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text(NOTED)
    (plain,) = predict(model, [note])
    (document,) = predict(f"{model}+context", [note])
    assert [replace(one, attributes=()) for one in document.entities] == list(plain.entities)
    assert {document.surface(one): one.said("assertion") for one in document.entities} == {
        "aspirin": "present", "severe joint pain": "absent",
    }  # fmt: skip
    nlp = load([model, "context"])
    assert nlp.finds == ("entities", "attributes")
    assert [one.attributes["assertion"] for one in nlp(NOTED).entities] == ["present", "absent"]
    assert ", absent)" in repr(nlp(NOTED)) and " absent</span>" in nlp(NOTED)._repr_html_()
    drug, *_ = nlp.only(["Drug"])(NOTED).to_dict()["entities"]
    assert drug["attributes"] == {"assertion": "present"}
    served = answer_of(serve_model("a", nlp).annotate([Document("a", NOTED)])[0])
    assert served["entities"][1]["attributes"] == (("assertion", "absent"),)


def test_context_alone_is_for_files_with_entities(note: Path, tmp_path: Path) -> None:
    pain, cough = Entity("T1", "Effect", ((3, 7),)), Entity("T2", "Effect", ((9, 14),))
    said = [replace(pain, attributes=(("assertion", "absent"),)),
            replace(cough, attributes=(("assertion", "present"),))]  # fmt: skip
    gold = Document("a", "No pain, cough.", (*said, Entity("T3", "Mark", ((14, 15),))))
    assert predict("context", [replace(gold, entities=(pain,))])[0].entities == (said[0],)
    scores = evaluate("context", [gold])
    assert (scores["micro"]["precision"], scores["micro"]["support"]) == (0.5, 2)
    absent = evaluate("context", [gold], types=["absent"])["micro"]
    assert (absent["precision"], absent["recall"], absent["support"]) == (0.5, 1.0, 1)
    with pytest.raises(DataError, match="no entity in this text"):
        predict("context", [note])
    with pytest.raises(DataError, match="no entity has the attribute 'assertion'"):
        evaluate("context", [replace(gold, entities=(pain,))])
    with pytest.raises(SettingsError, match="own names"):
        evaluate("context", [gold], names={"absent": "no"})
    with pytest.raises(SettingsError, match="does not find every wanted type"):
        predict("context", [gold], types=["denied"])
    with pytest.raises(RunError, match="context"):
        (tmp_path / "context").mkdir()
        predict(tmp_path / "context", [gold])


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text(TEXT)
    return path


def found(documents: list[Document]) -> list[tuple[str, str]]:
    return [(d.surface(entity), entity.type) for d in documents for entity in d.entities]


def test_raw_text_comes_back_annotated(model: Path, note: Path) -> None:
    (document,) = predict(model, [note])
    assert document.text == TEXT
    assert ("aspirin", "Drug") in found([document])
    assert all(0 < (entity.confidence or 0) <= 1 for entity in document.entities)


def test_predicting_imports_its_own_method_and_kind_alone(model: Path, note: Path) -> None:
    program = (
        "import sys\n"
        "from confide.cli import main\n"
        f"sys.argv = ['confide', 'predict', {str(model)!r}, {str(note)!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(*sorted(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = done.stdout.splitlines()[-1].split()
    own = [name for name in names if name.startswith("confide.")]
    assert len(own) <= 115, "predict waits for each of these"
    assert [name for name in own if name.startswith("confide.methods.")] == [
        "confide.methods.fedavg", "confide.methods.method", "confide.methods.noise",
    ]  # fmt: skip
    others = ("bags", "lightner", "linear", "relations.site", "spans")
    idle = {*(f"confide.kinds.{one}" for one in others), "confide.federation.secure.server"}
    idle |= {"confide.runs.sites", "confide.corpora", "cryptography", "torch.onnx", "transformers"}
    assert not idle & {*names}


def test_standard_input_is_a_document(
    model: Path, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert found(predict(model, ["-"])) == found(predict(model, [note]))


def test_annotations_of_the_source_are_left_out(model: Path) -> None:
    path = model.parent / "data" / "site-1" / "test.conll"
    gold = read(path, "conll").documents
    predicted = predict(model, [path])
    assert [d.text for d in predicted] == [d.text for d in gold]
    assert all(entity.confidence is not None for d in predicted for entity in d.entities)
    assert found(predicted) == found(gold)


def test_a_tagger_has_nothing_for_int8(model: Path) -> None:
    with pytest.raises(SettingsError, match="int8 is for the large linear layers of an encoder"):
        load(model, int8=True)
    with pytest.raises(SettingsError, match="int8 is for the large linear layers of an encoder"):
        ReadingOptions(int8=True).models(model, None)


def test_loaded_models_may_stand_in_place_of_a_run(model: Path, note: Path) -> None:
    assert predict(load(model).models, [note]) == predict(model, [note])


def test_the_same_file_twice_gets_two_names(model: Path, note: Path) -> None:
    documents = predict(model, [note, note])
    assert len({document.id for document in documents}) == 2


def test_the_files_of_a_run_are_read_once(
    tmp_path: Path, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = learned(tmp_path, "method=pseudo-complete")  # so that what its sites annotate matters
    seen: list[str] = []
    real, real_read = folder.parse, Result.read
    monkeypatch.setattr(
        folder, "parse", lambda *tree, **where: seen.append("settings") or real(*tree, **where)
    )
    monkeypatch.setattr(Result, "read", lambda path: seen.append("result") or real_read(path))
    evaluate(apart, [tmp_path / "data" / "site-1" / "test.conll"], site="site-1")
    assert sorted(seen) == ["result", "settings"]


def test_evaluation_is_that_of_the_run(model: Path) -> None:
    site = model.parent / "data" / "site-2"
    scored = evaluate(model, [site / "test.conll"], site="site-2")
    assert scored["strict"] == RunFolder(model).result().scores.sites["site-2"]["strict"]
    assert scored["strict"]["f1"] > 0.8
    with pytest.raises(DataError, match="nothing to score against"):
        (model.parent / "bare.txt").write_text("nothing here .")
        evaluate(model, [model.parent / "bare.txt"])


def test_only_what_is_wanted_is_labelled_and_scored(
    model: Path, note: Path, tmp_path: Path
) -> None:
    site = model.parent / "data" / "site-2" / "test.conll"
    assert {type for _, type in found(predict(model, [note]))} == {"Drug", "Effect"}
    assert {type for _, type in found(predict(model, [note], types=["Effect"]))} == {"Effect"}
    every = evaluate(model, [site], types=["Effect", "Drug"])
    assert every == evaluate(model, [site])
    scored = evaluate(model, [site], types=["Drug"])
    assert scored["strict"]["types"].keys() == {"Drug"}
    drug, same = (one["strict"]["types"]["Drug"]["support"] for one in (scored, every))
    assert drug == same
    nlp = load(model)
    assert nlp.only(["Drug"]).entity_types == load(model, types=["Drug"]).entity_types == ("Drug",)
    assert found([nlp.only(["Drug"])(TEXT).document]) == found(
        predict(model, [note], types=["Drug"])
    )
    effects = tmp_path / "effects.conll"
    effects.write_text("pain\tB-Effect\n")
    with pytest.raises(DataError, match="no entity in these files has a wanted type") as told:
        evaluate(model, [effects], types=["Drug"])
    assert "they hold Effect" in told.value.fix
    for wrong in (["Drug", "Pain"], []):
        with pytest.raises(SettingsError, match="expected Drug, Effect"):
            predict(model, [note], types=wrong)


def test_a_site_may_want_some_types_alone(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "data")
    sites[0]["types"] = ["Drug"]
    done = run(tiny(tmp_path, *LEARNING, site=sites), out=tmp_path / "run")
    scores = done.result.scores
    assert scores.sites["site-1"]["strict"]["types"].keys() == {"Drug"}
    assert scores.sites["site-2"]["strict"]["types"].keys() == {"Drug", "Effect"}
    file = tmp_path / "data" / "site-1" / "test.conll"
    assert (
        evaluate(done.folder, [file], site="site-1")["strict"] == scores.sites["site-1"]["strict"]
    )
    predicted = found(predict(done.folder, [file], site="site-1"))
    assert {type for _, type in predicted} == {"Drug"}
    assert {type for _, type in found(predict(done.folder, [file]))} == {"Drug", "Effect"}
    both = predict(done.folder, [file], site="site-1", types=["Drug", "Effect"])
    assert {type for _, type in found(both)} == {"Drug", "Effect"}


def test_a_site_that_wants_what_nobody_annotates_takes_no_part(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "data", 4)
    sites[0]["types"] = ["Drug", "Pain"]
    done = run(tiny(tmp_path, "federation.at_least=3", site=sites), out=tmp_path / "run")
    assert done.result.left_out == {"site-1": "type-unknown"}


def test_a_model_of_file_tokens_warns_of_raw_text_that_has_others(
    tmp_path: Path, note: Path
) -> None:
    """A compound is one word in columns, and three in raw text."""
    sites = write_sites(tmp_path / "data")
    for site in sites:
        path = Path(site["train"])
        path.write_text(path.read_text().replace("aspirin\t", "aspirin-like\t"))
    old = run(tiny(tmp_path, 'data.train_on="file tokens"', site=sites), out=tmp_path / "old")
    counts = [one.words_cut for one in old.result.data.sites.values()]
    words, cut = (sum(one[name] for one in counts) for name in ("words", "cut"))
    assert 0.02 < cut / words < 1
    with pytest.warns(Note, match=f"{100 * cut / words:.0f} % of the words"):
        predict(old.folder, [note])
    columns = Path(sites[0]["train"])
    predict(old.folder, [columns])  # has the tokens that the model learnt; a warning is an error
    new = run(tiny(tmp_path, site=sites), out=tmp_path / "new")
    assert all(one.words_cut["cut"] == 0 for one in new.result.data.sites.values())
    predict(new.folder, [note])
    came = read(columns, "conll").documents
    predicted = predict(new.folder, [columns])
    assert [one.sentences for one in predicted] == [one.sentences for one in came]


def test_what_is_not_there_is_said(model: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="none\\.txt"):
        predict(model, [tmp_path / "none.txt"])
    with pytest.raises(RunError, match="not the folder of a run"):
        predict(tmp_path, [tmp_path / "none.txt"])
    with pytest.raises(RunError, match=r"no site 'site-9'; expected site-1, site-2"):
        predict(model, [tmp_path / "none.txt"], site="site-9")
    with pytest.raises(DataError, match="no document"):
        predict(model, [])


# --- keys ----------------------------------------------------------------------------------


def test_another_key_is_an_error_and_not_a_model_that_knows_no_word(
    model: Path, note: Path, tmp_path: Path
) -> None:
    other = new_key(tmp_path / "other.key")
    with pytest.raises(KeyFileError, match=r"other\.key: .*not the key.*--key.*confide release"):
        predict(model, [note], key=other)
    with pytest.raises(KeyFileError, match="not the key"):
        evaluate(model, [note], key=other)
    with pytest.raises(KeyFileError, match="not the key"):
        release(model, out=tmp_path / "out", key=other)
    assert not (tmp_path / "out").exists()


def test_a_missing_key_is_an_error(model: Path, note: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"nowhere\.key: this model knows its words by key"):
        predict(model, [note], key=tmp_path / "nowhere.key")
    copy = shutil.copytree(model, tmp_path / "copy")
    settings = (copy / "settings.toml").read_text()
    key = RunFolder(model).key_file(RunFolder(model).settings())
    (copy / "settings.toml").write_text(settings.replace(str(key), str(tmp_path / "gone.key")))
    with pytest.raises(KeyFileError, match=r"gone\.key.*no key file"):
        predict(copy, [note])
    assert found(predict(copy, [note], key=key)) == found(predict(model, [note]))


# --- alone -----------------------------------------------------------------------------------


def test_alone_has_a_model_for_each_site(alone: Path, note: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"a model of its own.*--site: site-1, site-2"):
        predict(alone, [note])
    with pytest.raises(RunError, match="a model of its own"):
        release(alone, out=tmp_path / "out")
    for site in ("site-1", "site-2"):
        scored = evaluate(alone, [alone.parent / "data" / site / "test.conll"], site=site)
        assert scored["strict"] == RunFolder(alone).result().scores.sites[site]["strict"]


# --- releases ----------------------------------------------------------------------------------


@each("site", ["site-1", "site-2"])
def test_a_release_needs_no_key_and_finds_the_same_in_the_sites_own_text(
    model: Path, tmp_path: Path, site: str
) -> None:
    out = release(model, out=tmp_path / "released", site=site)
    own = model.parent / "data" / site / "train.conll"
    keyed, clear = predict(model, [own]), predict(out, [own])
    assert found(keyed)
    assert [d.entities for d in clear] == [d.entities for d in keyed]
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors", "calibration.json", "reading.json", "README.md",
    }  # fmt: skip


def test_a_release_of_all_knows_all_words(model: Path, tmp_path: Path, note: Path) -> None:
    out = release(model, out=tmp_path / "released")
    files = [model.parent / "data" / site / "train.conll" for site in ("site-1", "site-2")]
    assert [d.entities for d in predict(out, files)] == [d.entities for d in predict(model, files)]
    assert ("aspirin", "Drug") in found(predict(out, [note]))
    assert evaluate(out, files)["strict"]["f1"] > 0.9


@pytest.mark.parametrize("character", ["bilstm", "none"])
def test_other_character_parts_are_released_too(tmp_path: Path, character: str) -> None:
    model = learned(tmp_path, f"model.character={character}")
    out = release(model, out=tmp_path / "released", site="site-1")
    own = tmp_path / "data" / "site-1" / "train.conll"
    keyed = predict(model, [own])
    assert found(keyed)
    assert [d.entities for d in predict(out, [own])] == [d.entities for d in keyed]


def test_paths_may_be_strings(model: Path, tmp_path: Path, note: Path) -> None:
    secret = read_key(RunFolder(model).key_file(RunFolder(model).settings()))
    key = str(new_key(str(tmp_path / "again.key"), secret))
    out = release(str(model), out=str(tmp_path / "released"), key=key)
    assert found(predict(str(out), [note])) == found(predict(str(model), [note], key=key))


def test_a_release_of_one_site_of_alone(alone: Path, tmp_path: Path) -> None:
    out = release(alone, out=tmp_path / "released", site="site-2")
    own = alone.parent / "data" / "site-2" / "train.conll"
    keyed = predict(alone, [own], site="site-2")
    assert [d.entities for d in predict(out, [own])] == [d.entities for d in keyed]


def test_a_release_is_not_overwritten_or_mixed_up(model: Path, tmp_path: Path) -> None:
    out = release(model, out=tmp_path / "released", site="site-1")
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="already a release in this folder"):
        release(model, out=out, site="site-2")
    assert (out / "model.safetensors").read_bytes() == before
    with pytest.raises(RunError, match="no site 'site-9'"):
        release(model, out=tmp_path / "other", site="site-9")


def test_a_damaged_release_is_refused(model: Path, tmp_path: Path, note: Path) -> None:
    from confide.errors import MessageError

    out = release(model, out=tmp_path / "released", site="site-1")
    path = out / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(MessageError):
        predict(out, [note])


def test_only_rows_of_words_that_can_be_named_are_released(model: Path, tmp_path: Path) -> None:
    """What other sites' words have learnt stays behind with their digests."""
    from confide.federation.messages import decode
    from confide.kinds import KINDS
    from confide.kinds.protocol import release_message

    path = release(model, out=tmp_path / "released", site="site-1") / "model.safetensors"
    message = decode(release_message(KINDS["tagger"]), path.read_bytes())
    settings = RunFolder(model).settings()
    gathered = gather(settings, tmp_path, key_file=RunFolder(model).key_file(settings))
    text = " ".join(document.text for document in gathered.specs[0].train).lower()
    assert "warda" in message.words
    assert "wardb" not in message.words
    assert all(word in text for word in message.words)
    assert len(message.weights["word.weight"]) == len(message.words) + 2


def test_types_that_the_model_cannot_find_are_named(model: Path, tmp_path: Path) -> None:
    """Their 0.0 was printed without a word."""
    known, other = tmp_path / "known.conll", tmp_path / "other.conll"
    known.write_text("Took\tO\naspirin\tB-Drug\n")
    other.write_text("Took\tO\naspirin\tB-Medicine\nagain\tB-Drug\n")
    assert "unknown" not in evaluate(model, [known])
    assert evaluate(model, [other])["unknown"] == ["Medicine"]


def test_files_without_a_type_of_the_model_are_refused_and_can_be_renamed(
    model: Path, tmp_path: Path
) -> None:
    """It printed a table of zeros."""
    known, other = tmp_path / "known.conll", tmp_path / "other.conll"
    known.write_text("Took\tO\naspirin\tB-Drug\nagain\tO\n")
    other.write_text("Took\tO\naspirin\tB-DRUG\nagain\tB-Time\n")
    with pytest.raises(DataError) as caught:
        evaluate(model, [other])
    said = str(caught.value)
    for words in ("Drug, Effect", "in the files: DRUG, Time", "--as DRUG=Drug", "--site"):
        assert words in said
    renamed = evaluate(model, [other], names={"DRUG": "Drug", "Time": ""})
    assert renamed == evaluate(model, [known])
    with pytest.raises(SettingsError, match=r"does not know the type 'Medicine'.*Drug, Effect"):
        evaluate(model, [other], names={"DRUG": "Medicine"})
    with pytest.raises(SettingsError, match="no entity has the type 'Drag'"):
        evaluate(model, [other], names={"Drag": "Drug"})
