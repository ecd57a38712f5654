import json
import math
import statistics
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
import torch

from cases import each
from confide.errors import DataError, MissingDataError, SettingsError
from confide.jobs.capacity import (
    CapacityReport,
    PartScores,
    capacity,
    conclude,
    curve_svg,
    epochs_by_round,
    run_needs,
    score_parts,
)
from confide.kinds import agreement
from confide.text.document import Document, Entity
from confide.text.formats import write

SIZES = (400.0, 800.0, 1200.0, 1600.0, 2000.0)


def measured(curve, *, noise=0.0, seeds=3, sentences=1500, seed=0):
    """Scores around a curve, from seeds that differ by `noise`; one entity in each sentence."""
    generator = np.random.default_rng(seed)
    f1_SK = np.array([curve(size) for size in SIZES]) + noise * generator.normal(size=(seeds, 5))
    counts = np.ones((seeds, 5, sentences, 3), dtype=np.int64)
    hard = generator.random((1, 1, sentences)) * 0.8 + generator.random((seeds, 5, sentences)) * 0.2
    order = hard.argsort(axis=2).argsort(axis=2)
    counts[..., 0] = order < f1_SK[:, :, None] * sentences
    return PartScores(counts, SIZES, 1.0)


def rising(size):
    return 0.95 - 0.25 * (size / 2000) ** -0.6


class TestVerdict:
    @each("seed", range(5))
    def test_a_rising_curve_is_worth_federating(self, seed):
        found = conclude(measured(rising, noise=0.004, seed=seed), name="x")
        assert found.verdict == "worth federating"
        assert found.low < 0.25 * (1 - 2**-0.6) < found.high
        assert found.low <= found.gain <= found.high

    @each("seed", range(5))
    def test_a_flat_curve_is_flat(self, seed):
        found = conclude(measured(lambda size: 0.8, noise=0.004, seed=seed), name="x")
        assert found.verdict == "flat"
        assert found.gain < 0.01

    def test_a_curve_that_has_levelled_off_is_flat(self):
        found = conclude(
            measured(lambda s: 0.8 - 0.002 * (s / 2000) ** -2.5, noise=0.002), name="x"
        )
        assert found.verdict == "flat"

    @each("seed", [0, 1, 2])
    def test_noise_says_nothing(self, seed):
        def slowly(size):
            return 0.85 - 0.06 * (size / 2000) ** -0.5

        found = conclude(measured(slowly, noise=0.025, seed=seed), name="x")
        assert found.verdict == "cannot tell"
        assert found.low < 0.01 < found.high

    def test_the_deviation_is_that_of_a_sample(self) -> None:
        for point in conclude(measured(rising, noise=0.004), name="x").points:
            assert point.deviation == pytest.approx(statistics.stdev(point.seeds))

    def test_a_decline_is_flat(self):
        found = conclude(measured(lambda size: 0.8 - size / 40_000, noise=0.002), name="x")
        assert (found.verdict, found.gain) == ("flat", 0)


class TestReport:
    @pytest.fixture
    def report(self):
        return conclude(measured(rising, noise=0.004), name="our $notes$ <1>")

    def test_words(self, report):
        assert "3 times each; scored on 1,500 held-out sentences" in report.text
        assert "1 of 5 parts       400 sentences" in report.text
        assert "Verdict: worth federating." in report.text

    def test_json(self, report):
        plain = json.loads(json.dumps(report.to_json()))
        assert plain["schema"] == 1
        assert [point["sentences"] for point in plain["points"]] == list(SIZES)
        assert plain["points"][0]["f1"] == pytest.approx(np.mean(plain["points"][0]["seeds"]))
        assert all(low <= high for _, low, high in plain["band"])
        assert plain["band"][-1][0] == 2 * SIZES[-1]

    def test_drawing(self, report):
        drawing = curve_svg(report)
        texts = {node.text for node in ElementTree.fromstring(drawing).iter() if node.text}
        assert {"our $notes$ <1>: worth federating", "training sentences"} <= texts
        assert curve_svg(report) == drawing

    def test_every_verdict_can_be_said(self, report):
        for verdict in ("worth federating", "flat", "cannot tell"):
            assert f"Verdict: {verdict}. " in replace(report, verdict=verdict).text


def notes(size, seed=0):
    """Sentences in which a drug comes before "helped"."""
    generator = np.random.default_rng(seed)
    drugs = ["aspirin", "ibuprofen", "codeine", "morphine", "naproxen", "tramadol"]
    documents = []
    for n in range(size):
        drug = drugs[generator.integers(6)]
        text = f"Yesterday {drug} helped him" if n % 4 else "He slept well again"
        entities = (Entity("T1", "Drug", ((10, 10 + len(drug)),)),) if n % 4 else ()
        documents.append(Document(f"d{n}", text, entities))
    return documents


