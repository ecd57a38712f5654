"""Build the source distribution into a folder, the same bytes whoever builds it.

setuptools leaves owners, modes and times of this machine in the archive. Here it is written
again: names in order, no owner, and the time in $SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def same(archive: Path, time: int) -> bytes:
    """The archive's files, written in one way only."""
    whole = io.BytesIO()
    with (
        tarfile.open(archive) as old,
        gzip.GzipFile(fileobj=whole, mode="wb", filename="", mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            if not member.isfile():
                continue
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mtime, plain.mode = member.size, time, 0o644
            new.addfile(plain, old.extractfile(member))
    return whole.getvalue()


def main(out: Path) -> None:
    """Build from the current folder into `out`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "build", "--sdist", "--no-isolation", "--outdir", folder, "."]
        subprocess.run([sys.executable, *command], check=True)
        (made,) = Path(folder).glob("*.tar.gz")
        (out / made.name).write_bytes(same(made, int(os.environ["SOURCE_DATE_EPOCH"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
