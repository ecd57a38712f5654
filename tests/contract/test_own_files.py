"""Every real site has its own copy of public files, wherever it likes, whatever the server says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confide.federation.engines import Hosting
from confide.federation.site import Site, SiteHost
from confide.methods import METHODS
from confide.models import MODELS
from confide.runs.run import run
from contract.corpus import tiny
from contract.entries import APART, pairs
from contract.models import folder_of

FILES = {"encoder": "tiny", "spans": "tiny", "relations": "tiny-relations"}
FILES["lightner"] = "tiny-bart"
"""The model that a tiny run of a kind names."""


@pytest.mark.parametrize(
    "method", pairs(of=[name for name in APART if METHODS[name].kind.name in FILES])
)
def test_a_site_reads_its_own_copy_and_no_other(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, answer = Hosting.host, SiteHost.answer
    own = str(folder_of(FILES[METHODS[method].kind.name]))

    def remote(self: Hosting, spec: Site, scratch: dict[Any, Any], **given: Any) -> SiteHost:
        found = host(self, replace(spec, context=own), scratch, **given)
        found.site.remote = True
        return found

    def answered(self: SiteHost, step: str, round: int, data: bytes) -> bytes:
        with monkeypatch.context() as here:
            here.setenv(MODELS, str(tmp_path / "nothing"))  # where the server has its models
            return answer(self, step, round, data)

    settings = tiny(tmp_path, f"method={method}", "rounds=1", "federation.down=cached")
    monkeypatch.setattr(Hosting, "host", remote)
    monkeypatch.setattr(SiteHost, "answer", answered)
    found = run(settings, out=tmp_path / "run").result
    assert not found.left_out
    assert not found.history[-1].failed