class TestMeasure:
    def test_parts_are_nested_equal_and_drawn_anew_for_each_seed(self):
        seen = []

        def learn(documents, stretch, seed):
            seen.append(([document.id for document in documents], stretch, seed))
            return held_out

        held_out = notes(8)
        found = score_parts(notes(41), held_out, learn=learn, parts=4, seeds=2)
        ids = [set(part) for part, _, _ in seen]
        assert [len(part) for part in ids] == [11, 21, 31, 41] * 2
        for draw in (ids[:4], ids[4:]):
            assert draw[0] < draw[1] < draw[2] < draw[3]
        assert ids[0] != ids[4]
        assert [stretch for _, stretch, _ in seen[:4]] == [4, 2, 4 / 3, 1]
        assert len({seed for _, _, seed in seen}) == 8
        assert found.sizes_K == (11, 21, 31, 41)
        assert found.counts_SKN3.shape == (2, 4, 8, 3)
        assert (found.f1_SK == 1).all()

    def test_events(self):
        events = []
        held_out = notes(4)
        score_parts(
            notes(9), held_out, learn=lambda *_: held_out, parts=4, seeds=2, watch=events.append
        )
        rounds = [event for event in events if event.kind == "round"]
        assert [event.round for event in rounds] == list(range(1, 9))
        assert rounds[-1].dev_f1 == 1
        assert rounds[-1].seconds_left == 0

    @each(
        ("how", "why"),
        [({"parts": 3}, "too few parts"), ({"seeds": 1}, "one seed"), ({"parts": 99}, "fewer doc")],
    )
    def test_bad_plans(self, how, why):
        with pytest.raises(DataError, match=why):
            score_parts(notes(9), notes(4), learn=lambda *_: notes(4), **how)


@each(("rounds", "epochs"), [(1, 7), (5, 5), (5, 2), (20, 67), (7, 7)])
def test_epochs_are_spread_over_the_rounds(rounds, epochs):
    spread = epochs_by_round(rounds, epochs)
    assert len(spread) == rounds
    assert sum(spread) == epochs
    assert max(spread) - min(spread) <= 1


SETTINGS = """
method = "fedavg"
name = "tiny"
rounds = 2
[[site]]
name = "north"
train = "train.conll"
dev = "dev.conll"
test = "dev.conll"
[[site]]
name = "south"
train = "more.conll"
dev = "dev.conll"
test = "dev.conll"
[model]
word_dim = 8
character = "none"
bilstm_hidden = 8
dropout = 0.1
[training]
learning_rate = 0.1
batch_size = 4
local_epochs = 2
[when.pooled]
rounds = 1
[when.alone]
rounds = 4
"""


@pytest.fixture
def settings(tmp_path):
    write(notes(24), tmp_path / "train.conll", "conll")
    write(notes(16, 1), tmp_path / "more.conll", "conll")
    write(notes(12, 2), tmp_path / "dev.conll", "conll")
    path = tmp_path / "tiny.toml"
    path.write_text(SETTINGS)
    return path


