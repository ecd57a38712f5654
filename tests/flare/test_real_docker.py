"""The image, Compose and `by = "docker"` in a real Docker, by the steps of docs/containers.md.

CONFIDE_IMAGE names the image that those steps build; CONFIDE_DOCKER the socket of a Docker whose
containers and networks a test may make, beside DOCKER_HOST, which the commands use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from confide.flare.kit import open_kit
from confide.flare.nvidia import processes
from confide.runs.run import run
from confide.settings import Settings, dump_site
from confide.settings.sitefile import parse_site
from contract.corpus import tiny
from flare.homes import as_toml
from flare.test_real_runs import same
from flare.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

IMAGE, SOCKET = (os.environ.get(name, "") for name in ("CONFIDE_IMAGE", "CONFIDE_DOCKER"))
COMPOSE = Path(__file__).parents[2] / "containers" / "compose.yml"
SITES = ("north", "south")
WITH_DOCKER = f"""
services:
  north:
    volumes: ["{SOCKET}:/var/run/docker.sock"]
"""


class Composed:
    """The consortium of compose.yml, in a folder; the first site's runs start by Docker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        text = COMPOSE.read_text(encoding="utf-8").replace("name: confide\n", "")
        (folder / "compose.yml").write_text(text.replace("image: confide", f"image: {IMAGE}"))
        (folder / "docker.yml").write_text(WITH_DOCKER)

    def compose(self, *words: str) -> str:
        """One command of Compose; what it printed."""
        files = ["-p", "confide-test", "-f", "compose.yml", "-f", "docker.yml"]
        program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        owner = {"CONFIDE_USER": f"{os.getuid()}:{os.getgid()}", "CONFIDE_BASE": "built already"}
        done = subprocess.run(
            [*program, *files, *words], cwd=self.folder, env={**os.environ, **owner},
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def alone(self, *words: str) -> None:
        """A command of confide in a container that sees this folder only."""
        user, here = f"{os.getuid()}:{os.getgid()}", f"{self.folder}:/work"
        options = ["--rm", "-u", user, "-v", here, "--network", "none"]
        subprocess.run(["docker", "run", *options, IMAGE, *words], check=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    found = tiny(tmp_path_factory.mktemp("text"), "rounds=3", sites=2)
    sites = zip(SITES, found.site, strict=True)
    tables = tuple(site.model_copy(update={"name": name}) for name, site in sites)
    return found.model_copy(update={"site": tables})


@pytest.fixture(scope="module")
def composed(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    if not (IMAGE and SOCKET):
        pytest.skip("CONFIDE_IMAGE and CONFIDE_DOCKER name no image and no Docker")
    made = Composed(tmp_path_factory.mktemp("containers"))
    folder = made.folder
    for name, site in zip(SITES, settings.site, strict=True):
        tree: dict[str, Any] = {
            "name": name, "key": "/run/secrets/shared.key", "memory": "/memory",
            "format": site.format or settings.data.format,
            "scheme": site.scheme or settings.data.scheme,
            "guards": settings.guards.model_dump() | {"min_sites": 2, "masked": False},
            "launcher": {"starts_within": 1800, **({"by": "docker"} if name == "north" else {})},
        }  # fmt: skip
        for part in ("text", "memory"):
            (folder / name / part).mkdir(parents=True)
        for part in ("train", "dev", "test"):
            (held,) = getattr(site, part)
            tree[part] = f"/text/{part}.conll"
            shutil.copy(held, folder / name / "text" / f"{part}.conll")
        (folder / name / "site.toml").write_text(dump_site(parse_site(tree)))
    (folder / "study").mkdir()
    (folder / "study" / "study.toml").write_text(as_toml(settings))
    shutil.copy(settings.key, folder / "shared.key")  # words are sorted by it
    sites = [word for name in SITES for word in ("--site", name)]
    made.alone("consortium", "init", "trial", *sites, "--host", "server")
    try:
        for name in SITES:
            own = f"{folder}/{name}/site.toml:/work/site.toml:ro"
            here = ("run", "--rm", "--no-deps")
            made.compose(
                *here, "-v", own, name, "site", "setup", "/kit", "--settings", "/work/site.toml"
            )
            made.compose(*here, name, "site", "consent", "/kit", "fedavg", "--agree")
        made.compose("up", "-d", "server", *SITES)
        yield made
    finally:
        made.compose("down", "-v", "-t", "20")


def test_a_run_in_containers_has_the_numbers_of_one_machine(
    composed: Composed, settings: Settings, tmp_path: Path
) -> None:
    """The first site's part of it has a container of its own, in which no Docker can be asked."""
    reached, seen, over = docker.from_env(), dict[str, Any](), threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            for one in reached.containers.list(filters={"label": "confide.kit=/kit"}):
                seen[one.id] = one.attrs

    server = open_kit(composed.folder / "trial" / "kits" / "server")
    until(lambda: set(SITES) <= processes.heard_from(server))
    looking = threading.Thread(target=look)
    looking.start()
    try:
        composed.compose("run", "--rm", "lead")
    finally:
        over.set()
        looking.join()
    run(settings, out=tmp_path / "whole")
    same(tmp_path / "whole", composed.folder / "study" / "run")
    (own,) = seen.values()
    site = reached.containers.get(composed.compose("ps", "-q", "north").strip()).attrs
    assert own["Image"] == site["Image"] and own["Config"]["User"] == site["Config"]["User"]
    places = [{one["Destination"] for one in it["Mounts"]} for it in (site, own)]
    assert places[0] - places[1] == {"/var/run/docker.sock"} and places[1] < places[0]
    held = own["HostConfig"]
    assert held["ReadonlyRootfs"] and held["CapDrop"] == ["ALL"]
    assert not held["Privileged"] and held["SecurityOpt"] == ["no-new-privileges:true"]
    assert own["NetworkSettings"]["Networks"].keys() == site["NetworkSettings"]["Networks"].keys()
    assert not reached.containers.list(all=True, filters={"label": "confide.kit=/kit"})
