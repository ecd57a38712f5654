"""The server's component in NVIDIA FLARE: the rounds of a run over real sites.

The run's folder lies in the server's kit (`runs/RUN`) and outlives the job, so that a job which is
submitted again goes on from the last checkpoint. At the end it is copied to where FLARE collects
what the lead may download.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from confide.errors import ConfideError
from confide.flare.conducting import Conductor
from confide.flare.engine import FlareEngine
from confide.flare.events import TOPIC, Bulletin

COLLECTED = "confide"
"""The folder in what the lead downloads."""


class ConfideController(Controller):  # type: ignore[misc]
    """Conducts one run.

    Args:
        run: the name of the run: the folder on the server, and at each site.
        settings: of the run, as TOML.
        sites: who takes part.
        version: of confide at the lead.
    """

    def __init__(self, run: str, settings: str, sites: list[str], version: str) -> None:
        super().__init__(task_check_period=0.02)
        self._name = run
        self._settings = settings
        self._asked = list(sites)
        self._version = version
        self._bulletin = Bulletin()
        self._gone: set[str] = set()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Let the lead ask how far the run is."""
        fl_ctx.get_engine().register_app_command(TOPIC, self._told)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The run, from its last checkpoint on; its folder is collected whatever happens."""
        workspace = fl_ctx.get_engine().get_workspace()
        folder = Path(workspace.get_root_dir()) / "runs" / self._name
        engine = FlareEngine(
            self, fl_ctx, abort_signal, sites=self._asked, gone=self._gone.__contains__
        )
        conductor = Conductor(
            self._name, self._settings, version=self._version, engine=engine, folder=folder
        )
        try:
            conductor.conduct(self._bulletin)
            self._bulletin.end()
        except ConfideError as error:
            self._bulletin.fail(error)
        finally:
            self._bulletin.write(folder)
            collected = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / COLLECTED
            shutil.copytree(folder, collected, dirs_exist_ok=True)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to let go of: checkpoints are whole at all times."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note which sites the engine lost and found."""
        if event_type == EventType.CLIENT_DISCONNECTED:
            self._gone.add(str(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME)))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self._gone.discard(str(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME)))

    def _told(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        since = data.get("since", 0) if isinstance(data, dict) else 0
        return self._bulletin.since(since if type(since) is int else 0)
