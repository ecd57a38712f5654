"""Exports: the numbers of confide's own model, in the hands of other programs."""

from __future__ import annotations

import json
import random
from errno import EACCES, ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import DataError, RunError, SettingsError
from confide.jobs.export import ABOUT, MODEL, TARGETS, Copy, export, graph_of
from confide.kinds.relations.batches import candidates
from confide.kinds.relations.model import probabilities
from confide.runs.card import CARD
from confide.runs.loading import open_models, release
from confide.runs.run import run
from contract.corpus import DRUGS, EFFECTS, FILLERS, sentences, tiny
from contract.relations import documents


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs by name, trained when they are first asked for."""
    place = tmp_path_factory.mktemp("runs")

    class Runs(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            pair, *own = name.split()
            self[name] = place / str(len(self))
            run(tiny(place, f"method={pair}", *own), out=self[name])
            return self[name]

    return Runs()


def texts(count: int) -> list[list[str]]:
    """Tokens of sentences as the corpus has them, and words that it lacks."""
    draw = random.Random(5)
    words = [*DRUGS, *FILLERS, *(word for one in EFFECTS for word in one), "unseen", "Zq-1"]
    return [draw.choices(words, k=draw.randint(1, 14)) for _ in range(count)]


def test_what_it_tells_is_said_before_it_is_written(runs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra confide[onnx]")
    out, said = tmp_path / "out", list[str]()

    def say(sentence: str) -> None:
        assert not out.exists()
        said.append(sentence)

    export(runs["fedavg-tagger"], to="onnx", out=out, say=say)
    assert len(said) == 1 and "anyone who has this folder can read its word list" in said[0]
    assert {one.name for one in out.iterdir()} == {MODEL, ABOUT, "README.md"}
    card = (out / "README.md").read_text()
    assert "runs in any ONNX runtime" in card and "confide predict" not in card
    assert "## Privacy" in card and str(tmp_path) not in card
    about = json.loads((out / ABOUT).read_text())
    assert about["labels"][0] == "O" and "aspirin" in about["words"]
    assert about["calibration"].keys() == {"temperature", "offset", "finds"}


@pytest.mark.parametrize(
    "name",
    [
        "fedavg-tagger",
        "fedavg-tagger model.character=bilstm model.cnn_filters=4",
        "fedavg-encoder",
        "fedavg-relations",
        pytest.param("fedavg-tagger model.character=none", marks=pytest.mark.slow),
        pytest.param("fedavg-relations classifier.pool=cls", marks=pytest.mark.slow),
    ],
)
def test_onnx_gives_the_same_numbers(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    """On 1,000 sentences, or all pairs of as many, to 1e-4."""
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra confide[onnx]")
    copy = release(runs[name], out=tmp_path / "copy")
    out = export(copy, to="onnx", out=tmp_path / "out")
    models = open_models(copy)
    model: Any = models.entities or models.relations
    session = runtime.InferenceSession(out / MODEL, providers=["CPUExecutionProvider"])
    seen, away = 0, 0.0
    for inputs, ours, real in batches_of(model):
        reads = {one.name for one in session.get_inputs()}
        given = {key: value.numpy() for key, value in inputs.items() if key in reads}
        (said,) = session.run(None, given)
        away = max(away, float(np.abs(said - ours)[real].max()))
        seen += len(said)
    assert seen >= 200 and away < 1e-4
    assert json.loads((out / ABOUT).read_text())["largest_difference"] < 1e-4


def batches_of(model: Any) -> Any:
    """Inputs of a graph, the model's own numbers, and which of them count."""
    from confide.kinds.pieces import predict_relation_batches, predict_token_batches
    from confide.training.batches import Example
    from confide.training.tagger import predict_batches

    made, graph = model.trainer, graph_of(model)
    batches: Any
    if model.finds == "relations":
        found = candidates(documents("site-1", "test", 400), model.rules).examples
        encoded = made.prepared(found * (1 + 1000 // len(found)))
        batches = predict_relation_batches(encoded)
    else:
        text = made.prepared([Example(0, n, tuple(words)) for n, words in enumerate(texts(200))])
        tagger = hasattr(made, "words")
        batches = predict_batches(text) if tagger else predict_token_batches(text)
    fields = {
        "words": "words_BL", "lengths": "lengths_B", "forms": "forms_BL",
        "characters": "characters_UC", "character_lengths": "character_lengths_U",
        "input_ids": "ids_BP", "attention_mask": "mask_BP", "firsts": "firsts_BL",
        "head": "head_BP", "tail": "tail_BP", "openings": "openings_B2",
    }  # fmt: skip
    for batch in batches:
        inputs = {name: getattr(batch, fields[name]) for name in graph.axes}
        if "attention_mask" in inputs and inputs["attention_mask"] is None:
            inputs["attention_mask"] = torch.ones_like(batch.ids_BP)
        with torch.no_grad():
            ours = model.model(batch).numpy()
        real = np.ones(ours.shape[:-1], bool)
        if hasattr(batch, "lengths_B"):
            real = np.arange(ours.shape[1]) < batch.lengths_B.numpy()[:, None]
        yield inputs, ours, real


def test_int8_is_smaller_and_near(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra confide[onnx]")
    files = {}
    for int8 in (False, True):
        out = export(runs["fedavg-encoder"], to="onnx", out=tmp_path / str(int8), int8=int8)
        files[int8] = out / MODEL
        about = json.loads((out / ABOUT).read_text())
        assert about["int8"] is int8 and 0 <= about["largest_difference"] < 1
    import onnx

    kinds = {n: {node.op_type for node in onnx.load(file).graph.node} for n, file in files.items()}
    assert "DynamicQuantizeLinear" in kinds[True] - kinds[False]
    assert {one.name for one in files[True].parent.iterdir()} == {MODEL, ABOUT, CARD}
    scales = [one for one in onnx.load(files[True]).graph.initializer if "_scale" in one.name]
    assert any(one.dims[0] > 1 for one in scales if one.dims), "a scale for each column"
    assert not capsys.readouterr().out


def test_transformers_loads_an_encoder_that_tags(runs: dict[str, Path], tmp_path: Path) -> None:
    """The same probabilities of each word's tag; its pipeline finds entities."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    copy = release(runs["fedavg-encoder"], out=tmp_path / "copy")
    out = export(copy, to="hf", out=tmp_path / "out")
    model: Any = open_models(copy).entities
    place = str(model.trainer.encoder.folder.parent).encode()
    assert not [file.name for file in out.iterdir() if place in file.read_bytes()]
    theirs = AutoModelForTokenClassification.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert [theirs.config.id2label[n] for n in range(9)] == list(model.trainer.tags.tags)
    from confide.kinds.pieces import token_batch
    from confide.training.batches import Example

    sentences_ = texts(200)
    prepared = model.trainer.prepared([Example(0, n, tuple(w)) for n, w in enumerate(sentences_)])
    away, seen = 0.0, 0
    for row, window in enumerate(prepared.windows):
        words = sentences_[window.example][window.start : window.end]
        given = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        firsts = [given.word_ids().index(n) for n in range(len(words))]
        with torch.no_grad():
            said = theirs(**given).logits[0, firsts].softmax(1)
            ours = model.model(token_batch(prepared, np.array([row])))[0].softmax(1)
        away, seen = max(away, float((said - ours).abs().max())), seen + 1
    assert seen >= 200 and away < 1e-4
    finder = pipeline("token-classification", model=str(out), aggregation_strategy="first")
    assert isinstance(finder("the patient took aspirin ."), list)


def test_transformers_loads_a_relation_classifier(runs: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    name = "fedavg-relations classifier.pool=cls"
    copy = release(runs[name], out=tmp_path / "copy")
    out = export(copy, to="hf", out=tmp_path / "out")
    model: Any = open_models(copy).relations
    theirs = AutoModelForSequenceClassification.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)
    about = json.loads((out / ABOUT).read_text())
    found = candidates(documents("site-1", "test", 400), model.rules).examples
    found = (found * (1 + 200 // len(found)))[:200]
    wanted = probabilities(model.trainer.row_logits(model.model, model.trainer.prepared(found)))
    marked = [marked_text(one, about) for one in found]
    said = []
    for start in range(0, len(marked), 50):
        given = tokenizer(marked[start : start + 50], return_tensors="pt", padding=True)
        with torch.no_grad():
            said.append(theirs(**given).logits.softmax(1).numpy())
    assert np.abs(np.concatenate(said) - wanted).max() < 1e-4
    assert theirs.config.id2label[0] == model.relations[0]


def marked_text(example: Any, about: dict[str, Any]) -> str:
    """An example as the export says that its text is written."""
    (head,), (tail,) = example.head, example.tail
    own = about["marks"].get(example.head_type) or about["marks"][""]
    other = about["marks"].get(example.tail_type) or about["marks"][""]
    parts = sorted([(*head, example.head_type, own[:2]), (*tail, example.tail_type, other[2:])])
    text, at = "", 0
    for start, end, kind, (opens, closes) in parts:
        inner = kind if about["blind"] else example.text[start:end]
        text += example.text[at:start] + opens + inner + closes
        at = end
    return text + example.text[at:]


def test_a_head_that_reads_two_entities_has_no_class(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'pool = "cls".*got classifier.pool = .sum.*onnx'):
        export(runs["fedavg-relations"], to="hf", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SettingsError, match=r"no class for this kind.*Tagger"):
        export(runs["fedavg-tagger"], to="hf", out=tmp_path / "out")


LORA = ["encoder.tune=lora", "encoder.rank=2", "encoder.alpha=4"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_anyones_peft_loads_the_adapter(runs: dict[str, Path], tmp_path: Path) -> None:
    """Over the public encoder alone: the same logits."""
    peft = pytest.importorskip("peft", reason="needs the extra confide[lora]")
    from transformers import AutoModelForTokenClassification

    copy = release(runs[" ".join(["fedavg-encoder", *LORA])], out=tmp_path / "copy")
    out = export(copy, to="peft", out=tmp_path / "out")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {p.name for p in out.iterdir()}
    assert str(tmp_path) not in (out / "adapter_config.json").read_text()
    model: Any = open_models(copy).entities
    base = AutoModelForTokenClassification.from_pretrained(
        model.trainer.encoder.folder, num_labels=len(model.trainer.tags)
    )
    theirs = peft.PeftModel.from_pretrained(base, out).eval()
    graph = graph_of(model)
    for probe in graph.probes:
        with torch.no_grad():
            said = theirs(
                input_ids=probe["input_ids"], attention_mask=probe["attention_mask"]
            ).logits
            rows = torch.arange(len(said))[:, None]
            ours = graph.module(*probe.values())
        assert torch.allclose(said[rows, probe["firsts"]], ours, atol=1e-5)
    plain = export(copy, to="hf", out=tmp_path / "merged")
    whole = AutoModelForTokenClassification.from_pretrained(plain).eval()
    assert not any("lora" in name for name, _ in whole.named_parameters())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_of_relations_lies_beside_its_head(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra confide[lora]")
    from safetensors.torch import load_file
    from transformers import AutoModel

    copy = release(runs[" ".join(["fedavg-relations", *LORA])], out=tmp_path / "copy")
    out = export(copy, to="peft", out=tmp_path / "out")
    model: Any = open_models(copy).relations
    head = load_file(out / "head.safetensors")
    assert torch.equal(head["relation.weight"], model.model.relation.weight)
    assert len(head["marks"]) == model.trainer.marking.count
    base = AutoModel.from_pretrained(model.trainer.encoder.folder)
    theirs = peft.PeftModel.from_pretrained(base, out).eval()
    ids = torch.arange(4, 12)[None]
    with torch.no_grad():
        said = theirs(input_ids=ids).last_hidden_state
        ours = model.model.encoder(input_ids=ids).last_hidden_state
    assert torch.allclose(said, ours, atol=1e-5)


def test_a_model_without_an_adapter(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no adapter.*tune = .lora..*got encoder.tune = .all"):
        export(runs["fedavg-encoder"], to="peft", out=tmp_path / "out")
    with pytest.raises(SettingsError, match=r"no adapter.*got no encoder"):
        export(runs["fedavg-tagger"], to="peft", out=tmp_path / "out")


def test_spacy_loads_a_pipeline_that_moves_with_its_folder(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    spacy = pytest.importorskip("spacy", reason="needs the extra confide[spacy]")
    from confide.jobs.loading import load

    copy = release(runs["fedavg-tagger"], out=tmp_path / "copy")
    out = export(copy, to="spacy", out=tmp_path / "out")
    moved = out.rename(tmp_path / "elsewhere")
    nlp, own = spacy.load(moved), load(copy)
    for words in texts(20):
        text = " ".join(words)
        ours = [(e.start, e.end, e.type) for e in own(text).entities]
        theirs = [(s.start_char, s.end_char, s.label_) for s in nlp(text).spans["confide"]]
        assert theirs == ours
    assert sentences("site-1", "test", 1)


def test_what_cannot_be_exported(runs: dict[str, Path], tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="holds something already"):
        export(runs["fedavg-tagger"], to="onnx", out=full)
    assert (full / "mine.txt").read_text() == "mine"
    with pytest.raises(SettingsError, match=r"expected onnx, hf, peft, spacy; got 'pdf'"):
        export(runs["fedavg-tagger"], to="pdf", out=tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="only ONNX can be written in int8"):
        export(runs["fedavg-tagger"], to="hf", out=tmp_path / "out", int8=True)
    with pytest.raises(SettingsError, match=r"cannot be written so.*a tagger, an encoder"):
        export(runs["fedavg-bags"], to="onnx", out=tmp_path / "out")
    with pytest.raises(SettingsError, match=r"cannot be written so.*got Linear.*confide release"):
        export(runs["fedavg-linear"], to="onnx", out=tmp_path / "out")
    with pytest.raises(SettingsError, match=r"no class for this kind.*got Linear"):
        export(runs["fedavg-linear"], to="hf", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@each(
    ("error", "kind", "said"),
    [
        (PermissionError(EACCES, "Permission denied", "/models/own/vocab.txt"), DataError, "read"),
        (OSError("Can't load the tokenizer"), DataError, "read"),
        (OSError(ENOSPC, "No space left on device"), RunError, "written"),
        (PermissionError(EACCES, "Permission denied", "{place}/model"), RunError, "written"),
    ],
)
def test_only_an_error_of_writing_says_that_nothing_can_be_written(
    error: OSError,
    kind: type[Exception],
    said: str,
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(copy: Copy) -> dict[str, Any]:
        if error.filename is not None:
            error.filename = error.filename.replace("{place}", str(copy.out))
        raise error

    monkeypatch.setitem(TARGETS, "hf", (fails, ""))
    with pytest.raises(kind, match=rf"cannot be {said} \({error.strerror or error}\)"):
        export(runs["fedavg-tagger"], to="hf", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_without_the_libraries_the_extra_is_named(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SettingsError, match=r"pip install 'confide\[onnx\]'"):
        export(runs["fedavg-tagger"], to="onnx", out=tmp_path / "out")
