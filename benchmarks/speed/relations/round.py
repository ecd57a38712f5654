"""(d) A round of FedED in process against the bare loop of the same steps.

Two sides in one process, one thread, over the sites that the recipe feded-gad draws, in turn:

- `round`: `FedED.round` over the sequential engine: messages through the codec, guards on both
  sides, memory, ledger.
- `bare`: one classifier; for each site the central weights are copied in, it trains, and predicts
  the public set; the mean of these is distilled into the central weights. The same functions of
  `confide.training` do the training and predicting.

Both must come to the same weights, to 1e-4. Seconds are of this process on a core.

    python benchmarks/speed/relations/round.py [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import keep, parser_of, ratio
from torch.nn import functional

from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Federation
from confide.federation.ledger import Ledger
from confide.kinds.agreement import find_encoder
from confide.kinds.pieces import EncodedRelations
from confide.kinds.relations.batches import candidates
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationTraining, optimiser_of, training_of
from confide.methods.feded import FedED, FedEDState, examples_of
from confide.recipes import recipe_path
from confide.runs.sites import Gathered, gather
from confide.seeds import derive_seed
from confide.settings import Settings
from confide.settings import load_settings as load_settings
from confide.training.trainer import distillation_loss, softened
from confide.training.weights import arrays, load_weights


class Bare:
    """The same round without a federation."""

    def __init__(self, settings: Settings, state: FedEDState, gathered: Gathered) -> None:
        self.settings, self.state = settings, state
        self.trainer: RelationTrainer = RelationTrainer(find_encoder(state.encoder), state)
        self.model = self.trainer.initial(0)
        self.text = {
            spec.name: self.trainer.prepared(candidates(spec.train).examples)
            for spec in gathered.specs
        }
        self.public: EncodedRelations = self.trainer.prepared(examples_of(state, state.labels))

    def round(self, sites: tuple[str, ...], n: int) -> dict[str, np.ndarray]:
        how = RelationTraining(**training_of(self.settings, n))
        logits = []
        for site in sites:
            load_weights(self.model, self.state.weights)
            seed = derive_seed(self.settings.seed, n, site, "train_and_predict")
            self.train(self.text[site], how, epochs=how.local_epochs, seed=seed)
            logits_SR = self.trainer.row_logits(self.model, self.public).astype(np.float64)
            logits.append((logits_SR - logits_SR[:, :1]).astype(np.float16))
        teacher_SR = softened(torch.from_numpy(np.mean(logits, 0, np.float64)), 2.0).float()
        load_weights(self.model, self.state.weights)
        seed = derive_seed(self.settings.seed, "distil", n)

        def loss(model: Any, batch: Any) -> torch.Tensor:
            teacher_BR = teacher_SR[batch.rows_B]
            logits_BR = model(batch)
            loss_B = distillation_loss(logits_BR, teacher_BR)
            return loss_B + functional.cross_entropy(logits_BR, batch.relations_B, reduction="none")

        self.train(self.public, how, epochs=1, seed=seed, loss=loss)
        return arrays(self.model)

    def train(self, text: EncodedRelations, how: RelationTraining, **more: Any) -> None:
        own = self.trainer.annotated(text)
        self.trainer.fit(
            self.model, own, batch_size=how.batch_size, optimiser=optimiser_of(how), **more
        )


def main() -> None:
    options = parser_of(__doc__, repeats=3).parse_args()
    torch.set_num_threads(options.threads)
    settings = load_settings(recipe_path("feded-gad"), [f"seed={options.seed}"])
    with tempfile.TemporaryDirectory() as folder:
        gathered = gather(settings, Path(folder) / "sites", key_file=None)
        hosting = Hosting({step.name: step for step in FedED.steps}, FedED.Memory, settings.seed)
        engine = SequentialEngine(gathered.specs, hosting)
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        federation = Federation(engine, seed=settings.seed, ledger=ledger)
        method = FedED(settings, gathered.public)
        state = method.start(federation)
        bare = Bare(settings, state, gathered)
        sites = federation.draw(settings.federation.fraction, 1)
        times: dict[str, list[float]] = {"round": [], "bare": []}
        for turn in range(options.repeats + 1):  # the first is not counted
            for side in ("round", "bare") if turn % 2 else ("bare", "round"):
                started = time.process_time()
                if side == "round":
                    weights = method.round(state, federation, 1)[0].weights
                else:
                    other = bare.round(sites, 1)
                if turn:
                    times[side].append(time.process_time() - started)
            worst = max(float(np.abs(weights[name] - other[name]).max()) for name in other)
            assert worst < 1e-4, worst
    measured = {
        "round, seconds": statistics.median(times["round"]),
        "bare loop, seconds": statistics.median(times["bare"]),
        "round / bare loop (goal 1.05)": ratio(times["round"], times["bare"]),
        "sites in the round": float(len(sites)),
    }
    keep("round", measured, options)


if __name__ == "__main__":
    main()
