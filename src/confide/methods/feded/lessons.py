"""What the server of FedED learns in a round: the teacher, and which rows it holds out.

Nothing here concerns the sites: they predict every row of the public set, whatever is learnt of it.

Shapes: S rows of the public set (pairs of entities, or tokens), R classes, Q = R - 1 columns of
predictions, N sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


def held_out(public: PublicSet, share: float, *, seed: int) -> Rows:
    """The rows of a public set that are held out: this share of its sentences, drawn by the seed.

    Raises SettingsError if nothing is held out, or nothing is left.
    """
    sentences_S = public.row_sentences
    count = int(sentences_S.max()) + 1
    rank_S = np.random.default_rng(seed).permutation(count)[sentences_S]
    held_S: Rows = rank_S < round(share * count)
    if not held_S.any() or held_S.all():
        raise SettingsError(
            "the public set has too few sentences to hold some out",
            got=f"{count} sentences, hold_out = {share}",
            fix="use a larger public set, or another value of `hold_out`",
        )
    return held_S


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
