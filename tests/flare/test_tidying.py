"""What old runs left in a kit goes; nothing else is touched."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import KitError
from confide.flare import kit as tidying
from confide.flare.kit import AUDIT, AUDITS_KEPT, KEPT, tidy_kit
from confide.flare.nvidia import processes
from confide.flare.nvidia.consortium import create_consortium


def run_folder(kit: Path, age: int) -> Path:
    """What FLARE leaves of a run that ended so many seconds ago."""
    path = kit / str(uuid.uuid4())
    (path / "app_north" / "config").mkdir(parents=True)
    (path / "log.txt").write_text("INFO")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_the_newest_folders_of_runs_stay(tmp_path):
    runs = [run_folder(tmp_path, age) for age in range(KEPT + 3)]
    tidy_kit(tmp_path)
    assert [path.exists() for path in runs] == [True] * KEPT + [False] * 3
    tidy_kit(tmp_path)
    assert sum(path.exists() for path in runs) == KEPT


def test_nothing_else_is_touched(tmp_path):
    outside = run_folder(tmp_path / "outside", 9)
    kit = tmp_path / "kit"
    keep = [kit / name for name in ("runs", "store", "startup", "local", "run", "tmp", "notes")]
    keep += [kit / str(uuid.uuid4()).upper(), kit / uuid.uuid4().hex, kit / f"{uuid.uuid4()}.zip"]
    keep += [kit / "store" / "runs" / str(uuid.uuid4()), kit / "runs" / str(uuid.uuid4())]
    for path in keep:
        path.mkdir(parents=True, exist_ok=True)
        (path / "file").write_text("text")
    a_file = kit / str(uuid.uuid4())
    a_file.write_text("text")
    link = kit / str(uuid.uuid4())
    link.symlink_to(outside)
    for age in range(KEPT + 2):
        run_folder(kit, age)
    tidy_kit(kit)
    assert all((path / "file").read_text() == "text" for path in keep)
    assert a_file.read_text() == "text"
    assert link.is_symlink() and (outside / "log.txt").exists()


def test_a_link_in_an_old_folder_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "notes.txt").write_text("text")
    kit = tmp_path / "kit"
    for age in range(KEPT):
        run_folder(kit, age)
    (run_folder(kit, 99) / "link").symlink_to(outside)
    tidy_kit(kit)
    assert len(list(kit.iterdir())) == KEPT
    assert (outside / "notes.txt").read_text() == "text"


def test_only_empty_folders_of_transfers_go(tmp_path):
    empty, full = (tmp_path / "transfer" / str(uuid.uuid4()) for _ in range(2))
    other = tmp_path / "transfer" / "other"
    for path in (empty, full, other):
        path.mkdir(parents=True)
    (full / "part").write_text("text")
    tidy_kit(tmp_path)
    assert sorted((tmp_path / "transfer").iterdir()) == sorted([full, other])


def test_a_long_audit_log_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(tidying, "AUDIT_BYTES", 3)
    audit = tmp_path / AUDIT
    audit.write_text("abc")
    tidy_kit(tmp_path)
    assert audit.read_text() == "abc"  # not long yet
    for number in range(AUDITS_KEPT + 2):
        audit.write_text(f"long {number}")
        tidy_kit(tmp_path)
        assert not audit.exists()
    old = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert old == {f"audit.log.{n + 1}": f"long {AUDITS_KEPT + 1 - n}" for n in range(AUDITS_KEPT)}


def test_an_empty_or_absent_kit_is_no_trouble(tmp_path):
    tidy_kit(tmp_path)
    tidy_kit(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_starting_tidies_up(tmp_path, monkeypatch):
    kit = create_consortium("trial", sites=["north"], host="localhost", out=tmp_path / "trial").kit(
        "north"
    )
    seen: list[Path] = []
    monkeypatch.setattr(processes.kits, "tidy_kit", seen.append)
    monkeypatch.setattr(processes.os, "execve", lambda *_: None)
    processes.start(kit)
    assert seen == [kit.path]
    held = processes.lock_kit(kit.path)
    with pytest.raises(KitError, match="already running"):  # its runs may go on
        processes.start(kit)
    assert seen == [kit.path]
    assert held is not None
    held.close()
    with pytest.raises(KitError):
        processes.start(
            create_consortium("l", sites=["a"], host="localhost", out=tmp_path / "l").kit("lead")
        )
    assert seen == [kit.path]


def test_starting_a_kit_of_an_earlier_release_gives_it_our_policies(tmp_path, monkeypatch):
    made = create_consortium("trial", sites=["north"], host="localhost", out=tmp_path / "trial")
    kit = made.kit("north")
    policies = kit.path / "local"
    before = {path.name: path.read_text() for path in policies.iterdir()}
    (policies / "resources.json").write_text("{}")
    (policies / "log_config.json").write_text('{"formatters": {"plain": {"()": "gone.Plain"}}}')
    own = 'name = "north"\ntrain = ["a.jsonl"]\nkey = "key"\n'
    (policies / "site.toml").write_text(own)
    monkeypatch.setattr(processes.os, "execve", lambda *_: None)
    processes.start(kit)
    assert {path.name: path.read_text() for path in policies.iterdir()} == {
        **before, "site.toml": own
    }  # fmt: skip
