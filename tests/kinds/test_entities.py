"""The site model of entities: nothing of one form is left when another one comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from confide.federation.messages import decode, encode
from confide.federation.site import Site
from confide.methods import METHODS
from confide.runs.run import run
from confide.runs.sites import gather
from contract.corpus import tiny
from contract.runs import states


def learned(folder: Path, *overrides: str) -> Any:
    """The state that a run of a tagger ends with."""
    settings = tiny(folder, *overrides)
    done = run(settings, out=folder / "run").folder
    state = decode(METHODS["fedavg-tagger"].State, states(done).popitem()[1])
    return settings, state


def test_held_out_text_is_read_anew_where_the_vocabulary_is_another(tmp_path: Path) -> None:
    settings, first = learned(tmp_path / "first")
    _, second = learned(tmp_path / "second", "vocabulary.min_count=12", "rounds=6")
    assert len(first.form.word_digests_V16) > len(second.form.word_digests_V16)

    def site() -> Site:
        spec = gather(settings, tmp_path / "sites", key_file=Path(str(settings.key))).specs[0]
        return Site("site-1", spec.train, dev=spec.dev, test=spec.test, key_file=spec.key_file)

    used, fresh = site(), site()
    for part in ("dev", "test"):
        first.form.at(used).scored(first.weights, part)
        found = second.form.at(used).scored(second.weights, part)
        expected = second.form.at(fresh).scored(second.weights, part)
        assert encode(found) == encode(expected)
        assert np.asarray(expected.strict_Y3).any()
