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


def test_the_apptainer_recipe_has_the_steps_of_the_image() -> None:
    text = (HERE / "confide.def").read_text(encoding="utf-8")
    recipe = [
        line.strip()
        for line in text.partition("%post")[2].partition("%environment")[0].splitlines()
    ]
    builds = [rest for word, rest in steps()[: steps().index(("FROM", "${BASE}"))] if word == "RUN"]
    wanted = [line.replace("${BASE}", "{{ BASE }}") for line in builds]
    assert [line for line in recipe if line in wanted] == wanted and len(wanted) == 6
    copied = text.partition("%files")[2].partition("%post")[0].split()
    assert copied[::2] == [
        "locks/site.txt",
        "locks/torch.txt",
        "dist/*",
    ]  # the last torch.txt counts
    assert "From: {{ BASE }}" in text and "%startscript" not in text


# --- the chart


CHART = HERE / "helm"
GIVEN: dict[str, Any] = {
    "image": f"registry.example/confide@sha256:{'0' * 64}",
    "text": "notes",
    "key": "shared",
}


def rendered(**values: Any) -> list[dict[str, Any]]:
    """The chart's objects: of Helm's language it uses values, `if` on lines of its own, `quote`."""
    known = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")) | GIVEN | values
    tree = {"Values": known, "Release": {"Name": "north", "Namespace": "ward"}}

    def value(found: re.Match[str]) -> str:
        one: Any = tree
        for key in found[1].split("."):
            one = one[key]
        return json.dumps(one) if found[2] or isinstance(one, bool) else str(one)

    made = []
    for path in sorted((CHART / "templates").iterdir()):
        text = path.read_text(encoding="utf-8")
        text = re.sub(
            r"\n\{\{- if \.Values\.(\w+) \}\}(.*?)\n\{\{- end \}\}",
            lambda found: found[2] if known[found[1]] else "",
            text,
            flags=re.S,
        )
        text = re.sub(r"\{\{ \.([A-Za-z.]+)( \| quote)? \}\}", value, text)
        assert "{{" not in text, path
        made += [one for one in yaml.safe_load_all(text) if one]
    return made


def test_a_site_in_kubernetes_is_held_in() -> None:
    for pods in (False, True):
        objects = {
            one["kind"]: one
            for one in rendered(pods=pods, gpus=2, server={"cidr": "203.0.113.7/32", "port": 8443})
        }
        pod = objects["Deployment"]["spec"]["template"]["spec"]
        (site,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert site["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        read = {one["name"] for one in site["volumeMounts"] if one.get("readOnly")}
        assert read == {"text", "key"} and {one["name"] for one in pod["volumes"]} == {
            *read,
            "site",
            "tmp",
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod) and "hostPath" not in str(pod)
        assert site["resources"]["limits"]["nvidia.com/gpu"] == 2
        policy = objects["NetworkPolicy"]["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        (inside,) = policy["ingress"]
        assert inside["from"] == [{"podSelector": policy["podSelector"]}]
        out = [port["port"] for rule in policy["egress"] for port in rule.get("ports", ())]
        assert out == [53, 53, 8443, *([443, 6443] if pods else [])]
        assert pod["automountServiceAccountToken"] is pods
        assert ("Role" in objects) is ("RoleBinding" in objects) is pods
        if pods:
            rights = {
                (one["resources"][0], verb)
                for one in objects["Role"]["rules"]
                for verb in one["verbs"]
            }
            assert rights == {
                ("pods", "get"), ("pods", "create"), ("pods", "delete"),
                ("pods", "deletecollection"), ("events", "list"),
                ("secrets", "create"), ("secrets", "update"), ("secrets", "patch"),
                ("secrets", "delete"),
            }  # fmt: skip


def test_the_chart_is_one_to_helm_and_its_objects_to_kubernetes() -> None:
    helm = pytest.importorskip("helm_python", reason="needs helm-python-sdk: Helm as a library")
    checked = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes")
    assert not [one for one in helm.lint(CHART, GIVEN)["messages"] if one["severity"] > 1]
    with helm.Chart.load(CHART) as chart:
        for values in ({}, {"pods": True, "gpus": 1}):
            texts = chart.render(GIVEN | values, name="north", namespace="ward").items()
            objects = [one for _, text in sorted(texts) for one in yaml.safe_load_all(text) if one]
            assert objects == rendered(**values)
            for one in objects:
                checked.validate(one, "1.30", strict=True)
        for wrong in ({"image": "confide:latest"}, {"text": ""}, {"user": 0}, {"pod": True}):
            with pytest.raises(helm.HelmError, match="don't meet the specifications"):
                chart.render(GIVEN | wrong, name="north", namespace="ward")


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
