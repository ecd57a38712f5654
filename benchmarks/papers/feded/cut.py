"""The first layers of MiniLM as an encoder of their own, where many settings are compared.

python benchmarks/papers/feded/cut.py --out runs/feded/minilm-3 [--layers 3]
"""

import argparse
import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from confide.training.encoder import MINILM, find_folder

LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


def cut(out: Path, *, layers: int) -> None:
    """Write the encoder's folder, unless it is there."""
    if out.exists():
        return
    whole, new = find_folder(MINILM), out.with_name(out.name + ".new")
    new.mkdir(parents=True)
    for path in whole.glob("*.*"):
        shutil.copy(path, new)
    config = json.loads((whole / "config.json").read_text()) | {"num_hidden_layers": layers}
    (new / "config.json").write_text(json.dumps(config, indent=2))
    weights = load_file(whole / "model.safetensors")
    kept = {
        name: value
        for name, value in weights.items()
        if not (layer := LAYER.search(name)) or int(layer[1]) < layers
    }
    save_file(kept, new / "model.safetensors", metadata={"format": "pt"})
    new.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=3)
    given = parser.parse_args()
    cut(given.out, layers=given.layers)


if __name__ == "__main__":
    main()