class TestCapacity:
    def test_a_real_one(self, settings, tmp_path):
        events = []
        found = capacity(
            settings, parts=4, seeds=2, site="north", out=tmp_path / "out", on_event=events.append
        )
        assert isinstance(found, CapacityReport)
        assert found.name == "north"
        assert [point.sentences for point in found.points] == [6, 12, 18, 24]
        assert found.held_out == 12
        assert found.points[-1].f1 > 0.9
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "capacity.json", "capacity.svg", "capacity.txt"
        ]  # fmt: skip
        written = json.loads((tmp_path / "out" / "capacity.json").read_text())
        assert written == json.loads(json.dumps(found.to_json()))
        assert (tmp_path / "out" / "capacity.txt").read_text() == found.text
        assert [events[0].kind, events[-1].kind] == ["start", "end"]

    def test_all_sites_and_the_same_numbers_again(self, settings):
        threads = torch.get_num_threads()
        once, again = (capacity(settings, parts=4, seeds=2) for _ in range(2))
        assert once.points[-1].sentences == 40
        assert once.points == again.points
        assert once.curve == again.curve
        assert torch.get_num_threads() == threads

    @pytest.mark.parametrize("character", [pytest.param("cnn", marks=pytest.mark.slow), "bilstm"])
    def test_vectors_and_characters(self, settings, tmp_path, character):
        rows = [f"{word} " + " ".join(["0.1"] * 8) for word in ("aspirin", "he", "helped")]
        (tmp_path / "vectors.txt").write_text("\n".join(rows) + "\n")
        found = capacity(
            settings,
            parts=4,
            seeds=2,
            overrides=[
                f"model.vectors={tmp_path / 'vectors.txt'}", f"model.character={character}",
                "model.character_hidden=4", "rounds=1",
            ],
        )  # fmt: skip
        assert len(found.points) == 4

    @pytest.mark.slow
    def test_a_linear_one(self, settings):
        own = ["model.kind=linear", "training.learning_rate=0.3", "training.optimiser=adagrad"]
        found = capacity(settings, parts=4, seeds=2, overrides=own)
        assert [point.sentences for point in found.points] == [10, 20, 30, 40]
        assert found.points[-1].f1 > 0.9

    def test_other_kinds_are_refused_by_name(self, settings):
        with pytest.raises(SettingsError, match=r"tagger or linear; got encoder.*kind=linear"):
            capacity(settings, overrides=["model.kind=encoder"])

    def test_an_unknown_site(self, settings):
        with pytest.raises(SettingsError, match="expected north, south; got 'west'"):
            capacity(settings, site="west")

    def test_nothing_to_find_in_the_held_out_text(self, settings, tmp_path):
        write([Document("a", "He slept well")], tmp_path / "dev.conll", "conll")
        with pytest.raises(DataError, match="the held-out text has no entity"):
            capacity(settings)

    def test_nothing_to_learn(self, settings, tmp_path):
        bare = [replace(document, entities=()) for document in notes(12)]
        write(bare, tmp_path / "train.conll", "conll")
        with pytest.raises(DataError, match="the training text has no entity"):
            capacity(settings, site="north")

    def test_no_settings(self, tmp_path):
        with pytest.raises(MissingDataError):
            capacity(tmp_path / "none.toml")
        with pytest.raises(SettingsError, match="no recipe 'nothing'"):
            capacity("nothing")


def test_what_a_run_takes_of_a_site_follows_from_a_survey(in_tmp):
    drug = {"sites": 4, "entities": 900}
    counts = {
        "sites": 4,
        "documents": 80,
        "sentences": 2000,
        "tokens": 24_000,
        "types": {"D": drug},
    }
    (in_tmp / "survey.json").write_text(json.dumps(counts))
    (in_tmp / "a.toml").write_text('method = "fedavg"\nrounds = 6\ntraining.local_epochs = 3\n')
    small = ["model.word_dim=8", "model.bilstm_hidden=4", "model.character=none"]

    def needs(*overrides, counts=counts):
        (in_tmp / "survey.json").write_text(json.dumps(counts))
        return run_needs("a.toml", "survey.json", overrides=[*small, *overrides])

    found = needs()
    words = round(13 * 24_000**0.57)
    form = [[words + 2, 8], [16, 8], [16, 4], [16], [16], [16, 8], [16, 4], [16], [16]]
    recurrent = sum(math.prod(shape) for shape in form)
    scores = (8 + 1) * 5 + 5 * 5 + 2 * 5  # tags of one type in iobes: a layer, and the CRF
    assert (found.sentences, found.rounds, found.words) == (500, 6, words)
    assert found.numbers == recurrent + scores
    assert found.upload_mb == found.download_mb / 2 == 4 * found.numbers / 1e6  # scored, too
    assert found.once_mb == 8 * 2**agreement.WORD_BITS / 1e6
    assert f"{found.upload_mb * 6:.3g} MB in 6 rounds" in found.text
    fewer = ["training.local_steps=1", "training.batch_size=10"]
    less = needs("federation.up=int8", "federation.down=top", "federation.sums=plain", *fewer)
    assert (less.upload_mb, less.download_mb, less.once_mb) == (found.numbers / 1e6, None, 0)
    assert less.seconds_a_round < found.seconds_a_round / 10  # 10 sentences, not 1,500
    assert [(one.epsilon, one.units, one.like) for one in found.noise] == [
        (8, 700, 1), (3, 700, 1), (1, 700, 1)]  # fmt: skip
    many = needs(counts={**counts, "documents": 5000})
    assert [one.like for one in many.noise] == [8, 3, 1]
    assert "F1 67.9 instead of 82.0 (NCBI-disease" in many.text
    for bad in (["model.kind=encoder", "model.context=minilm"], ["model.kind=spans"]):
        with pytest.raises(SettingsError, match="capacity test does not train"):
            needs(*bad)
    with pytest.raises(DataError, match="nothing to learn"):
        needs(counts={**counts, "types": {}})
