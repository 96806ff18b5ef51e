"""Products of 16-bit factors with 32-bit sums, on the matrix units of a GPU.

A product of two bf16 numbers is exact in fp32, and the sums are taken in fp32. So the results are those of the same
factors in fp32, up to the order of the sums, at the speed of bf16. A factor of an example cannot be multiplied into a
bf16 matrix without rounding: it is applied to the fp32 sums of the example.
"""

from __future__ import annotations

import logging
from functools import cache

import torch

try:
    from raydp.training.gradients.weighted_product import add_weighted_product
except ImportError:  # Triton comes with torch's builds for CUDA only
    add_weighted_product = None  # type: ignore[assignment]

NARROW = (torch.bfloat16, torch.float16)
CHAIN = 2048
"""Largest number of products that the matrix units add without rounding."""


def is_narrow(values: torch.Tensor) -> bool:
    """Return whether products of the values have 32-bit sums on the values' device."""
    return values.is_cuda and values.dtype in NARROW


def largest_error(width: int) -> float:
    """Return the largest relative error of a product of two inner products of this width, each made by `batched`.

    A GPU's matrix units add 16 products at a time to a 32-bit sum, and cut off what does not fit (Fasi et al. 2021,
    "Numerical behavior of NVIDIA tensor cores"). Unlike roundings, these errors do not cancel. Each addition can lose
    2^-21 of the sum, which on average is half of the whole, and there are two inner products.
    """
    return 2 * 2.0**-22 * max(1.0, min(width, CHAIN) / 16)


def batched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return [B, m, n] fp32 products of [B, m, k] and [B, k, n], both of one dtype.

    Narrow ones are made in pieces of k, whose results are added with rounding.
    """
    if not is_narrow(left):
        return torch.bmm(left, right)
    pieces = zip(left.split(CHAIN, dim=2), right.split(CHAIN, dim=1), strict=True)
    total: torch.Tensor | None = None
    for a, b in pieces:
        product = torch.bmm(a, b, out_dtype=torch.float32)
        total = product if total is None else total.add_(product)
    assert total is not None, "k is at least 1"
    return total


def add_weighted_sum(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor) -> None:
    """Add Σ_i weights_i · leftᵀ_i right_i of narrow [B, T, m] and [B, T, n] to an fp32 [m, n], in place.

    An example of weight 0 adds nothing, whatever its values: they may be infinite or not a number.
    """
    add = add_weighted_product if kernel_runs(left.device, left.dtype) else add_by_example
    add(into, left, right, weights)


@cache
def kernel_runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernel runs on a device: Triton must be installed, find a compiler, and its tile must fit."""
    if add_weighted_product is None:
        return False
    ones = torch.ones(1, 16, 16, dtype=dtype, device=device)
    try:
        add_weighted_product(torch.zeros(16, 16, device=device), ones, ones, torch.ones(1, device=device))
    except Exception as error:  # noqa: BLE001 - whatever keeps Triton from running, cuBLAS gives the same sums
        logging.getLogger(__name__).warning("sums of gradients are made without Triton, which takes longer: %s", error)
        return False
    return True


def add_by_example(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor) -> None:
    """Add the weighted sum, one product of cuBLAS for each example. It waits for the device once."""
    for a, b, weight in zip(left, right, weights.tolist(), strict=True):
        if weight == 0:
            continue
        torch.addmm(into, a.T, b, out_dtype=torch.float32, alpha=weight, out=into)
