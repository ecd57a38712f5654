"""measured.jsonl and honest.jsonl as the tables of README.md.

python benchmarks/security/attacks/table.py FILE [--seed N] [--rows seen]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from run import ATTACKS, COMBINES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", default="seen")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.file.read_text().splitlines()]
    if "case" in lines[0]:
        print("| sites | updates | largest | 99 % are below |\n|---|---|---|---|")
        for one in lines:
            print(f"| {one['case']} | {one['updates']} | {one['largest']} | {one['quantile_99']} |")
        return
    f1 = {
        (one["attack"], one["combine"]): "ended" if one["f1"] is None else f"{one['f1']:.1f}"
        for one in lines
        if (one["seed"], one["rows"], one["overrides"]) == (given.seed, given.rows, [])
    }
    used = [name for name in COMBINES if any(combine == name for _, combine in f1)]
    print(f"| | {' | '.join(used)} |\n|---|{'---|' * len(used)}")
    for attack in ATTACKS:
        row = [f1.get((attack, combine), "–") for combine in used]
        if set(row) != {"–"}:
            print(f"| {attack} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
