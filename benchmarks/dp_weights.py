"""What DP-Weights (Zagardo 2024) claims, what audits find, and what its own two checks do not
prove.

    OMP_NUM_THREADS=1 python benchmarks/dp_weights.py --output dp_weights.json [--z3]

1. White-box audit: two neighbours' training, the method's own noise, and the ε of the pair of
   distributions that comes out: exactly, and as a lower bound from draws (Clopper-Pearson).
2. One-run audit of the method on the embedded language model: the score and the bound of
   `raydp audit`.
3. The violation-rate simulation of its section 3.5 and the Z3 check of its section 3.6. With --z3
   (pip install z3-solver) the solver is asked as well; its answers follow from one point each,
   which is given here.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import logsumexp

from raydp.analysis.tables.statements import Statement
from raydp.extensions.auditing.audits import audit_spec
from raydp.extensions.auditing.source import AuditSubject
from raydp.extensions.dp_weights.formulas import claimed_noise_std, claimed_sensitivity
from raydp.extensions.dp_weights.method import DPWeights
from raydp.models import base_models as models
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store.transfer import SharedFolder
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY, KeyedStream
from raydp.training.trial_plan import TrialPlan

FORMULAS = ("equation_3", "algorithm_2")
EPSILONS = (0.1, 1.0, 8.0)
SETTINGS = {
    "paper": {"num_examples": 1000, "batch_size": 10, "num_steps": 1000, "learning_rate": 5e-5},
    "digits": {"num_examples": 1438, "batch_size": 128, "num_steps": 100, "learning_rate": 0.5},
    "digits, fast": {
        "num_examples": 1438,
        "batch_size": 128,
        "num_steps": 100,
        "learning_rate": 2.0,
    },
}
"""The paper's section 5 (N, η, C = 1, 10 epochs); docs/specs/mechanisms/dp_weights.yaml."""
CLIP, FLAT = 1.0, 1e-9
DRAWS, CONFIDENCE = 2_000_000, 0.95
WAITING = "others wait for it"


class PairTask(LinearTask):
    """Records on one weight w; the first one's loss falls everywhere, the others' is flat up to
    FLAT and falls behind.

    Args:
        canary: whether the first record is there.
        others: whether the others' losses fall at all.
    """

    def __init__(self, num_examples: int, *, canary: bool, others: bool) -> None:
        super().__init__(torch.ones(num_examples, 1), torch.ones(num_examples, 1))
        self._canary, self._others = canary, others

    def per_example_loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        weight = model[0](torch.ones(len(batch.input_ids), 1))[:, 0]
        first = (batch.input_ids[:, 0] == 0).float()
        return (
            -3
            * CLIP
            * (first * self._canary * weight + (1 - first) * self._others * (weight - FLAT).relu())
        )


def plan_of(setting: dict[str, Any], run: int, epsilon: float, delta: float) -> TrialPlan:
    return TrialPlan(
        run_id=f"audit/{run}",
        seed=0,
        noise_multiplier=0.0,
        stated=Statement(level="claimed", epsilon=epsilon),
        delta=delta,
        **setting,
    )


def trained_shift(setting: dict[str, Any], run: int, others: bool) -> float:
    """How far the record moves the weight, by two trainings of the method on the same batches,
    noise and all."""
    ends = []
    for canary in (False, True):
        context = linear_training_context(1, 1, 1)
        task = PairTask(setting["num_examples"], canary=canary, others=others)
        DPWeights(max_grad_norm=CLIP).train(
            plan_of(setting, run, 1.0, 1e-6), context, task, LocalComm(), TEST_KEY, None
        )
        ends.append(next(iter(context.parameters.values())).item())
    return ends[1] - ends[0]


def drawn_shifts(setting: dict[str, Any], runs: int, others: bool) -> NDArray[np.float64]:
    """[runs] the same without training, for other batches: ηC/B for each time that the record is
    drawn, and for each other one that is drawn after it where they wait for it."""
    n, b, t = (setting[k] for k in ("num_examples", "batch_size", "num_steps"))
    rng = np.random.default_rng(0)
    canary, sizes = rng.random((runs, t)) < b / n, rng.binomial(n - 1, b / n, (runs, t))
    begun = np.cumsum(canary, axis=1) - canary > 0
    return setting["learning_rate"] * CLIP / b * (canary + others * begun * sizes).sum(axis=1)


def divergence(shifts: NDArray[np.float64], std: float, epsilon: float) -> float:
    """The smallest δ at ε of N(0, std²) against the mixture of N(s, std²) over the shifts s >= 0,
    in both directions: the likelihood ratio rises, so the worst sets are half-lines."""
    s = shifts / std

    def log_ratio(y: float) -> float:
        return float(logsumexp(y * s - s * s / 2) - math.log(len(s)))

    def at(level: float) -> float:
        low, high = -1.0, 1.0
        while log_ratio(low) > level and low > -1e6:
            low *= 2
        while log_ratio(high) < level and high < 1e6:
            high *= 2
        return (
            brentq(lambda y: log_ratio(y) - level, low, high)
            if log_ratio(low) < level < log_ratio(high)
            else low
        )

    up, down = at(epsilon), at(-epsilon)
    with_it = stats.norm.sf(up - s).mean() - math.exp(epsilon) * stats.norm.sf(up)
    without = stats.norm.cdf(down) - math.exp(epsilon) * stats.norm.cdf(down - s).mean()
    return float(max(with_it, without, 0.0))


