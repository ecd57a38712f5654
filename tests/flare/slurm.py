"""A small Slurm: `sbatch`, `squeue`, `sacct` and `scancel` that start processes on this machine.

`install` writes the four commands, which are this file, into a folder for PATH. A job's state lies
in that folder; another process, `slurmd`, waits for the job, so that the job does not hang on
whoever submitted it. As `--export=NIL` says, a job gets none of that one's environment.
"""

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
JOBS = HERE / "jobs"
PENDING = HERE / "pending"
"""The seconds that a job waits for its place; below 0, none is taken."""


COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "slurmd")


def install(folder: Path) -> Path:
    """Write the commands into a new folder."""
    (folder / "jobs").mkdir(parents=True)
    (folder / PENDING.name).write_text("1")
    code = Path(__file__).read_text(encoding="utf-8")
    for name in COMMANDS:
        path = folder / name
        path.write_text(f"#!{sys.executable} -IS\n{code}", encoding="utf-8")
        path.chmod(0o755)
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def write(path: Path, job: Any) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(job))
    beside.replace(path)


def sbatch(*given: str) -> None:
    options = dict(one[2:].partition("=")[::2] for one in given if one.startswith("--"))
    assert "parsable" in options and options["export"] == "NIL", given
    if float(PENDING.read_text()) < 0:
        sys.exit("sbatch: error: Batch job submission failed: Invalid account")
    number = str(1000 + len(list(JOBS.glob("*.json"))))
    path = JOBS / f"{number}.json"
    write(path, {"state": "PENDING", "exit": 0, "asked": given, "script": given[-1], **options})
    subprocess.Popen(
        [sys.executable, "-IS", str(HERE / "slurmd"), str(path)],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    sys.stdout.write(f"{number}\n")


def slurmd(file: str) -> None:
    """Start a job, wait for its end, and say how it ended."""
    path = Path(file)
    time.sleep(float(PENDING.read_text()))
    asked = read(path)
    if asked["state"] != "PENDING":
        return
    output = open(asked["output"].replace("%j", path.stem), "wb")  # noqa: SIM115
    job = subprocess.Popen(
        ["/bin/bash", asked["script"]],
        cwd=asked["chdir"],
        env={"SLURM_JOB_ID": path.stem, "SLURMD_NODENAME": "localhost", "PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    write(path, read(path) | {"state": "RUNNING", "pid": job.pid})
    code = job.wait()
    ended = "COMPLETED" if code == 0 else "FAILED"
    if read(path)["state"] == "CANCELLED":
        ended = "CANCELLED"
    write(path, read(path) | {"state": ended, "exit": code})


def squeue(*given: str) -> None:
    (name,) = [one.partition("=")[2] for one in given if one.startswith("--name=")]
    for path in sorted(JOBS.glob("*.json")):
        job = read(path)
        if job["job-name"] == name and job["state"] in ("PENDING", "RUNNING"):
            row = (path.stem, job["state"], os.getuid(), job["comment"], name)
            sys.stdout.write("|".join(map(str, row)) + "\n")


def sacct(*given: str) -> None:
    for one in given:
        if one.startswith("--jobs="):
            number = one.partition("=")[2]
            job = read(JOBS / f"{number}.json")
            code = job["exit"]
            how = f"{max(code, 0)}:{max(-code, 0)}"
            row = (number, job["job-name"], pwd.getpwuid(os.getuid()).pw_name, job["state"], how)
            sys.stdout.write("|".join(map(str, row)) + "|0:0\n")


def scancel(*given: str) -> None:
    names = [one.partition("=")[2] for one in given if one.startswith("--name=")]
    for path in sorted(JOBS.glob("*.json")):
        job = read(path)
        if job["state"] in ("PENDING", "RUNNING") and (
            path.stem in given or job["job-name"] in names
        ):
            write(path, job | {"state": "CANCELLED"})
            if "pid" in job:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job["pid"], signal.SIGKILL)


if __name__ == "__main__":
    globals()[Path(sys.argv[0]).name](*sys.argv[1:])
