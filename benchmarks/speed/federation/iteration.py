"""What one FedNER iteration costs above the forward, backward and Adam work that it is made of.

Two sides in one process, one thread, over the same sites (NCBI-disease, or generated notes without
`$CONFIDE_DATA`, dealt to them), in turn:

- `run`: `FedNER.round` over the sequential engine: messages through the codec, guards on both
  sides, memory, ledger.
- `bare`: three taggers of plain PyTorch that share their lower modules as objects, one
  `torch.optim.Adam` for the shared parameters and one for each site's private ones.

Both draw the same batches and must have come to the same weights, to 1e-4, after the third round;
later on, rounding alone drives two trainings apart. The first block is not timed. Printed are
medians over the blocks.

Who does a round first alternates. Its batches have shapes that the process has not met, for which
PyTorch's kernels are made, and the second side finds them made. The collector of garbage does not
go through the corpus, which takes as long as a round and would fall upon one side or the other.

    python benchmarks/speed/federation/iteration.py [--sites 3] [--rounds 20] [--blocks 5]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Clock, keep, settings_for, text_files
from torch import nn

from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Federation
from confide.federation.keys import new_key, simulated_key
from confide.federation.ledger import Ledger
from confide.methods import METHODS
from confide.methods.fedner import FedNERState
from confide.runs.sites import gather
from confide.seeds import derive_seed, seeded
from confide.settings import Settings
from confide.training.batches import Encoded
from confide.training.tagger import Tagger, batch_of, drawn_rows, lose_words
from confide.training.weights import load_weights

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from training.corpora import tagging_loss

FEDNER = METHODS["fedner-tagger"]
SHARED = ("word", "character", "cnn")
SAME = 3  # rounds after which both sides must have the same weights


class Bare:
    """The same work without a federation."""

    def __init__(self, settings: Settings, state: FedNERState, hosts: dict[str, Any]) -> None:
        self._settings = settings
        self._models: dict[str, Tagger] = {}
        self._texts: dict[str, tuple[Encoded, int, float]] = {}
        self._private: dict[str, torch.optim.Adam] = {}
        rate = settings.training.learning_rate
        for name, host in sorted(hosts.items()):
            memory = host._memory.latest()
            site_model = memory.form.at(host.site)
            model = site_model.trainer.initial(0)
            load_weights(model, memory.now(state.weights))
            first = next(iter(self._models.values()), model)
            for part in SHARED:
                setattr(model, part, getattr(first, part))
            model.train()
            own = [*model.bilstm.parameters(), *model.crf.parameters()]
            self._models[name] = model
            self._private[name] = torch.optim.Adam(own, lr=rate, fused=True)
            self._texts[name] = (site_model.own.text, memory.batch_size, memory.share)
        self._shared = [p for part in SHARED for p in getattr(first, part).parameters()]
        self._server = torch.optim.Adam(self._shared, lr=rate, fused=True)

    def round(self, number: int) -> None:
        """One iteration of all sites."""
        total = [torch.zeros_like(parameter) for parameter in self._shared]
        for name, model in self._models.items():
            encoded, size, share = self._texts[name]
            turn = derive_seed(self._settings.seed, number, name, "improve")
            seed = derive_seed(turn, 0)
            random = np.random.default_rng(seed)
            batch = batch_of(encoded, drawn_rows(encoded.lengths_S, size, random=random))
            lose_words(batch, random, self._settings.training.word_dropout)
            model.zero_grad(set_to_none=True)
            with seeded(derive_seed(seed, "dropout")):
                tagging_loss(model, batch).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), self._settings.training.clip)
            self._private[name].step()
            for place, parameter in enumerate(self._shared):
                total[place].add_(parameter.grad, alpha=share)
        for place, parameter in enumerate(self._shared):
            parameter.grad = total[place]
        self._server.step()

    def weights(self) -> dict[str, np.ndarray]:
        """The shared weights."""
        first = next(iter(self._models.values()))
        named = first.named_parameters()
        return {n: p.detach().numpy() for n, p in named if n.partition(".")[0] in SHARED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20, help="in a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the corpus")
    parser.add_argument("--synthetic", action="store_true", help="made-up notes, no $CONFIDE_DATA")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = text_files(folder / "text", share=args.share, synthetic=args.synthetic)
        key = new_key(folder / "shared.key", simulated_key(1))
        changes = {"method": "fedner", "key": f'"{key}"'}
        plain = settings_for(files, sites=args.sites, rounds=1, **changes)
        rows, far = measure(plain, folder, args)
    assert far < 1e-4, "the two sides did not come to the same weights"
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(f"{args.sites} sites, medians of {args.blocks} blocks of {args.rounds} rounds")
    for clock in ("wall", "cpu"):
        run, bare = middle[f"run_{clock}"], middle[f"bare_{clock}"]
        print(f"{clock:4}  run {1e3 * run:7.1f} ms  bare {1e3 * bare:7.1f} ms  "
              f"{middle[f'ratio_{clock}']:.3f} x")  # fmt: skip
    print(f"shared parameters differ by at most {far:.1e}")
    options = {key: value for key, value in vars(args).items() if key != "json"}
    keep(args.json, {"benchmark": "iteration", **options, "medians": middle, "rows": rows})


def measure(
    settings: Settings, folder: Path, args: argparse.Namespace
) -> tuple[list[dict[str, float]], float]:
    """Seconds of an iteration on both sides, block by block; how far apart they were at `SAME`."""
    gathered = gather(settings, folder / "sites", key_file=Path(str(settings.key)))
    steps = {step.name: step for step in FEDNER.steps}
    hosting = Hosting(steps, FEDNER.Memory, settings.seed, every=10**9)
    engine = SequentialEngine(gathered.specs, hosting)
    federation = Federation(engine, seed=settings.seed, ledger=Ledger(folder / "ledger.jsonl"))
    method = FEDNER(settings)
    state = method.start(federation)
    bare = Bare(settings, state, engine._hosts)

    def run(number: int) -> None:
        nonlocal state
        state, _ = method.round(state, federation, number)

    gc.collect()
    gc.freeze()
    sides = (("run", run), ("bare", bare.round))
    rows = []
    far = 0.0
    for block in range(args.blocks + 1):  # the first one warms up
        numbers = range(1 + block * args.rounds, 1 + (block + 1) * args.rounds)
        seconds = {"run": Clock(), "bare": Clock()}
        for number in numbers:
            for side, work in sides if number % 2 else sides[::-1]:
                with seconds[side].running():
                    work(number)
            if number == min(SAME, args.rounds):
                other = bare.weights()
                far = max(float(np.abs(state.weights[n] - other[n]).max()) for n in other)
        if block:
            row = {
                f"{side}_{clock}": getattr(found, clock) / args.rounds
                for side, found in seconds.items()
                for clock in ("wall", "cpu")
            }
            row |= {f"ratio_{c}": row[f"run_{c}"] / row[f"bare_{c}"] for c in ("wall", "cpu")}
            rows.append(row)
            print("  ".join(f"{key} {value:.4f}" for key, value in row.items()), flush=True)
    return rows, far


if __name__ == "__main__":
    main()
