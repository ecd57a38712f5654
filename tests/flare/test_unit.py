"""The systemd unit: hardened, verified by systemd where it is installed, deaf to hostile paths."""

from __future__ import annotations

import dataclasses
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cases import each
from confide.cli.verbs import app
from confide.errors import KitError
from confide.flare import kit as service
from confide.flare.kit import Kit, unit_text, write_unit

HARDENED = {
    "NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes", "PrivateDevices=yes",
    "CapabilityBoundingSet=", "RestrictNamespaces=yes", "UMask=0077", "ProtectHome=read-only",
}  # fmt: skip


@pytest.fixture(autouse=True)
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests, the kit is somebody's."""
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="confide"))
    monkeypatch.setattr(service, "_owner", lambda path: 1000)


def kit(folder: Path, kind: str = "site", name: str = "cardiology") -> Kit:
    (folder / "kit").mkdir(parents=True, exist_ok=True)
    return Kit(folder / "kit", kind, name, "trial", "fl.example.org", 8002, "fl.example.org", "")


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_a_site_may_write_in_its_kit_and_its_memory_only(tmp_path: Path) -> None:
    text = unit_text(kit(tmp_path), writable=[tmp_path / "memory"])
    assert set(text.splitlines()) >= HARDENED
    assert lines(text, "ReadWritePaths=") == [
        f'ReadWritePaths="{tmp_path}/kit"', f'ReadWritePaths="{tmp_path}/memory"'
    ]  # fmt: skip
    (command,) = lines(text, "ExecStart=")
    assert command.startswith(f'ExecStart="{Path(sys.executable)}" "-m" "confide" "site" "start"')
    assert command.endswith(f'"start" "{tmp_path}/kit"')
    assert lines(text, "User=") == ["User=confide"]


@each("evil", ["a\nExecStartPre=/bin/evil", "a\tb", "a\x1b[2J", "a\u2028b"])
def test_a_path_cannot_smuggle_a_line_in(tmp_path: Path, evil: str) -> None:
    with pytest.raises(KitError, match="control character") as raised:
        unit_text(kit(tmp_path), writable=[tmp_path / evil])
    assert evil not in str(raised.value)
    named = dataclasses.replace(kit(tmp_path), name=evil)
    with pytest.raises(KitError, match="control character"):
        unit_text(named)


def test_what_systemd_would_expand_stays_as_it_is(tmp_path: Path) -> None:
    text = unit_text(kit(tmp_path / 'a "b" %h $HOME \\'))
    (command,) = lines(text, "ExecStart=")
    assert '/a \\"b\\" %%h $$HOME \\\\/kit"' in command
    (folder,) = lines(text, "ReadWritePaths=")
    assert '/a \\"b\\" %%h $HOME \\\\/kit"' in folder


def test_root_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = kit(tmp_path)

    monkeypatch.setattr(service, "_owner", lambda path: 0)
    with pytest.raises(KitError, match="belongs to root"):
        unit_text(held)


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    there = tmp_path / "confide.service"
    write_unit(kit(tmp_path), there)
    before = there.read_text()
    with pytest.raises(KitError, match="cannot be written"):
        write_unit(kit(tmp_path, name="other"), there)
    assert there.read_text() == before


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("kind", ["site", "server"])
def test_systemd_finds_nothing_wrong(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="daemon"))
    odd = tmp_path / "with blank %h"
    file = tmp_path / "confide-test.service"
    file.write_text(unit_text(kit(odd, kind), writable=[odd / "memory"]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if file.name in line]
    assert not told and "Unknown" not in done.stderr, done.stderr


def test_the_verb_writes_it_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = kit(tmp_path, "server", "server")
    monkeypatch.setattr("confide.flare.kit.open_kit", lambda path, kind: held)
    file = tmp_path / "confide-server.service"
    done = CliRunner().invoke(app, ["server", "start", str(held.path), "--unit", str(file)])
    assert done.exit_code == 0, done.output
    assert "systemctl daemon-reload" in done.output
    assert file.read_text() == unit_text(held)
    assert [path.name for path in held.path.iterdir()] == []
