"""The lock files of `make lock`: exact, with hashes, whole, and in step with constraints.txt."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cases import each

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
EXTRAS = {"site": {"flare"}, "site-serve": {"flare", "serve"}}
FILES = [*EXTRAS, "torch", "tools"]
PLACES = [
    {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    for python, machine in product(("3.11", "3.12", "3.13"), ("x86_64", "aarch64"))
]
UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectionError|Failed to establish|Temporary failure|timed out|"
    r"Cannot connect to proxy|Name or service not known|Network is unreachable"
)


def lines(lock: str) -> list[str]:
    """A lock's requirements with their hashes, a line each."""
    text = (LOCKS / f"{lock}.txt").read_text(encoding="utf-8")
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    return text.replace("\\\n", " ").splitlines()


def pins(lock: str) -> dict[str, Requirement]:
    found = [Requirement(line.partition("--hash")[0]) for line in lines(lock)]
    by_name = {canonicalize_name(one.name): one for one in found}
    assert len(by_name) == len(found) > 10
    return by_name


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    assert only.operator == "=="
    return only.version


def constraints() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pairs = (line.split("==") for line in text.splitlines() if line and line[0] != "#")
    return {canonicalize_name(name): version for name, version in pairs}


def declared(extras: set[str]) -> list[Requirement]:
    """What pyproject.toml asks for."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def needed(wanted: list[Requirement], place: dict[str, str]) -> set[str]:
    """All that these need at such a place, as the metadata of what is installed here has it."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [(one, frozenset[str]()) for one in wanted]
    names = set()
    while left:
        one, extras = left.pop()
        marks = [place | {"extra": extra} for extra in (extras or {""})]
        if one.marker and not any(one.marker.evaluate(mark) for mark in marks):
            continue
        name = canonicalize_name(one.name)
        own = frozenset(one.extras)
        names.add(name)
        if (name, own) not in seen:
            seen.add((name, own))
            texts = importlib.metadata.requires(name) or []
            left += [(Requirement(text), own) for text in texts]
    return names


@each("lock", FILES)
def test_every_line_is_a_pin_with_hashes_and_nothing_else(lock: str) -> None:
    assert "://" not in (LOCKS / f"{lock}.txt").read_text(encoding="utf-8")
    for line in lines(lock):
        requirement, *hashes = line.split(" --hash=")
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+( ; .*)?", requirement.strip()), line
        assert hashes, f"{requirement} has no hash"
        for one in hashes:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", one.strip()), line
        assert len(set(hashes)) == len(hashes)


@each("lock", EXTRAS)
def test_the_pins_are_those_of_the_tests(lock: str) -> None:
    """What a site installs is what was tested."""
    tested = constraints()
    assert {name: version(pin) for name, pin in pins(lock).items()} == {
        name: tested[name] for name in pins(lock)
    }
    assert version(pins("torch")["torch"]) == tested["torch"]


@each("lock", EXTRAS)
def test_pyproject_admits_the_pins(lock: str) -> None:
    locked = pins(lock) | {"torch": pins("torch")["torch"]}
    for requirement in declared(EXTRAS[lock]):
        pin = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version(pin)), f"{requirement} and {pin}"


@each("place", PLACES)
@each("lock", EXTRAS)
def test_nothing_is_missing_and_nothing_too_much(lock: str, place: dict[str, str]) -> None:
    locked = {n for n, pin in pins(lock).items() if not pin.marker or pin.marker.evaluate(place)}
    assert locked == needed(declared(EXTRAS[lock]), place) - set(pins("torch"))


def test_pytorch_and_its_libraries_are_in_a_lock_of_their_own() -> None:
    for lock in EXTRAS:
        assert not set(pins(lock)) & set(pins("torch"))
        assert not [name for name in pins(lock) if name.startswith(("nvidia-", "cuda-", "triton"))]
    assert "torch" in pins("torch") and len(pins("torch")) > 10


def test_one_lock_holds_the_other() -> None:
    small, large = (
        {(name, version(pin)) for name, pin in pins(lock).items()}
        for lock in ("site", "site-serve")
    )
    assert small < large


def test_the_tools_are_locked_too() -> None:
    asked = (LOCKS / "tools.in").read_text(encoding="utf-8").splitlines()
    names = {canonicalize_name(Requirement(line).name) for line in asked if line[0] != "#"}
    assert (
        {"uv", "build", "cyclonedx-bom", "pip-audit", "setuptools"} <= names <= set(pins("tools"))
    )


# --- against the package index --------------------------------------------------------------


def pip(*words: str | Path) -> Iterator[str]:
    """What pip says; skips the test where the index is not reached."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    said = done.stdout + done.stderr
    if done.returncode and UNREACHABLE.search(said):
        pytest.skip("the package index is not reached from here")
    assert done.returncode == 0, said[-3000:]
    return iter(said.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(("python", "machine"), [("3.12", "x86_64"), ("3.13", "aarch64")])
def test_the_index_has_what_is_locked(tmp_path: Path, python: str, machine: str) -> None:
    """pip takes each file, with one of these hashes, as a wheel for this Python and processor."""
    platforms = [f"--platform={one}_{machine}" for one in
                 ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]  # fmt: skip
    said = pip(
        "install", "--dry-run", "--ignore-installed", "--target", tmp_path / "none",
        "--require-hashes", "--no-deps", "--only-binary=:all:", f"--python-version={python}",
        *platforms, "-r", LOCKS / "site.txt",
    )  # fmt: skip
    (last,) = [line for line in said if line.startswith("Would install ")]
    would = {canonicalize_name(one.rsplit("-", 1)[0]) for one in last.split()[2:]}
    place = {"python_version": python, "platform_machine": machine}
    there = next(one for one in PLACES if place.items() <= one.items())
    assert would == {
        name for name, pin in pins("site").items() if not pin.marker or pin.marker.evaluate(there)
    }


@pytest.mark.slow
def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    text = next(line for line in lines("site") if line.startswith("tomli-w=="))
    lock = tmp_path / "lock.txt"
    words = (
        "install",
        "--dry-run",
        "--ignore-installed",
        "--require-hashes",
        "--no-deps",
        "-r",
        lock,
    )
    lock.write_text(text)
    pip(*words)
    lock.write_text(re.sub(r"sha256:(.)", lambda m: f"sha256:{'0' if m[1] != '0' else '1'}", text))
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode and "DO NOT MATCH THE HASHES" in done.stderr
