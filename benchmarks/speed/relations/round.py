"""(d) A round of FedED in process against the bare loop of the same steps.

Two sides in one process, one thread, over the sites that the recipe feded-gad draws, in turn:

- `round`: `FedED.round` over the sequential engine: messages through the codec, guards on both
  sides, memory, ledger.
- `bare`: one classifier; for each site the central weights are copied in, it trains, and predicts
  the public set; the mean of these is distilled into the central weights. The same trainer does
  the training, predicting and distilling.

Both must come to the same weights, to 1e-4. Seconds are of this process on a core.

    python benchmarks/speed/relations/round.py [--repeats 3] [--set KEY=VALUE...] [--json FILE]
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

from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Federation
from confide.federation.ledger import Ledger
from confide.kinds.agreement import find_encoder
from confide.kinds.relations.batches import candidates
from confide.kinds.relations.model import RelationTrainer
from confide.methods import METHODS
from confide.methods.feded import FedEDState
from confide.recipes import recipe_path
from confide.runs.sites import Gathered, gather
from confide.seeds import derive_seed
from confide.settings import load_settings
from confide.training.trainer import DistillationTarget, softened
from confide.training.weights import arrays, load_weights

FEDED = METHODS["feded-relations"]


class Bare:
    """The same round without a federation."""

    def __init__(self, method: Any, state: FedEDState, gathered: Gathered) -> None:
        self.method, self.state = method, state
        self.trainer = RelationTrainer(find_encoder(state.form.encoder), state.form)
        self.model = self.trainer.initial(0)
        self.text = {
            spec.name: self.trainer.prepared(candidates(spec.train).examples)
            for spec in gathered.specs
        }
        self.public = self.trainer.prepared(state.public.examples(state.labels))

    def round(self, sites: tuple[str, ...], n: int) -> dict[str, np.ndarray]:
        own, config, seed = self.method.options, self.method.config(n), self.method.run.seed
        training = {"batch_size": config.batch_size, "optimiser": config.steps}
        logits = []
        for site in sites:
            load_weights(self.model, self.state.weights)
            text = self.trainer.annotated(self.text[site])
            turn = derive_seed(seed, n, site, "train_and_predict")
            self.trainer.fit(self.model, text, epochs=config.epochs, seed=turn, **training)
            logits_SR = self.trainer.row_logits(self.model, self.public).astype(np.float64)
            logits.append((logits_SR - logits_SR[:, :1]).astype(np.float16))
        mean_SR = torch.from_numpy(np.mean(logits, 0, np.float64))
        teacher_SR = softened(mean_SR, own.temperature).float().numpy()
        student = own.temperature if own.temper_student else 1.0
        load_weights(self.model, self.state.weights)
        self.trainer.distil(
            self.model,
            self.trainer.annotated(self.public),
            soft_target=DistillationTarget(
                teacher_SR, student, np.ones(len(teacher_SR), np.float32)
            ),
            epochs=own.distil_epochs,
            seed=derive_seed(seed, "distil", n),
            **training,
        )
        return arrays(self.model)


def main() -> None:
    parser = parser_of(__doc__, repeats=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = load_settings(recipe_path("feded-gad"), [f"seed={options.seed}", *options.set])
    with tempfile.TemporaryDirectory() as folder:
        gathered = gather(settings, Path(folder) / "sites", key_file=None)
        steps = {step.name: step for step in FEDED.steps}
        hosting = Hosting(steps, FEDED.Memory, settings.seed)
        engine = SequentialEngine(gathered.specs, hosting)
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        federation = Federation(engine, seed=settings.seed, ledger=ledger)
        method = FEDED(settings, gathered.public)
        state = method.start(federation)
        bare = Bare(method, state, gathered)
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
