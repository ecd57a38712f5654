"""`make wheel`, `make sbom`, `make audit`: what a release is made and looked at with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import confide
from test_locks import UNREACHABLE, pins

pytestmark = pytest.mark.slow

TAKEN = (
    "src/",
    "locks/",
    ".ci/",
    "MANIFEST.in",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
)


def make(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture(scope="module")
def source(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source in a folder of its own, with the tools; skips where these cannot be fetched."""
    copy = tmp_path_factory.mktemp("supply")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    for name in tracked.split("\0"):
        if name.startswith(TAKEN) and (root / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((root / name).read_bytes())
    done = make(copy, "build/tools/.installed", f"PYTHON={sys.executable}")
    if done.returncode and UNREACHABLE.search(done.stdout + done.stderr):
        pytest.skip("the package index is not reached from here")
    assert done.returncode == 0, done.stdout + done.stderr
    return copy


def test_the_wheel_is_the_same_whoever_builds_it(source: Path) -> None:
    sums = []
    for _ in range(2):
        done = make(source, "wheel")
        assert done.returncode == 0, done.stderr
        (wheel,) = (source / "dist").glob("confide-*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert f"{digest}  {wheel.name}" in done.stdout
        lock = (source / "dist" / "confide.txt").read_text()
        assert lock == f"confide=={confide.__version__} --hash=sha256:{digest}\n"
        sums.append(digest)
        wheel.touch()
    assert sums[0] == sums[1]


def test_the_source_distribution_is_the_same_and_gives_the_same_wheel(source: Path) -> None:
    sums = set()
    for _ in range(2):
        done = make(source, "dist", SOURCE_DATE_EPOCH="1700000000")
        assert done.returncode == 0, done.stderr
        (archive,) = (source / "dist").glob("confide-*.tar.gz")
        sums.add(hashlib.sha256(archive.read_bytes()).hexdigest())
    assert len(sums) == 1
    listed = (source / "dist" / "SHA256SUMS").read_text()
    assert f"{sums.pop()}  {archive.name}" in listed and ".whl" in listed
    with tarfile.open(archive) as held:
        members = held.getmembers()
    assert all((one.uid, one.uname, one.mtime) == (0, "", 1700000000) for one in members)
    top = f"confide-{confide.__version__}"
    source_files = {f"{top}/{p.relative_to(source)}" for p in (source / "src/confide").rglob("*.*")}
    wanted = {name for name in source_files if not name.endswith(".pyc")}
    assert wanted <= {one.name for one in members}
    assert not [one.name for one in members if "/tests/" in one.name]


def test_the_bill_of_materials_has_every_locked_package_with_its_licence(
    source: Path, tmp_path: Path
) -> None:
    """Of the environment that the tests run in, which has what both locks have."""
    bom = tmp_path / "confide.cdx.json"
    done = make(source, "sbom", f"SITE={sys.prefix}", f"BOM={bom}")
    assert done.returncode == 0, done.stdout + done.stderr  # the tool validates what it writes
    said = json.loads(bom.read_text(encoding="utf-8"))
    assert said["bomFormat"] == "CycloneDX" and said["specVersion"] >= "1.6"
    whole = said["metadata"]["component"]
    assert (whole["name"], whole["version"]) == ("confide", confide.__version__)
    assert whole["licenses"][0]["license"]["id"] == "Apache-2.0"
    there = {canonicalize_name(one["name"]): one for one in said["components"]}
    for name in {*pins("site"), "torch"}:
        assert there[name]["version"] == importlib.metadata.version(name)
        assert there[name]["licenses"], f"{name} has no licence"
        if name != "torch":  # another build than the index's
            assert there[name]["purl"].startswith(f"pkg:pypi/{name}@")
    edges = {one["ref"]: one.get("dependsOn", []) for one in said["dependencies"]}
    nvflare = edges[there["nvflare"]["bom-ref"]]
    assert {canonicalize_name(ref.split("==")[0]) for ref in nvflare} >= {"flask", "cryptography"}


def test_an_audit_that_reaches_nobody_says_so_and_fails(source: Path) -> None:
    closed = "http://127.0.0.1:9"
    done = make(source, "audit", "AUDIT=--timeout 2", HTTPS_PROXY=closed, https_proxy=closed)
    assert done.returncode != 0
    assert "nothing can be said of the packages" in re.sub(r"\s+", " ", done.stderr)
    assert "No known vulnerabilities" not in done.stdout + done.stderr
