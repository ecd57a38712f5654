"""A real site computes as its own file says."""

from __future__ import annotations

import pytest
import torch

from cases import each
from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.flare.site import compute_as, own_computing
from confide.settings import parse
from confide.settings.sitefile import parse_site
from confide.training import devices
from confide.training.devices import PROCESSOR, here

FILE = {"name": "north", "train": "n.conll", "key": "shared.key"}


def test_the_runs_settings_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_here", [])
    run = parse({"devices": ["cuda:1"], "precision": "bfloat16", "micro_batch_size": 64})
    own = parse_site({**FILE, "micro_batch_size": 4})
    mine = run.model_copy(update=own_computing(own))
    assert (mine.device, mine.devices, mine.precision, mine.micro_batch_size) == (
        "cpu",
        None,
        "auto",
        4,
    )
    threads = torch.get_num_threads()
    try:
        compute_as(mine)
        assert here().micro_batch_size == 4 and here().device == PROCESSOR.device
        assert torch.get_num_threads() == mine.threads
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_here", [])
    own = parse_site({**FILE, "device": "cuda"})
    with pytest.raises(Refusal) as caught:
        compute_as(parse({}).model_copy(update=own_computing(own)))
    assert caught.value.code == "device-missing"


@each("odd", ["gpu", "cuda:", "meta", "cpu; rm", ""])
def test_odd_names_are_refused_by_the_file(odd: str) -> None:
    with pytest.raises(SettingsError, match="device is wrong"):
        parse_site({**FILE, "device": odd})
    with pytest.raises(SettingsError, match="device is wrong"):
        parse({"device": odd})
