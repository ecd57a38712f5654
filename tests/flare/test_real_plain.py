"""In a consortium that others made: `nvflare provision`, FLARE's own scripts, policies and tools.

What docs/flare-consortium.md says of it is held here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.cli.verbs import app
from confide.errors import EngineError, KitError
from confide.flare.kit import CLASSES, Kit, adopt_kit, open_kit
from confide.flare.nvidia import processes
from confide.flare.nvidia.lead import LeadSession, coordinate_run, write_run
from confide.flare.peers import open_signer
from confide.flare.sitekit import agree_to, setup_site
from confide.runs.run import run
from confide.settings import Settings
from contract.corpus import tiny
from flare.homes import as_toml, write_site_files
from flare.nvidia.test_processes import _LEAD
from flare.ports import free_port
from flare.test_real_slurm import same
from flare.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("plain"),
]

HUB = "hub.example.org"
ADA = f"ada@{HUB}"
LEAD = {
    "submit_job": "any", "view": "any", "manage_job": "n:submitter", "download_job": "n:submitter",
    "byoc": "none", "shell_commands": "none", "operate": "none",
}  # fmt: skip
"""The rights of a lead, and of nobody else, that the page says are enough."""
SITES = ("site-1", "site-2")
NVFLARE = "from nvflare.cli import main; main()"
PROJECT = """
api_version: 3
name: oncology_net
description: a consortium of others
participants:
  - {{ name: localhost, type: server, org: hub, fed_learn_port: {port}, host_names: [localhost] }}
  - {{ name: site-1, type: client, org: north }}
  - {{ name: site-2, type: client, org: south }}
  - {{ name: ada@hub.example.org, type: admin, org: hub, role: lead }}
  - {{ name: root@hub.example.org, type: admin, org: hub, role: project_admin }}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{ template_file: master_template.yml }}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{ config_folder: config }}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The startup kits that FLARE's provisioner makes, as it makes them."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "project.yml").write_text(PROJECT.format(port=free_port()))
    command = [sys.executable, "-W", "ignore", "-c", NVFLARE, "provision"]
    done = subprocess.run(
        [*command, "-p", "project.yml", "-w", "ws"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "ws" / "oncology_net" / "prod_00"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


def test_a_kit_is_adopted_and_nothing_of_flares_is_changed(kits: Path, tmp_path: Path) -> None:
    for name, kind, known in (
        ("localhost", "server", "server"), ("site-1", "site", "site-1"), (ADA, "lead", "ada")
    ):  # fmt: skip
        kit = tmp_path / name
        shutil.copytree(kits / name, kit)
        before = files_of(kit)
        with pytest.raises(KitError, match="a lead cannot have this name"):
            adopt_kit(kit, lead="@hub.example.org")
        assert files_of(kit) == before
        said = CliRunner().invoke(app, ["consortium", "adopt", str(kit), "--lead", ADA])
        assert said.exit_code == 0, said.output
        assert (CLASSES[1] in said.output) is (kind != "lead")
        made = open_kit(kit)
        assert (made.kind, made.name, made.consortium, made.host) == (
            kind, known, "oncology_net", "localhost"
        )  # fmt: skip
        after = files_of(kit)
        assert {path: after[path] for path in before} == before
        assert set(after) - set(before) == {
            "local/confide.json", "identity/identity.key", "identity/card.json"
        }  # fmt: skip
        with pytest.raises(KitError, match="described already"):
            adopt_kit(kit, lead=ADA)
    site, lead = open_kit(tmp_path / "site-1"), open_signer(open_kit(tmp_path / ADA))
    own = open_signer(site)
    assert own.vouched(lead.card) and own.vouched(own.card)
    (site.path / "local/confide.json").unlink()
    assert not open_signer(adopt_kit(site.path, lead="ada@else.example.org")).vouched(lead.card)
    with pytest.raises(KitError, match=r"run startup/start\.sh"):
        processes.start(site)
    (tmp_path / ADA / "local/confide.json").unlink()
    with pytest.raises(KitError, match="another person's kit"):
        adopt_kit(tmp_path / ADA, lead="eve@hub.example.org")
    with pytest.raises(KitError, match="not a startup kit of FLARE"):
        adopt_kit(tmp_path, lead=ADA)


def test_flares_own_policies_do_not_allow_us_and_allow_more_than_ours(kits: Path) -> None:
    """What the page says must be changed, and why."""
    for name in ("localhost", "site-1"):
        local = kits / name / "local"
        held = json.loads((local / "resources.json.default").read_text())
        assert held["class_list_enforcement_mode"] == "enforce"
        assert not set(CLASSES) & set(held["class_allow_list"])
        rights = json.loads((local / "authorization.json.default").read_text())["permissions"]
        assert rights["lead"]["byoc"] == "any" and rights["project_admin"] == "any"
        assert rights["lead"]["shell_commands"] == "o:site"
    server = (kits / "localhost/local/resources.json.default").read_text()
    assert "/tmp/nvflare/jobs-storage" in server
    assert held["allow_log_streaming"] is True
    assert any(one["id"] == "site_log_streamer" for one in held["components"])


class Plain:
    """A consortium of others whose processes run, by FLARE's own scripts."""

    def __init__(self, kits: Path, folder: Path) -> None:
        self.kits, self.folder = kits, folder
        three = tiny(folder, "rounds=2", "select.every=1")
        self.settings: Settings = three.model_copy(update={"site": three.site[:2]})
        assert tuple(site.name for site in self.settings.site) == SITES
        for name in ("localhost", *SITES, ADA):
            kit = adopt_kit(kits / name, lead=ADA)
            open_signer(kit, make=True)
            local = kit.path / "local"
            text = (local / "resources.json.default").read_text()
            held = json.loads(text.replace("/tmp/nvflare", str(folder / "store")))
            if name == "site-1":
                held["class_allow_list"] += CLASSES
            elif name != ADA:  # as the page says
                held["class_allow_list"] = CLASSES
                held["allow_log_streaming"] = False
                held["components"] = [
                    one for one in held["components"] if one["id"] != "site_log_streamer"
                ]
                rights = json.loads((local / "authorization.json.default").read_text())
                for role in rights["permissions"]:
                    rights["permissions"][role] = LEAD if role == "lead" else {}
                (local / "authorization.json").write_text(json.dumps(rights))
            (local / "resources.json").write_text(json.dumps(held))
        for name, path in write_site_files(folder / "homes", self.settings, consent={}).items():
            setup_site(self.kit(name), path)
            agree_to(self.kit(name), "fedavg-tagger", bounds=("lead=ada",))
        self.running: list[subprocess.Popen[bytes]] = []

    def kit(self, name: str) -> Kit:
        return open_kit(self.kits / name)

    def start(self) -> None:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        for name in ("localhost", *SITES):
            with open(self.folder / f"{name}.txt", "wb") as console:
                self.running.append(
                    subprocess.Popen(
                        ["bash", self.kits / name / "startup" / "sub_start.sh", "--once"],
                        env={**os.environ, "PATH": path},
                        stdin=subprocess.DEVNULL,
                        stdout=console,
                        stderr=console,
                        start_new_session=True,
                    )
                )
        until(self._connected)

    def _connected(self) -> bool:
        try:
            session = LeadSession(self.kit(ADA))
        except EngineError:
            return False
        try:
            return session.connected() == sorted(SITES)
        finally:
            session.close()

    def stop(self) -> None:
        for one in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()

    def hears(self, *given: str, who: str = ADA) -> dict[str, object]:
        """What FLARE's own tools tell an administrator of theirs."""
        done = subprocess.run(
            [sys.executable, "-c", _LEAD, str(self.kits / who), who, *given],
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert "FOUND" in done.stdout, done.stderr
        return json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])


@pytest.fixture(scope="module")
def plain(kits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    folder = tmp_path_factory.mktemp("others")
    shutil.copytree(kits, folder / "kits")
    made = Plain(folder / "kits", folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_run_that_flares_own_tools_submit_has_the_numbers_of_one_machine(plain: Plain) -> None:
    run(plain.settings, out=plain.folder / "whole")
    study, out = plain.folder / "study.toml", plain.folder / "run"
    study.write_text(as_toml(plain.settings))
    given = [str(study), "--kit", str(plain.kits / ADA), "--out", str(out)]
    sites = [word for name in SITES for word in ("--site", name)]
    folder = plain.folder / "submissions"
    said = CliRunner().invoke(
        app, ["consortium", "submission", *given, *sites, "--into", str(folder)]
    )
    assert said.exit_code == 0, said.output
    (written,) = folder.iterdir()
    assert {str(path.relative_to(written)) for path in written.rglob("*.*")} == {
        "meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"
    }  # fmt: skip
    (heard,) = plain.hears(f"submit {written}").values()
    assert heard[1] == "FINISHED:COMPLETED", heard
    done = coordinate_run(study, kit=plain.kits / ADA, out=out, resume=True)
    same(plain.folder / "whole", done.folder)
    for name in SITES:
        memory = plain.folder / "homes" / name / "memory"
        assert list(memory.glob("runs/study-*/ledger.jsonl"))


def test_our_lead_submits_and_follows_a_run_there_too(plain: Plain) -> None:
    study, out = plain.folder / "second.toml", plain.folder / "second"
    study.write_text(as_toml(plain.settings))
    given = {"kit": plain.kits / ADA, "out": out}
    write_run(study, sites=SITES, into=plain.folder / "unused", **given)
    done = coordinate_run(study, resume=True, **given)
    same(plain.folder / "whole", done.folder)


def test_administrators_of_theirs_read_logs_and_pins_but_no_text_and_no_key(plain: Plain) -> None:
    """By FLARE's default policy, where MEMORY and key lie outside the workspace."""
    files = (
        "log.txt",
        "local/confide.json",
        "local/site.toml",
        "identity/identity.key",
        "../x.txt",
    )
    heard = plain.hears(*(f"cat site-1 {file}" for file in files), who=f"root@{HUB}")
    log, pins, own, key, outside = map(str, heard.values())
    assert "Connected to server" in log and "oncology_net" in pins
    assert all("only files with" in one.lower() for one in (own, key)) and "not allowed" in outside
    (said,) = plain.hears("cat site-1 log.txt").values()  # a lead of another organisation
    assert "not authorized" in str(said)
