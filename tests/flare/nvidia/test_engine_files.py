"""The engine's files that a site relies on are those that were tested."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

import nvflare

import confide
from cases import each
from confide.errors import EngineError
from confide.flare.nvidia import FILES, check_engine

INSTALLED = Path(nvflare.__file__).parent


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files that are checked, in a folder of their own."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(INSTALLED / name, tmp_path / name)
    return tmp_path


def test_what_is_installed_is_what_was_tested(copied: Path) -> None:
    check_engine(INSTALLED)
    begun = time.perf_counter()
    check_engine(copied)
    assert time.perf_counter() - begun < 0.5


@each("name", FILES)
def test_a_changed_file_is_refused(copied: Path, name: str) -> None:
    with (copied / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(EngineError, match="is not the one that was tested") as caught:
        check_engine(copied)
    assert str(copied / name) == caught.value.where
    assert "nvflare==" in str(caught.value.fix)
    (copied / name).unlink()
    with pytest.raises(EngineError, match="is not the one that was tested"):
        check_engine(copied)
    shutil.copy(INSTALLED / name, copied / name)


def test_nothing_of_the_room_is_imported_with_another_engine(copied: Path) -> None:
    """Whoever starts a process, founds a consortium or answers in a run imports the room first."""
    engine = copied / "site" / "nvflare"
    engine.mkdir(parents=True)
    (engine / "__init__.py").write_text("")
    source = Path(confide.__file__).parent.parent
    code = f"import sys; sys.path[:0] = {[str(engine.parent), str(source)]!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "import confide.flare.nvidia.service"],
        capture_output=True,
        text=True,
    )
    assert done.returncode and "is not the one that was tested" in done.stderr
