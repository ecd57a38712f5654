"""Only the site's own file says where a run's process starts. What would start, without a cluster.

That a run through Slurm works is held with real processes in test_real_slurm.py.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import tomllib
from functools import partial
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

import docker
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.apis.workspace import Workspace
from nvflare.app_opt.job_launcher.slurm import batch
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.private.fed.client.client_status import ClientStatus

from confide.errors import KitError, SettingsError
from confide.flare.kit import Kit, write_policies
from confide.flare.nvidia import launchers, processes, watch
from confide.flare.nvidia.components import SILENCE, ConfideController
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.nvidia.watch import StatusWriter
from confide.settings import dump_site, load_site
from confide.settings.sitefile import LauncherTable, parse_site

JOB = "0f0e0d0c-0b0a-4908-8706-050403020100"
HOSTILE = {
    "job_id": JOB,
    "study": "evil",
    "launcher_spec": {
        "north": {
            "slurm": {"image": "/evil.sif", "python_path": "/evil", "gpus_per_node": 8, "nodes": 9,
                      "additional_node_command": "evil"},
            "docker": {"image": "evil", "entrypoint": "evil", "shm_size": "9g"},
            "k8s": {"image": "evil", "cpu": "99", "python_path": "/evil"},
        },
        "default": {"docker": {"image": "evil"}, "k8s": {"image": "evil"}},
    },
    "resource_spec": {"north": {"num_of_gpus": 8, "memory": "999Gi"}},
}  # fmt: skip
"""What a lead may write beside its submission."""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """The kit of a site whose text, key and MEMORY lie beside it."""
    made = create_consortium("trial", sites=["north"], host="localhost", out=tmp_path / "trial")
    kit = made.kit("north")
    for name in ("text", "memory", str(kit.path / "identity"), str(kit.path / JOB)):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "text/train.conll").write_text("")
    (tmp_path / "shared.key").write_text("")
    (kit.path / "local/consent-runs.jsonl").write_text("")
    monkeypatch.setattr(processes, "unlock", lambda keys, ask: None)
    monkeypatch.setattr(processes.os, "execve", lambda *given: None)
    monkeypatch.setenv("CONFIDE_MODELS", str(kit.path / "models"))
    return kit


def choose(kit: Kit, **launcher: object) -> None:
    """Write the site's own file with this launcher, and start the site."""
    here = kit.path.parents[2]
    tree = {"name": "north", "train": str(here / "text"), "key": str(here / "shared.key"),
            "memory": str(here / "memory"), "launcher": launcher}  # fmt: skip
    (kit.path / "local/site.toml").write_text(dump_site(parse_site(tree)))
    processes.start(kit)


def built(kit: Kit) -> Any:
    """The one launcher of a kit, as FLARE builds it."""
    held = json.loads((kit.path / "local/resources.json").read_text())
    (part,) = [one for one in held["components"] if "launcher" in one["path"].lower()]
    module, _, kind = part["path"].rpartition(".")
    return getattr(importlib.import_module(module), kind)(**part["args"])


