"""Mutants of what makes noise private, made by hand: each breaks the promise in its own way.

    python benchmarks/house/mutants/noise.py [--only PART...]

Chance (run.py) seldom hits the lines on which a promise hangs, so these are chosen: what others got
wrong, and what the account takes for granted. Each runs against the tests of its module, the quick
ones first, until one fails. Lines go to noise.jsonl; what stands there is not run again, but with
`--again` what survived.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from run import SRC, _failed

MEASURED = Path(__file__).parent / "noise.jsonl"
METHOD, UNITS = "confide/methods/noise.py", "confide/kinds/entities.py"
SGD, ED, NER = (f"confide/methods/dp_{one}.py" for one in ("fedsgd", "feded", "fedner"))
STEP, HOSTING = "confide/federation/site.py", "confide/federation/secure/steps.py"
CLIPPING, KEYS = "confide/privacy/noise.py", "confide/privacy/noise.py"
NOISE, ACCOUNTANT = "confide/privacy/noise.py", "confide/privacy/accountant.py"
SPENDING = "confide/privacy/accountant.py"
OF_METHOD, OF_ALL = "tests/methods/test_dp_fedsgd.py", "tests/methods/test_noised.py"
OF_ED, OF_NER = "tests/methods/test_dp_feded.py", "tests/methods/test_dp_fedner.py"
ALONE = ("--deselect=tests/privacy/test_accountant.py::test_two_leads_share_one_account",)
"""It starts processes of its own, which a forked one cannot."""
TESTS = {
    METHOD: (OF_METHOD, OF_NER, OF_ED, OF_ALL),
    SGD: (OF_METHOD,),
    ED: (OF_ED,),
    NER: (OF_NER,),
    STEP: (OF_NER, OF_ALL),
    HOSTING: (OF_ALL,),
    UNITS: ("tests/kinds/test_units.py", OF_METHOD),
    CLIPPING: ("tests/privacy/test_clipping.py", "tests/kinds/test_units.py"),
    KEYS: ("tests/privacy/test_keys.py", OF_METHOD),
    NOISE: ("tests/privacy/test_noise.py", OF_METHOD),
    ACCOUNTANT: ("tests/privacy/test_accountant.py", *ALONE, OF_METHOD),
    SPENDING: ("tests/privacy/test_accountant.py", *ALONE, OF_METHOD),
}
WITHIN = 900.0


@dataclass(frozen=True)
class Made:
    """A mutant: what of a file is replaced, once, and what that would mean."""

    what: str
    path: str
    before: str
    after: str

    def put(self, tree: Path) -> None:
        text = (SRC / self.path).read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise SystemExit(f"{self.what}: not found once in {self.path}: {self.before!r}")
        (tree / self.path).write_text(text.replace(self.before, self.after), encoding="utf-8")


MUTANTS = (
    Made("units are not clipped", UNITS,
         "        make_whole(some, clip=clip, grid=grid)\n", ""),
    Made("what is not finite is not zeros", CLIPPING,
         "np.rint(smaller * (2 * grid / norm)) if fine else 0.0",
         "np.rint(smaller * (2 * grid / norm))"),
    Made("the sum is divided by how many were drawn", METHOD,
         "        return clipped_sum(gradients, like=like, clip=noise.clip, grid=noise.grid)\n",
         "        found = clipped_sum(gradients, like=like, clip=noise.clip, grid=noise.grid)\n"
         "        return {n: a // max(1, len(chosen)) for n, a in found.items()}\n"),
    Made("the server divides by all units, not by those drawn on average", METHOD,
         "return self._budget.rate * own.units", "return float(own.units)"),
    Made("a site's part of the noise is rounded down", METHOD,
         "math.ceil(noise.variance / self.honest)", "noise.variance // self.honest"),
    Made("every site adds the noise of all", METHOD,
         "with_noise(together, secret, variance=share)",
         "with_noise(together, secret, variance=noise.variance)"),
    Made("what stays at a site gets only a part of the noise", METHOD,
         "with_noise(apart, own, variance=noise.variance)",
         "with_noise(apart, own, variance=share)"),
    Made("what stays at a site gets no noise", METHOD,
         "return found | with_noise(apart, own, variance=noise.variance) if apart else found",
         "return found | apart"),
    Made("what stays and what leaves have the same noise", METHOD,
         'keyed(secret, "alone")', "secret"),
    Made("no noise is added", METHOD,
         "array + noise[start : start + array.size].reshape(array.shape)", "array"),
    Made("a sum that does not fit is cut off, not wrapped", METHOD,
         "array.astype(np.int32) for",
         "np.clip(array, -(2**31), 2**31 - 1).astype(np.int32) for"),
    Made("the noise of one array is that of another", METHOD,
         "        start += array.size\n", ""),
    Made("nothing is charged", METHOD,
         "budget.spend(Charge(site.run.hex(), at, context.hex(), mark, mechanism, size))",
         "pass"),
    Made("what may not be charged leaves all the same", METHOD,
         'raise Refusal("spent") from error', "secret = bytes(32)"),
    Made("the charge is of one site's part of the noise", METHOD,
         "share * self.honest\n", "share\n"),
    Made("what stays is charged as if others had added noise to it", METHOD,
         "noise.variance if alone else share * self.honest", "share * self.honest"),
    Made("the rate does not decide who is drawn", METHOD,
         "len(units), rate=noise.rate)", "len(units), rate=1.0)"),
    Made("the same units are drawn in every round", METHOD,
         "digest(site.run, int_bytes(turn.round), encode(ask))", "digest(site.run, encode(ask))"),
    Made("the draw does not depend on what is asked", METHOD,
         "digest(site.run, int_bytes(turn.round), encode(ask))",
         "digest(site.run, int_bytes(turn.round))"),
    Made("the same units are drawn in every step of a round", METHOD,
         "digest(self.context, int_bytes(step)) if step else self.context", "self.context"),
    Made("the same ask gets other noise", METHOD,
         "            return secret\n",
         "            return np.random.default_rng().bytes(32)\n"),
    Made("a site whose text fails adds no noise", METHOD,
         "            clean = nothing\n", "            return nothing\n"),
    Made("an ask that failed gets another answer", METHOD,
         "secret, clean = charged(nothing), nothing", "secret = charged(clean)"),
    Made("the text is not checked", METHOD, "        site_model.check()\n", ""),
    Made("a site that cannot charge sends zeros", HOSTING,
         "if step.noisy or (isinstance", "if (isinstance"),
    Made("a group has less noise than is charged", HOSTING,
         "if step.noisy and opening.group:", "if False:"),
    Made("what adds no noise sees the text", STEP,
         "hidden = self.site.under_noise and not step.noisy", "hidden = False"),
    Made("several steps where one is charged", METHOD,
         "own.steps > 1 and not self.steps_alone", "False"),
    Made("a site believes in others' noise", ED,
         "turn=turn, shared=False", "turn=turn, shared=True"),
    Made("a step's sum is not divided", ED,
         "mean_of(total, ask.noise, drawn=ask.drawn)", "mean_of(total, ask.noise, drawn=1.0)"),
    Made("what a site knows is told", ED, 'if not fits or ask.average != "all":', "if not fits:"),
    Made("one site's units are taken for all", ED,
         "self._units / len(federation.sites)", "self._units"),
    Made("private parts leave if they are asked for", NER,
         "if ask.weights.keys() & memory.own.keys():", "if False:"),
    Made("private parts stay as they were", NER,
         "replace(memory, own=own, **", "replace(memory, **"),
    Made("private parts have their noise from all sites", NER,
         "alone=sorted(memory.own)", "alone=()"),
    Made("a guard of parts does not hold under noise", STEP,
         "if ((step.like or step.wraps) and not kept) or any(map(guards.keeps, sent)):",
         "if step.like and (not kept or any(map(guards.keeps, sent))):"),
    Made("who is drawn does not depend on the text", KEYS,
         '"draw", context, text)', '"draw", context)'),
    Made("the noise does not depend on the text", KEYS,
         '"noise", context, text, found.digest())', '"noise", context, found.digest())'),
    Made("the noise does not depend on what it hides", KEYS,
         '"noise", context, text, found.digest())', '"noise", context, text)'),
    Made("half as many are drawn as is accounted for", KEYS,
         '"<u8") >> np.uint64(1)', '"<u8")'),
    Made("noise has no sign", NOISE,
         "return np.multiply(found, signs, out=found)", "return found"),
    Made("a run goes on with other text", ACCOUNTANT, "if kept[_KEY:] != said:", "if False:"),
    Made("a run key outlives its run", ACCOUNTANT,
         "self._key_file(run).unlink(missing_ok=True)", "self._key_file(run)"),
    Made("the account forgets what earlier charges spent", SPENDING,
         "    now.curve = now.curve + one.curve\n", "    now.curve = one.curve\n"),
    Made("one ask is answered with two noises", SPENDING,
         "            if charge.ask in now.marks:\n", "            if False:\n"),
    Made("other noise for the same ask is not charged", SPENDING,
         "if now.marks.get(charge.ask) == charge.mark:", "if charge.ask in now.marks:"),
    Made("the limit is looked at before the charge is added", SPENDING,
         "            now.curve = now.curve + curve_A\n            now.draws += charge.draws\n"
         "            if not now.epsilon(self.limit.delta) <= self.limit.epsilon:\n",
         "            late = not (now.marks == {} or now.epsilon(self.limit.delta)"
         " <= self.limit.epsilon)\n"
         "            now.curve = now.curve + curve_A\n            now.draws += charge.draws\n"
         "            if late:\n"),
    Made("an account that was edited is taken", SPENDING,
         'if told["before"] != now.head:', "if False:"),
    Made("a document without a row is not drawn", UNITS,
         "return [np.array(rows, np.int64) for rows in found.values()]",
         "return [np.array(rows, np.int64) for rows in found.values() if rows]"),
    Made("a patient is a document", UNITS,
         'patient_of(one, patients) if unit == "patient" else str(number)', "str(number)"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--first", type=int, default=1000, help="no more than so many this time")
    parser.add_argument("--again", action="store_true", help="run again what survived")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    import torch  # noqa: F401  imported once, before all forks
    import transformers  # noqa: F401

    lines = MEASURED.read_text(encoding="utf-8").splitlines() if MEASURED.exists() else []
    done = {one["mutant"]: one for one in map(json.loads, lines)}
    left, sound = given.first, set()
    for mutant in MUTANTS:
        if given.only and not any(part in mutant.what for part in given.only):
            continue
        before = done.get(mutant.what)
        if left == 0 or (before and (before["killed"] or not given.again)):
            continue
        left -= 1
        if TESTS[mutant.path] not in sound:
            if by := _failed(list(TESTS[mutant.path]), SRC, within=WITHIN):
                raise SystemExit(f"without any mutant {by} fails")
            sound.add(TESTS[mutant.path])
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant") as made:
            tree = Path(made) / "src"
            shutil.copytree(SRC, tree, ignore=shutil.ignore_patterns("__pycache__"))
            mutant.put(tree)
            by = _failed(list(TESTS[mutant.path]), tree, within=WITHIN)
        found = {
            "mutant": mutant.what, "path": mutant.path, "before": mutant.before,
            "after": mutant.after, "killed": by, "seconds": round(time.monotonic() - began, 1),
            "machine": f"{os.cpu_count()} x {platform.machine()}, CPU, shared",
            "date": str(date.today()),
        }  # fmt: skip
        done[mutant.what] = found
        print(by or "SURVIVED", "|", mutant.what, flush=True)
        text = "".join(json.dumps(one) + "\n" for one in done.values())
        MEASURED.write_text(text, encoding="utf-8")
    alive = [name for name, one in done.items() if not one["killed"]]
    print(f"{len(done) - len(alive)} of {len(done)} killed", *alive, sep="\n")


if __name__ == "__main__":
    main()
