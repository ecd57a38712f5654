"""One side of a comparison, in a process and an environment of its own: it waits to be called.

    python worker.py MODULE PART WORK.json

`MODULE.PART(work)` gives calls by name. Each line that comes in names one; the answer is the
seconds of processor time that it took, and what it gave. Nothing but the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    module, part, given = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    work = json.loads(Path(given).read_text("utf-8"))
    os.sched_setaffinity(0, {work["core"]})
    calls = getattr(importlib.import_module(module), part)(work)
    print(json.dumps(list(calls)), file=answers, flush=True)
    for line in sys.stdin:
        started = time.process_time()
        found = calls[line.strip()]()
        taken = time.process_time() - started
        print(json.dumps([taken, found]), file=answers, flush=True)


if __name__ == "__main__":
    main()
