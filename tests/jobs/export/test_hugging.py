"""Folders of transformers of every family: its own class gives confide's numbers, or says no."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import SettingsError
from confide.jobs.export import Copy, write_hf
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.training.encoder import FrozenEncoder, load_encoder
from training.families import FAMILIES, tiny

OTHER_HEAD = {"modernbert-words", "modernbert-pairs", "longformer-pairs"}
"""ModernBERT's head norms what it reads, so that no setting of it passes a state on; Longformer's
class for texts lets every piece attend to the first, which confide's encoder does not.
"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FrozenEncoder]:
    place = tmp_path_factory.mktemp("families")

    class Shelf(dict[str, FrozenEncoder]):
        def __missing__(self, family: str) -> FrozenEncoder:
            self[family] = load_encoder(str(tiny(family, place / family)))
            return self[family]

    return Shelf()


def written(made: Any, out: Path) -> dict[str, Any]:
    out.mkdir()
    extractor = SimpleNamespace(trainer=made, model=made.initial(1))
    return write_hf(Copy(out, extractor, out))


@each("task", ["words", "pairs"])
@each("family", FAMILIES)
def test_each_familys_class_gives_the_same_logits(
    family: str, task: str, shelf: dict[str, FrozenEncoder], tmp_path: Path
) -> None:
    made: Any = TokenTrainer(shelf[family], EncoderSpec(("drug", "effect"), longest=24))
    if task == "pairs":
        form = RelationSpec(("none", "causes", "eases"), types=("a", "b"), pool="cls", longest=32)
        made = RelationTrainer(shelf[family], form)
    if f"{family}-{task}" in OTHER_HEAD:
        with pytest.raises(SettingsError, match=r"a head that cannot give these numbers.*onnx"):
            written(made, tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())
        return
    about = written(made, tmp_path / "out")
    assert about["largest_difference"] <= 1e-4
    assert (tmp_path / "out" / "model.safetensors").is_file()
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    kind: Any = AutoModelForTokenClassification if task == "words" else (
        AutoModelForSequenceClassification
    )  # fmt: skip
    loaded = kind.from_pretrained(tmp_path / "out")
    assert list(loaded.config.id2label.values()) == about["labels"]
    assert all(p.dtype is torch.float32 for p in loaded.parameters())
