"""Settings that confide no longer has, and what to do instead."""

from __future__ import annotations

REMOVED: dict[str, str] = {
    'federation.sums = "integers"': 'set federation.sums = "masked", which gives the same sums'
    " among three sites or more, or leave it out",
    "options.download": 'set federation.down = "int8", which sends fewer bytes for the same model,'
    " or leave it out",
    "options.label_share": "leave it out, so that all public labels are learnt",
    "options.label_decay": "leave it out, or stop by held-out sentences: options.hold_out",
    "options.sparse": "leave it out: rows of zeros never travel, but under masks",
    "options.wire_dtype": 'set federation.up and federation.down to "float16" instead',
    "options.distil_on": "leave it out, so that all public text is distilled",
}
"""Advice by dotted key; by `key = "value"` where only a value went."""


def advice_on(place: str, value: object) -> str | None:
    """What to do instead of a removed key, or of a removed value of one; None: it never was."""
    return REMOVED.get(place) or REMOVED.get(f'{place} = "{value}"')
