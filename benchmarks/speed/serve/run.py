"""Throughput and latency of POST /v1/predict, on a real server in a process of its own.

    python benchmarks/speed/serve/run.py RUN FILE... [--seconds 20] [--rate 20]

One process serves; this one asks. "throughput": batches of 64 sentences, one after the other.
"latency": single sentences at a fixed rate, whether or not the last one was answered, each on a
new thread; the time counts from when it was due.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from confide import api


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("run")
    asked.add_argument("files", nargs="+")
    asked.add_argument("--seconds", type=float, default=20)
    asked.add_argument("--rate", type=float, default=20)
    asked.add_argument("--core", type=int, default=0, help="the server's one core")
    given = asked.parse_args()
    sentences = [
        one.text[sentence.start : sentence.end]
        for file in given.files
        for one in api.read(file).documents
        for sentence in one.sentences
    ]
    words = [
        sys.executable,
        "-u",
        "-m",
        "confide",
        "serve",
        given.run,
        "--at",
        "127.0.0.1:0",
        "--token-file",
        "none",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        ["taskset", "-c", str(given.core), *words], stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        address = next(line for line in server.stderr if "serving at" in line).split()[-1]
        ask(address, sentences[:64])
        rate = throughput(address, sentences, given.seconds)
        times = latency(address, sentences, given.seconds, given.rate)
    finally:
        server.terminate()
        server.wait(20)
    cuts = statistics.quantiles(times, n=100)
    print(json.dumps({
        "run": Path(given.run).name,
        "sentences": len(sentences),
        "mean_characters": round(statistics.fmean(map(len, sentences))),
        "sentences_per_second": round(rate, 1),
        "asks_per_second": given.rate,
        "asks": len(times),
        "p50_ms": round(1000 * cuts[49], 1),
        "p95_ms": round(1000 * cuts[94], 1),
        "p99_ms": round(1000 * cuts[98], 1),
        "load": [round(one, 2) for one in os.getloadavg()],
    }))  # fmt: skip


def ask(address: str, texts: list[str]) -> None:
    body = json.dumps({"texts": texts}).encode()
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(address + "v1/predict", body, headers)
    with urllib.request.urlopen(asked, timeout=60) as found:
        found.read()


def throughput(address: str, sentences: list[str], seconds: float) -> float:
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        batch = [sentences[(done + n) % len(sentences)] for n in range(64)]
        ask(address, batch)
        done += 64
    return done / (time.perf_counter() - start)


def latency(address: str, sentences: list[str], seconds: float, rate: float) -> list[float]:
    times: list[float] = []

    def one(text: str, due: float) -> None:
        ask(address, [text])
        times.append(time.perf_counter() - due)

    start, threads = time.perf_counter(), []
    for n in range(round(seconds * rate)):
        due = start + n / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        threads.append(threading.Thread(target=one, args=(sentences[n % len(sentences)], due)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return times


if __name__ == "__main__":
    main()
