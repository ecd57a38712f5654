"""The table of `measured.jsonl`, in Markdown."""

from __future__ import annotations

import json
from pathlib import Path

NAMES = {"tagger": "frozen features, BiLSTM-CRF"}


def main() -> None:
    file = Path(__file__).with_name("measured.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    print("| data | trained | method | rounds, text | F1 | MB up | MB down | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for one in lines:
        share = f"{one['rounds']}, {100 * one['share']:.0f} %"
        name = NAMES.get(one["tune"], f"`{one['tune']}`")
        print(
            f"| {one['data']} | {name} | {one['method']} | {share} | {100 * one['f1']:.1f}"
            f" | {one['up_mb_a_site']:.3g} | {one['down_mb_a_site']:.3g} | {one['seconds']:.0f} |"
        )


if __name__ == "__main__":
    main()