def epsilon_of(shifts: NDArray[np.float64], std: float, delta: float) -> float:
    """The smallest ε at which the pair is within δ; 700 stands for more."""
    if divergence(shifts, std, 0.0) <= delta:
        return 0.0
    high = 1.0
    while high < 700 and divergence(shifts, std, high) > delta:
        high = min(2 * high, 700.0)
    return (
        high
        if high >= 700
        else brentq(lambda e: divergence(shifts, std, e) - delta, 0.0, high, xtol=1e-6)
    )


def found_epsilon(
    setting: dict[str, Any], formula: Any, epsilon: float, delta: float, shifts: Any
) -> float:
    """A lower bound at 95 % from draws of the method's own noise: ln((TPR - δ) / FPR) at the
    Clopper-Pearson bounds of both rates. Half of the draws choose the threshold, the other half are
    counted."""
    method = DPWeights(max_grad_norm=CLIP, formula=formula)
    context = linear_training_context(
        DRAWS, 1, 1
    )  # a draw for each weight: the method's noise on them is independent
    weights = next(iter(context.parameters.values()))
    seen = np.zeros((2, DRAWS))
    for canary in (0, 1):
        plan = plan_of(setting, canary, epsilon, delta)
        start = {"0.weight": torch.from_numpy(np.resize(shifts, (1, DRAWS))) * canary}
        method._put(plan, context, start, KeyedStream(key=TEST_KEY, run_id=plan.run_id), epsilon)
        seen[canary] = weights.detach().numpy()[0]
    half = DRAWS // 2

    def bound(threshold: float, part: slice, level: float) -> float:
        false, true = ((seen[c, part] > threshold).sum() for c in (0, 1))
        fpr = stats.beta.isf(level, false + 1, half - false) if false < half else 1.0
        tpr = stats.beta.ppf(level, true, half - true + 1) if true else 0.0
        return math.log((tpr - delta) / fpr) if tpr > delta else 0.0

    first, second, level = slice(half), slice(half, None), (1 - CONFIDENCE) / 2
    best = max(
        np.quantile(seen, np.linspace(0.01, 0.9999, 200)),
        key=lambda x: bound(float(x), first, level),
    )
    return max(0.0, bound(float(best), second, level))


def white_box(say: Callable[[dict[str, Any]], None]) -> None:
    for name, setting in SETTINGS.items():
        delta = setting["num_examples"] ** -2.0
        for others in (False, True):
            shifts = drawn_shifts(setting, 2000, others)
            by_training = [trained_shift(setting, run, others) for run in range(3)]
            claimed = claimed_sensitivity(max_grad_norm=CLIP, **setting)
            for formula in FORMULAS:
                for epsilon in EPSILONS:
                    std = claimed_noise_std(
                        formula, epsilon=epsilon, delta=delta, sensitivity=claimed
                    )
                    say({
                        "setting": name, "record": WAITING if others else "linear losses", "formula": formula,
                        "claimed": epsilon, "delta": delta, "noise_std": std, "claimed_shift": claimed,
                        "mean_shift": float(shifts.mean()), "trained_shifts": by_training,
                        "exact": epsilon_of(shifts, std, delta),
                        "found": found_epsilon(setting, formula, epsilon, delta, shifts),
                    })  # fmt: skip


def one_run(say: Callable[[dict[str, Any]], None]) -> None:
    """The audit of `raydp audit`, in this process: 500 canaries among 2,000 mails."""
    for formula in FORMULAS:
        for steps, rate in ((16, 1.0), (16, 4.0)):
            spec = load_spec({
                "name": "claimed", "task": {"name": "builtin", "num_examples": 2000, "num_heldout": 50},
                "model": {"name": "tiny", "adapter": {"type": "none"}},
                "method": {"name": "dp_weights", "max_grad_norm": 1.0, "formula": formula},
                "privacy": {"target_epsilon": 1, "target_delta": 1e-5, "accountant": "rdp", "noise_key": "test"},
                "space": {"points": [[256, steps, rate]]}, "scores": [{"name": "vmr_exact"}],
                "select": {"score": "vmr_exact"},
            })  # fmt: skip
            audit = audit_spec(
                AuditSubject(spec=spec),
                name="audit",
                coins=3,
                num_canaries=500,
                confidence=0.95,
                seeds=(0,),
            )
            task, weight_hash = build_task(audit)
            base = models.load_base(audit.model, new_tokens=task.facts().num_new_tokens)
            (trial,) = make_plan(audit, task.facts(), weight_hash).trials
            with tempfile.TemporaryDirectory() as folder:
                files = SharedFolder(folder=Path(folder), run_id=trial.run_id)
                result = TrialRunner(audit, task, base, LocalComm(), TEST_KEY).run(
                    trial, files, "a"
                )
            found = result.scores["one_run_audit"]
            say({
                "formula": formula, "claimed": 1, "batch_size": 256, "num_steps": steps, "learning_rate": rate,
                "noise_std": audit.method.params.noise_std(trial, 1.0), "utility_loss": result.loss,
                "epsilon_hat": found.value, **found.details, "seconds": result.train_seconds,
            })  # fmt: skip


