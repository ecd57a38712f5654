"""A site's account, attacked: re-asks, resumes, other vectors, two leads, edits and torn writes."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from cases import each
from confide.errors import GuardError
from confide.privacy import accountant
from confide.privacy.account import ORDERS, Mechanism, epsilon_terms
from confide.privacy.accountant import Charge, Limit, PrivacyBudget, SpentError

ONE = Mechanism(1000, 10**6, 0.01)


def charge(mark: int, *, run: str = "r", round: int = 1, mechanism: Mechanism = ONE) -> Charge:
    return Charge(run, round, f"{mark:064x}", f"{mark:064x}", mechanism, draws=1000)


def account(folder: Path, epsilon: float = 5.0) -> PrivacyBudget:
    return PrivacyBudget(folder / "own", Limit(epsilon, 1e-5))


def test_the_same_noise_is_charged_once_in_whatever_process(tmp_path: Path) -> None:
    assert account(tmp_path).spend(charge(1))
    before = account(tmp_path).status()
    assert not account(tmp_path).spend(charge(1))  # a re-ask, or after a resume
    assert account(tmp_path).status() == before
    assert before.charges == 1


def test_another_vector_is_charged_again_and_runs_share_the_account(tmp_path: Path) -> None:
    mine = account(tmp_path)
    mine.spend(charge(1))
    first = mine.status()
    mine.spend(charge(2))  # the same round, another noise key
    mine.spend(charge(3, run="other"))
    third = mine.status()
    assert third.charges == 3 and third.epsilon > first.epsilon and third.head != first.head


def test_what_is_spent_is_the_sum_at_one_order(tmp_path: Path) -> None:
    mine = account(tmp_path)
    other = Mechanism(1000, 10**7, 1.0)
    for mark in range(20):
        mine.spend(charge(mark))
    mine.spend(charge(99, mechanism=other))
    curve_A = 20 * ONE.curve + other.curve
    found = [float(c + k) for c, k in zip(curve_A, epsilon_terms(1e-5), strict=True)]
    assert min(abs(mine.status().epsilon - one) for one in found) < 1e-9
    assert mine.status().epsilon >= min(found) - 1e-12


def test_the_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    mine = account(tmp_path, 1.0)
    large = Mechanism(1000, 20 * 10**6, 1.0)
    rounds = 0
    with pytest.raises(SpentError, match=r"max_epsilon = 1 at delta"):
        for rounds in range(100):
            mine.spend(charge(rounds, mechanism=large))
    before = mine._path.read_bytes()
    status = mine.status()
    assert status.charges == rounds >= 1 and 0.5 < status.epsilon <= 1.0
    assert not mine.spend(charge(0, mechanism=large))  # paid for, and may be answered again
    with pytest.raises(SpentError):
        mine.spend(charge(rounds + 1, run="another", mechanism=large))
    assert mine._path.read_bytes() == before
    assert account(tmp_path, 9.0).spend(charge(rounds + 1, mechanism=large))


def test_the_order_is_fixed_before_the_first_charge(tmp_path: Path) -> None:
    mine = account(tmp_path)
    mine.spend(charge(1))
    first = mine._path.read_bytes().splitlines()[0]
    for mark in range(2, 30):
        mine.spend(charge(mark, mechanism=Mechanism(1000, 10**9, 1.0)))
    assert mine._path.read_bytes().splitlines()[0] == first
    left = 5.0 - epsilon_terms(1e-5)
    best = max(range(len(ORDERS)), key=lambda place: left[place] / ONE.curve[place])
    assert f'"order": {ORDERS[best]}'.encode() in first


def test_a_noise_that_spends_too_much_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpentError):
        account(tmp_path).spend(charge(1, mechanism=Mechanism(1000, 100, 1.0)))
    assert account(tmp_path).status().charges == 0


def many(path: Path, run: str) -> None:
    mine = PrivacyBudget(path, Limit(50.0, 1e-5))
    for mark in range(25):
        mine.spend(charge(mark, run=run))
        mine.spend(charge(1000 * ord(run) + mark, run=run))


def test_two_leads_share_one_account(tmp_path: Path) -> None:
    """Two processes charge at once: the 25 common ones once, the 25 of each own."""
    path = account(tmp_path)._folder
    fork = multiprocessing.get_context("spawn")
    both = [fork.Process(target=many, args=(path, run)) for run in "ab"]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert PrivacyBudget(path, Limit(50.0, 1e-5)).status().charges == 75


def test_a_torn_line_is_one_that_was_never_answered_upon(tmp_path: Path) -> None:
    mine = account(tmp_path)
    for mark in range(3):
        mine.spend(charge(mark))
    before = mine.status()
    whole = mine._path.read_bytes()
    mine.spend(charge(3))
    after = mine._path.read_bytes()
    for end in range(len(whole), len(after) - 1, 17):
        mine._path.write_bytes(after[:end])
        assert mine.status() == before
    assert mine.spend(charge(3))
    assert mine._path.read_bytes() == after
    mine._path.write_bytes(whole + b"x" * 5000)  # one torn line that is longer than the next
    assert mine.spend(charge(3))
    assert mine._path.read_bytes() == after


@each("attack", ["dropped", "edited", "swapped", "cut in front", "not json"])
def test_an_account_that_was_changed_is_refused(tmp_path: Path, attack: str) -> None:
    mine = account(tmp_path)
    for mark in range(4):
        mine.spend(charge(mark))
    lines = mine._path.read_bytes().splitlines(keepends=True)
    changed = {
        "dropped": [*lines[:2], *lines[3:]],
        "edited": [*lines[:2], lines[2].replace(b'"variance": 1', b'"variance": 9'), *lines[3:]],
        "swapped": [lines[0], lines[2], lines[1], *lines[3:]],
        "cut in front": lines[1:],
        "not json": [*lines[:2], b"{\n", *lines[3:]],
    }[attack]
    mine._path.write_bytes(b"".join(changed))
    with pytest.raises(GuardError, match="not sound"):
        mine.spend(charge(9))
    with pytest.raises(GuardError, match="not sound"):
        mine.status()


def test_a_restored_backup_has_an_older_head(tmp_path: Path) -> None:
    mine = account(tmp_path)
    mine.spend(charge(1))
    backup = mine._path.read_bytes()
    mine.spend(charge(2))
    head = mine.status().head
    mine._path.write_bytes(backup)
    assert mine.status().head != head


def test_the_file_is_for_its_owner_only_and_no_link_is_followed(tmp_path: Path) -> None:
    mine = account(tmp_path)
    mine.spend(charge(1))
    assert stat.S_IMODE(mine._path.stat().st_mode) == 0o600
    assert stat.S_IMODE(mine._path.parent.stat().st_mode) == 0o700
    link = tmp_path / "other" / mine._path.name
    link.parent.mkdir()
    link.symlink_to(mine._path)
    with pytest.raises(OSError, match="symbolic"):
        PrivacyBudget(link.parent, Limit(5.0, 1e-5)).spend(charge(2))


def test_a_write_that_fails_leaves_the_account_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same process goes on with what is on the disk, not with what it was about to write.

    The clock of the disk is too coarse to tell that the file was touched.
    """
    mine, real = account(tmp_path), accountant._line
    lines: list[bytes] = []

    def failing(told: dict[str, object]) -> bytes:
        lines.append(real(told))
        if len(lines) == 2:
            raise OSError(28, "No space left on device")
        return lines[-1]

    monkeypatch.setattr(accountant, "_line", failing)
    monkeypatch.setattr(accountant, "_as_it_lies", lambda file: os.fstat(file.fileno()).st_size)
    with pytest.raises(OSError, match="No space"):
        mine.spend(charge(1))
    assert mine.spend(charge(2))
    assert mine.status() == account(tmp_path).status()
    assert mine.status().charges == 1


def test_a_run_key_is_gone_once_the_run_is_left(tmp_path: Path) -> None:
    """Nobody can draw its noise again; another run's key stays."""
    budget = PrivacyBudget(tmp_path / "own", Limit(10.0, 1e-5))
    first, other = (budget.key(run, text=b"text") for run in (b"one", b"two"))
    assert budget.key(b"one", text=b"text") == first != other
    budget.forget(b"one")
    kept = list((tmp_path / "own").glob("*.key"))
    assert len(kept) == 1 and first not in kept[0].read_bytes()
    assert budget.key(b"two", text=b"text") == other
    assert budget.key(b"one", text=b"text") != first
    budget.forget(b"never begun")
