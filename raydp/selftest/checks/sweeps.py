"""Check what a sweep's training assumes: correct records, a secret key, no state of other runs."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy import stats

from raydp.methods.dp import DPSGD
from raydp.models import base_models as models
from raydp.privacy import PoissonGaussian
from raydp.selftest.check_result import Check, check
from raydp.selftest.observe import (
    OTHER_KEY,
    NoisyMethod,
    noise_strategy,
    observed_plan,
    with_fixed_threshold,
    without_weights,
)
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import SweepPlan, make_plan
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.state import Plan
from raydp.sweep.store.transfer import SharedFolder
from raydp.system.cache import empty_cache
from raydp.tasks.task import TaskFacts
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import KEY_BYTES, TEST_KEY
from raydp.training.trial_plan import TrialPlan

ACCOUNTANT, TARGET_EPSILON, DELTA_EXPONENT = "prv", 4.0, 1.1
NUM_UNITS, BATCH_SIZE, FULL_STEPS = 2000, 16, 3
ALMOST = 0.9
"""Share of its ε at which a run must spend more than its δ.

Otherwise the records do not belong to the calibrated run. Rényi divergences are too loose for this
check.
"""
KEY_LEVEL = 1e-9
LEAST_CHANGE = 1e-6
"""Change of a loss by other noise, in nats. Without another key the change is exactly 0."""


def sweep_checks(method: NoisyMethod, accountant: str = ACCOUNTANT) -> list[Check]:
    """Check a sweep's plan and state, from its records, its key file and its results.

    1. The σ, q, T and δ of a record give the ε that it states. δ at this ε and at a slightly
       smaller ε is computed in closed form. The closed forms are for one step on a sample and for
       several steps on all data. Also, σ is the one used in training, and δ is the one that the
       spec asks for.
    2. Two sweeps of one spec, started by identical processes, have different keys, in files that
       only the owner can read. No run with the public test key is certified, and no other sweep
       accepts that key.
    3. A run leaves nothing in its worker that changes the next run. Under another key a run gives
       another result.

    The cache is empty during the checks. A calibration from the user's cache would hide a fault of
    the present code.

    Args:
        method: a private method that adds noise in its steps.
        accountant: the accountant whose records are checked.
    """
    with empty_cache():
        return [
            *_record_checks(with_fixed_threshold(method), accountant),
            *_key_checks(),
            *_worker_checks(),
        ]


def _spec(storage: Path, **changes: object) -> SweepSpec:
    document = {
        "name": "selftest",
        "task": {"name": "builtin", "num_examples": 2000, "num_heldout": 50},
        "model": {"name": "tiny", "adapter": {"r": 2, "alpha": 4, "target_modules": ["q_proj"]}},
        "method": {"name": "dp_sgd", "max_grad_norm": 0.1},
        "privacy": {"target_epsilon": TARGET_EPSILON, "accountant": "rdp"},
        "space": {"points": [[8, 2, 1.0], [8, 3, 1.0]]},
        "scores": [{"name": "vmr_exact"}],
        "select": {"score": "vmr_exact"},
        "storage": str(storage),
        "tracking": {"uri": f"sqlite:///{storage}/unused.db"},
        **changes,
    }
    return load_spec(document)


def _record_checks(method: NoisyMethod, accountant: str) -> list[Check]:
    """Check the records, by the run that comes closest to a violation of each kind."""
    # The δ that the noise of each record really costs, by closed forms.
    plan, delta = _planned(method, accountant, "secret")
    sigmas = {trial.run_id: trial.noise_multiplier for trial in plan.trials}
    spent, almost, apart = list[float](), list[float](), list[float]()
    for run_id, record in plan.privacy.items():
        accounted, event = record.accounted, record.mechanism.event
        assert isinstance(event, PoissonGaussian), "the method adds noise"
        spent.append(
            max(_delta(event, accounted.epsilon) / delta, accounted.epsilon / TARGET_EPSILON)
        )
        almost.append(_delta(event, ALMOST * accounted.epsilon) / delta)
        apart += [
            abs(event.noise_multiplier / sigmas[run_id] - 1),
            abs(accounted.delta / delta - 1),
        ]
    lowest = 0.0 if accountant == "rdp" else 1.0
    return [
        check("δ that a record spends", max(spent), 0, 1, "in closed form at its σ, q, T and ε, over the δ asked for"),
        check(
            f"δ that a record spends at {ALMOST:g} ε", min(almost), lowest, math.inf,
            "in closed form, over the δ asked for; less where its noise is not that of its ε",
        ),
        check("σ and δ of a record", max(apart), 0, 1e-12, "relative difference from those of the run and the spec"),
    ]  # fmt: skip


def _planned(method: NoisyMethod, accountant: str, noise_key: str) -> tuple[SweepPlan, float]:
    """Return the plan of two runs, of one step on a sample and of several on all data, and δ."""
    # Points with closed forms: one block of bands on a sample, and several on all data.
    plain = without_weights(method)
    slow = observed_plan("", batch_size=1, num_steps=1, num_examples=1, noise_multiplier=1.0)
    bands = len(noise_strategy(plain, replace(slow, learning_rate=1e-6)))
    count = NUM_UNITS // bands * bands
    points = [
        [max(1, BATCH_SIZE // bands), bands, 1e-6],
        [count // bands, FULL_STEPS * bands, 1e-6],
    ]
    privacy = {
        "target_epsilon": TARGET_EPSILON, "accountant": accountant, "noise_key": noise_key,
        "delta_exponent": DELTA_EXPONENT,
    }  # fmt: skip
    spec = _spec(Path("unused"), privacy=privacy, space={"points": points})
    spec = spec.model_copy(update={"method": replace(spec.method, params=plain)})
    facts = TaskFacts(
        num_examples=count, num_units=count, privacy_unit="example", content_hash="selftest", num_tokens=9 * count
    )  # fmt: skip
    return make_plan(spec, facts, "selftest"), count**-DELTA_EXPONENT


def _delta(event: PoissonGaussian, epsilon: float) -> float:
    """Return the exact δ at an ε of the event, without an accountant.

    The release is one Poisson-subsampled Gaussian, with the larger of both directions of adjacency,
    or a Gaussian mechanism on all data, any number of times (Balle and Wang 2018, Theorem 8; Dong,
    Roth and Su 2022, Corollary 3.3).
    """
    q, sigma, steps = event.sample_rate, event.noise_multiplier, event.num_steps
    if q == 1:
        mu = math.sqrt(steps) / sigma
        return float(
            stats.norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        )
    assert steps == 1, "of several steps on samples there is no closed form"

    def excess(epsilon: float, of_sample: float, of_rest: float) -> float:
        """Integrate the difference of the densities where mixture over Gaussian exceeds e^ε."""
        # The likelihood ratio grows in x, so the set is a half line.
        edge = sigma**2 * math.log((math.expm1(epsilon) + q) / q) + 0.5
        mixture = (1 - q) * stats.norm.sf(edge / sigma) + q * stats.norm.sf((edge - 1) / sigma)
        return float(of_sample * mixture + of_rest * stats.norm.sf(edge / sigma))

    removed = excess(epsilon, 1.0, -math.exp(epsilon))
    if math.expm1(-epsilon) + q <= 0:  # adding a record makes no outcome likelier by this factor
        return removed
    return max(removed, 1 - math.exp(epsilon) + excess(-epsilon, math.exp(epsilon), -1.0))


def _key_checks() -> list[Check]:
    """Check the keys of two sweeps of one spec, and what is certified."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(number) for number in range(2)]
        # A key from a seeded generator would be the same in both copies.
        _in_processes_alike([partial(_start, path) for path in paths])
        files = [path / "selftest" / "sweep.key" for path in paths]
        keys = [
            np.unpackbits(np.frombuffer(file.read_bytes(), np.uint8)) if file.is_file() else None
            for file in files
        ]
        modes = [file.stat().st_mode & 0o077 if file.is_file() else 0o777 for file in files]
        refused = _is_refused(paths[0] / "selftest")
    bits = 8 * KEY_BYTES
    # Equal bits of two random keys are binomial; an equal or inverted key is far outside.
    low, high = stats.binom.ppf([KEY_LEVEL / 2, 1 - KEY_LEVEL / 2], bits, 0.5)
    one, two = (
        np.zeros(bits, np.uint8) if key is None or len(key) != bits else key for key in keys
    )
    public = np.unpackbits(np.frombuffer(TEST_KEY, np.uint8))
    closest = max((k == public).sum() for k in (one, two))
    of_test_key = [
        record.certified for record in _planned(DPSGD(), "rdp", "test")[0].privacy.values()
    ]
    return [
        check("keys of two sweeps of one spec", (one == two).sum(), low, high, f"equal bits of {bits}, binomial test"),
        check("key of a sweep and the test key", closest, low, high, f"equal bits of {bits}, binomial test"),
        check("others who can read a key", max(modes), 0, 0, "bits of the file's mode for group and others"),
        check("certified runs with the test key", sum(of_test_key), 0, 0, f"of {len(of_test_key)} records"),
        check("secret sweeps that take the test key", not refused, 0, 0, "1 if a sweep trains with it all the same"),
    ]  # fmt: skip


