"""Check PATE's votes and the noise on them against what is accounted."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from raydp.extensions.classification.checks import table_rows
from raydp.extensions.classification.labelled import (
    ClassificationTask,
    LabelledExamples,
    classification_task,
)
from raydp.extensions.classification.networks import NetworkName
from raydp.extensions.pate.method import PATE
from raydp.extensions.pate.teachers import Teaching, collect_votes, teacher_of
from raydp.methods.method import Method
from raydp.privacy import PoissonGaussian
from raydp.selftest.check_result import Check, check
from raydp.selftest.checks.divisions import moved_rows
from raydp.selftest.observe import OTHER_KEY
from raydp.selftest.ranks import on_ranks
from raydp.training.comm import Comm, LocalComm
from raydp.training.noise.stream import TEST_KEY, KeyedStream
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

NUM_EXAMPLES, NUM_QUERIES, NUM_CLASSES, WIDTH = 20, 40, 4, 6
TEACHING = Teaching(num_teachers=4, num_steps=6, batch_size=None, learning_rate=0.3)
DRAWS, RANKS, SIGMA, LEVEL = 120_000, 2, 1.5, 1e-6
"""With this number of draws, noise that is 5 % too small is detected at this level."""
PLAN = TrialPlan(
    run_id="selftest/votes",
    batch_size=1,
    num_steps=1,
    learning_rate=0.1,
    seed=0,
    num_examples=NUM_EXAMPLES,
    noise_multiplier=SIGMA,
)


def vote_checks(method: PATE) -> list[Check]:
    """Check the teachers of a small task, and the method's own noise.

    The teachers memorise random classes.

    1. Leaving out any one example moves the counts of a query by at most sqrt(2) and the largest
       count by at most 1. Some query's counts move by sqrt(2).
    2. Of two classes, the one with fewer votes wins as often as noise of the accounted size
       implies. The largest count passes the threshold as often as accounted noise implies. Under
       two keys the noise is independent.
    3. Whether a query is answered says nothing about the noise on the counts, because both are
       accounted as independent.
    """
    task = _task()
    # Retrain without each example in turn.
    whole = _votes(task, LocalComm())
    less = [
        _votes(task.subset(np.delete(np.arange(NUM_EXAMPLES), i)), LocalComm())
        for i in range(NUM_EXAMPLES)
    ]
    # One record changes one teacher's vote: two counts by 1 each, so √2 in all, and the largest
    # count by at most 1.
    apart = max(float(np.linalg.norm(whole - votes, axis=1).max()) for votes in less)
    largest = max(int(np.abs(whole.max(axis=1) - votes.max(axis=1)).max()) for votes in less)
    # The votes must not depend on the number of workers.
    shared = on_ranks(RANKS, lambda comm: _votes(task, comm))
    teachers = teacher_of(
        task.train, TEACHING.num_teachers, KeyedStream(key=TEST_KEY, run_id=PLAN.run_id)
    )
    return [
        check(
            "one record (votes)",
            apart,
            0.99 * math.sqrt(2),
            math.sqrt(2) + 1e-9,
            "largest distance of the counts",
        ),
        check(
            "one record (largest count)", largest, 0, 1, "largest change of a query's largest count"
        ),
        check(
            "teachers with an example",
            len(set(teachers.tolist())),
            2,
            TEACHING.num_teachers,
            "of four",
        ),
        check(
            f"votes of {RANKS} workers are the same",
            max(np.abs(votes - whole).max() for votes in shared),
            0,
            0,
            "largest difference from those of one worker",
        ),
        *_noise_checks(method),
    ]


def _noise_checks(method: PATE) -> list[Check]:
    """Check the noise with votes that noise reverses in about a quarter of the cases."""
    asked = method.model_copy(update={"num_queries": DRAWS})
    sigma = asked.answer_noise(SIGMA)
    # A gap of about one σ: the noise turns over a quarter of the answers.
    gap = max(1, round(sigma))
    votes = np.tile([2 * gap, gap], (DRAWS, 1))
    (answers, _), (others, _) = (asked.released(PLAN, votes, key) for key in (TEST_KEY, OTHER_KEY))
    # The difference of two noisy counts has noise of std √2 σ.
    turned = stats.norm.cdf(-gap / (math.sqrt(2) * sigma))
    # Gaussian mechanisms add up by (sensitivity / σ)²: the counts have sensitivity √2, the largest
    # count 1.
    cost = DRAWS * (
        2 / sigma**2
        + (0 if asked.threshold_noise is None else 1 / (asked.threshold_noise * sigma) ** 2)
    )
    event = asked.event(PLAN, SIGMA)
    assert isinstance(event, PoissonGaussian), "PATE is private"
    multiplier = event.noise_multiplier
    checks = [
        check(
            "noise of all answers",
            cost**-0.5 / multiplier,
            1 - 1e-9,
            math.inf,
            "1 / sqrt(Q (2/σ2² + 1/σ1²)) over the accounted noise multiplier",
        ),
        _share("noise on the counts", answers.mean(), turned, "answers that noise turned over"),
        _share(
            "noise of two keys (votes)",
            (answers == others).mean(),
            turned**2 + (1 - turned) ** 2,
            "answers that are equal under both",
        ),
    ]
    if asked.threshold is not None and asked.threshold_noise is not None:
        # A count one σ1 below the threshold, which noise lifts over it now and then.
        sigma1 = asked.threshold_noise * sigma
        count = max(0, round(asked.threshold - sigma1))
        answers, answered = asked.released(PLAN, np.full((DRAWS, NUM_CLASSES), count), TEST_KEY)
        passes = stats.norm.sf((asked.threshold - count) / sigma1)
        checks.append(
            _share(
                "noise of the threshold's check", answered.mean(), passes, "queries with an answer"
            )
        )
        checks.append(_independence(answers, answered, passes))
    return checks


def _independence(answers: NDArray[np.int64], answered: NDArray[np.bool_], passes: float) -> Check:
    """Check the correlation of the threshold's noise with the noise on the counts.

    All counts are equal.

    An answer shows the largest noise of its query. The i-th noise of the threshold is compared with
    the noise on each count of the i-th query, and with the i-th noise of all counts in a row.
    """
    queries, classes = np.divmod(np.arange(DRAWS), NUM_CLASSES)
    # Both pairings that a shared stream could mix up.
    largest = [*(answers == c for c in range(NUM_CLASSES)), answers[queries] == classes]
    std = math.sqrt(passes * (1 - passes))
    share = 1 / NUM_CLASSES
    products = [
        float(
            np.mean((answered - passes) / std * (chosen - share) / math.sqrt(share * (1 - share)))
        )
        for chosen in largest
    ]
    bound = stats.norm.isf(LEVEL / 2 / len(products)) / math.sqrt(DRAWS)
    return check(
        "noise of the threshold's check and on the counts",
        max(products, key=abs),
        -bound,
        bound,
        f"largest of {len(products)} correlations of {DRAWS} queries with an answer and classes "
        "that win",
    )


def _share(name: str, figure: float, expected: float, detail: str) -> Check:
    low, high = stats.binom.ppf([LEVEL / 2, 1 - LEVEL / 2], DRAWS, expected) / DRAWS
    return check(name, figure, low, high, f"share of {DRAWS} {detail}, binomial test")


def _task() -> ClassificationTask:
    rng = np.random.default_rng(0)
    train, queries = (
        LabelledExamples(
            inputs=rng.normal(size=(count, WIDTH)).astype(np.float32),
            labels=rng.integers(0, NUM_CLASSES, count),
        )
        for count in (NUM_EXAMPLES, NUM_QUERIES)
    )
    return classification_task(
        train,
        queries,
        num_classes=NUM_CLASSES,
        unit="example",
        measured_by="error_rate",
        notes={},
        utility_is_public=False,
    )


def _votes(task: ClassificationTask, comm: Comm) -> NDArray[np.int64]:
    """Collect the teachers' votes on the held-out examples, shape [query, class]."""
    model = NetworkName(
        architecture="linear", input_shape=task.input_shape, num_classes=task.num_classes
    ).build()
    context = TrainingContext(model=model, parameters=dict(sorted(model.named_parameters())))
    return collect_votes(PLAN, TEACHING, context, task, task.heldout, comm, TEST_KEY, None)


class VoteChecks:
    """Checks of PATE, whose noise is on the votes of its teachers."""

    title = "votes of teachers"

    def measure(self, method: Method) -> bool:
        """Return whether the method is PATE."""
        return isinstance(method, PATE)

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Check the method, or PATE with a threshold, and the split of the task `with_public`."""
        own = method if isinstance(method, PATE) else PATE(threshold=30.0, threshold_noise=1.5)
        return [*vote_checks(own), public_check()]


def public_check() -> Check:
    """Check that a row more keeps other rows in the training, the held-out or the public data."""
    return moved_rows(
        "with_public", lambda folder, rows: {"name": "with_public", "of": table_rows(folder, rows)}
    )


CHECKS = VoteChecks()
