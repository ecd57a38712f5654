"""A survey over real sites: the numbers of one machine, and settings that these sites train by."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.ledger import read_ledger
from confide.flare.nvidia.lead import coordinate_run
from confide.flare.sitekit import agree_to
from confide.jobs.initialise import init
from confide.jobs.survey import survey
from confide.methods.survey import TextCounted
from confide.settings import dump, load_settings
from contract.corpus import tiny
from flare.real import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
]


def test_a_lead_without_any_text_gets_from_a_survey_to_a_model(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "federation.sums=masked")
    here = tmp_path / "here.toml"
    here.write_text(dump(settings))
    with running(tmp_path, settings) as real:
        kit = real.kit("lead").path
        with pytest.raises(EngineError, match=r"did not agree to this.*survey-tagger"):
            survey(kit=kit, out=tmp_path / "refused")
        for name in real.names:
            agree_to(real.kit(name), "survey")
        found, folder = survey(kit=kit, out=tmp_path / "run")
        assert folder is not None
        own = read_ledger(next((real.memory("site-1") / "runs").glob("*survey*")) / "ledger.jsonl")
        drafted = init([], survey=folder, out=tmp_path / "study.toml")
        for name in real.names:
            agree_to(real.kit(name), "fedavg", asked=load_settings(drafted.path))
        small = ["rounds=1", "model.context=none"]
        trained = coordinate_run(
            drafted.path, kit=kit, overrides=small, out=tmp_path / "model", sites=real.names
        )
    assert found == survey(here).counts
    assert drafted.command == "confide coordinate --kit KIT"
    assert trained.result.history[0].sites == real.names
    up = {(line.step, line.field) for line in own if line.direction == "up"}
    assert ("mask", "lanes_B") in up
    assert not {("count_text", one.name) for one in fields(TextCounted)} & up
