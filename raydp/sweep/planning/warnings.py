"""Warnings of a plan: what makes a sweep's guarantee, utility or scores say little."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from raydp.models.precision import warning_of
from raydp.privacy import Caution, PrivacyRecord, cautions_of, cautions_together, composed, stated
from raydp.privacy.records.cautions import cautions_of_few
from raydp.spec.document import SweepSpec
from raydp.system.cache import cache_dir
from raydp.tasks.secret import NEVER_TRAINED_ON
from raydp.tasks.task import TaskFacts
from raydp.training.trial_plan import TrialPlan

FEW_HELD_OUT = 100
"""Fewest held-out examples without a warning.

The mean loss of m examples has a standard error of s/√m. Losses of texts have an s of about 0.5
nats, so that 100 leave 0.05 nats, a tenth of a usual gain of half a nat.
"""
MOST_CUT = 0.2
"""Largest share of examples that lose their end without a warning."""
LARGEST_ADAM_RATE = 0.1
"""Largest η of Adam without a warning.

A step of Adam moves each weight by about η (Kingma and Ba 2015, section 2.1), and the weights of
adapters are of this size or smaller.
"""
LARGEST_SGD_MOVE = 10.0
"""Largest η c of DP-SGD without a warning.

η c is the distance that a step moves the weights if all clipped gradients agree. De et al. 2022,
Table 17, train with η c up to 4.
"""
NAMED = 5
"""The largest number of lines of a secrets file that a warning names."""


def warnings_of(
    spec: SweepSpec,
    own: Sequence[SweepSpec],
    facts: TaskFacts,
    privacy: Iterable[PrivacyRecord],
    rates: Iterable[float],
) -> list[Caution]:
    """Return the warnings of a sweep.

    Args:
        spec: the sweep's spec.
        own: the specs of its runs.
        facts: facts of the task.
        privacy: records of the runs.
        rates: learning rates of the runs.
    """
    return [
        *_of_guarantee(spec, facts, privacy),
        *_of_utility(facts),
        *_of_secrets(facts),
        *_of_rates(spec, rates),
        *_of_cost(spec, own),
    ]


def joint_warnings(trials: Sequence[TrialPlan], privacy: Sequence[PrivacyRecord]) -> list[Caution]:
    """Return the warnings about all models together.

    Their ε by `rdp` takes up to 0.04 s for each distinct run, and is kept in the cache. It is at
    least that of the end of the sweep, whose accountant may be tighter.
    """
    events = [record.mechanism.event for record in privacy]
    # One model has no joint cost, and an ε of the whole choice covers it already.
    if len(trials) < 2 or any(math.isinf(r.accounted.epsilon) or r.choice for r in privacy):
        return []
    together = composed(
        events, privacy[0].accounted.delta, "rdp", cache_dir=cache_dir() / "guarantee"
    )["epsilon"]
    return cautions_together(together, len(trials), "rdp", planned=True)


def _of_guarantee(
    spec: SweepSpec, facts: TaskFacts, privacy: Iterable[PrivacyRecord]
) -> list[Caution]:
    accounted = [record.accounted for record in privacy]
    found, each = [], [cautions_of(epsilon=a.epsilon, delta=a.delta) for a in accounted]
    # Runs of one configuration have equal cautions, which are said once.
    found += list(dict.fromkeys(caution for cautions in each for caution in cautions))
    private = spec.method.params.private
    delta, n = spec.privacy.delta(facts.num_units), facts.num_units
    if private:
        found += cautions_of_few(n, facts.num_examples)
    # With a given σ, a lower score may come from a lower ε.
    lowest, highest = (extreme(a.epsilon for a in accounted) for extreme in (min, max))
    if spec.privacy.noise_multiplier is not None and lowest < highest:
        found.append(
            Caution(
                rule="privacy: configurations should share one epsilon to be compared by their scores",
                value=f"{lowest:.4g} to {stated(highest)}, by a given noise_multiplier",
                remedy="Use target_epsilon, or bound ε by select.at_most.",
            )
        )
    # Publishing one record in the clear satisfies every δ >= 1/n, so such a δ promises nothing.
    if delta >= 1 / n:
        found.append(
            Caution(
                rule=f"privacy: delta should be below 1/n = {1 / n:.3g}, because a mechanism that publishes one whole "
                "record could satisfy a larger one",
                value=f"{delta:.3g}",
                remedy="Use delta_exponent 1.1 or a smaller target_delta.",
            )
        )
    # The test key is public: whoever knows it can subtract the noise.
    if spec.privacy.noise_key == "test":
        found.append(
            Caution(
                rule="privacy.noise_key should be secret, because other noise is reproducible and not certified",
                value="'test'",
                remedy="Leave it out for models that are used.",
            )
        )
    return found


def _of_utility(facts: TaskFacts) -> list[Caution]:
    """Warn if few held-out examples carry the utility, or if many examples lose their end."""
    notes, found = facts.notes, []
    # Some tasks count the examples that are longer than task.max_length.
    cut = notes.get("truncated", 0)
    if isinstance(cut, int) and cut > MOST_CUT * facts.num_examples:
        found.append(
            Caution(
                rule="task.max_length should hold most examples whole, because what follows is not trained on",
                value=f"{cut} of {facts.num_examples} that are longer",
                remedy="Raise it, with a model that has so many positions.",
            )
        )
    # Tasks name this number differently.
    held = next(
        (notes[name] for name in ("num_heldout_examples", "heldout_examples") if name in notes),
        None,
    )
    if not isinstance(held, int) or held >= FEW_HELD_OUT:
        return found
    removed = notes.get("heldout_with_secret_removed", 0)
    more = f" ({removed} others held a secret and were left out)" if removed else ""
    return [
        *found,
        Caution(
            rule=f"task: held-out examples should be at least {FEW_HELD_OUT}, because they decide what may be selected",
            value=f"{held}{more}",
            remedy="Raise task.heldout_fraction, or give task.heldout_path.",
        ),
    ]


def _of_secrets(facts: TaskFacts) -> list[Caution]:
    """Warn of secrets that no training example holds, by their lines and by the reason."""
    found = []
    for name, (reason, remedy) in NEVER_TRAINED_ON.items():
        if lines := [
            secret.removeprefix("secret-").lstrip("0") for secret in facts.notes.get(name, ())
        ]:
            shown = ", ".join(lines[:NAMED]) + (", ..." if len(lines) > NAMED else "")
            value = f"{len(lines)} {reason} (line{'s' if len(lines) > 1 else ''} {shown})"
            found.append(
                Caution(
                    rule="task.secrets should occur in what is trained on, because no other text leaks by training",
                    value=value,
                    remedy=remedy,
                )
            )
    return found


def _of_rates(spec: SweepSpec, rates: Iterable[float]) -> list[Caution]:
    optimizer, norm = spec.method.params.traits.optimizer, spec.method.params.max_grad_norm
    # SGD bounds a step by η and the clipping norm together.
    if optimizer is None or (optimizer == "sgd" and norm is None):
        return []
    largest, what = (
        (LARGEST_ADAM_RATE, "Adam")
        if optimizer == "adam"
        else (LARGEST_SGD_MOVE / norm, f"a clipping norm of {norm:g}")
    )
    beyond = sorted({rate for rate in rates if rate > largest})
    if not beyond:
        return []
    return [
        Caution(
            rule=f"space.learning_rate should be at most {largest:g} with {what}, above which training diverges",
            value=", ".join(f"{rate:g}" for rate in beyond),
            remedy="Leave it out, or try one run of it first.",
        )
    ]


def _of_cost(spec: SweepSpec, own: Sequence[SweepSpec]) -> list[Caution]:
    here = spec.cluster.address == "local" and not spec.cluster.gpus_per_worker
    slow = (
        [warning_of(dtype) for dtype in sorted({each.model.dtype for each in own})] if here else []
    )
    found = [caution for caution in slow if caution is not None]
    if (further := spec.method.params.further_cost) is not None:
        found.append(
            Caution(
                rule=f"space: compute and cost_tokens should be all that method {spec.method.name} costs",
                value=f"more, because {further}",
                remedy="They count the (b, T) of the configuration alone.",
            )
        )
    return found
