"""The public functions of confide, one per verb of the command line.

>>> from confide import api
>>> result = api.run("settings.toml", out="runs/first")  # doctest: +SKIP
>>> documents = api.predict("runs/first", ["note.txt"])  # doctest: +SKIP

Each is imported on first use, so looking at data does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from confide.removed import FUNCTIONS

if TYPE_CHECKING:
    from confide.corpora.dealing import split
    from confide.corpora.distant import label
    from confide.corpora.statistics import stats
    from confide.federation.comparing import compare_ledgers
    from confide.federation.keys import new_key, protect_key, unprotect_key
    from confide.federation.ledger import ledger
    from confide.jobs.audit import audit
    from confide.jobs.budget import budget
    from confide.jobs.capacity import capacity
    from confide.jobs.comparison import compare
    from confide.jobs.datasets import from_dataset, to_dataset
    from confide.jobs.demo import demo
    from confide.jobs.export import export
    from confide.jobs.home import home
    from confide.jobs.initialise import Wishes, init
    from confide.jobs.loading import load
    from confide.jobs.logs import Logs
    from confide.jobs.predict import evaluate, facts, predict
    from confide.jobs.privacy_plan import privacy_plan
    from confide.methods import wire
    from confide.recipes import recipes
    from confide.report import report, watch_report
    from confide.report.review import review
    from confide.runs.loading import release
    from confide.runs.run import run
    from confide.text.checking import check, convert
    from confide.text.formats import read, write

__all__ = [
    "Logs",
    "Wishes",
    "audit",
    "budget",
    "capacity",
    "check",
    "compare",
    "compare_ledgers",
    "convert",
    "demo",
    "evaluate",
    "export",
    "facts",
    "from_dataset",
    "home",
    "init",
    "label",
    "ledger",
    "load",
    "new_key",
    "predict",
    "privacy_plan",
    "protect_key",
    "read",
    "recipes",
    "release",
    "report",
    "review",
    "run",
    "split",
    "stats",
    "to_dataset",
    "unprotect_key",
    "watch_report",
    "wire",
    "write",
]

_HOME = {
    "Logs": "confide.jobs.logs",
    "Wishes": "confide.jobs.initialise",
    "audit": "confide.jobs.audit",
    "budget": "confide.jobs.budget",
    "capacity": "confide.jobs.capacity",
    "check": "confide.text.checking",
    "compare": "confide.jobs.comparison",
    "compare_ledgers": "confide.federation.comparing",
    "convert": "confide.text.checking",
    "demo": "confide.jobs.demo",
    "evaluate": "confide.jobs.predict",
    "export": "confide.jobs.export",
    "facts": "confide.jobs.predict",
    "from_dataset": "confide.jobs.datasets",
    "home": "confide.jobs.home",
    "init": "confide.jobs.initialise",
    "label": "confide.corpora.distant",
    "ledger": "confide.federation.ledger",
    "load": "confide.jobs.loading",
    "new_key": "confide.federation.keys",
    "predict": "confide.jobs.predict",
    "privacy_plan": "confide.jobs.privacy_plan",
    "protect_key": "confide.federation.keys",
    "read": "confide.text.formats",
    "recipes": "confide.recipes",
    "release": "confide.runs.loading",
    "report": "confide.report",
    "review": "confide.report.review",
    "run": "confide.runs.run",
    "split": "confide.corpora.dealing",
    "stats": "confide.corpora.statistics",
    "to_dataset": "confide.jobs.datasets",
    "unprotect_key": "confide.federation.keys",
    "watch_report": "confide.report",
    "wire": "confide.methods",
    "write": "confide.text.formats",
}


def __getattr__(name: str) -> object:
    """Import the function of this name and keep it."""
    if name in FUNCTIONS:
        raise AttributeError(f"{__name__}.{name} was removed: {FUNCTIONS[name]}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(import_module(_HOME[name]), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    """The names of the public functions."""
    return sorted(__all__)
