"""Start the process of a run at a site in Slurm, in Docker or in Kubernetes.

NVIDIA FLARE's launchers for Slurm, Docker and Kubernetes, narrowed to what the site's own file
says: a submission has no say in where or as what a run starts.

A container or pod of a run is like the one of the site's own process (the same image, user, volumes
and limits) without what may start others: no socket of Docker, no token of Kubernetes. So the kit
and MEMORY are the site's own, and an agreement that is withdrawn is withdrawn there too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobLauncherSpec, JobProcessArgs
from nvflare.app_opt.job_launcher.docker_launcher import (
    ClientDockerJobLauncher,
    DockerJobHandle,
    DockerStatus,
)
from nvflare.app_opt.job_launcher.k8s_launcher import (
    ClientK8sJobLauncher,
    K8sJobHandle,
    job_pod_name,
    uuid4_to_rfc1123,
)
from nvflare.app_opt.job_launcher.slurm import ClientSlurmJobLauncher
from nvflare.app_opt.job_launcher.slurm.config import BindMount
from nvflare.app_opt.job_launcher.study_runtime import StudyRuntime
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.utils.job_launcher_utils import (
    get_client_job_args,
    get_credential_env,
    portable_memory_to_bytes,
)

from confide.errors import EngineError, KitError
from confide.files import Tree
from confide.flare.agreements import COUNT_FILE, SITE_FILE
from confide.flare.kit import Kit
from confide.settings import load_site
from confide.settings.sitefile import SiteFile

IMAGE_PYTHON = "/opt/confide/bin/python"
"""In the image of `containers/`."""
_PROGRAMS = ("sbatch", "squeue", "sacct", "scancel")
_PASSED = re.compile(r"(CONFIDE_(?!KIT)|HF_|MALLOC_|NVFLARE_(?!SLURM_)|OMP_|PYTHON)\w*|TMPDIR")
"""The variables of the site's process that the process of a run gets too; not the mark of those
that run beside it."""


def check_launcher(kit: Kit, site: SiteFile) -> None:
    """Raise KitError if what a site's launcher needs is not here."""
    own = site.launcher
    if own.by == "slurm":
        if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
            raise _absent("slurm", f"the commands {', '.join(missing)} are not on PATH", site)
        if own.image and not Path(own.image).is_file():
            raise _absent("slurm", f"there is no image {own.image}", site)
        image_mounts(kit.path, site)
    elif own.by == "docker":
        try:
            _own_container(_docker())
        except EngineError as error:
            raise _absent("docker", error.what, site) from error
    elif own.by == "k8s":
        if find_spec("kubernetes") is None:
            raise _absent("k8s", "the package kubernetes is not installed", site)
        if not Path(_TOKEN).is_dir():
            raise _absent("k8s", "this process runs in no pod with a service account", site)


def _absent(by: str, what: str, site: SiteFile) -> KitError:
    return KitError(
        f"site {site.name} cannot start runs by {by}: {what}",
        where=f"[launcher] in {SITE_FILE}",
        fix='see docs/clusters.md, or set by = "process"',
    )


def passed_on() -> dict[str, str]:
    """The variables of this process that the process of a run gets."""
    return {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}


def _arguments(fl_ctx: FLContext, host: str) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """A run's arguments by flag, those of `--set`, and its credentials; `host` is ours."""
    given = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
    at = urlsplit(str(given[JobProcessArgs.PARENT_URL][1]))
    url = urlunsplit(at._replace(netloc=f"{host}:{at.port}"))
    names = get_client_job_args(include_exe_module=False, include_set_options=False)
    flags = {flag: str(value) for flag, value in (given[name] for name in names if given.get(name))}
    flags[given[JobProcessArgs.PARENT_URL][0]] = url
    options = str(given[JobProcessArgs.OPTIONS][1]).split()
    return flags, options, get_credential_env(given)


def _module(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)[JobProcessArgs.EXE_MODULE][1])


