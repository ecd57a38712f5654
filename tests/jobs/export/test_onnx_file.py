"""ONNX of encoders of every family; what cannot be written leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra confide[onnx]")
pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.errors import SettingsError
from confide.jobs import export
from confide.jobs.export import MODEL, Copy, write_onnx
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.training.encoder import load_encoder
from training.families import FAMILIES, tiny

UNWRITTEN = "longformer"
"""Its windows depend on the length of a text in a way that neither exporter of torch writes."""


def written(family: str, place: Path) -> list[float]:
    encoder = load_encoder(str(tiny(family, place / "encoder")))
    found = []
    both: list[Any] = [
        TokenTrainer(encoder, EncoderSpec(("drug", "effect"), longest=24)),
        RelationTrainer(encoder, RelationSpec(("none", "causes"), longest=24)),
    ]
    for number, made in enumerate(both):
        out = place / str(number)
        out.mkdir()
        about = write_onnx(Copy(out, SimpleNamespace(trainer=made, model=made.initial(1)), out))
        assert (out / MODEL).is_file()
        found.append(about["largest_difference"])
    return found


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=[pytest.mark.slow] * (one not in ("bert", "deberta-v3")))
        for one in sorted(FAMILIES.keys() - {UNWRITTEN})
    ],
)
def test_every_family_gives_the_same_numbers(family: str, tmp_path: Path) -> None:
    assert max(written(family, tmp_path)) < 1e-5


@pytest.mark.slow
def test_int8_leaves_no_wide_weights_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter that large models need writes weights beside the file."""
    real = export._write_onnx

    def modern(graph: Any, file: Path, *, modern: bool) -> None:
        real(graph, file, modern=True)
        assert len(list(file.parent.iterdir())) == 2

    monkeypatch.setattr(export, "_write_onnx", modern)
    encoder = load_encoder(str(tiny("bert", tmp_path / "encoder")))
    made = TokenTrainer(encoder, EncoderSpec(("drug",), longest=24))
    out = tmp_path / "out"
    out.mkdir()
    extractor = SimpleNamespace(trainer=made, model=made.initial(1))
    about = write_onnx(Copy(out, extractor, out, int8=True))
    assert [one.name for one in out.iterdir()] == [MODEL] and about["largest_difference"] < 0.1


@pytest.mark.slow
def test_a_family_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="torch cannot write this model as ONNX") as caught:
        written(UNWRITTEN, tmp_path)
    assert str(caught.value).isprintable()
