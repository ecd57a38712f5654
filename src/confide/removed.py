"""Names that confide had once, and what to do instead of each."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confide.files import Tree

_SMALL_BART = (
    "train a BART with transformers (benchmarks/tags/small_bart.py in confide's repository makes a"
    " small one), and name its folder as lightner.bart"
)

VERBS: dict[str, str] = {"pretrain": _SMALL_BART}
"""Verbs of the command line."""

FUNCTIONS: dict[str, str] = dict.fromkeys(("pretrain", "export_delta", "import_delta"), _SMALL_BART)
"""Functions of `confide.api`."""

SETTINGS: dict[str, str] = {
    'task = "text"': _SMALL_BART,
    "denoising": f"remove the table; {_SMALL_BART}",
    'federation.sums = "integers"': 'set federation.sums = "masked", which gives the same sums'
    ' among three sites or more; or "plain"',
    "options.adversary": "set lightner.adversary",
    "options.reversal": "set lightner.reversal",
    "options.download": 'set federation.down = "int8", which sends fewer bytes for the same model,'
    " or leave it out",
    "options.label_share": "leave it out, so that all public labels are learnt",
    "options.label_decay": "leave it out, or stop by held-out sentences: options.hold_out",
    "options.distil_on": "leave it out, so that all public text is distilled",
    "options.sparse": "leave it out: rows of zeros never travel, but under masks",
    "options.wire_dtype": 'set federation.up and federation.down to "float16" instead',
}
"""Advice by dotted key or table; by `key = "value"` where only a value went."""
_STILL = {"options.wire_dtype": ("feded", "dp-feded")}
"""The methods that have a setting which others have no longer."""
_INSTEAD = {'federation.sums = "integers"': "masked"}
"""The nearest value that there is, by `key = "value"`."""


def advice_on(place: str, value: object, *, known: bool) -> str | None:
    """Advise on a removed key, or on a removed value of a key that is `known` still.

    None: there never was one.
    """
    return SETTINGS.get(f'{place} = "{value}"' if known else place)


def without_removed(tree: Tree) -> Tree:
    """The settings of a run as they would be written today.

    Removed ones decide nothing about a model that is trained already.
    """
    kept = deepcopy(tree)
    methods = kept.get("method"), kept.get("base")
    for name in SETTINGS:
        key, _, value = name.partition(" = ")
        *tables, last = key.split(".")
        table: object = kept
        for one in tables:
            table = table.get(one) if isinstance(table, dict) else None
        if not isinstance(table, dict) or last not in table:
            continue
        if value and f'"{table[last]}"' == value:
            table[last] = _INSTEAD.get(name, table[last])
        elif not value and not any(one in _STILL.get(key, ()) for one in methods):
            del table[last]
    return kept
