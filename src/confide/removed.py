"""Names that confide had once, and what to do instead of each."""

from __future__ import annotations

from typing import Any

_SMALL_BART = (
    "train a BART with transformers (benchmarks/tags/small_bart.py in confide's repository makes a"
    " small one), and name its folder as lightner.bart"
)

VERBS: dict[str, str] = {"pretrain": _SMALL_BART}
"""Verbs of the command line."""

FUNCTIONS: dict[str, str] = dict.fromkeys(("pretrain", "export_delta", "import_delta"), _SMALL_BART)
"""Functions of `confide.api`."""

SETTINGS: dict[str, str] = {"denoising": f"remove the table; {_SMALL_BART}"}
"""Keys of a settings file, or tables of it, by dotted name."""

VALUES: dict[tuple[str, str], str] = {("task", "text"): _SMALL_BART}
"""Values of a setting."""

UNREAD: dict[str, Any] = {
    "denoising": {
        "encoder": "minilm", "decoder_layers": 3, "train": "decoder", "longest": 128,
        "sampled": 4096, "measured": 8192, "masked": 0.3, "mean_span": 3.0, "permuted": 1.0,
        "dropout": 0.0,
    },
}  # fmt: skip
"""What the settings of an older run state of removed keys though the run did not read them: they
are passed over where they are exactly that."""
