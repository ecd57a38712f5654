"""The status of a server or a site as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from confide.flare.nvidia.processes import Status


def status_table(now: Status) -> Table:
    """Everything that `status` knows, a row each."""
    from rich.table import Table

    rows: list[tuple[str, object]] = [("running", f"since {local(now)}" if now.running else "no")]
    if now.running:
        ready = "ready" if now.kind == "server" else "connected"
        rows += [
            (ready, "yes" if now.connected else "no"),
            ("process", now.pid),
            ("memory", f"{now.memory / 2**20:.0f} MB"),
            ("runs", now.runs),
        ]
    if now.running and now.kind == "server":
        rows.append(("sites", ", ".join(now.sites) or "none"))
    if now.revoked:
        rows.append(("revoked", ", ".join(now.revoked)))
    rows.append(("certificate", f"{now.days_left} days left" if now.days_left >= 0 else "expired"))
    table = Table(title=now.name, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def local(now: Status) -> str:
    """Since when it runs, by this machine's clock; empty if it does not."""
    return "" if now.since is None else f"{now.since.astimezone():%Y-%m-%d %H:%M:%S}"
