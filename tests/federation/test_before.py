"""What the version before wrote is still read: messages did not nest then, and had other names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from confide.errors import CheckpointError, MessageError
from confide.federation.checkpoints import Checkpoint
from confide.federation.forms import values_of
from confide.federation.messages import BEFORE, decode, decode_file, encode
from confide.kinds.tagger.release import Released
from confide.methods import METHODS
from confide.runs.folder import RunFolder, memory_of
from confide.runs.opening import opened
from confide.runs.release import release
from confide.runs.run import run
from contract.corpus import tiny


def before(message: Any, name: str, *, without: tuple[str, ...] = ()) -> bytes:
    """The message as format 2 had it: fields of a message in a field stood beside the others."""
    plain: dict[str, Any] = {}
    tensors: dict[str, np.ndarray] = {}
    for _, form, value in values_of(message):
        was, _, key = form.was.partition("/")
        if was in without:
            continue
        if form.kind == "arrays":
            places = {was if key else f"{was}/{place}": array for place, array in value.items()}
            tensors |= places
        elif form.kind == "array":
            tensors[was] = value
        else:
            plain[was] = value
    header = json.dumps([BEFORE, name, plain])
    return safetensors.numpy.save(tensors, {"confide": header})


def rewritten(folder: Path, method: str, *, state: str, memory: str = "") -> None:
    """A run's checkpoints and memories as the version before would have written them."""
    pair = METHODS[method]
    store = RunFolder(folder).store()
    for round in store.rounds():
        kept = store.load(round)
        found = decode(pair.State, kept.state.tobytes())
        old = np.frombuffer(before(found, state, without=("idle",)), np.uint8)
        path = store.path(round)
        again = Checkpoint(kept.round, old, kept.binding, kept.progress, kept.ledger)
        raw = before(again, "Checkpoint")
        digest = hashlib.sha256(raw).hexdigest().encode()
        path.write_bytes(b"confide checkpoint 1\n" + digest + b"\n" + raw)
    for path in folder.glob("sites/*/memory/*.memory") if memory else ():
        path.write_bytes(before(decode(pair.Memory, path.read_bytes()), memory))


@pytest.mark.parametrize(
    ("method", "state", "memory"),
    [
        ("fedavg-tagger", "FedAvgState", ""),
        ("fedavg-relations", "RelationState", ""),
        ("fedavg-bags", "BagState", ""),
        ("feded-relations", "FedEDState", ""),
        ("pseudo-complete-encoder", "TokenState", ""),
        ("fedner-tagger", "FedNERState", "FedNERMemory"),
    ],
)
def test_a_model_of_before_is_read_as_it_was(
    tmp_path: Path, method: str, state: str, memory: str
) -> None:
    folder = run(tiny(tmp_path, f"method={method}"), out=tmp_path / "run").folder
    pair, opened = METHODS[method], RunFolder(tmp_path / "run")
    site = "site-1" if pair.personal else None
    whole = opened.trained(pair, site)
    rewritten(folder, method, state=state, memory=memory)
    old = opened.trained(pair, site)
    assert encode(old[0]) == encode(whole[0])
    if pair.personal:
        assert encode(old[1]) == encode(whole[1])


def test_a_run_of_before_is_not_resumed(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    run(settings, out=tmp_path / "run")
    rewritten(tmp_path / "run", "fedavg-tagger", state="FedAvgState")
    longer = settings.model_copy(update={"rounds": 4})
    with pytest.raises(CheckpointError, match="another version of confide"):
        run(longer, out=tmp_path / "run", resume=True)


def test_what_stands_on_the_wire_is_of_this_version(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path), out=tmp_path / "run").folder
    state = RunFolder(folder).trained(METHODS["fedavg-tagger"], None)[0]
    old = before(state, "FedAvgState", without=("idle",))
    with pytest.raises(MessageError, match="another version"):
        decode(METHODS["fedavg-tagger"].State, old)
    assert encode(decode_file(METHODS["fedavg-tagger"].State, old)) == encode(state)


def test_what_is_neither_of_this_version_nor_of_the_one_before_is_refused() -> None:
    data = safetensors.numpy.save({}, {"confide": json.dumps([BEFORE - 1, "Checkpoint", {}])})
    with pytest.raises(MessageError, match="another version"):
        decode_file(Checkpoint, data)


def test_word_vectors_that_fedner_laid_under_its_table_are_found_again(tmp_path: Path) -> None:
    words = {"aspirin": 1.0, "nausea": 2.0}
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{w} {' '.join([str(v)] * 8)}\n" for w, v in words.items()))
    settings = tiny(tmp_path, "method=fedner-tagger", f"model.vectors={vectors}", "select.by=last")
    folder = run(settings, out=tmp_path / "run").folder
    pair = METHODS["fedner-tagger"]
    whole = memory_of(folder / "sites/site-1", pair.Memory)
    assert whole.lift_ids.keys() == {"word.weight"}
    rewritten(folder, "fedner-tagger", state="FedNERState", memory="FedNERMemory")
    assert encode(memory_of(folder / "sites/site-1", pair.Memory)) == encode(whole)


@pytest.mark.parametrize(
    ("method", "apart"),
    [("pseudo-complete-encoder", frozenset()), ("pseudo-complete-lightner", frozenset()),
     ("pseudo-complete-tagger", None)],
)  # fmt: skip
def test_an_old_release_says_what_only_pseudo_complete_can_have_trained(
    method: str, apart: frozenset[str] | None, tmp_path: Path
) -> None:
    """Format 2 did not say it; taggers were trained by other methods, too."""
    done = run(tiny(tmp_path, f"method={method}", "rounds=1"), out=tmp_path / "run")
    copy = release(done.folder, out=tmp_path / "copy")
    assert opened(copy).annotated == frozenset()
    (file,) = copy.glob("*.safetensors")
    kind = METHODS[method].kind
    shape = getattr(kind, "Released", Released)
    message = decode(shape, file.read_bytes())
    file.write_bytes(before(message, shape.__name__, without=("apart",)))
    assert opened(copy).annotated == apart
