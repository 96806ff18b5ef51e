"""Adam without the variance of the noise in its second moment."""

from __future__ import annotations

import torch


class NoiseCorrectedAdam(torch.optim.Optimizer):
    """Adam on noisy gradients, with the noise taken out of the second moment, and weight decay.

    The weight decay is decoupled (AdamW).

    With m and v as in Adam, corrected for their start at 0, the update is -lr m / sqrt(max(v -
    noise_variance, least)).

    Args:
        lr, betas: as torch.optim.AdamW has them.
        decay: λ of the decoupled weight decay.
        noise_variance: variance of the noise on each coordinate of the gradient.
        least: the least second moment that is divided by.

    Source: Tang, Shpilevskiy and Lécuyer 2024, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)", Algorithm 1, where least is γ'.
    """

    def __init__(
        self,
        parameters: list[torch.Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        decay: float,
        noise_variance: float,
        least: float,
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self._betas, self._decay, self._noise_variance, self._least = (
            betas,
            decay,
            noise_variance,
            least,
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights."""
        first, second = self._betas
        for group in self.param_groups:
            rate = group["lr"]
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                # The state has torch's names, so that checkpoints of both optimizers have one form.
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = (
                        torch.zeros_like(parameter),
                        torch.zeros_like(parameter),
                    )
                state["step"] += 1
                count, mean, square = float(state["step"]), state["exp_avg"], state["exp_avg_sq"]
                # The moments, as in Adam.
                mean.mul_(first).add_(gradient, alpha=1 - first)
                square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
                # The noise adds its variance to the second moment in expectation. The difference
                # may be negative, so it has a floor γ'.
                corrected = (
                    (square / (1 - second**count))
                    .sub_(self._noise_variance)
                    .clamp_(min=self._least)
                )
                # Decoupled from the gradient: weight decay reads only weights that are released
                # anyway.
                if self._decay:
                    parameter.mul_(1 - rate * self._decay)
                parameter.addcdiv_(mean, corrected.sqrt_(), value=-rate / (1 - first**count))
