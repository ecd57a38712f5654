"""The public functions of confide, one per verb of the command line.

>>> from confide import api
>>> result = api.run("settings.toml", out="runs/first")  # doctest: +SKIP
>>> documents = api.predict("runs/first", ["note.txt"])  # doctest: +SKIP

Each is imported on first use, so looking at data does not wait for torch.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from confide.removed import FUNCTIONS

if TYPE_CHECKING:  # type checkers run these imports; `_homes` reads them
    from confide.corpora.dealing import split as split
    from confide.corpora.distant import label as label
    from confide.corpora.statistics import stats as stats
    from confide.federation.comparing import compare_ledgers as compare_ledgers
    from confide.federation.keys import new_key as new_key
    from confide.federation.keys import protect_key as protect_key
    from confide.federation.keys import unprotect_key as unprotect_key
    from confide.federation.ledger import ledger as ledger
    from confide.jobs.audit import audit as audit
    from confide.jobs.capacity import capacity as capacity
    from confide.jobs.capacity import run_needs as run_needs
    from confide.jobs.comparison import compare as compare
    from confide.jobs.datasets import from_dataset as from_dataset
    from confide.jobs.datasets import to_dataset as to_dataset
    from confide.jobs.demo import demo as demo
    from confide.jobs.dossier import dossier as dossier
    from confide.jobs.export import export as export
    from confide.jobs.initialise import Wishes as Wishes
    from confide.jobs.initialise import init as init
    from confide.jobs.loading import load as load
    from confide.jobs.logs import Logs as Logs
    from confide.jobs.models import get_model as get_model
    from confide.jobs.models import known_models as known_models
    from confide.jobs.personalise import personalise as personalise
    from confide.jobs.planning import budget as budget
    from confide.jobs.planning import privacy_plan as privacy_plan
    from confide.jobs.predict import evaluate as evaluate
    from confide.jobs.predict import facts as facts
    from confide.jobs.predict import predict as predict
    from confide.jobs.survey import survey as survey
    from confide.jobs.survey import survey_verdict as survey_verdict
    from confide.jobs.sweep import Sweep as Sweep
    from confide.jobs.sweep import sweep as sweep
    from confide.methods import wire as wire
    from confide.recipes import recipes as recipes
    from confide.report.page import report as report
    from confide.report.page import watch_report as watch_report
    from confide.report.review import review as review
    from confide.runs.loading import release as release
    from confide.runs.run import run as run
    from confide.settings.upgrade import upgrade_settings as upgrade_settings
    from confide.text.checking import check as check
    from confide.text.checking import convert as convert
    from confide.text.formats import Options as Options
    from confide.text.formats import read as read
    from confide.text.formats import write as write


@cache
def _homes() -> dict[str, str]:
    """The module of each public function, by the imports at the top of this file."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {
        one.name: node.module
        for node in imports
        for one in node.names
        if node.module and one.asname
    }


def __getattr__(name: str) -> object:
    """Import the function of this name and keep it."""
    if name in FUNCTIONS:
        raise AttributeError(f"{__name__}.{name} was removed: {FUNCTIONS[name]}")
    if name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from confide.text.reading import gc_paused

    with gc_paused():  # imports make many objects and hardly any garbage
        function = getattr(import_module(_homes()[name]), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    """The names of the public functions."""
    return sorted(_homes())
