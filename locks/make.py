"""Make the lock files anew: `make lock`.

    site.txt           what a site, the server or the lead installs: confide[flare], without PyTorch
    site-serve.txt     the same with what `confide serve` needs: confide[flare,serve]
    torch.txt          PyTorch as the package index has it, with the libraries of its CUDA build
    tools.txt          what this folder's files, the bill of materials and the audit are made with

Versions are those of constraints.txt (tools and CUDA libraries: the newest that fit), hashes those
of every wheel and source that the index has of a version, for all Pythons and processors. PyTorch's
own index has other files of the same version, so `site.txt` leaves it out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROJECT, CONSTRAINTS, TOOLS = ROOT / "pyproject.toml", ROOT / "constraints.txt", HERE / "tools.in"

CUDA = ("torch", "triton", "cuda-", "nvidia-")
"""Names, or how they begin, of what comes with PyTorch's CUDA build only."""
LINUX = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}

SITES = {"site.txt": ("flare",), "site-serve.txt": ("flare", "serve")}
"""The extras in each lock file for a site's machine."""

HEAD = """\
# {what}
# Made by `make lock`: do not edit. Install it with
#   pip install --require-hashes --no-deps --only-binary :all: -r locks/{name}
"""


def main() -> None:
    """Write the four files."""
    everything = compiled(PROJECT, "flare", "serve")
    other = {name for name, one in everything.items() if not on_linux(one)}
    cuda = {name for name in everything if name.startswith(CUDA)}
    ours = set(everything) - cuda
    for name, extras in SITES.items():
        what = f"confide[{','.join(extras)}], without PyTorch"
        write(name, what, PROJECT, *extras, without=cuda | other)
    write(
        "torch.txt",
        "PyTorch of the package index: the CUDA build and its libraries",
        PROJECT,
        without=ours | other,
    )
    others = {name for name, one in compiled(TOOLS, pinned=False).items() if not on_linux(one)}
    write("tools.txt", "the tools of the Makefile", TOOLS, without=others, pinned=False)


def on_linux(requirement: Requirement) -> bool:
    """Whether a requirement is met anywhere on Linux."""
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate(LINUX | {"python_version": python, "python_full_version": f"{python}.0"})
        for python in ("3.11", "3.12", "3.13")
    )


def compiled(source: Path, *extras: str, pinned: bool = True) -> dict[str, Requirement]:
    """All requirements of a source, for every platform, by name."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        run(source, *extras, out=Path(file.name), options=(), pinned=pinned)
        lines = Path(file.name).read_text(encoding="utf-8").splitlines()
    found = (Requirement(line) for line in lines if line and not line.startswith(("#", " ", "-")))
    return {one.name: one for one in found}


def write(
    name: str, what: str, source: Path, *extras: str, without: set[str], pinned: bool = True
) -> None:
    """Write one lock file, without these packages."""
    out = HERE / name
    out.unlink(missing_ok=True)  # nothing of the old file is kept
    leave = [f"--no-emit-package={one}" for one in sorted(without)]
    run(source, *extras, out=out, options=("--generate-hashes", *leave), pinned=pinned)
    text = out.read_text(encoding="utf-8")
    if "://" in text:
        raise SystemExit(f"locks/{name} would name an address")
    out.write_text(HEAD.format(what=what, name=name) + text, encoding="utf-8")
    sys.stdout.write(
        f"locks/{name}: {sum('==' in line[:60] for line in text.splitlines())} packages\n"
    )


def run(source: Path, *extras: str, out: Path, options: tuple[str, ...], pinned: bool) -> None:
    """One call of `uv pip compile`; its own cache, settings and indexes are the user's."""
    command = ["uv", "pip", "compile", str(source), "--output-file", str(out), "--quiet"]
    command += ["--universal", "--python-version=3.11", "--only-binary=:all:"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", *options]
    command += [f"--extra={extra}" for extra in extras]
    if pinned:
        command += ["--constraints", str(CONSTRAINTS)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