def violation_rates(say: Callable[[dict[str, Any]], None]) -> None:
    """Algorithm 1 of the paper, at the shift that it takes and at those that training reaches."""
    rng, setting = np.random.default_rng(0), SETTINGS["paper"]
    noise = rng.standard_normal(100_000)
    claimed, delta = claimed_sensitivity(max_grad_norm=CLIP, **setting), 1e-6
    reached = {
        "as claimed": claimed,
        "linear losses": claimed * setting["num_examples"],
        WAITING: float(drawn_shifts(setting, 2000, True).max()),
    }
    for formula in FORMULAS:
        for epsilon in EPSILONS:
            std = claimed_noise_std(formula, epsilon=epsilon, delta=delta, sensitivity=claimed)
            rates = {}
            for name, shift in reached.items():
                y = std * noise
                loss = np.abs((y - shift) ** 2 - y**2) / (2 * std**2)
                rates[name] = float((loss > epsilon).mean())
            divided = 1.0
            while (
                np.abs(claimed / (std / divided) * noise - (claimed * divided / std) ** 2 / 2)
                <= epsilon
            ).all():
                divided *= 2
            say(
                {
                    "formula": formula,
                    "claimed": epsilon,
                    "violation_rates": rates,
                    "passes_with_noise_over": divided / 2,
                }
            )


@dataclass(frozen=True, kw_only=True)
class Z3Check:
    """Algorithm 2 of the paper: Implies(w' = w + Δ and x = noisy_w, pdf_w <= exp(ε) pdf_w' + δ),
    asked whether it can be satisfied; exp by 10 terms of its Taylor series."""

    epsilon: float
    delta: float
    std: float
    shift: float

    def holds(self, w: Any, w2: Any, x: Any) -> Any:
        pdf, other = (
            taylor(-((x - v) * (x - v)) / (2 * self.std**2)) / (math.sqrt(2 * math.pi) * self.std)
            for v in (w, w2)
        )
        return pdf <= taylor(self.epsilon) * other + self.delta

    def by_points(self) -> dict[str, Any]:
        """One point that satisfies what was asked, and one that violates what should have been
        asked."""
        far = 20 * self.std
        return {
            "satisfied_by": "w = w' = 0: the premise w' = w + Δ is false, so the implication is true",
            "violated": not self.holds(0.0, self.shift, far),
            "violated_by": f"w = 0, w' = Δ, x = {far:.3g}, where the series is {taylor(-200.0):.3g} and not e^-200",
        }

    def by_z3(self) -> dict[str, str]:
        import z3

        w, w2, noisy, x = z3.Reals("w w2 noisy_w x")
        claim = z3.Implies(z3.And(w2 == w + self.shift, x == noisy), self.holds(w, w2, x))
        asked, should = z3.Solver(), z3.Solver()
        asked.add(claim)
        should.add(z3.Not(claim), w == 0, x == 20 * self.std)
        return {"z3_as_asked": str(asked.check()), "z3_of_a_violation": str(should.check())}


def taylor(x: Any) -> Any:
    result, power = 1, 1
    for i in range(1, 10):
        power = power * x
        result = result + power / math.factorial(i)
    return result


def z3_check(say: Callable[[dict[str, Any]], None], with_z3: bool) -> None:
    setting = SETTINGS["paper"]
    claimed = claimed_sensitivity(max_grad_norm=CLIP, **setting)
    std = claimed_noise_std("algorithm_2", epsilon=1.0, delta=1e-5, sensitivity=claimed)
    as_claimed = Z3Check(epsilon=1.0, delta=1e-5, std=std, shift=claimed)
    for check in (as_claimed, replace(as_claimed, std=std / 1e6, shift=1.0)):
        rest = check.by_z3() if with_z3 else {}
        say({"noise_std": check.std, "shift": check.shift, **check.by_points(), **rest})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--z3", action="store_true")
    parser.add_argument("--only", choices=["white_box", "one_run", "violation_rates", "z3_check"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = {}
    parts: dict[str, Callable[[Any], None]] = {
        "white_box": white_box, "violation_rates": violation_rates,
        "z3_check": lambda say: z3_check(say, args.z3), "one_run": one_run,
    }  # fmt: skip
    started = time.perf_counter()
    for name, part in parts.items():
        if args.only in (None, name):
            rows = found.setdefault(name, [])

            def say(
                row: dict[str, Any], name: str = name, rows: list[dict[str, Any]] = rows
            ) -> None:
                rows.append(row)
                print(
                    name,
                    " ".join(
                        f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                        for k, v in row.items()
                    ),
                    flush=True,
                )

            part(say)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.processor(),
        "torch": torch.__version__,
    }
    print(f"{time.perf_counter() - started:.0f} s")
    if args.output:
        args.output.write_text(
            json.dumps({**found, **about, "settings": SETTINGS}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
