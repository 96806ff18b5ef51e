"""Products of 16-bit factors with 32-bit sums, on the matrix units of a GPU.

A product of two bf16 numbers is exact in fp32, and the sums are taken in fp32. So the results are those of the same
factors in fp32, up to the order of the sums, at the speed of bf16. A factor of an example cannot be multiplied into a
bf16 matrix without rounding: it is applied to the fp32 sums of the example.
"""

from __future__ import annotations

import torch

try:
    from raydp.training.gradients.weighted_product import add_weighted_product
except ImportError:  # Triton comes with torch's builds for CUDA only
    add_weighted_product = None  # type: ignore[assignment]

NARROW = (torch.bfloat16, torch.float16)


def is_narrow(values: torch.Tensor) -> bool:
    """Return whether products of the values have 32-bit sums on the values' device."""
    return values.is_cuda and values.dtype in NARROW


def largest_error(width: int) -> float:
    """Return the largest relative error of a product of two inner products of positive sums of this width.

    A GPU's matrix units add a few products at a time to a 32-bit sum, and cut off what does not fit (Fasi et al. 2021,
    "Numerical behavior of NVIDIA tensor cores"). Unlike roundings, these errors do not cancel: each of width / 16
    additions can lose 2^-22 of the sum, and there are two inner products.
    """
    return 2 * 2.0**-22 * max(1.0, width / 16)


def batched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return [B, m, n] fp32 products of [B, m, k] and [B, k, n], both of one dtype."""
    if is_narrow(left):
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left, right)


def add_weighted_sum(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor) -> None:
    """Add Σ_i weights_i · leftᵀ_i right_i of narrow [B, T, m] and [B, T, n] to an fp32 [m, n], in place.

    An example of weight 0 adds nothing, whatever its values: they may be infinite or not a number.
    """
    add = add_by_example if add_weighted_product is None else add_weighted_product
    add(into, left, right, weights)


def add_by_example(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor) -> None:
    """Add the weighted sum, one product of cuBLAS for each example. It waits for the device once."""
    for a, b, weight in zip(left, right, weights.tolist(), strict=True):
        if weight == 0:
            continue
        torch.addmm(into, a.T, b, out_dtype=torch.float32, alpha=weight, out=into)
