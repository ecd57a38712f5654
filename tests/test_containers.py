"""Containers: what the files promise; and, slowly, the image's steps in a bare Debian root."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cases import each
from test_locks import UNREACHABLE

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "containers"
STEPS = re.sub(r"\\\n", " ", (HERE / "Dockerfile").read_text(encoding="utf-8"))
DEBIAN = "bookworm"


def steps() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in their order."""
    lines = [line for line in STEPS.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services, with what YAML merges."""
    return yaml.safe_load((HERE / "compose.yml").read_text(encoding="utf-8"))["services"]


def test_the_image_ends_as_a_user_without_rights() -> None:
    last = dict(steps())
    assert last["USER"] == "10001:10001"
    kept = STEPS[STEPS.rindex("FROM ") :]
    assert "USER" in kept and kept.index("USER") > kept.index("COPY --from=build")
    assert json.loads(last["ENTRYPOINT"]) == ["confide"]


def test_only_wheel_and_locks_reach_the_build() -> None:
    lines = (HERE / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    assert set(rules[1:]) == {
        "!locks/site.txt", "!locks/torch.txt",
        "!dist/confide-*.whl", "!dist/confide.txt", "!dist/torch.txt",
    }  # fmt: skip
    copied = [rest for word, rest in steps() if word in ("COPY", "ADD")]
    files = "locks/site.txt locks/torch.txt dist/ /build/"  # the last torch.txt counts
    assert copied == [files, "--from=build /opt/confide /opt/confide"]


def test_packages_are_checked_against_digests() -> None:
    installs = [rest for word, rest in steps() if word == "RUN" and "pip install" in rest]
    assert len(installs) == 3
    assert all("--require-hashes" in rest and "--no-deps" in rest for rest in installs)
    assert not any("$" in rest for rest in installs)


@each(
    ("base", "code"),
    [
        (f"python:3.11-slim-bookworm@sha256:{'0' * 64}", 0),
        ("docker.io/library/python:3.11-slim-bookworm", 1),
        (f"python@sha256:{'0' * 63}", 1),
        ("", 1),
    ],
)
def test_the_base_is_named_by_its_digest(base: str, code: int) -> None:
    assert {rest for word, rest in steps() if word == "FROM"} == {"${BASE} AS build", "${BASE}"}
    assert {rest for word, rest in steps() if word == "ARG"} == {"BASE"}  # it has no default
    check = next(rest for word, rest in steps() if word == "RUN")
    done = subprocess.run(["/bin/sh", "-ec", check], env={"BASE": base}, capture_output=True)
    assert done.returncode == code


def test_compose_asks_for_the_base(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert service["build"]["args"]["BASE"].startswith("${CONFIDE_BASE:?")


def test_every_service_is_held_in(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {"server", "north", "south", "lead"}
    for name, service in services.items():
        assert service["read_only"] is True and service["init"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service["user"].startswith(("0", "root")), name
        assert "ports" not in service and "privileged" not in service, name
        assert "environment" not in service, name
        if name != "lead":
            assert "status /kit" in service["healthcheck"]["test"][1], name


def test_only_sites_have_the_key_and_text_is_read_only(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        is_site = name in ("north", "south")
        assert bool(service.get("secrets")) == is_site, name
        assert any(volume.endswith(":/text:ro") for volume in service["volumes"]) == is_site, name
        kits = [volume for volume in service["volumes"] if "kits/" in volume]
        assert kits == [f"./trial/kits/{name}:/kit"]


# --- the steps, in a root of their own ------------------------------------------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bare Debian root in which the Dockerfile's steps have run; skips where none can be made."""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        pytest.skip("needs root and mmdebstrap")
    root = tmp_path_factory.mktemp("image") / "root"
    packages = "--include=python3-venv,ca-certificates"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", packages, DEBIAN, str(root)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if made.returncode:
        pytest.skip(f"no Debian mirror is reached from here: {made.stderr[-300:]}")
    dist = subprocess.run(
        ["make", "-C", str(ROOT), "wheel"], capture_output=True, text=True, timeout=900
    )
    assert dist.returncode == 0, dist.stderr
    (root / "build").mkdir()
    for path in (ROOT / "locks" / "site.txt", *(ROOT / "dist").glob("confide*.*")):
        shutil.copy(path, root / "build")
    shutil.copy(ROOT / "locks" / "torch.txt", root / "build")
    lend(root)
    for word, rest in steps():
        if word == "RUN":
            done = inside(root, rest)
            if done.returncode and UNREACHABLE.search(done.stdout + done.stderr):
                pytest.skip("the package index is not reached from here")
            assert done.returncode == 0, f"{rest}\n{done.stdout}\n{done.stderr}"
    yield root


LENT = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/xdg/pip")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
"""How this machine finds its package index."""


def lend(root: Path) -> None:
    """Give the root what a network needs, and the wheels that this machine's pip looks for."""
    for name in LENT:
        source, target = Path(name), root / name[1:]
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    if Path(CERTIFICATES).exists():
        shutil.copy(CERTIFICATES, root / CERTIFICATES[1:])
    import torch

    torch_is = torch.__version__.split("+")[0]
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in Path(folder).glob(f"torch-{torch_is}*"):
            shutil.copy(wheel, root / "build")
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            line = f"--find-links /build\ntorch=={torch_is} --hash=sha256:{digest}\n"
            (root / "build" / "torch.txt").write_text(line)


def inside(root: Path, command: str, *, user: str = "0:0") -> subprocess.CompletedProcess[str]:
    """A shell command in the root, with no more of this machine than its network."""
    network = re.compile(r"(?i)\w+_proxy|PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT)")
    passed = {key: value for key, value in os.environ.items() if network.fullmatch(key)}
    environment = {
        "PATH": "/opt/confide/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp",
        "BASE": f"bare@sha256:{'0' * 64}", **passed,
    }  # fmt: skip
    enter = 'mount -t proc proc "$1/proc" && exec chroot "--userspec=$2" "$1" /bin/sh -ec "$3"'
    words = ["unshare", "--mount", "/bin/sh", "-c", enter, "sh", str(root), user, command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_the_image_works_as_a_user_without_rights(image: Path) -> None:
    (image / "work").mkdir(exist_ok=True)
    os.chown(image / "work", 10001, 10001)
    words = [
        "--version",
        "wire fedavg",
        "consortium init trial --site north --site south --host server",
        "key new shared.key",
        "server status trial/kits/server --json",
    ]
    for line in words:
        done = inside(image, f"cd /work && confide {line}", user="10001:10001")
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert json.loads(done.stdout)["connected"] is False
    refused = inside(image, "touch /opt/confide/x", user="10001:10001")
    assert refused.returncode != 0
