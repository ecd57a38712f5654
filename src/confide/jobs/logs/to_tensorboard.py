"""Curves for TensorBoard: a file of its format, without the name of this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from confide.errors import SettingsError, os_errors_as
from confide.federation.events import Event
from confide.jobs.logs import not_installed
from confide.jobs.logs.facts import numbers

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

NAME = "tensorboard"
_FORMAT = "brain.Event:2"
"""The first record of every file."""


class Curves:
    """A file of scalars by round."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._round = 0
        self._add(version=_FORMAT)

    def write(self, event: Event) -> None:
        """Add the event's numbers at its round; scores of the end stand at the last one."""
        self._round = max(self._round, event.round or 0)
        if found := numbers(event):
            self._add(values=found, round=event.round or self._round)

    def close(self, *, whole: bool) -> None:
        """Close the file."""
        self._writer.close()

    def _add(
        self, values: dict[str, float] | None = None, *, round: int = 0, version: str = ""
    ) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        record = Record(wall_time=time.time(), step=round)
        if version:
            record.file_version = version
        else:
            value = [Summary.Value(tag=name, simple_value=n) for name, n in (values or {}).items()]
            record.summary.CopyFrom(Summary(value=value))
        self._writer.write(record.SerializeToString())
        self._writer.flush()


def opened(folder: Path, where: str) -> Curves:
    """The log in a new file of a folder, by default `tensorboard` in the run's.

    Raises SettingsError, also if TensorBoard is not installed.
    """
    try:
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise not_installed("TensorBoard", "tensorboard") from error
    place = Path(where) if where else folder / NAME
    with os_errors_as(SettingsError, "the log cannot be written", where=place):
        place.mkdir(parents=True, exist_ok=True)
        file = (place / f"events.out.tfevents.{time.time_ns()}.confide").open("xb")
    return Curves(RecordWriter(file))
