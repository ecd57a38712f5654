"""Names that confide had once, and what to do instead of each.

Those of settings are in `confide.settings.upgrade`.
"""

from __future__ import annotations

SMALL_BART = (
    "train a BART with transformers (benchmarks/papers/tags/small_bart.py in confide's repository"
    " makes a small one), and name its folder as lightner.bart"
)

VERBS: dict[str, str] = {
    "pretrain": SMALL_BART,
    "home": "use `confide personalise`, as it is called now",
}
"""Verbs of the command line."""

FUNCTIONS: dict[str, str] = dict.fromkeys(
    ("pretrain", "export_delta", "import_delta"), SMALL_BART
) | {"home": "use `personalise`, as it is called now"}
"""Functions of `confide.api`."""