class _Failed(JobHandleSpec):  # type: ignore[misc]
    """Stands for a process that could not be started: it ended at once."""

    def terminate(self) -> None:
        """There is nothing to end."""

    def poll(self) -> int:
        """Say so, in FLARE's words."""
        return int(ProcessExitCode.INFRASTRUCTURE_ERROR)

    def wait(self) -> None:
        """Do not wait."""


class Launcher(JobLauncherSpec, ABC):  # type: ignore[misc]
    """Starts the process of a run; the site's own log says why it cannot, the server that."""

    def launch_job(self, job_meta: Tree, fl_ctx: FLContext) -> JobHandleSpec:
        """FLARE's name for `start`."""
        try:
            return self.start(job_meta, fl_ctx)
        except Exception as error:
            self.logger.error("the process of a run cannot be started: %s", error)
            return _Failed()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """When the site's own process starts, end what an earlier one left."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self.end_left()
        super().handle_event(event_type, fl_ctx)

    def end_left(self) -> None:
        """End runs of an earlier process of this site: two must not write to one MEMORY."""

    @abstractmethod
    def start(self, job_meta: Tree, fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process of a run. Of what the lead wrote, only the id is looked at."""


# --- Slurm


def image_mounts(kit: Path, site: SiteFile) -> list[BindMount]:
    """The paths that a run in an Apptainer image sees, beside FLARE's parts of the kit.

    Text and key can only be read. Raises KitError if a path cannot be written for Apptainer.
    """
    models = Path(os.environ.get("CONFIDE_MODELS", kit))
    read = [*site.train, *site.dev, *site.test, site.key, site.context, site.vectors]
    read += [site.proxy_password_file]
    read += [str(models)] if not models.is_relative_to(kit) else []
    paths = {Path(os.path.expandvars(one)): "ro" for one in read if one}
    paths = {path: mode for path, mode in paths.items() if path.is_absolute() and path.exists()}
    paths |= {Path(site.memory): "rw", kit / "identity": "rw", kit / "local" / COUNT_FILE: "rw"}
    if odd := [path for path in paths if re.search("[:,]", str(path))]:
        raise KitError(
            "Apptainer cannot mount a path with a colon or comma in it",
            got=str(odd[0]),
            fix="move it, or leave `image` out",
        )
    return [BindMount(str(path), str(path), mode) for path, mode in sorted(paths.items())]


class SlurmLauncher(Launcher, ClientSlurmJobLauncher):  # type: ignore[misc]
    """Submits a run's process to Slurm; with an `image`, it runs in Apptainer there."""

    def __init__(
        self,
        kit: str,
        *,
        image: str = "",
        host: str = "",
        port: int = 8102,
        sbatch: Mapping[str, str] | None = None,
        gpus: int = 0,
        cpus: int = 0,
        memory: str = "",
    ) -> None:
        super().__init__(
            workspace_path=kit,
            sandbox="apptainer" if image else "none",
            python_path=IMAGE_PYTHON if image else sys.executable,
            executables={},
            image=image or None,
            internal_port=port,
            sbatch_directives=dict(sbatch or {}),
            setup="umask 077",
            parent_host=host or socket.gethostname(),
            poll_interval=5.0,
            pending_timeout=10**9,  # `watch` ends it
        )
        wanted = {"num_of_gpus": gpus, "num_of_cpus": cpus, "memory": memory}
        self._wanted = {name: one for name, one in wanted.items() if one}

    def start(self, job_meta: Tree, fl_ctx: FLContext) -> JobHandleSpec:
        """Submit it as the site's own file says: of what the lead wrote, only the id counts."""
        own = {
            JobConstants.JOB_ID: job_meta[JobConstants.JOB_ID],
            JobMetaKey.RESOURCE_SPEC.value: {fl_ctx.get_identity_name(): self._wanted},
        }
        return ClientSlurmJobLauncher.launch_job(self, own, fl_ctx)

    def _load_study_runtime(self, study: str | None) -> StudyRuntime:
        env = passed_on()
        if self.config.image:
            env = {name: one for name, one in env.items() if name != "PYTHONPATH"}
            env["TMPDIR"] = "/tmp"
        return StudyRuntime(study="", env=env)

    def _study_mounts(self, runtime: StudyRuntime) -> tuple[BindMount, ...]:
        kit = Path(self.config.workspace_path)
        return tuple(image_mounts(kit, load_site(kit / "local" / SITE_FILE)))


