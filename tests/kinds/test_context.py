"""Contextual features in a federation: one encoder for all, states that stay where the text is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import FederationError, GuardError, QuorumError
from confide.federation.guards import check_reply
from confide.federation.messages import decode, encode
from confide.files import cache_folder
from confide.jobs.predict import predict
from confide.kinds.agreement import DESCRIBE_ENCODER, WIDEST, EncoderDescribed
from confide.runs.loading import release
from confide.runs.run import run
from confide.runs.sites import gather
from confide.settings import Settings
from confide.training.batches import examples_from
from confide.training.context import contextual
from confide.training.encoder import load_encoder
from contract.corpus import tiny, write_sites
from contract.runs import Asking, Forging, same_run, use_engine
from training.encoders import tiny_bert

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny encoder; features go to a cache of the test's own."""
    monkeypatch.setenv("CONFIDE_CACHE", str(tmp_path / "cache"))
    return tiny_bert(tmp_path / "encoder")


@pytest.mark.parametrize(
    "method", ["fedavg-tagger", pytest.param("fedner-tagger", marks=pytest.mark.slow)]
)
def test_a_run_with_features_learns_predicts_and_is_released(
    tmp_path: Path, encoder: Path, method: str
) -> None:
    def cached() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}

    overrides = (f"method={method}", f"base={method}", f'model.context="{encoder}"')
    rounds = ("rounds=60", "select.every=20") if method == "fedner-tagger" else ("rounds=12",)
    settings = tiny(tmp_path, *overrides, *rounds, "training.learning_rate=0.03")
    done = run(settings, out=tmp_path / "run")
    assert done.result.scores.overall["strict"]["f1"] > 0.5
    held = cached()
    assert sum(path.is_file() for path in held) >= 9  # three sites, three parts
    again = run(settings, out=tmp_path / "again")
    same_run(done.folder, again.folder)
    assert cached() == held
    note = tmp_path / "note.txt"
    note.write_text("the patient took warda aspirin today .")
    (found,) = predict(done.folder, [note], site="site-1")
    assert cached() == held, "what is read once is not kept"
    release(done.folder, out=tmp_path / "clear", site="site-1")
    (copied,) = predict(tmp_path / "clear", [note])
    assert [e.fragments for e in found.entities] == [e.fragments for e in copied.entities]


def test_a_site_may_have_the_encoder_somewhere_else(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = write_sites(tmp_path / "data", 2)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in encoder.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("CONFIDE_DATA", str(tmp_path))
    tables[1]["context"] = "$CONFIDE_DATA/elsewhere"
    run(tiny(tmp_path, f'model.context="{encoder}"', site=tables), out=tmp_path / "run")


def test_sites_with_different_encoders_are_told_apart(tmp_path: Path, encoder: Path) -> None:
    tables = write_sites(tmp_path / "data", 3)
    tables[2]["context"] = str(tiny_bert(tmp_path / "other", seed=1))
    with pytest.raises(FederationError, match="site-3 has a different one"):
        run(tiny(tmp_path, f'model.context="{encoder}"', site=tables), out=tmp_path / "run")


def test_a_site_without_the_encoder_is_left_out_by_name(tmp_path: Path, encoder: Path) -> None:
    tables = write_sites(tmp_path / "data", 3)
    tables[0]["context"] = str(tmp_path / "nowhere")
    settings = tiny(tmp_path, f'model.context="{encoder}"', site=tables)
    with pytest.raises(QuorumError, match=r"site-1.*cannot use the frozen encoder"):
        run(settings, out=tmp_path / "run")
    log = (tmp_path / "run" / "sites" / "site-1" / "site.log").read_text()
    assert "nowhere" in log  # the reason stays at the site


@pytest.mark.parametrize("changes", [{"dim": 0}, {"dim": 1 << 20}, {"check": "x" * 65}])
def test_a_description_that_cannot_be_is_refused(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    def change(_: Any, step: str, site: str, round: int, reply: bytes) -> bytes:
        if (step, site) != ("describe_encoder", "site-2"):
            return reply
        return encode(replace(decode(EncoderDescribed, reply), **changes))

    use_engine(monkeypatch, Forging, change=change)
    with pytest.raises(QuorumError, match=r"site-2.*the server refused"):
        run(tiny(tmp_path, f'model.context="{encoder}"'), out=tmp_path / "run")


@pytest.mark.parametrize("method", ["fedavg-tagger", "fedner-tagger"])
def test_the_features_of_a_site_are_never_sent(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """No row of any site's features, as kept or as computed with, is in any message or memory."""
    sent: list[bytes] = []

    def look(_: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        sent.extend((ask, reply))

    use_engine(monkeypatch, Asking, look=look)
    settings = tiny(tmp_path, f"method={method}", f'model.context="{encoder}"')
    folder = run(settings, out=tmp_path / "run").folder
    texts = [[e.tokens for e in examples_from(s.train)[0]] for s in specs(settings, tmp_path)]
    kept = [contextual(text, load_encoder(str(encoder)), folder=cache_folder()) for text in texts]
    memory = [path.read_bytes() for path in folder.glob("sites/*/memory/*")]
    everything = b"".join(sent + memory)
    assert len(kept) == 3 and len(everything) > 100_000
    for states_NX, _ in kept:
        assert len(states_NX) > 50
        for row_X in states_NX[::7]:
            assert row_X.tobytes() not in everything
            assert row_X.astype(np.float32).tobytes() not in everything


def specs(settings: Settings, folder: Path) -> Any:
    """The sites of the settings."""
    return gather(settings, folder / "sites", key_file=None).specs


def test_the_width_of_an_encoder_has_bounds() -> None:
    for dim in (1, WIDEST):
        check_reply(DESCRIBE_ENCODER, None, EncoderDescribed("0a", dim))
    for dim in (0, WIDEST + 1):
        with pytest.raises(GuardError, match="dim"):
            check_reply(DESCRIBE_ENCODER, None, EncoderDescribed("0a", dim))
