"""Runs that an older confide wrote are read: for `predict`, `evaluate` and `report`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import RunError
from confide.federation.messages import encode
from confide.methods import METHODS
from confide.removed import SETTINGS, without_removed
from confide.runs.folder import RunFolder
from confide.runs.loading import opened
from confide.runs.run import run
from contract.corpus import tiny

OLD = """
[options]
download = "whole"
label_share = 1.0
wire_dtype = "float16"

[federation]
sums = "integers"
"""


def with_fields(data: bytes, **fields: Any) -> bytes:
    """An encoded message with more plain fields."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    format, name, plain = json.loads(header["__metadata__"]["confide"])
    header["__metadata__"]["confide"] = json.dumps([format, name, {**plain, **fields}])
    said = json.dumps(header).encode()
    return len(said).to_bytes(8, "little") + said + data[8 + size :]


def test_a_run_with_settings_and_fields_that_went_is_read(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=feded-relations", "rounds=1", sites=2)
    folder = run(settings, out=tmp_path / "run").folder
    now = RunFolder(folder).trained(METHODS["feded-relations"], None)[0]
    file = folder / "settings.toml"
    text = file.read_text()
    file.write_text(text.replace("[federation]", f"{OLD.strip()}", 1))
    store = RunFolder(folder).store()
    for round in store.rounds():
        kept = store.load(round)
        state = with_fields(kept.state.tobytes(), version=2, behind=["site-1"])
        raw = encode(replace(kept, state=np.frombuffer(state, np.uint8)))
        digest = hashlib.sha256(raw).hexdigest().encode()
        store.path(round).write_bytes(b"confide checkpoint 1\n" + digest + b"\n" + raw)
    assert encode(RunFolder(folder).trained(METHODS["feded-relations"], None)[0]) == encode(now)
    assert opened(folder).relations is not None
    assert RunFolder(folder).settings().options == {"wire_dtype": "float16"}
    with pytest.raises(RunError, match="no longer a setting"):
        run(settings, out=folder, resume=True)


def test_what_another_method_still_has_stays() -> None:
    own = {"wire_dtype": "float16", "local_steps": 2}
    for method, left in (("fedner", {"local_steps": 2}), ("feded", own)):
        assert without_removed({"method": method, "options": own})["options"] == left
    assert own == {"wire_dtype": "float16", "local_steps": 2}
    assert without_removed({"options": 3, "federation": {"sums": "integers"}}) == {
        "options": 3, "federation": {"sums": "masked"},
    }  # fmt: skip
    assert all(text and text[0].islower() for text in SETTINGS.values())
