"""A survey over real sites: the numbers of one machine, after each site has agreed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.ledger import read_ledger
from confide.flare.sitekit import agree_to
from confide.jobs.survey import survey
from confide.methods.survey import TextCounted
from confide.settings import dump
from contract.corpus import tiny
from flare.homes import as_toml
from flare.real import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
]


def test_a_survey_over_real_sites_gives_the_numbers_of_one_machine(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "federation.sums=masked")
    here, there = tmp_path / "here.toml", tmp_path / "there.toml"
    here.write_text(dump(settings))
    there.write_text(as_toml(settings))
    with running(tmp_path, settings) as real:
        kit = real.kit("lead").path
        with pytest.raises(EngineError, match=r"did not agree to this.*survey-tagger"):
            survey(there, kit=kit, out=tmp_path / "refused")
        for name in real.names:
            agree_to(real.kit(name), "survey")
        found = survey(there, kit=kit, out=tmp_path / "run")
        own = read_ledger(next((real.memory("site-1") / "runs").glob("*survey*")) / "ledger.jsonl")
    assert found == survey(here)
    up = {(line.step, line.field) for line in own if line.direction == "up"}
    assert ("mask", "lanes_B") in up
    assert not {("count_text", one.name) for one in fields(TextCounted)} & up
