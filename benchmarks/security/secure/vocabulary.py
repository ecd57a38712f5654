"""What two words in one bucket cost: the share of words that share a row, at three sizes.

    python benchmarks/security/secure/vocabulary.py FILE...

Of CoNLL files, whose words are in the first column: draws of so many distinct words, hashed under a
random key; the mean of five draws.
"""

from __future__ import annotations

import random
import secrets
import sys
from collections import Counter
from pathlib import Path

from confide.training.vocabulary import bucket_of, keyed_digest


def main() -> None:
    text = "\n".join(Path(path).read_text(encoding="utf-8") for path in sys.argv[1:])
    words = sorted({line.split()[0] for line in text.splitlines() if line.split()})
    print(f"{len(words)} distinct words")
    for many in (5_000, 20_000, 50_000):
        for bits in (18, 20, 22):
            if many <= len(words):
                print(f"{many:6} words, 2^{bits}: {shared(words, many, bits):.2f} % share a row")


def shared(words: list[str], many: int, bits: int) -> float:
    """The words of which another one has the same bucket, in percent."""
    found = []
    for turn in range(5):
        key, own = secrets.token_bytes(32), random.Random(turn).sample(words, many)
        buckets = Counter(bucket_of(keyed_digest(key, "word", word), bits) for word in own)
        found.append(100 * sum(n for n in buckets.values() if n > 1) / many)
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
