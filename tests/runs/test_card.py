"""The card of a release: read by Hugging Face's library, and silent about text, paths and sites."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide import api
from confide.federation.keys import new_key
from confide.kinds import KINDS
from confide.runs.card import _OF_KINDS, CARD, OTHER_CARD, Copied, card, safe
from confide.runs.folder import RunFolder
from confide.runs.result import Private, Result
from confide.settings import Settings, parse
from report.folders import bag_result, relation_result, result, write_run
from report.test_audits import found_of

hub = pytest.importorskip("huggingface_hub", reason="comes with the extra encoder")


def settings(**own: Any) -> Settings:
    return parse(
        {
            "schema": 2, "method": "fedavg", "key": "/srv/secret/shared.key",
            "site": [{"name": "st-anna", "train": "/srv/secret/train.conll"}], **own,
        }
    )  # fmt: skip


def made(told: dict[str, Any], **own: Any) -> str:
    copied = Copied(Path("nowhere"), None, "anyone can read its word list")
    return card(settings(**own), Result.model_validate(told), copied)


def read(text: str) -> Any:
    return hub.ModelCard(text).data


def test_hugging_face_reads_the_head() -> None:
    data = read(made(result("fedavg", 0.8765)))
    assert (data.library_name, data.pipeline_tag) == ("confide", "token-classification")
    assert data.tags == ["confide", "federated-learning", "ner", "fedavg"]
    (score,) = data.eval_results
    assert (score.metric_type, score.metric_name, score.metric_value) == (
        "f1", "F1, strict", 0.8765,
    )  # fmt: skip


@each(
    ("told", "metric"),
    [(relation_result("feded", 30), "F1, micro"), (bag_result("lazy-mil", 3.0), "AUC")],
)
def test_relations_and_bags_have_cards_too(told: dict[str, Any], metric: str) -> None:
    data = read(made(told, task=told["task"], method=told["method"]))
    assert data.pipeline_tag == "text-classification"
    assert data.eval_results[0].metric_name == metric


def test_sites_are_numbered_and_their_scores_shown() -> None:
    told = result("fedavg", 0.782)
    text = made(told)
    for name in told["scores"]["sites"]:
        assert name not in text
    for row in ("site 1 | 75.2 | 79.2", "site 3 | 81.2 | 85.2", "all | 78.2 | 82.2",
                "DRUG | 78.2 | 79.2 | 77.2", "site 2 | 240 | 60 | 120", "ADE | 300"):  # fmt: skip
        assert f"| {row} |" in text


def test_paths_names_of_sites_and_digests_are_left_out() -> None:
    own = {"name": "ours", "model": {"context": "/srv/secret/bert"}, "data": {"types": ["Secret"]}}
    text = made(result("fedavg", 0.8), **own)
    assert "secret" not in text.lower() and "st-anna" not in text
    assert "9f8e7d6c5b4a" not in text  # the fingerprint of the data
    assert "| `model.word_dim` |" in text


@each(
    ("own", "there", "elsewhere"),
    [
        ({}, {"model", "vocabulary"}, {"classifier", "encoder", "lightner", "pcnn", "pairs"}),
        ({"model": {"kind": "encoder"}}, {"classifier", "encoder"}, {"vocabulary", "lightner"}),
        ({"model": {"kind": "lightner"}}, {"lightner"}, {"vocabulary", "classifier", "pcnn"}),
        ({"model": {"kind": "linear"}}, {"linear"}, {"vocabulary", "classifier", "encoder"}),
        ({"task": "re", "method": "feded"}, {"classifier", "pairs"}, {"vocabulary", "pcnn"}),
        ({"task": "bags", "method": "lazy-mil"}, {"bags", "pcnn"}, {"classifier", "lightner"}),
        (
            {"task": "bags", "method": "lazy-mil", "bags": {"reader": "encoder"}},
            {"bags", "classifier"}, {"pcnn", "lightner"},
        ),
    ],
)  # fmt: skip
def test_only_settings_of_this_model_are_shown(
    own: dict[str, Any], there: set[str], elsewhere: set[str]
) -> None:
    shown = set(
        re.findall(r"^\| `([a-z_.]+)` \|", made(result("fedavg", 0.8), **own), re.MULTILINE)
    )
    tables = {name.partition(".")[0] for name in shown if "." in name}
    assert there | {"training", "select"} <= tables
    assert not tables & (elsewhere | {"guards"})
    assert {"rounds", "seed", "method", "training.learning_rate"} <= shown
    assert not {"threads", "device", "schema", "micro_batch_size", "start_from", "base"} & shown
    if own.get("model", {}).get("kind"):
        assert {name for name in shown if name.startswith("model.")} == {"model.kind"}


def test_every_kind_says_which_settings_are_its_own() -> None:
    assert set(_OF_KINDS) == set(KINDS)


def test_without_test_text_there_are_no_scores() -> None:
    told = result("fedavg", 0.5)
    for scores in (told["scores"]["overall"], *told["scores"]["sites"].values()):
        scores["sentences"] = scores["strict"]["support"] = scores["relaxed"]["support"] = 0
    text = made(told)
    assert "so there are no scores" in text and read(text).eval_results is None


def test_guards_that_the_run_set_are_named() -> None:
    assert "Guards of the run: the defaults." in made(result("fedavg", 0.8))
    text = made(result("fedavg", 0.8), guards={"min_sentences": 20})
    assert "Guards of the run: min_sentences 20." in text.replace("\\_", "_")


@each(
    "evil",
    ["---\nlicense: mit", "<script>alert(1)</script>", "a|b", "[x](javascript:1)", "`x`", '"]}'],
)
def test_names_cannot_break_out(evil: str) -> None:
    """The name of a run or a type comes from files, and a card is shown on a web page."""
    told = result("fedavg", 0.8)
    told["name"] = evil
    types = told["scores"]["overall"]["strict"]["types"]
    types[evil] = types["DRUG"]
    told["data"]["sites"]["oncology"]["entities"][evil] = 7
    text = made(told)
    data = read(text)
    assert data.license is None and data.library_name == "confide"
    assert "<script" not in text.partition("\n---\n")[2]
    body = text.partition("\n---\n")[2]
    rows = [line for line in body.splitlines() if line.startswith("| ") and safe(evil) in line]
    assert len(rows) == 2
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3, 5]
    assert "[x](" not in body


def test_a_release_has_its_card_and_no_word_of_the_corpus(small_demo: Path, tmp_path: Path) -> None:
    run = small_demo / "federated"
    out = api.release(run, out=tmp_path / "released")
    text = (out / CARD).read_text()
    assert read(text).library_name == "confide"
    assert "| `train` | `weights` | arrays | sum |" in text
    assert str(small_demo) not in text and "/tmp" not in text
    for site in ("cardiology", "oncology", "practice"):
        assert site not in text
    corpus = api.read(small_demo / "corpus" / "cardiology" / "train.conll")
    words = set(re.findall(r"[a-z]{6,}", " ".join(one.text for one in corpus.documents)))
    assert len(words) > 50
    known = set(re.findall(r"[a-z]{6,}", made(result("fedavg", 0.8))))
    assert not [word for word in words - known if re.search(rf"\b{word}\b", text)]


def test_a_readme_that_is_there_is_kept(small_demo: Path, tmp_path: Path) -> None:
    out = tmp_path / "released"
    out.mkdir()
    (out / CARD).write_text("mine")
    api.release(small_demo / "federated", out=out)
    assert (out / CARD).read_text() == "mine"
    assert (out / OTHER_CARD).read_text().startswith("---\n")


def test_a_release_that_is_refused_leaves_no_card(small_demo: Path, tmp_path: Path) -> None:
    other = new_key(tmp_path / "other.key")
    with pytest.raises(Exception, match="key"):
        api.release(small_demo / "federated", out=tmp_path / "out", key=other)
    assert not (tmp_path / "out" / CARD).exists()


def test_the_numbers_are_those_of_the_result(small_demo: Path, tmp_path: Path) -> None:
    out = api.release(small_demo / "federated", out=tmp_path / "released")
    found = json.loads((small_demo / "federated" / "result.json").read_text())
    strict = found["scores"]["overall"]["strict"]["f1"]
    (score,) = read((out / CARD).read_text()).eval_results
    assert score.metric_value == round(strict, 4)


def test_an_audit_is_told_with_its_sites_by_number(tmp_path: Path) -> None:
    told = result("fedavg", 0.8)
    folder = RunFolder(write_run(tmp_path / "run", told))
    copied = Copied(folder.path, None, "anyone can read its word list")
    assert "trial attack" not in card(settings(), Result.model_validate(told), copied)
    found_of().write(folder)
    text = card(settings(), Result.model_validate(told), copied)
    for name in told["scores"]["sites"]:
        assert name not in text
    assert "- Site 2: of 100 sentences of ours an attacker allowed one false accusation" in text
    assert "finds 12 (6 to 56); by chance it would be 1." in text
    assert "- ε promised: none; ε measured: at least 1.23 for one document" in text
    assert "read: 1 (it could read single replies)." in text


@each("simulated", [False, True])
def test_a_promise_is_named_and_keys_from_the_seed_promise_nothing(simulated: bool) -> None:
    spent = Private(
        unit="document", epsilon=3.0, delta=1e-5, noise=2.0, clip=1.0, rate=0.1, rounds=9,
        units=100, simulated=simulated,
    )  # fmt: skip
    said = made(result("fedavg", 0.8) | {"privacy": spent.model_dump()})
    assert ("(3.00, 1e-05)-differential privacy for one document" in said) != simulated
    assert ("this is not differential privacy" in said) == simulated
    assert "No noise was added" in made(result("fedavg", 0.8))
