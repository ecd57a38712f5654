"""FedAvg of a BART on text: what it reads, its mean, its release, and its refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import FederationError, GuardError, QuorumError, RunError, SettingsError
from confide.federation.messages import decode
from confide.federation.site import Site
from confide.jobs.comparison import compare
from confide.kinds.text.desk import TextScored, check_text_scored
from confide.kinds.text.form import TextForm, find_base
from confide.learning.bart_files import load_bart
from confide.learning.denoising import Denoiser, Denoising
from confide.learning.texts import made_bart
from confide.methods.fedavg import FedAvgState
from confide.report import report
from confide.runs.opening import opened
from confide.runs.release import release, release_task
from confide.runs.run import run
from confide.scoring import TextCounts, sum_text_counts, text_scores
from confide.text.document import Document
from contract.corpus import reader, tiny
from contract.runs import states

PARTS = ("train", "dev", "test")


def trained(tmp_path: Path, *overrides: str, **tree: Any) -> tuple[Path, FedAvgState[TextForm]]:
    settings = tiny(tmp_path, "method=fedavg-text", *overrides, **tree)
    folder = run(settings, out=tmp_path / "run").folder
    return folder, decode(FedAvgState[TextForm], states(folder).popitem()[1])


def test_the_encoder_stays_and_the_decoder_alone_travels(tmp_path: Path) -> None:
    _, state = trained(tmp_path, "rounds=1")
    made = made_bart(find_base(state.form.encoder)[0], decoder_layers=1)
    first = Denoiser(made.model, Denoising()).trained()
    assert state.weights.keys() == first.keys()
    assert all(name.startswith("model.decoder.") for name in first)
    assert any((state.weights[name] != first[name]).any() for name in first)
    _, state = trained(tmp_path / "all", "rounds=1", "denoising.train=all")
    assert "model.shared.weight" in state.weights


def test_the_mean_is_of_what_each_site_comes_to_by_itself(tmp_path: Path) -> None:
    """Two sites together are the weighted mean of each alone, whose seeds are its name's."""
    both = tiny(tmp_path, "method=fedavg-text", "rounds=1", sites=2)
    tables = [table.model_dump(exclude_none=True) for table in both.site]
    parts = [
        trained(tmp_path / table["name"], "rounds=1", "seed=1", site=[table])[1] for table in tables
    ]
    folder = run(both, out=tmp_path / "run").folder
    state = decode(FedAvgState[TextForm], states(folder).popitem()[1])
    heavy = [own_sentences(table) for table in tables]
    assert heavy[0] != heavy[1]
    for name, array in state.weights.items():
        total = sum(n * one.weights[name] for n, one in zip(heavy, parts, strict=True))
        np.testing.assert_allclose(array, total / sum(heavy), atol=1e-6)


def own_sentences(table: dict[str, Any]) -> int:
    """Sentences of a site's training text, each once, that its held-out text does not have."""
    said = {part: set(Path(table[part][0]).read_text().split("\n\n")) for part in PARTS}
    strip = {part: {one.strip() for one in found} for part, found in said.items()}
    return len(strip["train"] - strip["dev"] - strip["test"])


def site_with(train: list[str], held_out: list[str]) -> Site:
    documents = [Document(f"d{n}", text) for n, text in enumerate(train)]
    return Site("s", documents, dev=[Document("h", text) for text in held_out])


def form() -> TextForm:
    folder = reader("encoder")
    return TextForm(
        encoder=folder, digest=find_base(folder)[1], decoder_layers=1, train="decoder", longest=32,
        sampled=0, measured=0, masked=0.3, mean_span=3.0, permuted=1.0, dropout=0.0,
    )  # fmt: skip


SAID = "The patient took aspirin today with the patient after nausea again."


def test_held_out_sentences_are_not_learnt() -> None:
    other = "The patient had insulin then again with rash after the patient today."

    def learnt(train: list[str], held_out: list[str]) -> int:
        return len(form().at(site_with(train, held_out)).passages("train"))

    assert learnt([SAID, other], []) == 2
    assert learnt([SAID, other], [SAID.upper()]) == 1
    assert learnt([SAID], [SAID]) == 0


def test_annotation_is_not_needed(tmp_path: Path) -> None:
    folder, _ = trained(tmp_path, "rounds=1")
    text = (tmp_path / "data" / "site-1" / "train.txt").read_text()
    assert "patient" in text
    assert not list((folder / "sites").glob("*/errors.json"))


