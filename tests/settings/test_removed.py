"""Settings that went are refused with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from confide.errors import SettingsError
from confide.methods import METHODS
from confide.settings import parse
from confide.settings.removed import REMOVED

SITES: dict[str, Any] = {"site": [{"name": "north", "train": "n.conll"}]}
FEDED = {"task": "re", "method": "feded"}


def refused(tree: dict[str, Any], *overrides: str) -> str:
    """What is said of settings, by the method that they name or by their tables."""
    with pytest.raises(SettingsError) as caught:
        settings = parse({**SITES, **tree}, overrides)
        METHODS[settings.trained_by](settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("named", "tree", "override"),
    [
        ('federation.sums = "integers"', {}, "federation.sums=integers"),
        ("options.download", FEDED, "options.download=difference"),
        ("options.label_share", FEDED, "options.label_share=0.5"),
        ("options.label_decay", FEDED, "options.label_decay=0.5"),
        ("options.distil_on", FEDED, "options.distil_on=rest"),
        ("options.adversary", {"method": "pseudo-complete"}, "options.adversary=dann"),
        ("options.reversal", {"method": "pseudo-complete"}, "options.reversal=0.5"),
        ("options.sparse", {"method": "fedner"}, "options.sparse=true"),
        ("options.wire_dtype", {"method": "fedner"}, "options.wire_dtype=float16"),
    ],
)
def test_a_removed_setting_says_what_to_do_instead(
    named: str, tree: dict[str, Any], override: str
) -> None:
    said = refused(tree, override)
    assert REMOVED[named] in said
    assert "is no longer a setting" in said


def test_other_wrong_values_are_told_as_ever() -> None:
    assert "no longer" not in refused({}, "federation.sums=whole")
    assert "no longer" not in refused({}, "federation.bums=integers")
