"""The wheel holds everything: it works where the source is not."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import confide

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that has no way to see the source tree."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in tracked.stdout.decode().split("\0"):
        if name.startswith(("src/", "pyproject.toml", "README.md", "LICENSE")):
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((root / name).read_bytes())
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, copy, cwd=folder)
    (found,) = folder.glob("confide-*.whl")
    for path in sorted(copy.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return found


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """A fresh environment with the wheel; the dependencies are borrowed from this one."""
    folder = wheel.parent / "env"
    run(sys.executable, "-m", "venv", folder, cwd=wheel.parent)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    site = run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=wheel.parent)
    ours = Path(pkgutil.resolve_name("torch").__file__).parent.parent
    # Plain paths, no .pth files: the editable install of the source stays out of reach.
    (Path(site.strip()) / "borrowed.pth").write_text(f"{ours}\n")
    return python


def test_the_wheel_holds_what_is_not_python(wheel: Path, root: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = root / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "confide").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert not wanted - names
    assert not {name for name in names if name.startswith(("tests", "benchmarks"))}


def test_the_installed_one_is_the_wheel(python: Path, tmp_path: Path) -> None:
    where = run(python, "-c", "import confide; print(confide.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(python.parent.parent)


def test_every_module_imports(python: Path, tmp_path: Path) -> None:
    names = [
        module.name
        for module in pkgutil.walk_packages(confide.__path__, "confide.")
        if not module.name.startswith("confide.flare")
    ]
    assert len(names) > 20
    run(python, "-W", "error", "-c", "\n".join(f"import {name}" for name in names), cwd=tmp_path)


def test_verbs_work(python: Path, tmp_path: Path) -> None:
    command = python.parent / "confide"
    assert "predict" in run(command, "--help", cwd=tmp_path)
    assert confide.__version__ in run(command, "--version", cwd=tmp_path)
    assert "ncbi-iid10" in run(command, "recipes", cwd=tmp_path)
    assert "vocabulary" in run(command, "wire", "fedavg", cwd=tmp_path)