def test_a_release_is_a_bart_that_lightner_reads(tmp_path: Path) -> None:
    folder, state = trained(tmp_path)
    out = release(folder, out=tmp_path / "bart")
    assert release_task(out) is None
    bart = load_bart(str(out))
    assert bart.folder == out
    again = state.form.extractor(state.weights, key=None)
    held_out = [Document("d", SAID), Document("e", "The patient took codeine then again today.")]
    assert again.counts(held_out).pieces > 20
    from safetensors.numpy import load_file

    kept = load_file(out / "model.safetensors")
    for name, array in state.weights.items():
        np.testing.assert_array_equal(kept[name], array)
    with pytest.raises(RunError, match="there is already a release in this folder"):
        release(folder, out=out)


def test_it_annotates_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    folder, _ = trained(tmp_path, "rounds=1")
    with pytest.raises(RunError, match="trained a BART") as caught:
        opened(folder)
    assert "confide release" in str(caught.value)
    with pytest.raises(RunError, match="no counts of sentences"):
        compare(folder, folder)


def test_its_page_tells_what_was_written_again(tmp_path: Path) -> None:
    folder, _ = trained(tmp_path, "rounds=1")
    page = report([folder], out=tmp_path / "page.html").read_text()
    assert "hidden right" in page
    assert "1 / perplexity" in page
    assert "F1" not in page


def test_a_site_without_text_of_its_own_is_not_asked_to_train(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedavg-text", "rounds=1", sites=2)
    table = settings.site[1]
    (tmp_path / "data" / "site-2" / "train.txt").write_text(
        (tmp_path / "data" / "site-2" / "test.txt").read_text()
    )
    done = run(settings, out=tmp_path / "run").result
    state = decode(FedAvgState[TextForm], states(tmp_path / "run").popitem()[1])
    assert state.idle == [table.name]
    assert done.history[0].failed == {}
    for name in ("site-1", "site-2"):
        file = tmp_path / "data" / name / "train.txt"
        file.write_text((tmp_path / "data" / name / "test.txt").read_text())
    with pytest.raises(FederationError, match="no site has any training text"):
        run(settings, out=tmp_path / "none")


def test_a_site_may_ask_for_more_sentences(tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match="fewer training sentences than its own guard"):
        trained(tmp_path, guards={"min_sentences": 19})


def test_another_encoder_is_refused_by_name(tmp_path: Path) -> None:
    from learning.encoders import tiny_bert

    other = str(tiny_bert(tmp_path / "bert", seed=7, initializer_range=0.1))
    settings = tiny(tmp_path, "method=fedavg-text")
    tables = [table.model_dump(exclude_none=True) for table in settings.site]
    tables[1]["context"] = other
    with pytest.raises(FederationError, match="site-2 differs"):
        trained(tmp_path, site=tables)
    _, state = trained(tmp_path / "b", "rounds=1")
    with pytest.raises(FederationError, match="not the encoder that the BART was made from"):
        state.form.extractor(state.weights, key=None, encoder=other)


def test_other_optimisers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="trained with AdamW only"):
        trained(tmp_path, "training.optimiser=sgd")


GOOD = TextScored(pieces=9, right=4, hidden=5, hidden_right=3, loss=2.5)


@each(
    ("changes", "words"),
    [
        ({"right": 10}, "right or hidden is out of range"),
        ({"right": -1}, "right or hidden is out of range"),
        ({"hidden": 10}, "right or hidden is out of range"),
        ({"hidden_right": 5}, "hidden_right or loss is out of range"),
        ({"hidden_right": -1}, "hidden_right or loss is out of range"),
        ({"loss": -0.5}, "hidden_right or loss is out of range"),
        ({"loss": float("inf")}, "hidden_right or loss is out of range"),
    ],
)
def test_counts_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    check_text_scored(None, GOOD)
    with pytest.raises(GuardError, match=words):
        check_text_scored(None, replace(GOOD, **changes))


def test_scores_of_text() -> None:
    one, two = TextCounts(4, 2, 2, 1, 8.0), TextCounts(6, 3, 2, 0, 2.0)
    found = text_scores(one + two)
    assert sum_text_counts([one, two]) == one + two
    assert found["loss"] == 1.0
    assert found["likelihood"] == pytest.approx(np.exp(-1))
    assert (found["right"], found["hidden"]) == (0.5, 0.25)
    assert (found["pieces"], found["hidden_pieces"]) == (10, 4)
    assert text_scores(TextCounts())["likelihood"] == 0.0
