"""What every startup kit allows, as the files that NVIDIA FLARE reads from a kit's `local/`.

The defaults of FLARE 2.9 let a lead ship code, let anyone with a role read a site's files, and send
each site's error log to the server. Here only what a run needs is allowed:

- no code travels, and only our two classes can be built from what a lead submits;
- a lead may submit, watch, abort and download its own runs, and see which sites are connected;
- no log leaves a site, and no log holds the content of messages;
- what the server stores lies in its kit; it notices within half a minute that a site is gone;
- processes on the same machine also use TLS with each other.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from confide.federation.forms import MOST_BYTES

Kind = Literal["server", "site", "lead"]

CLASSES = (
    "confide.flare.nvidia.controller.ConfideController",
    "confide.flare.nvidia.executor.ConfideExecutor",
)
"""The only classes that a run may build, at the server and at a site."""

ROLES = ("project_admin", "org_admin", "lead", "member")
RIGHTS = (
    "submit_job",
    "clone_job",
    "manage_job",
    "download_job",
    "view",
    "operate",
    "shell_commands",
    "byoc",
    "server-predeployed-flwr",
)
"""The rights that FLARE gives to a role; each is a group of commands or one command."""

OWN = "n:submitter"
"""Only the lead that submitted the run."""
MEMBER = "o:site"
"""Every lead of this consortium: its certificate and this kit name the same organisation."""

HEARTBEAT_EVERY = 5
HEARTBEAT_TIMEOUT = 25
"""Seconds between a site's heartbeats, and without one until the server counts it as gone."""
MESSAGE_TIMEOUT = 10.0
"""Seconds that a site waits for the answer to a heartbeat."""

LARGEST = MOST_BYTES + 64 * 2**20
"""The most bytes of one message, everywhere: the weights of one model, and some more."""

STORE = Path("store")
"""The folder in the server's kit for submissions and their outcomes."""


def authorization(kind: Kind) -> dict[str, object]:
    """`authorization.json`: every right of every role."""
    permissions: dict[str, dict[str, str]] = {role: dict.fromkeys(RIGHTS, "none") for role in ROLES}
    lead = permissions["lead"]
    lead["submit_job"] = MEMBER
    if kind == "server":
        lead |= {"check_status": MEMBER, "list_jobs": MEMBER}
        lead |= {"get_job_meta": OWN, "app_command": OWN, "abort_job": OWN}
        lead |= {"download_job": OWN, "download_job_components": OWN}
    return {"format_version": "1.0", "permissions": permissions}


def resources(kind: Kind) -> dict[str, object]:
    """`resources.json`: the components that a server, a site or a lead runs with."""
    if kind == "lead":
        waits = {"idle_timeout": 900.0, "login_timeout": 10.0, "authenticate_msg_timeout": 5.0}
        return {"format_version": 1, "admin": {**waits, "with_debug": False, "prompt": "> "}}
    common: dict[str, object] = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": list(CLASSES),
        "allow_log_streaming": False,
    }
    return common | (_server() if kind == "server" else _site())


def _server() -> dict[str, object]:
    service = {
        "admin_storage": "transfer",
        "max_num_clients": 100,
        "heart_beat_timeout": HEARTBEAT_TIMEOUT,
        "shutdown_period": 3.0,
        "download_job_url": "",
        "admin_timeout": MESSAGE_TIMEOUT,
    }
    schedule: dict[str, object] = {
        "max_jobs": 1,
        "max_schedule_count": 1000,
        "min_schedule_interval": 2.0,
        "max_schedule_interval": 10.0,
    }
    store: dict[str, object] = {"uri_root": str(STORE / "runs"), "job_store_id": "job_store"}
    parts = [
        _part("job_scheduler", "job_schedulers.job_scheduler.DefaultJobScheduler", args=schedule),
        _part("job_manager", "nvflare.apis.impl.job_def_manager.SimpleJobDefManager", args=store),
        _part("job_store", "storages.filesystem_storage.FilesystemStorage"),
        _part("process_launcher", "job_launcher.server_process_launcher.ServerProcessJobLauncher"),
    ]
    return {"servers": [service], "components": parts}


def _site() -> dict[str, object]:
    """The site's part; `site_config`, which it would tell the server, is empty."""
    manager = "resource_managers.passthrough_resource_manager.PassthroughResourceManager"
    consumer = "resource_consumers.passthrough_resource_consumer.PassthroughResourceConsumer"
    parts = [
        _part("resource_manager", manager),
        _part("resource_consumer", consumer),
        _part("process_launcher", "job_launcher.client_process_launcher.ClientProcessJobLauncher"),
    ]
    talk = {"retry_timeout": 30, "maint_msg_timeout": MESSAGE_TIMEOUT, "site_config": {}}
    return {"client": talk, "components": parts}


def watching() -> dict[str, object]:
    """`watch__p_resources.json`: our own component in the resident process, for `status`."""
    return {"components": [_part("watch", "confide.flare.nvidia.watch.Watch")]}


def _part(name: str, path: str, *, args: dict[str, object] | None = None) -> dict[str, object]:
    full = path if path.split(".")[0] in ("nvflare", "confide") else f"nvflare.app_common.{path}"
    return {"id": name, "path": full, "args": args or {}}


def connections() -> dict[str, object]:
    """`comm_config.json`: connections only to the server; TLS between local processes as well.

    A message that declares more than `LARGEST` bytes is refused before memory is allocated for it.
    """
    local = {"host": "localhost", "connection_security": "mtls"}
    return {
        "streaming_max_blob_size": LARGEST,
        "allow_adhoc_conns": False,
        "backbone_conn_gen": 2,
        "internal": {"scheme": "tcp", "resources": local},
    }


def logging_config() -> dict[str, object]:
    """`log_config.json`: one file that stays in the kit, in a format that leaves out content."""
    file = {
        "class": "logging.handlers.RotatingFileHandler",
        "level": "INFO",
        "formatter": "plain",
        "filename": "log.txt",
        "mode": "a",
        "maxBytes": 5_000_000,
        "backupCount": 4,
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"()": "confide.flare.nvidia.quiet.Plain"}},
        "handlers": {"file": file},
        "loggers": {"root": {"level": "INFO", "handlers": ["file"]}},
    }


def write(folder: Path, kind: Kind) -> None:
    """Write these policies into a kit's `local/`, in place of what was there."""
    local = folder / "local"
    for old in local.iterdir():
        old.unlink()
    files = {"resources.json": resources(kind)}
    if kind != "lead":
        files |= {
            "authorization.json": authorization(kind),
            "comm_config.json": connections(),
            "log_config.json": logging_config(),
            "watch__p_resources.json": watching(),
        }
    for name, content in files.items():
        write_private(local / name, json.dumps(content, indent=2) + "\n")


def write_private(path: Path, text: str | bytes) -> None:
    """Write a file that only its owner can read."""
    data = text.encode() if isinstance(text, str) else text
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
