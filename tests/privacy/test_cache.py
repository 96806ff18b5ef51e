"""The calibration cache: hits, keys, corruption and concurrent writers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raydp.privacy import CalibrationRequest, PLDAccountant, PrivacyTarget, RDPAccountant, calibrate
from raydp.privacy.accounting import calibration as module
from raydp.privacy.accounting.cache import SolutionCache
from tests.marks import slow_after

REQUEST = CalibrationRequest.of_batches(
    num_examples=10_000, batch_size=100, num_steps=20, target=PrivacyTarget(epsilon=4.0, delta=1e-5)
)


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the accountants of which a problem was really solved."""
    log: list[str] = []
    original = module._solve

    def counted(request: CalibrationRequest, accountant_name: str) -> dict[str, float]:
        log.append(accountant_name)
        return original(request, accountant_name)

    monkeypatch.setattr(module, "_solve", counted)
    return log


def test_second_call_reads_the_first_ones_result(tmp_path: Path, solves: list[str]) -> None:
    first = calibrate(REQUEST, "pld", cache_dir=tmp_path / "cache")
    assert calibrate(REQUEST, "pld", cache_dir=tmp_path / "cache") == first
    assert solves == ["pld"]


@pytest.mark.slow
def test_accountant_library_version_and_algorithm_are_part_of_the_key(
    tmp_path: Path, solves: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(REQUEST, "pld", cache_dir=tmp_path)
    calibrate(REQUEST, "rdp", cache_dir=tmp_path)
    assert solves == ["pld", "rdp"]
    monkeypatch.setattr(PLDAccountant, "version", "dp-accounting 99")
    assert calibrate(REQUEST, "pld", cache_dir=tmp_path).accountant_version == "dp-accounting 99"
    assert solves == ["pld", "rdp", "pld"]
    monkeypatch.setattr(module, "ALGORITHM_VERSION", module.ALGORITHM_VERSION + 1)
    calibrate(REQUEST, "pld", cache_dir=tmp_path)
    assert solves == ["pld", "rdp", "pld", "pld"]
    assert RDPAccountant().version != PLDAccountant().version


@pytest.mark.parametrize(
    "damage",
    slow_after(
        3, ["truncated", "empty", "binary", "other type", "less noise", "no digest", "nested"]
    ),
)
def test_a_damaged_entry_is_computed_again_and_replaced(
    tmp_path: Path, solves: list[str], damage: str
) -> None:
    first = calibrate(REQUEST, "rdp", cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.json")
    whole = path.read_bytes()
    entry = json.loads(whole)
    less = {**entry, "solution": {**entry["solution"], "noise_multiplier": 0.1}}
    path.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "empty": b"",
            "binary": b"\xff\xfe\x00",
            "other type": b"[1, 2]",
            "less noise": json.dumps(less).encode(),
            "no digest": json.dumps({k: v for k, v in entry.items() if k != "sha256"}).encode(),
            "nested": b"[" * 100_000,
        }[damage]
    )
    assert calibrate(REQUEST, "rdp", cache_dir=tmp_path) == first
    assert solves == ["rdp", "rdp"]
    assert path.read_bytes() == whole


def test_an_entry_of_another_problem_under_this_name_is_not_used(tmp_path: Path) -> None:
    cache = SolutionCache(tmp_path)
    cache.save({"q": 0.1}, {"noise_multiplier": 1.0})
    (path,) = tmp_path.glob("*.json")
    path.rename(cache._path({"q": 0.2}))
    assert cache.load({"q": 0.2}) is None


def test_many_writers_leave_one_whole_entry_and_no_rubbish(tmp_path: Path) -> None:
    cache = SolutionCache(tmp_path)
    solution = {"noise_multiplier": 1.25, "epsilon": 3.999}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.save({"q": 0.1}, solution), range(64)))
    assert cache.load({"q": 0.1}) == solution
    assert len(list(tmp_path.iterdir())) == 1


def test_failed_calibrations_are_not_cached(tmp_path: Path) -> None:
    hard = CalibrationRequest.of_batches(
        num_examples=10_000,
        batch_size=100,
        num_steps=20,
        target=PrivacyTarget(epsilon=4.0, delta=1e-16),
    )
    with pytest.raises(ValueError, match="'pld'"):
        calibrate(hard, "pld", cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
