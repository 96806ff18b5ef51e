"""Check that examples of a model and a task are independent (`raydp.training.probe`)."""

from __future__ import annotations

from raydp.selftest.check_result import Check, check
from raydp.selftest.subjects import Subject
from raydp.training import probe

DETAILS = {
    "later tokens": "relative change of earlier positions' logits when later tokens change",
    "plain call": "relative difference of a row's logits from those of a call with input_ids and attention_mask",
    "long rows": "relative difference of the losses of a row's tokens between itself alone and a wider batch",
    "rows of a batch": "share of some examples whose tokens or targets are others in a batch of the task",
    "losses in a batch": "largest relative difference of an example's loss between itself alone and in a padded batch",
    "gradients in a batch": "largest relative difference of an example's gradient between itself alone and in a batch",
    "clipped gradients": "relative difference of the gradients that are clipped from those of autograd",
}


def independence_checks(subject: Subject) -> list[Check]:
    """Return the figures that `raydp plan` and every worker look at, for a subject."""
    figures = probe.figures(subject.context, subject.task, clipped=True)
    return [
        check(f"{f.name} ({subject.name})", f.difference, 0, f.rounding, DETAILS[f.name])
        for f in figures
    ]
