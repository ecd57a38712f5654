"""(c) Seconds from the start of Python to the end of a first step of fine-tuning MiniLM.

A process of its own imports confide, loads the encoder, makes a classifier and trains it on one
batch of four sentences. Wall time, and processor time, of the whole process.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

from common import keep, parser_of

PROGRAM = """
import torch
torch.set_num_threads({threads})
from confide.data.relations import RelationExample
from confide.learning.encoder import load_encoder
from confide.learning.optimisers import Optimiser
from confide.learning.relations import RelationForm, RelationModeller, fit_relations
text = "the patient took aspirin and had a headache the whole of the next day"
one = RelationExample(id="1", text=text, head=((17, 24),), tail=((35, 43),), head_type="Drug",
                      tail_type="Effect", relation="causes")
modeller = RelationModeller(load_encoder("minilm"), RelationForm(("none", "causes")))
settings = Optimiser("adamw", learning_rate=2.5e-5)
report = fit_relations(modeller.initial({seed}), modeller.encoded([one] * 4), epochs=1,
                       batch_size=4, optimiser=settings, seed={seed})
assert report.steps == 1
"""


def main() -> None:
    options = parser_of(__doc__, repeats=5).parse_args()
    program = PROGRAM.format(threads=options.threads, seed=options.seed)
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    wall, processor = [], []
    for turn in range(options.repeats + 1):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
        if turn:  # the first one reads the files from the disk
            wall.append(seconds)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            processor.append(used)
    measured = {
        "wall, median": statistics.median(wall),
        "wall, least": min(wall),
        "processor time, median": statistics.median(processor),
    }
    keep("startup", measured, options)


if __name__ == "__main__":
    main()
