"""What sites cost in memory: the peak of resident memory with 1, 10 and 100 sites, one text.

Each configuration is a process of its own that runs `api.run` sequentially over the same
text, dealt to more and more sites. "libraries" is a process that only imports what a run imports;
"text" has also read the files; "bare" is the plain PyTorch program of overhead.py. A run's peak is
that of the bare program (text as numbers, one model, its gradients, one optimiser, activations),
messages on their way, and what sites remember.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import keep, settings_for, text_files

PEAK_PER_MB = 1024 * 1024 if sys.platform == "darwin" else 1024


def peak() -> float:
    """The largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / PEAK_PER_MB


def child(options: dict[str, Any]) -> dict[str, float]:
    """What one process measures of itself."""
    import torch
    from overhead import bare

    from confide.federation.keys import new_key, read_key
    from confide.runs import run as running
    from confide.runs.sites import gather

    torch.set_num_threads(1)
    libraries = peak()
    folder = Path(options["folder"])
    key = folder / "shared.key"
    settings = settings_for(
        options["files"],
        sites=options["sites"],
        rounds=options["rounds"],
        key=f'"{key if key.exists() else new_key(key)}"',
    )
    if options["kind"] == "text":
        gather(settings, folder / "nowhere", key_file=key)
        return {"libraries": libraries, "peak": peak()}
    if options["kind"] == "bare":
        bare(settings, read_key(key))
        return {"libraries": libraries, "peak": peak()}
    out = folder / f"run-{options['sites']}"
    result = running.run(settings, out=out).result
    remembered = sum(
        path.stat().st_size for path in out.glob("sites/*/memory/*.memory") if path.is_file()
    )
    return {
        "libraries": libraries,
        "peak": peak(),
        "parameters_mb": result.parameters * 4 / 2**20,
        "remembered_mb": remembered / 2**20,
    }


def apart(**options: Any) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps(options)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the corpus")
    parser.add_argument("--synthetic", action="store_true", help="made-up notes, no $CONFIDE_DATA")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child)))
        return
    with tempfile.TemporaryDirectory() as name:
        files = text_files(Path(name) / "text", share=args.share, synthetic=args.synthetic)
        common = {"folder": name, "files": files, "rounds": args.rounds}
        text = apart(kind="text", sites=1, **common)
        plain = apart(kind="bare", sites=args.sites[0], **common)
        print(
            f"libraries {text['libraries']:.0f} MB, with the text {text['peak']:.0f} MB,"
            f" bare program {plain['peak']:.0f} MB"
        )
        rows = []
        print("sites   peak MB   above bare   model MB   remembered by all sites MB")
        for sites in args.sites:
            row = {"sites": sites, **apart(kind="run", sites=sites, **common)}
            rows.append(row)
            print(
                f"{sites:5} {row['peak']:9.0f} {row['peak'] - plain['peak']:12.0f}"
                f" {row['parameters_mb']:10.1f} {row['remembered_mb']:28.2f}",
                flush=True,
            )
    more = rows[-1]["peak"] - rows[0]["peak"]
    apiece = more / max(1, rows[-1]["sites"] - rows[0]["sites"])
    print(f"{rows[0]['sites']} -> {rows[-1]['sites']} sites: {more:+.0f} MB, {apiece:.2f} per site")
    options = {name: value for name, value in vars(args).items() if name not in ("json", "child")}
    keep(args.json, {"benchmark": "memory", **options, "text": text, "bare": plain, "rows": rows})


if __name__ == "__main__":
    main()
