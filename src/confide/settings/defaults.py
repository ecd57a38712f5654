"""Defaults that depend on the method, the kind of model or the task."""

from __future__ import annotations

from math import inf

from confide.files import Tree
from confide.tasks import TASKS

_ENCODER: Tree = {  # Sui et al. 2020, 4.1
    "optimiser": "adamw",
    "learning_rate": 2.5e-5,
    "decay": 1.0,
    "batch_size": 4,
    "local_epochs": 2,
    "clip": 1.0,
}
_FEDED_TAGGER: Tree = {  # the server's tagger learns from few sentences, once a round
    "optimiser": "adam",
    "learning_rate": 0.002,
    "decay": 1.0,
    "local_epochs": 3,
    "batch_size": 10,
    "word_dropout": 0.05,
}
_DESCENT: Tree = {"optimiser": "sgd", "batch_size": 10, "local_epochs": 10, "word_dropout": 0.05}
_LARGE: Tree = {"bilstm_hidden": 200}  # Ma & Hovy 2016
OF_PAIRS: dict[str, Tree] = {
    "fedner-tagger": {"training": {"local_epochs": 10}},
    "dp-fedsgd-tagger": {"training": _DESCENT, "model": _LARGE},
    "dp-fedner-tagger": {
        "training": _DESCENT | {"learning_rate": 0.015, "decay": 0.95},
        "model": _LARGE,
    },
    "feded-tagger": {"training": _FEDED_TAGGER, "model": _LARGE},
    "dp-feded-tagger": {"training": _FEDED_TAGGER, "model": _LARGE},
    "fedner-encoder": {"training": {"learning_rate": 5e-5}},
    "fedner-spans": {"training": {"learning_rate": 5e-5}},
    "fedner-lightner": {"training": {"learning_rate": 3e-5}},
    "fedner-relations": {"training": {"learning_rate": 5e-5}},
    "fedner-linear": {
        "training": {"learning_rate": 0.01, "weight_decay": 0.0, "moments": "fresh"},
    },
}
OF_METHODS: dict[str, Tree] = {
    "fedner": {  # Ge et al. 2020, 4.1, but for words: theirs have 300 numbers; a round is one batch
        "rounds": 3000,
        "training": {
            "optimiser": "adam",
            "learning_rate": 0.001,
            "decay": 1.0,
            "batch_size": 64,
            "word_dropout": 0.05,
        },
        "model": {
            "bilstm_hidden": 200,
            "character_dim": 100,
            "character_filters": 200,
            "cnn_filters": 200,
            "dropout": 0.2,
            "tag_scheme": "iob2",
        },
        "select": {"every": 50},
    },
    "dp-fedsgd": {"training": {"learning_rate": 1.0, "decay": 1.0}},
    "pseudo-complete": {"rounds": 25},  # Wang et al. 2023, App. C
}
OF_KINDS: dict[str, Tree] = {
    "tagger": {  # benchmarks/defaults; the paper's settings stand in its recipes
        "training": {
            "optimiser": "adam",
            "learning_rate": 0.005,
            "decay": 1.0,
            "batch_size": 4,
            "local_epochs": 2,
            "word_dropout": 0.25,
        },
        "model": {"bilstm_hidden": 100},
    },
    "encoder": {"training": _ENCODER | {"learning_rate": 5e-5, "local_epochs": 1}},
    "spans": {"training": _ENCODER | {"learning_rate": 5e-5, "local_epochs": 1}},
    "lightner": {  # Wang et al. 2023, App. C
        "training": {
            "optimiser": "adamw",
            "learning_rate": 3e-5,
            "decay": 1.0,
            "batch_size": 8,
            "local_epochs": 1,
            "clip": 1.0,
        },
    },
    "linear": {
        "rounds": 15,
        "training": {
            "optimiser": "adagrad",
            "learning_rate": 0.3,
            "decay": 0.93,
            "batch_size": 4,
            "local_epochs": 1,
            "clip": inf,
            "weight_decay": 3e-4,
            "moments": "kept",
        },
    },
    "relations": {"training": _ENCODER},
    "bags": {  # Sui et al. 2021, 4.1 and its grid
        "training": {
            "optimiser": "sgd",
            "learning_rate": 0.1,
            "momentum": 0.0,
            "decay": 0.99,
            "batch_size": 32,
            "local_epochs": 3,
            "weight_decay": 1e-5,
        },
    },
}
"""These replace the tables' own defaults: a pair's come before a method's, and those before a
kind's."""
OF_TASKS: dict[str, Tree] = {
    name: {"select": {"by": task.kinds[0]}} for name, task in TASKS.items()
}
"""Defaults of a task, whatever the method."""


def defaults(task: str, method: str, kind: str) -> list[Tree]:
    """Trees of defaults; the first one that has a key wins."""
    named = (OF_PAIRS.get(f"{method}-{kind}"), OF_METHODS.get(method), OF_KINDS.get(kind))
    return [one for one in (*named, OF_TASKS.get(task)) if one]