def _start(storage: Path) -> None:
    """Start a sweep: create its folder and its key."""
    facts = TaskFacts(
        num_examples=1, num_units=1, privacy_unit="example", content_hash="", num_tokens=1
    )
    SweepFolder.create(
        _spec(storage),
        lambda key: Plan(sweep_id="0" * 16, facts=facts, delta=1e-5, trials=(), privacy={}),
    )


def _is_refused(path: Path) -> bool:
    """Return whether a sweep with certified records refuses to continue with the public key."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "sweep.key").write_bytes(TEST_KEY)
    try:
        SweepFolder.open(path).key()
    except ValueError:
        return True
    return False


def _in_processes_alike(works: Sequence[Callable[[], None]]) -> None:
    """Run each function in a copy of this process: random number generators start alike."""
    for work in works:
        with warnings.catch_warnings():
            # About threads, which the copy does not need.
            warnings.simplefilter("ignore", DeprecationWarning)
            # A fork has the very same state of every generator. Spawning would seed them anew.
            child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        os.waitpid(child, 0)


def _worker_checks() -> list[Check]:
    """Compare a run's loss in a new worker with two others: after another run, by another key."""
    with tempfile.TemporaryDirectory() as folder:
        spec = _spec(
            Path(folder),
            privacy={"target_epsilon": TARGET_EPSILON, "accountant": "rdp", "noise_key": "test"},
        )
        task, weight_hash = build_task(spec)
        one, other = make_plan(spec, task.facts(), weight_hash).trials

        # A new runner each time, as in a new worker process.
        def loss(key: bytes, *trials: TrialPlan) -> float:
            runner = TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), key)
            for number, trial in enumerate(trials):
                files = SharedFolder(
                    folder=Path(folder) / f"{key.hex()}-{len(trials)}-{number}", run_id=trial.run_id
                )
                result = runner.run(trial, files, "attempt")
            assert result is not None, "there is one rank"
            return result.loss

        # The same run in a new worker, after another run, and under another key.
        alone = loss(TEST_KEY, one)
        after, other_key = (
            abs(found - alone) for found in (loss(TEST_KEY, other, one), loss(OTHER_KEY, one))
        )
    return [
        check(
            "a run after another one", after, 0, 0,
            "difference of the loss from the same run's in a worker that did nothing before, nats",
        ),
        check(
            "a run under another key", other_key, LEAST_CHANGE, math.inf,
            "difference of the loss from the same run's under the test key, nats",
        ),
    ]  # fmt: skip