# --- Docker


_LABEL = "confide.kit"
"""The label of a run's container: whose it is."""


def _docker() -> Any:
    """A client of the Docker that runs this container. Raises EngineError."""
    import docker

    try:
        reached = docker.from_env()
        reached.ping()
    except Exception as error:
        raise EngineError("no Docker answers (is its socket mounted?)") from error
    return reached


def _own_container(reached: Any) -> Tree:
    """Docker's facts of the container of this process. Raises EngineError."""
    try:
        own: Tree = reached.containers.get(socket.gethostname()).attrs
    except Exception as error:
        raise EngineError(
            "this process runs in no container of that Docker, or in one with another host name"
        ) from error
    if len(own["NetworkSettings"]["Networks"]) != 1:
        raise EngineError("the site's container must be in exactly one network")
    return own


def _is_socket(path: str) -> bool:
    """True if the path is a socket, or a folder that Docker's socket may lie in."""
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode) or path in ("/", "/run", "/var/run")
    except OSError:
        return False


class DockerLauncher(Launcher, ClientDockerJobLauncher):  # type: ignore[misc]
    """Starts a run's process in a container like the site's own, without Docker's socket."""

    def __init__(self, kit: str, *, gpus: int = 0, cpus: int = 0, memory: str = "") -> None:
        super().__init__(workspace=kit, timeout=120)
        self._wanted = (gpus, cpus, memory)

    def end_left(self) -> None:
        """Remove containers of this kit's runs; in one of them there is no Docker to be asked."""
        with contextlib.suppress(EngineError):
            for one in _docker().containers.list(filters={"label": f"{_LABEL}={self.workspace}"}):
                one.remove(force=True)

    def start(self, job_meta: Tree, fl_ctx: FLContext) -> JobHandleSpec:
        """Start it as the site's own file says. Raises EngineError."""
        import docker

        reached = _docker()
        own = _own_container(reached)
        ((network, at),) = own["NetworkSettings"]["Networks"].items()
        flags, options, credentials = _arguments(fl_ctx, at["IPAddress"])
        command = [word for pair in flags.items() for word in pair] + ["--set", *options]
        gpus, cpus, memory = self._wanted
        held, limits = own["HostConfig"], dict[str, object]()
        if gpus:
            limits["device_requests"] = [
                docker.types.DeviceRequest(count=gpus, capabilities=[["gpu"]])
            ]
        if cpus:
            limits["nano_cpus"] = cpus * 10**9
        if memory:
            limits["mem_limit"] = portable_memory_to_bytes(memory)
        name = f"{fl_ctx.get_identity_name()}-{job_meta[JobConstants.JOB_ID]}".lower()
        container = reached.containers.run(
            own["Image"],
            entrypoint=[sys.executable, "-u", "-m", _module(fl_ctx)],
            command=command,
            name=name,
            labels={_LABEL: self.workspace},
            network=network,
            detach=True,
            auto_remove=True,
            init=True,
            environment=passed_on() | credentials,
            mounts=[
                docker.types.Mount(
                    target=one["Destination"],
                    source=one["Name"] if one["Type"] == "volume" else one["Source"],
                    type=one["Type"],
                    read_only=not one["RW"],
                )
                for one in own["Mounts"]
                if one["Type"] in ("bind", "volume") and not _is_socket(one["Destination"])
            ],
            tmpfs=held.get("Tmpfs") or {},
            working_dir=self.workspace,
            user=own["Config"]["User"] or f"{os.getuid()}:{os.getgid()}",
            read_only=held["ReadonlyRootfs"],
            cap_drop=["ALL"],
            security_opt=held.get("SecurityOpt") or ["no-new-privileges:true"],
            **limits,
        )
        handle = DockerJobHandle(container.id, name, reached, timeout=120, container=container)
        handle.enter_states([DockerStatus.RUNNING])
        return handle


# --- Kubernetes


_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
_INSTANCE, _COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"


