"""What a newcomer does with the wheel, in an environment that holds nothing else: seconds, no demo.

Run by `make try-wheel` with the fresh environment's Python, outside the source.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import confide
from confide import api
from confide.corpora.synthetic import write_corpus


def main() -> None:
    """Train a small model, use it from Python and from the command line, and write its report."""
    assert "site-packages" in confide.__file__, confide.__file__
    beside = Path(sys.executable).parent / "confide"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = write_corpus(folder / "corpus", sentences=40)
        small = ["rounds=2", "workers=1", "model.bilstm_hidden=16", "model.word_dim=16"]
        api.run(settings, overrides=small, out=folder / "run")
        assert confide.load(folder / "run")("No rash.").text == "No rash."
        assert api.report([folder / "run"]).stat().st_size > 10_000
        for words in (["--version"], ["recipes"], ["wire", "fedner"], ["predict", "run", "-"]):
            subprocess.run(
                [beside, *words], cwd=folder, input="No rash.", text=True, check=True,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"the wheel works: confide {confide.__version__}\n")


if __name__ == "__main__":
    main()
