"""The audit catches a model that learnt its text by heart, and no text is in what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confide.errors import DataError
from confide.jobs import audit as jobs_audit
from confide.jobs.audit import AUDIT, audit, crossed, page
from confide.runs.folder import RunFolder
from confide.runs.run import run
from contract.corpus import tiny


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_audit, "FEWEST", 2)


@pytest.mark.parametrize("pair", ["fedavg-tagger", "fedavg-relations", "fedavg-bags"])
def test_every_kind_is_served(pair: str, tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, f"method={pair}", "rounds=1"), out=tmp_path / "run").folder
    found = audit(folder)
    assert len(found.sites) == 3
    one: Any = found.sites["site-1"]
    assert 0 <= one.auc.low <= one.auc.value <= one.auc.high <= 1
    assert "of 100 documents" in page(found)
    said = (folder / AUDIT).read_text()
    texts = RunFolder(folder).settings().site[0].train
    assert texts and all(
        word not in said for word in Path(texts[0]).read_text().split() if len(word) > 9
    )


def test_text_that_changed_since_is_refused(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, "method=fedavg", "rounds=1"), out=tmp_path / "run").folder
    train = Path(RunFolder(folder).settings().site[0].train[0])
    train.write_text("\n".join(train.read_text().rstrip().split("\n\n")[:-1]) + "\n")
    with pytest.raises(DataError, match="changed since the run"):
        audit(folder)


@pytest.mark.parametrize(("sums", "smallest"), [("plain", 1), ("masked", 3)])
def test_the_ledger_says_what_the_server_could_read(
    sums: str, smallest: int, tmp_path: Path
) -> None:
    settings = tiny(tmp_path, "method=fedavg", "rounds=1", f"federation.sums={sums}")
    found = crossed(run(settings, out=tmp_path / "run").folder)
    assert (found.smallest, found.masked) == (smallest, sums == "masked")
    assert (found.digests > 0) == (sums == "plain")
