"""What the server of FedED learns in a round: the teacher, and of which rows it learns what.

Nothing here concerns the sites: they predict every row of the public set, whatever is learnt of it.

Shapes: S rows of the public set (pairs of entities, or tokens), R classes, Q = R - 1 columns of
predictions, N sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from confide.errors import SettingsError
from confide.federation.coarse import unfixed
from confide.federation.messages import Arrays
from confide.kinds.protocol import PublicSet
from confide.kinds.public import SEVERAL
from confide.methods.feded.steps import Predicted, TrainAndPredict
from confide.models.distillation import softened

Rows = NDArray[np.bool_]


def teacher_of(
    total: Predicted, ask: TrainAndPredict, *, temperature: float
) -> NDArray[np.float32]:
    """Softened probabilities teacher_SR from the sum of the sites' predictions (Eq. 4 and 5).

    A class that none of the asked sites knows has probability 0.
    """
    sums_SQ = unfixed(total.said_SQ, ask.wire_dtype, most=ask.most)  # type: ignore[arg-type]
    sites_R = total.knows.get("R", np.full(ask.classes, float(total.sites)))
    mean_SQ = sums_SQ / np.where(sites_R > 0, sites_R, 1.0)[1:]
    if ask.upload == "probabilities" and ask.average == "known":  # of each class or the first
        mean_SQ = mean_SQ.clip(1e-6, 1 - 1e-6)
        mean_SQ = np.log(mean_SQ) - np.log1p(-mean_SQ)
    if ask.upload == "logits" or ask.average == "known":
        logits_SR = np.concatenate((np.zeros((len(mean_SQ), 1)), mean_SQ), 1)
    else:
        first_S1 = 1.0 - mean_SQ.sum(1, keepdims=True)
        logits_SR = np.log(np.maximum(np.concatenate((first_S1, mean_SQ), 1), 1e-6))
    logits_SR[:, sites_R == 0] = -np.inf
    found: NDArray[np.float32] = softened(torch.from_numpy(logits_SR), temperature).float().numpy()
    return found


def saturated(total: Predicted, ask: TrainAndPredict) -> float:
    """The share of predictions for which all sites sent (nearly) the largest possible value."""
    mean_SQ = unfixed(total.said_SQ, ask.wire_dtype, most=ask.most) / total.sites  # type: ignore[arg-type]
    return float((np.abs(mean_SQ) >= 0.999 * ask.most).mean()) if ask.upload == "logits" else 0.0


def softened_mean(said: Sequence[NDArray[np.float32]], temperature: float) -> NDArray[np.float32]:
    """Softened probabilities of the mean of several models' logits_SR."""
    mean_SR = torch.from_numpy(np.mean(said, 0, dtype=np.float64))
    found: NDArray[np.float32] = softened(mean_SR, temperature).float().numpy()
    return found


def with_past(total: Predicted, ask: TrainAndPredict, past: Arrays, *, factor: float) -> Predicted:
    """The sum over the sites of this round and of those before.

    A round counts `factor` times what the one after it counts, so 1 gives the plain mean over all
    sites of all rounds. `past` is what `past_of` made of the round before; empty: there was none.
    """
    sites_R = total.knows.get("R", np.full(ask.classes, float(total.sites)))
    said_SQ = total.said_SQ.astype(np.float64)
    if past:
        said_SQ = said_SQ + factor * past["said_SQ"]
        sites_R = sites_R + factor * past["sites_R"]
    return replace(total, said_SQ=said_SQ, knows={"R": sites_R})  # type: ignore[arg-type]


def past_of(total: Predicted) -> Arrays:
    """What the next round must know of a sum that `with_past` made."""
    return {"said_SQ": total.said_SQ, "sites_R": total.knows["R"]}


class Parts(NamedTuple):
    """Of which rows the labels are learnt, of which the predictions, and which are held out."""

    told_S: Rows
    taught_S: Rows
    held_S: Rows


def parts_of(
    public: PublicSet, *, label_share: float, apart: bool, hold_out: float, seed: int
) -> Parts:
    """The parts of a public set, drawn sentence by sentence.

    `hold_out` is the share of all sentences that is held out, `label_share` the share of the others
    whose labels are learnt. Predictions are learnt of all that are not held out or, if the parts
    are `apart`, of those whose labels are not learnt. Raises SettingsError if a part is empty.
    """
    sentences_S = public.row_sentences
    count = int(sentences_S.max()) + 1
    rank_S = np.random.default_rng(seed).permutation(count)[sentences_S]
    held = round(hold_out * count)
    told = held + round(label_share * (count - held))
    held_S, told_S = rank_S < held, (rank_S >= held) & (rank_S < told)
    taught_S = ~held_S & ~told_S if apart else ~held_S
    wanted = (held_S, hold_out > 0), (told_S, label_share > 0), (taught_S, True)
    if not all(part_S.any() for part_S, needed in wanted if needed):
        raise SettingsError(
            "the public set has too few sentences for its parts",
            got=f"{count} sentences, hold_out = {hold_out}, label_share = {label_share}",
            fix="use a larger public set, or other values of `hold_out` and `label_share`",
        )
    return Parts(told_S, taught_S, held_S)


def loss_of(
    logits_SR: NDArray[np.float32], wanted_SR: NDArray[np.float32] | NDArray[np.float64]
) -> float:
    """The mean cross-entropy between wanted probabilities and those of these logits."""
    likely_SR = torch.log_softmax(torch.from_numpy(logits_SR).double(), -1).numpy()
    return float(-(wanted_SR * likely_SR).sum(1).mean())


def certain(labels: Sequence[str], names: Sequence[str]) -> NDArray[np.float32]:
    """wanted_SR: 1 for the label of each row; of several, an equal share for each."""
    numbers = {name: number for number, name in enumerate(names)}
    wanted_SR = np.zeros((len(labels), len(names)), np.float32)
    for row, label in enumerate(labels):
        own = label.split(SEVERAL)
        wanted_SR[row, [numbers[name] for name in own]] = 1 / len(own)
    return wanted_SR
