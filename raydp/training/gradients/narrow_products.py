"""Products of 16-bit factors with 32-bit sums, on the matrix units of a GPU.

A product of two bf16 numbers is exact in fp32, and the sums are taken in fp32. So the results are
those of the same factors in fp32, up to the order of the sums, at the speed of bf16. A factor of an
example cannot be multiplied into a bf16 matrix without rounding: it is applied to the fp32 sums of
the example.
"""

from __future__ import annotations

import logging
from functools import cache

import torch

try:
    from raydp.training.gradients.kernels import add_up_terms, add_weighted_product
except ImportError:  # Triton comes with torch's builds for CUDA only
    add_weighted_product = add_up_terms = None  # type: ignore[assignment]

NARROW = (torch.bfloat16, torch.float16)
CHAIN = 2048
"""Largest number of products that the matrix units add without rounding."""


def is_narrow(values: torch.Tensor) -> bool:
    """Return whether products of the values have 32-bit sums on the values' device."""
    return values.is_cuda and values.dtype in NARROW


def largest_error(width: int) -> float:
    """Return the largest relative error of a product of two inner products by `batched`.

    Both inner products have this width.

    A GPU's matrix units add 16 products at a time to a 32-bit sum, and cut off what does not fit
    (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"). Unlike roundings, these errors
    do not cancel. Each addition can lose 2^-21 of the sum, which on average is half of the whole,
    and there are two inner products.
    """
    return 2 * 2.0**-22 * max(1.0, min(width, CHAIN) / 16)


def batched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return [B, m, n] fp32 products of [B, m, k] and [B, k, n], both of one dtype.

    Narrow ones are made in pieces of k, whose results are added with rounding.
    """
    if not is_narrow(left):
        return torch.bmm(left, right)
    # Beyond CHAIN products the matrix units round, so the rest is added in fp32.
    (first, *others) = zip(left.split(CHAIN, dim=2), right.split(CHAIN, dim=1), strict=True)
    total: torch.Tensor = torch.bmm(*first, out_dtype=torch.float32)
    for a, b in others:
        torch.baddbmm(total, a, b, out_dtype=torch.float32, out=total)
    return total


def sums_of_terms(
    left: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return three [B] sums of the terms left · right, elementwise, of two [B, T, T].

    A ghost norm is made of them.

    They are the sum of all terms, the sum of the square roots of those on the diagonal, and the sum
    of the latter. A negative term of the diagonal counts as 0 in the last two.
    """
    if left.is_cuda and kernels_run(left.device):
        squares, roots, diagonal = add_up_terms(left, right)
        return squares, roots, diagonal
    terms = left * right
    on_diagonal = torch.diagonal(terms, dim1=1, dim2=2).clamp(min=0)
    return terms.sum(dim=(1, 2)), on_diagonal.sqrt().sum(dim=1), on_diagonal.sum(dim=1)


def add_weighted_sum(
    into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor
) -> None:
    """Add Σ_i weights_i · leftᵀ_i right_i of two narrow tensors to an fp32 [m, n], in place.

    left is [B, T, m] and right [B, T, n].

    An example of weight 0 adds nothing, whatever its values: they may be infinite or not a number.
    """
    if kernels_run(left.device):
        add_weighted_product(into, left, right, weights, chain=CHAIN)
    else:
        add_by_example(into, left, right, weights)


@cache
def kernels_run(device: torch.device) -> bool:
    """Return whether the kernels run on a device.

    Triton must be installed and find a compiler, and a tile must fit.
    """
    if add_weighted_product is None:
        return False
    # Tried once on a tiny product: a missing compiler shows only at the first launch.
    ones = torch.ones(1, 16, 16, device=device)
    try:
        for dtype in NARROW:
            narrow = ones.to(dtype)
            into, weight = torch.zeros(16, 16, device=device), torch.ones(1, device=device)
            add_weighted_product(into, narrow, narrow, weight, chain=CHAIN)
        add_up_terms(ones, ones)
    except Exception as error:  # noqa: BLE001 - whatever keeps Triton from running, cuBLAS gives the same sums
        logging.getLogger(__name__).warning(
            "sums of gradients are made without Triton, which takes longer: %s", error
        )
        return False
    return True


def add_by_example(
    into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor
) -> None:
    """Add the weighted sum by cuBLAS, one product for each example and piece.

    It waits for the device once.
    """
    # Without the kernels, an example's factor can only be applied to its own product.
    for example_left, example_right, weight in zip(left, right, weights.tolist(), strict=True):
        if weight == 0:
            continue
        for a, b in zip(example_left.split(CHAIN), example_right.split(CHAIN), strict=True):
            torch.addmm(into, a.T, b, out_dtype=torch.float32, alpha=weight, out=into)
