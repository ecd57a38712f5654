"""Draw the plots of docs/results.md from the tables of the benchmarks and of the docs.

    python benchmarks/plots.py        # writes docs/plots/*.svg

A table is the only place of its numbers: a plot whose table changes is drawn anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "plots"
BLUE, GREEN, GREY, RED = "#2b6cb0", "#2f855a", "#a0aec0", "#c05621"

plt.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "confide",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.figsize": (6.4, 2.6),
        "figure.constrained_layout.use": True,
    }
)


def table(page: str, below: str, first: str = "") -> list[list[str]]:
    """The rows of the first table below a line of a page, its head first; cells without marks.

    `below` is part of that line; with `first`, the table whose first cell begins so.
    """
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if below in line)
    rows: list[list[str]] = []
    for line in lines[start:]:
        if line.startswith("|"):
            rows.append([cell.replace("*", "").strip() for cell in line.strip("|").split("|")])
        elif rows and rows[0][0].startswith(first):
            return [row for row in rows if not set("".join(row)) <= set("-: ")]
        else:
            rows = []
    raise SystemExit(f"{page}: no table below {below!r}")


def number(cell: str) -> float:
    """The first number of a cell; nan without one."""
    found = re.search(r"[-−+]?\d[\d,]*\.?\d*", cell)
    return float(found[0].replace("−", "-").replace(",", "")) if found else float("nan")


def bars(axes: Axes, names: list[str], groups: dict[str, tuple[list[float], str]]) -> None:
    """Groups of bars side by side, each with its values by name and a colour."""
    width = 0.8 / len(groups)
    for place, (label, (values, colour)) in enumerate(groups.items()):
        at = [n + (place - (len(groups) - 1) / 2) * width for n in range(len(names))]
        drawn = axes.bar(at, values, width * 0.92, label=label, color=colour)
        axes.bar_label(drawn, fmt="%.0f", fontsize=7, padding=1)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("F1, points")
    axes.legend(frameon=False, ncols=len(groups), loc="upper center", bbox_to_anchor=(0.5, 1.2))


def save(name: str) -> None:
    OUT.mkdir(exist_ok=True)
    plt.savefig(OUT / f"{name}.svg", metadata={"Date": None})
    plt.close()


def federated() -> None:
    page = "benchmarks/papers/fedavg/README.md"
    rows = table(page, "## FedAvg with a private vocabulary", "corpus")[1:]
    scores = [number(row[2]) for row in rows]
    names = [row[0] for row in rows if row[0]]
    bars(
        plt.subplots()[1],
        names,
        {
            "each site alone": (scores[2::3], GREY),
            "federated": (scores[1::3], BLUE),
            "all text in one place": (scores[0::3], GREEN),
        },
    )
    save("federated")


def defaults() -> None:
    rows = [
        row
        for row in table("benchmarks/defaults/init/README.md", "## Entities", "corpus")
        if row[1] == "700"
    ]
    bars(
        plt.subplots(figsize=(6.4, 2.8))[1],
        [row[0].replace("-", "\n").replace("bionlp13cg", "bionlp\n13cg") for row in rows],
        {
            "CRF on all text": ([number(row[3]) for row in rows], GREY),
            "init, federated": ([number(row[2]) for row in rows], BLUE),
        },
    )
    plt.xticks(fontsize=7.5)
    save("defaults")


def taggers() -> None:
    rows = table("benchmarks/papers/fedner/README.md", "## FedNER: four corpora", "strict")[1:]
    names = [row[0] for row in rows if row[0]]
    cells = [row[-1] for row in rows if row[1] == "FedNER"]
    intervals = [list(map(number, re.split(r"[ (]+to | \(", cell))) for cell in cells]
    gain = [mean for mean, _, _ in intervals]
    axes = plt.subplots(figsize=(6.4, 2.2))[1]
    spread = [
        [mean - low for mean, low, _ in intervals],
        [high - mean for mean, _, high in intervals],
    ]
    axes.errorbar(gain, range(len(names)), xerr=spread, fmt="o", color=BLUE)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("FedNER less each site alone, F1 points, 95 % intervals")
    save("taggers")


def unannotated() -> None:
    page = "benchmarks/papers/tags/README.md"
    rows = table(page, "### Outside left open", "tagger-minilm")
    whole = table(page, "### If every site annotated everything", "three")
    mean = {row[0]: number(row[4]) for row in rows}
    full = {row[0]: number(row[1]) for row in whole}
    corpora = {"three medical corpora": "medical", "CrossNER, five domains": "CrossNER"}
    find = lambda what: [mean[f"{own}, {what}"] for own in corpora.values()]  # noqa: E731
    bars(
        plt.subplots()[1],
        list(corpora),
        {
            "FedAvg": (find("FedAvg"), GREY),
            "pseudo-complete": (find("with both"), RED),
            "unannotated types ignored": (find("FedAvg, outside open"), BLUE),
            "all annotate all": (
                [full[f"{own}, tagger-minilm"] for own in corpora.values()],
                GREEN,
            ),
        },
    )
    plt.gca().legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.35))
    save("unannotated")


def distilled() -> None:
    rows = table("benchmarks/papers/feded/README.md", "**ChemProt**, 13 relations", "")[1:]
    axes = plt.subplots()[1]
    for name, f1, *_, size in rows:
        if size:
            up = number(size) * (1e3 if "kB" in size else 1e6)
            axes.semilogx([up], [number(f1)], "o", color=BLUE)
            axes.annotate(name, (up, number(f1)), (6, 4), textcoords="offset points")
        else:
            axes.axhline(number(f1), color=GREY, linestyle="--", linewidth=0.8)
            axes.annotate(
                name, (2e6, number(f1)), (0, 3), textcoords="offset points", color="#4a5568"
            )
    axes.set_xlim(1e4, 2e8)
    axes.set_xlabel("bytes up, a site and round")
    axes.set_ylabel("micro F1, points")
    save("distilled")


def winners() -> None:
    rows = table("benchmarks/papers/lazymil/README.md", "### Several winners")
    scores = {row[0]: list(map(number, row[1:])) for row in rows}
    bars(
        plt.subplots()[1],
        [f"{share} wrong" for share in ("0 %", "25 %", "50 %", "75 %")],
        {
            "every sentence": (scores["C = 0.5: `none`"], GREY),
            "one winner (the paper)": (scores["C = 0.5: the paper's one winner"], RED),
            "several winners": (scores["C = 0.5: the default"], BLUE),
        },
    )
    plt.gca().set_ylabel("AUC, points")
    save("winners")


def noise() -> None:
    head, *rows = (
        [*row[:2], *reversed(row[3:])]
        for row in table("benchmarks/security/privacy/README.md", "## Measured", "corpus")
    )
    axes = plt.subplots()[1]
    x = list(range(len(head) - 2))
    for row in rows:
        if row[0].startswith(("NCBI", "CrossNER")):
            style = "o-" if "head" in row[0] else "s--"
            axes.plot(x, [number(cell) for cell in row[2:]], style, label=f"{row[0]}, {row[1]}")
    axes.set_xticks(x, head[2:])
    axes.set_ylabel("F1, points")
    axes.legend(frameon=False, fontsize=7)
    save("noise")


def liars() -> None:
    page = "benchmarks/security/attacks/README.md"
    rows = {row[0]: row[1:] for row in table(page, "## Measured", "one site of five")[1:]}
    shown = {
        "all five honest": "all honest",
        "its change × −10": "change × −10",
        "its change × −4": "change × −4",
        "random weights of the same spread": "random\nweights",
        "trained on text without entities": "text without\nentities",
    }
    columns = {
        "nothing refused": (0, GREY),
        "mean": (1, RED),
        "median": (3, GREEN),
        "clipped": (4, BLUE),
    }
    bars(
        plt.subplots(figsize=(6.4, 2.8))[1],
        list(shown.values()),
        {
            name: ([number(rows[one][column]) for one in shown], colour)
            for name, (column, colour) in columns.items()
        },
    )
    save("liars")


def bytes_() -> None:
    rows = table("benchmarks/speed/bytes/README.md", "## Measured", "up, down")[1:]
    axes = plt.subplots()[1]
    for name, _, f1, up, down, *_ in rows:
        total = number(up) + number(down)
        axes.semilogx([total], [number(f1)], "o", color=BLUE)
        axes.annotate(name, (total, number(f1)), (4, -11), textcoords="offset points", fontsize=7)
    axes.margins(0.08, 0.12)
    axes.set_xlabel("megabytes of one site in 40 rounds, up and down")
    axes.set_ylabel("F1, points")
    save("bytes")


if __name__ == "__main__":
    for draw in (
        federated,
        defaults,
        taggers,
        unannotated,
        distilled,
        winners,
        noise,
        liars,
        bytes_,
    ):
        draw()