def context(kit: Kit, *, port: int = 8102) -> FLContext:
    """What FLARE tells a launcher of a run."""
    fl_ctx = FLContext()
    at = str(kit.path)
    given = {
        JobProcessArgs.EXE_MODULE: ("-m", "nvflare.private.fed.app.client.worker_process"),
        JobProcessArgs.JOB_ID: ("-n", JOB),
        JobProcessArgs.CLIENT_NAME: ("-c", "north"),
        JobProcessArgs.AUTH_TOKEN: ("-t", "the token"),
        JobProcessArgs.TOKEN_SIGNATURE: ("-ts", "the signature"),
        JobProcessArgs.SSID: ("-d", "the session"),
        JobProcessArgs.WORKSPACE: ("-m", at),
        JobProcessArgs.STARTUP_DIR: ("-w", f"{at}/startup"),
        JobProcessArgs.PARENT_URL: ("-p", f"stcp://0.0.0.0:{port}"),
        JobProcessArgs.PARENT_CONN_SEC: ("--parent_conn_sec", "mtls"),
        JobProcessArgs.SCHEME: ("-scheme", "http"),
        JobProcessArgs.TARGET: ("-g", "localhost:8002"),
        JobProcessArgs.STARTUP_CONFIG_FILE: ("-s", "fed_client.json"),
        JobProcessArgs.OPTIONS: ("--set", " secure_train=true uid=north print_conf=True"),
    }
    for key, value in (
        (ReservedKey.IDENTITY_NAME, "north"),
        (FLContextKey.WORKSPACE_OBJECT, Workspace(at, "north", "config")),
        (FLContextKey.JOB_PROCESS_ARGS, given),
    ):
        fl_ctx.set_prop(key, value, private=True, sticky=False)
    return fl_ctx


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands on PATH; none does anything."""
    folder.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_what_a_launcher_needs_must_be_there(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    def nowhere() -> None:
        raise docker.errors.DockerException("connection refused")

    monkeypatch.setattr(docker, "from_env", nowhere)
    for by, said in (
        ("slurm", "commands sbatch, squeue, sacct, scancel are not on PATH"),
        ("docker", "no Docker answers"),
        ("k8s", "the package kubernetes is not installed|runs in no pod"),
    ):
        with pytest.raises(KitError, match=f"site north cannot start runs by {by}: .*{said}"):
            choose(kit, by=by)
    commands(kit.path / "bin", monkeypatch)
    with pytest.raises(KitError, match="there is no image /none"):
        choose(kit, by="slurm", image="/none.sif")
    for wrong, said in (
        ({"by": "ssh"}, "'process', 'slurm', 'docker' or 'k8s'"),
        (
            {"by": "docker", "image": "/x.sif"},
            "takes no image; it takes gpus, cpus, memory, starts_within",
        ),
        ({"gpus": 1}, "by = 'process' takes no gpus"),
        ({"by": "slurm", "sbatch": {"wrap": "x"}}, "sbatch takes partition, .* not wrap"),
        ({"by": "slurm", "sbatch": {"time": "1 --wrap=x"}}, "a name without spaces"),
        ({"by": "slurm", "image": "x.sif"}, "an absolute path"),
        ({"by": "slurm", "host": "a b"}, "the name or address of a host"),
        ({"by": "k8s", "memory": "16G"}, "such as 16Gi"),
    ):
        with pytest.raises(SettingsError, match=said):
            choose(kit, **wrong)


def test_a_kit_has_the_launcher_that_its_site_chose(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(kit.path / "bin", monkeypatch)
    local = kit.path / "local"
    before = {path.name: path.read_bytes() for path in local.glob("*.json")}
    choose(kit, by="slurm", port=9001, sbatch={"partition": "gpu"})
    inside = json.loads((local / "comm_config.json").read_text())["internal"]
    resources = {"host": "0.0.0.0", "port": 9001, "connection_security": "mtls"}
    assert inside == {"scheme": "tcp", "resources": resources}
    held = load_site(local / "site.toml").launcher
    assert (held.by, held.sbatch, held.model_fields_set) == (
        "slurm", {"partition": "gpu"}, {"by", "port", "sbatch"}
    )  # fmt: skip
    assert isinstance(built(kit), launchers.SlurmLauncher)
    write_policies(kit.path, "site", launcher=LauncherTable(by="docker", image="", gpus=2))
    container: Any = built(kit)  # it takes no image, and none is named
    assert container._wanted == (2, 0, "")
    choose(kit)
    assert {path.name: path.read_bytes() for path in local.glob("*.json")} == before


def test_slurm_is_asked_as_the_site_says(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(kit.path / "bin", monkeypatch)
    monkeypatch.setenv("NVFLARE_STREAMING_RETRY_WAIT", "it's 40")
    monkeypatch.setenv("SECRET", "of this machine")
    image = kit.path.parent / "confide.sif"
    image.write_text("")
    plans: list[Any] = []
    monkeypatch.setattr(
        "nvflare.app_opt.job_launcher.slurm.launcher.SlurmJobManager.launch",
        lambda manager, plan: plans.append(plan),
    )
    for own in ({}, {"image": str(image)}):
        choose(kit, by="slurm", gpus=1, memory="16Gi", sbatch={"account": "ward"}, **own)
        launcher = built(kit)
        launcher.launch_job(dict(HOSTILE), context(kit))
        plan = plans.pop()
        launcher.config.executables["sbatch"] = "sbatch"
        asked = batch._submission_argv(plan, "/job", "name", "marker", launcher.config)
        script, secret = batch._render_batch_script(plan, "/job", launcher.config)
        assert {"--gres=gpu:1", "--mem=16384M", "--account=ward", "--nodes=1"} <= set(asked)
        assert "--export=NIL" in asked and "--ntasks=1" in asked
        assert "evil" not in script + str(asked) and "999" not in str(asked)
        assert f"stcp://{socket.gethostname()}:8102" in script
        assert "export NVFLARE_STREAMING_RETRY_WAIT='it'\"'\"'s 40'" in script
        assert "umask 077" in script and "of this machine" not in script
        assert "the token" not in script and "the token" in secret.values()
        if not own:
            assert f"_nvfl_command=({sys.executable} -u -m nvflare" in script
            assert plan.mounts == ()
            continue
        here = kit.path.parents[2]
        mounts = {(one.source, one.destination): one.mode for one in plan.mounts}
        assert mounts == {
            (str(path), str(path)): mode
            for path, mode in {
                here / "text": "ro",
                here / "shared.key": "ro",
                here / "memory": "rw",
                kit.path / "identity": "rw",
                kit.path / "local/consent-runs.jsonl": "rw",
            }.items()
        }
        assert "exec --userns --containall --no-eval --no-privs" in script
        assert f"--nv {image} /opt/confide/bin/python -u -m nvflare" in script
        assert "export TMPDIR=/tmp" in script and "PYTHONPATH=''" in script


OWN_CONTAINER = {
    "Image": "sha256:ours",
    "Config": {"User": "1000:1000", "Hostname": "c0ffee"},
    "NetworkSettings": {"Networks": {"consortium": {"IPAddress": "172.18.0.3"}}},
    "HostConfig": {
        "ReadonlyRootfs": True, "Tmpfs": {"/tmp": "mode=1777"},
        "SecurityOpt": ["no-new-privileges:true"], "Privileged": True,
    },
    "Mounts": [],
}  # fmt: skip


def test_a_container_of_a_run_is_like_the_sites_without_dockers_socket(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    door = kit.path.parent / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(kit.path.parent)  # the path of a socket must be short
        listening.bind("docker.sock")
        mounts = [
            {"Type": "bind", "Source": "/host/kit", "Destination": str(kit.path), "RW": True},
            {"Type": "bind", "Source": "/host/text", "Destination": "/text", "RW": False},
            {"Type": "volume", "Name": "memory", "Source": "/v", "Destination": "/m", "RW": True},
            {"Type": "bind", "Source": "/run/d.sock", "Destination": str(door), "RW": True},
            {"Type": "bind", "Source": "/run", "Destination": "/run", "RW": True},
        ]
        own = OWN_CONTAINER | {"Mounts": mounts}

        def run(*given: Any, **more: Any) -> Any:
            started.append((given, more))
            return SimpleNamespace(id="new", wait=lambda: {"StatusCode": 0}, status="running")

        def left(filters: dict[str, str]) -> list[Any]:
            assert filters == {"label": f"confide.kit={kit.path}"}
            return [SimpleNamespace(remove=lambda force: started.append((("removed",), {})))]

        containers = SimpleNamespace(
            run=run, list=left,
            get=lambda name: SimpleNamespace(attrs=own, status="running", id="new"),
        )  # fmt: skip
        client = SimpleNamespace(ping=lambda: True, containers=containers)
        monkeypatch.setattr(docker, "from_env", lambda: client)
        choose(kit, by="docker", gpus=2, cpus=3, memory="4Gi")
        built(kit).handle_event(EventType.SYSTEM_BOOTSTRAP, FLContext())
        assert started.pop() == (("removed",), {})
        built(kit).launch_job(dict(HOSTILE), context(kit, port=4711))
    ((image,), said) = started.pop()
    assert "evil" not in f"{image}{said}"
    assert (image, said["network"], said["user"]) == ("sha256:ours", "consortium", "1000:1000")
    assert said["entrypoint"] == [
        sys.executable, "-u", "-m", "nvflare.private.fed.app.client.worker_process"
    ]  # fmt: skip
    assert "stcp://172.18.0.3:4711" in said["command"]
    assert said["command"][-4:] == ["--set", "secure_train=true", "uid=north", "print_conf=True"]
    assert "the token" not in said["command"] and "the token" in said["environment"].values()
    assert [(one["Source"], one["Target"], one["ReadOnly"]) for one in said["mounts"]] == [
        ("/host/kit", str(kit.path), False), ("/host/text", "/text", True), ("memory", "/m", False)
    ]  # fmt: skip
    assert (said["read_only"], said["cap_drop"], said["init"]) == (True, ["ALL"], True)
    assert said["labels"] == {"confide.kit": str(kit.path)}
    assert "privileged" not in said and said["security_opt"] == ["no-new-privileges:true"]
    assert (said["nano_cpus"], said["mem_limit"]) == (3 * 10**9, 4 * 2**30)
    assert said["device_requests"][0]["Count"] == 2
    monkeypatch.setattr(docker.types, "Mount", lambda **given: 1 / 0)
    handle = built(kit).launch_job(dict(HOSTILE), context(kit))
    handle.wait()  # so FLARE tells the server whose it was
    assert handle.poll() == ProcessExitCode.INFRASTRUCTURE_ERROR
    assert "cannot be started: division by zero" in caplog.text
    own["NetworkSettings"]["Networks"]["another"] = {"IPAddress": "10.0.0.1"}
    with pytest.raises(KitError, match="exactly one network"):
        choose(kit, by="docker")


OWN_POD = tomllib.loads("""
[metadata]
name = "north-0"
namespace = "ward"
labels = { "app.kubernetes.io/instance" = "north", "pod-template-hash" = "0" }
[status]
podIP = "10.1.2.3"
[spec]
serviceAccountName = "north"
nodeName = "node-7"
securityContext = { runAsNonRoot = true, runAsUser = 10001, fsGroup = 10001 }
volumes = [
  { name = "kit", persistentVolumeClaim = { claimName = "north-kit" } },
  { name = "tmp", emptyDir = {} },
  { name = "kube-api-access-x", projected = { sources = [] } },
]
[[spec.containers]]
name = "site"
image = "registry.example/confide@sha256:ours"
args = ["site", "start", "/kit"]
securityContext = { readOnlyRootFilesystem = true, allowPrivilegeEscalation = false }
volumeMounts = [
  { name = "kit", mountPath = "/kit" },
  { name = "tmp", mountPath = "/tmp" },
  { name = "kube-api-access-x", mountPath = "/var/run/secrets/kubernetes.io/serviceaccount" },
]
""")


class Cluster:
    """Kubernetes, as far as a launcher speaks with it."""

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []

    def read_namespaced_pod(self, name: str, namespace: str) -> object:
        assert (name, namespace) == (socket.gethostname(), "ward")
        return OWN_POD

    def create_namespaced_pod(self, body: dict[str, Any], namespace: str) -> object:
        self.made.append(("pod", body))
        return SimpleNamespace(metadata=SimpleNamespace(uid="0"))

    def create_namespaced_secret(self, namespace: str, body: dict[str, Any]) -> None:
        self.made.append(("secret", body))

    def delete_collection_namespaced_pod(self, namespace: str, label_selector: str) -> None:
        self.made.append(("deleted", {"labels": label_selector}))

    def patch_namespaced_secret(self, name: str, namespace: str, body: dict[str, Any]) -> None:
        self.made.append(("owner", body))


def rendered_pod(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, dict[str, Any]]:
    """What the launcher of a site asks a cluster for."""
    cluster, parts = Cluster(), {name: ModuleType(name) for name in ("client", "config", "rest")}
    vars(parts["config"]).update(load_incluster_config=lambda: None)
    vars(parts["rest"]).update(ApiException=OSError)
    api = SimpleNamespace(sanitize_for_serialization=lambda pod: json.loads(json.dumps(pod)))
    vars(parts["client"]).update(CoreV1Api=lambda: cluster, ApiClient=lambda: api)
    package = ModuleType("kubernetes")
    vars(package).update(client=parts["client"], config=parts["config"], __spec__=object())
    monkeypatch.setitem(sys.modules, "kubernetes", package)
    monkeypatch.setitem(sys.modules, "kubernetes.client", parts["client"])
    monkeypatch.setitem(sys.modules, "kubernetes.client.rest", parts["rest"])
    token = kit.path.parent / "token"
    token.mkdir()
    (token / "namespace").write_text("ward")
    monkeypatch.setattr(launchers, "_TOKEN", str(token))
    choose(kit, by="k8s", gpus=1, cpus=4, memory="8Gi")
    built(kit).handle_event(EventType.SYSTEM_BOOTSTRAP, FLContext())
    built(kit).launch_job(dict(HOSTILE), context(kit, port=4711))
    return cluster, dict(cluster.made)["pod"]


def test_a_pod_of_a_run_is_like_the_sites_without_the_token(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, pod = rendered_pod(kit, monkeypatch)
    assert [what for what, _ in cluster.made] == ["deleted", "secret", "pod", "owner"]
    labels = {"app.kubernetes.io/instance": "north", "app.kubernetes.io/component": "run"}
    assert pod["metadata"]["labels"] == labels
    assert cluster.made[0][1]["labels"] == ",".join(f"{key}={one}" for key, one in labels.items())
    assert "evil" not in str(cluster.made) and "the token" not in str(pod)
    spec, (run,) = pod["spec"], pod["spec"]["containers"]
    assert spec["automountServiceAccountToken"] is False and "serviceAccountName" not in spec
    assert [one["name"] for one in spec["volumes"]] == ["kit", "tmp"]
    assert [one["mountPath"] for one in run["volumeMounts"]] == ["/kit", "/tmp"]
    assert spec["securityContext"] == OWN_POD["spec"]["securityContext"]
    own = OWN_POD["spec"]["containers"][0]
    assert (run["image"], run["securityContext"]) == (own["image"], own["securityContext"])
    assert run["command"] == [sys.executable] and "stcp://10.1.2.3:4711" in run["args"]
    asked = {"nvidia.com/gpu": "1", "cpu": "4", "memory": "8Gi"}
    assert run["resources"] == {"requests": asked, "limits": asked}
    assert spec["restartPolicy"] == "Never" and "nodeName" not in spec
    secret = dict(cluster.made)["secret"]
    assert "the token" in secret["stringData"].values()
    named = {one["valueFrom"]["secretKeyRef"]["name"] for one in run["env"] if "valueFrom" in one}
    assert named == {secret["metadata"]["name"]}


def test_a_pod_of_a_run_is_one_to_kubernetes(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes")
    checked.validate(rendered_pod(kit, monkeypatch)[1], "1.30", strict=True)


def test_a_process_that_waits_for_its_place_is_not_lost(tmp_path: Path) -> None:
    """As long as the site's own process, which knows how long it may take, is connected."""
    made = create_consortium("trial", sites=["north"], host="localhost", out=tmp_path / "trial")
    server = made.kit("server")

    def told(*runs: str, token: str = "a") -> None:
        held = StatusWriter()
        engine = SimpleNamespace(
            client_manager=SimpleNamespace(disabled_clients=set()),
            get_clients=lambda: [SimpleNamespace(name="north", token="a", last_connect_time=1.0)],
            server=SimpleNamespace(_job_reported_clients={run: {token} for run in runs}),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(server.path)
            patch.setattr(StatusWriter, "engine", engine)
            held._note(connected=True)

    controller = ConfideController("r", "", ["north"], "")
    controller._starting = partial(processes.waited_for, server, JOB)
    assert controller._gone("north") is None
    controller._begun -= SILENCE + 1
    assert controller._gone("north") == "lost"
    told(JOB, "another")
    assert controller._gone("north") is None
    told(JOB, token="of the process that the site had before")
    assert controller._gone("north") == "lost"
    told("another")
    assert controller._gone("north") == "lost"
    told(JOB)
    controller._heard["north"] = controller._begun
    assert controller._gone("north") == "lost"


def test_a_process_that_does_not_start_in_time_is_ended(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site of which nothing is said waits five minutes, one of a cluster half an hour."""
    monkeypatch.chdir(kit.path)
    ended, now = Event(), 1000.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    run = {"_status": ClientStatus.STARTING, "_job_launcher": SimpleNamespace(terminate=ended.set)}
    executor = SimpleNamespace(run_processes={JOB: run})
    monkeypatch.setattr(StatusWriter, "engine", SimpleNamespace(client_executor=executor))
    commands(kit.path / "bin", monkeypatch)
    for launcher, within in (
        ({}, 300), ({"starts_within": 30}, 30), ({"by": "slurm"}, 1800),
        ({"by": "slurm", "starts_within": 86_400}, 86_400),
    ):  # fmt: skip
        choose(kit, **launcher)
        seen = StatusWriter()
        seen._end_unstarted()
        now += within
        seen._end_unstarted()
        assert not ended.is_set()
        now += 1
        seen._end_unstarted()
        assert ended.wait(10)
        ended.clear()
    run["_status"] = ClientStatus.STARTED
    now += 10**6
    seen._end_unstarted()
    assert not seen._starting
