"""Runs that train a part of an encoder: every method, and encoders of every family."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import SettingsError
from confide.federation.ledger import read_ledger
from confide.federation.messages import decode_file, encode
from confide.files import CACHE
from confide.kinds.encoder import EncoderSpec
from confide.methods import METHODS
from confide.runs.folder import RunFolder
from confide.runs.loading import LocalRun, open_models
from confide.runs.run import run
from confide.training import devices
from confide.training.encoder import Tuning
from contract.corpus import tiny
from contract.models import named
from contract.runs import same_run
from training.encoders import tiny_bert
from training.families import FAMILIES
from training.families import tiny as of_family

WITH_ENCODER = sorted(
    name
    for name, pair in METHODS.items()
    if pair.kind.name in ("encoder", "relations") or name in ("fedavg-bags", "lazy-mil-bags")
)
READS = {"bags": ("bags.reader=encoder",)}


def settings_of(folder: Path, pair: str, *overrides: str) -> Any:
    own = READS.get(METHODS[pair].kind.name, ())
    return tiny(folder, f"method={pair}", *own, *overrides)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv(CACHE, str(place))
    return place


@pytest.mark.parametrize(
    ("pair", "way"),
    [
        ("fedavg-encoder", "lora"),
        ("fedavg-relations", "frozen"),
        pytest.param("fedavg-encoder", "frozen", marks=pytest.mark.slow),
        pytest.param("fedavg-relations", "lora encoder.factors=b", marks=pytest.mark.slow),
    ],
)
def test_less_travels_and_the_trained_model_is_opened(
    pair: str, way: str, tmp_path: Path, cache: Path
) -> None:
    if way.startswith("lora"):
        pytest.importorskip("peft", reason="needs the extra confide[lora]")
    sent = {}
    for tune in ("all", way):
        out = tmp_path / tune
        own = f"encoder.tune={tune}".split()
        run(settings_of(tmp_path, pair, *own, "encoder.rank=2"), out=out)
        lines = read_ledger(out / "ledger.jsonl")
        sent[tune] = sum(one.bytes for one in lines if one.step == "train")
    assert sent[way] < 0.5 * sent["all"]
    assert any(cache.glob("*.context")) is (way == "frozen")
    models = open_models(tmp_path / way)
    assert models.entities or models.relations


@each("way", ["top", "frozen"])
def test_a_resumed_run_is_the_whole_one(way: str, tmp_path: Path) -> None:
    own = [f"encoder.tune={way}", "encoder.layers=1"]
    run(settings_of(tmp_path, "fedavg-relations", *own), out=tmp_path / "whole")
    run(settings_of(tmp_path, "fedavg-relations", *own, "rounds=1"), out=tmp_path / "cut")
    run(settings_of(tmp_path, "fedavg-relations", *own), out=tmp_path / "cut", resume=True)
    same_run(tmp_path / "whole", tmp_path / "cut")


@each("pair", ["fedavg-tagger", "fedavg-bags"])
def test_without_an_encoder_there_is_nothing_to_tune(pair: str, tmp_path: Path) -> None:
    own = tiny(tmp_path, f"method={pair}", "encoder.tune=frozen", "training.optimiser=adamw")
    with pytest.raises(SettingsError, match=r"has no encoder that could be tuned.*'frozen'"):
        run(own, out=tmp_path / "run")


def test_a_form_of_before_means_the_whole_encoder() -> None:
    form = EncoderSpec(["Drug"], "iobes", "tiny", "d" * 64, 0.1, 32, "all")
    data = encode(form).replace(b'\\"tuning\\":\\"all\\"', b'\\"tunimg\\":\\"all\\"')
    assert b"tunimg" in data
    with pytest.raises(Exception, match="unknown field"):
        decode_file(EncoderSpec, data)
    old = encode(form).replace(b',\\"tuning\\":\\"all\\"', b" " * len(b',\\"tuning\\":\\"all\\"'))
    assert decode_file(EncoderSpec, old).tuning == ""
    assert str(Tuning.of(decode_file(EncoderSpec, old).tuning)) == "all"


@pytest.mark.parametrize("micro_batch_size", [2])
def test_a_run_in_parts_is_nearly_the_whole_one(micro_batch_size: int, tmp_path: Path) -> None:
    """The same meaning of a batch; rounding alone differs."""
    found = []
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    name = named("tiny-still", lambda folder: tiny_bert(folder, **still))
    for parts in (0, micro_batch_size):
        how = [f"micro_batch_size={parts}", "classifier.dropout=0", f"classifier.encoder={name}"]
        own = settings_of(tmp_path, "fedavg-encoder", *how)
        run(own, out=tmp_path / str(parts))
        model = open_models(tmp_path / str(parts)).entities
        found.append(model.model.tag.weight.detach().numpy())  # type: ignore[union-attr]
    assert np.allclose(*found, atol=5e-3) and not np.array_equal(*found)


FEDAVG = [pair for pair in WITH_ENCODER if METHODS[pair].method == "fedavg"]
METHOD = {METHODS[pair].method: pair for pair in reversed(WITH_ENCODER)}.values()
"""By method the first pair with an encoder."""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["top", "lora", "lora encoder.factors=b", "bias", "frozen"])
@pytest.mark.parametrize("pair", sorted({*METHOD, *FEDAVG}))
def test_every_method_trains_a_part(pair: str, way: str, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra confide[lora]")
    own = [*f"encoder.tune={way}".split(), "encoder.layers=1", "encoder.rank=2", "rounds=1"]
    run(settings_of(tmp_path, pair, *own), out=tmp_path / "run")
    models = open_models(tmp_path / "run", site="site-1" if METHODS[pair].personal else None)
    assert models.entities or models.relations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "family"),
    [
        *((pair, family) for pair in FEDAVG for family in FAMILIES),
        *zip([pair for pair in WITH_ENCODER if pair not in FEDAVG], cycle(FAMILIES), strict=False),
    ],
)
def test_every_method_trains_every_family(
    pair: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family is what a kind reads with, whatever the method: others read one family each.

    Each reads in int8 too.
    """
    name = named(f"tiny-{family}", lambda folder: of_family(family, folder))
    own = ["rounds=1", f"classifier.encoder={name}", "classifier.max_length=32"]
    run(settings_of(tmp_path, pair, *own), out=tmp_path / "run")
    site = "site-1" if METHODS[pair].personal else None
    models = open_models(tmp_path / "run", site=site)
    assert models.entities or models.relations
    monkeypatch.setattr(devices, "_LEAST", 1)
    narrow = open_models(tmp_path / "run", site=site, int8=True)
    if (model := narrow.entities or narrow.relations) is not None:
        assert any(isinstance(one, devices.Int8Linear) for one in model.model.modules())
        documents = LocalRun.of(RunFolder(tmp_path / "run"), None).gathered.specs[0].train[:9]
        assert len(model(documents)) == len(documents)