class PodLauncher(Launcher, ClientK8sJobLauncher):  # type: ignore[misc]
    """Starts a run's process in a pod like the site's own, without the token of Kubernetes."""

    def __init__(self, kit: str, *, gpus: int = 0, cpus: int = 0, memory: str = "") -> None:
        super().__init__(config_file_path="")
        self._wanted = (gpus, cpus, memory)

    def _own_pod(self) -> Tree:
        from kubernetes import client, config

        config.load_incluster_config()
        self.core_v1 = client.CoreV1Api()
        self.namespace = Path(_TOKEN, "namespace").read_text(encoding="ascii").strip()
        found = self.core_v1.read_namespaced_pod(socket.gethostname(), self.namespace)
        own: Tree = client.ApiClient().sanitize_for_serialization(found)
        return own

    def end_left(self) -> None:
        """Delete pods of this site's runs; in one of them there is no token to do it with."""
        if not Path(_TOKEN).is_dir():
            return
        labels = _labels(self._own_pod())
        if _INSTANCE not in labels:
            return  # other sites' runs may have the same
        self.core_v1.delete_collection_namespaced_pod(
            self.namespace, label_selector=",".join(f"{key}={one}" for key, one in labels.items())
        )

    def start(self, job_meta: Tree, fl_ctx: FLContext) -> JobHandleSpec:
        """Start it as the site's own file says."""
        own = self._own_pod()
        site, number = fl_ctx.get_identity_name(), uuid4_to_rfc1123(job_meta[JobConstants.JOB_ID])
        name = job_pod_name(number, site)
        flags, options, credentials = _arguments(fl_ctx, own["status"]["podIP"])
        secret = self._ensure_job_credential_secret(name, credentials)
        template = _like(own)
        gpus, cpus, memory = self._wanted
        limits = {"nvidia.com/gpu": gpus, "cpu": cpus, "memory": memory}
        asked = {key: str(one) for key, one in limits.items() if one}
        (container,) = template["spec"]["containers"]
        handle = K8sJobHandle(
            number,
            self.core_v1,
            {
                "name": name,
                "image": container["image"],
                "container_name": "run",
                "command": _module(fl_ctx),
                "module_args": flags,
                "set_list": options,
                "env": passed_on(),
                "secret_env": [{"name": one, "source": secret, "key": one} for one in credentials],
                "resources": {"requests": asked, "limits": asked},
            },
            namespace=self.namespace,
            pending_timeout=None,  # `watch` ends it
            python_path=sys.executable,
            pod_name=name,
            pod_manifest_template=template,
            credential_secret_name=secret,
        )
        try:
            pod = self.core_v1.create_namespaced_pod(
                body=handle.get_manifest(), namespace=self.namespace
            )
        except Exception:
            self._delete_secret(secret)
            raise
        self._own_credential_secret(secret, name, pod)
        return handle


def _like(own: Tree) -> Tree:
    """A pod like this one, without what lets its process speak with Kubernetes, or listen."""
    spec, main = own["spec"], own["spec"]["containers"][0]
    volumes = [one for one in spec.get("volumes", ()) if "projected" not in one]
    kept = {one["name"] for one in volumes}
    mounts = [one for one in main.get("volumeMounts", ()) if one["name"] in kept]
    container = {"name": "run", "image": main["image"], "volumeMounts": mounts}
    for key in ("imagePullPolicy", "securityContext"):
        if key in main:
            container[key] = main[key]
    pod = {"containers": [container], "volumes": volumes, "automountServiceAccountToken": False}
    for key in ("securityContext", "imagePullSecrets", "runtimeClassName", "tolerations"):
        if key in spec:
            pod[key] = spec[key]
    at = {"labels": _labels(own), "namespace": own["metadata"]["namespace"]}
    return {"metadata": at, "spec": pod}


def _labels(own: Tree) -> dict[str, str]:
    """The labels of this site's runs: those of its own pod, but its template's, and what it is."""
    kept = dict(own["metadata"].get("labels", {})) | {_COMPONENT: "run"}
    return {key: one for key, one in kept.items() if key != "pod-template-hash"}
