"""Named spaces, grids and configurations."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp.search_spaces import Configuration, exact, grid, load_space, space_names
from raydp.search_spaces.loader import parse_space

HEAD = "description: d\nsource: s\nmax_grad_norm: 0.5\n"


def triples(configurations):
    return [(c.batch_size, c.num_steps, c.learning_rate) for c in configurations]


@pytest.mark.parametrize(("name", "batch_sizes"), [("tofu-1", 4), ("tofu-2", 4), ("tofu-4", 5)])
def test_tofu_spaces_are_those_of_table_6(name, batch_sizes):
    space = load_space(name)
    sizes = [256 * 2**k for k in range(batch_sizes)]
    assert triples(space.configurations) == list(
        product(sizes, [16, 32, 64, 128, 256], [5e-4, 1e-3, 2e-3])
    )
    assert space.max_grad_norm == 0.5
    assert "Table 6" in space.source


CENTRE_S, CENTRE_L = (8192, 250, 3e-3), (4096, 500, 1e-3)
"""The strong candidates of App. B.9, around which the paper varied its GPT-2 configurations."""
VARIATIONS = ((1, 0.5), (2, 1))
"""Factors of (b, T) of the variations that App. B.9 prints: (b*, T*/2, η*) and (2b*, T*, η*)."""
TABLE_9 = {(8192, 250, 1e-3), (8192, 250, 3e-3), (8192, 125, 1e-3)}
FIGURE_25 = {(8192, 250, rate) for rate in (5e-4, 1e-3, 3e-3)}
SIZES_S, SIZES_L = {(8192, 1000), (1024, 125), (1024, 250)}, {(8192, 500), (1024, 125)}
"""(b, T) of Table 14 and of the sentences above it in App. G. No η is printed there."""


@pytest.mark.parametrize(
    ("name", "centre", "sizes", "others"),
    [
        ("enron-gpt2s", CENTRE_S, SIZES_S, TABLE_9 | FIGURE_25),
        ("enron-gpt2l", CENTRE_L, SIZES_L, set()),
    ],
)
def test_enron_spaces_are_the_points_that_the_paper_prints(name, centre, sizes, others):
    b, steps, rate = centre
    varied = {(b * of_b, steps * of_steps, rate) for of_b, of_steps in VARIATIONS}
    printed = {centre, *varied, *others, *((*size, rate) for size in sizes)}
    space = load_space(name)
    assert set(triples(space.configurations)) == printed
    assert space.max_grad_norm == 0.5


def test_the_audited_space_is_that_of_table_9_and_figure_25():
    space = load_space("enron-gpt2s-audit")
    assert set(triples(space.configurations)) == TABLE_9 | FIGURE_25
    assert "Table 9" in space.source


def test_names_are_listed_and_misspelt_ones_corrected():
    enron = ["enron-gpt2l", "enron-gpt2s", "enron-gpt2s-audit"]
    assert space_names() == [*enron, "tofu-1", "tofu-2", "tofu-4"]
    assert [load_space(name).name for name in space_names()] == space_names()
    with pytest.raises(
        ValueError, match=r"'tofu1' is unknown\. Did you mean 'tofu-1'\? Known: enron-gpt2l, "
    ):
        load_space("tofu1")
    with pytest.raises(ValueError, match="unknown"):
        load_space("../pyproject")


@given(num_examples=st.integers(1, 5000))
def test_configurations_larger_than_the_data_are_rejected_with_the_reason(num_examples):
    space = load_space("tofu-4")
    fitting, rejected = space.points(num_examples)
    assert {*fitting, *(r.configuration for r in rejected)} == set(space.configurations)
    assert all(c.batch_size <= num_examples for c in fitting)
    for r in rejected:
        assert r.configuration.batch_size > num_examples
        assert (
            r.reason
            == f"batch_size {r.configuration.batch_size} exceeds num_examples {num_examples}"
        )


def test_learning_rates_may_be_numbers_or_text():
    text = HEAD + "grid: {batch_size: [8], num_steps: [2], learning_rate: [5.0e-4, 5e-3, 0.05]}"
    assert [c.learning_rate for c in parse_space("x", text).configurations] == [0.0005, 0.005, 0.05]
    listed = HEAD + "points: [{batch_size: 8, num_steps: 2, learning_rate: 5e-4}]"
    assert parse_space("x", listed).configurations[0].learning_rate == 0.0005


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("grid: {batch_size: [8], num_steps: [2], learning_rate: [5.0e-4, 5e-4]}", "repeat .* twice"),
        ("grid: {batch_size: [8], num_steps: [2, 2], learning_rate: [5e-4]}", "repeat"),
        ("points: [{batch_size: 8, num_steps: 2, learning_rate: 1e-3}, "
         "{batch_size: 8, num_steps: 2, learning_rate: 0.001}]", "repeat"),
        ("grid: {batch_size: [0], num_steps: [2], learning_rate: [5e-4]}", "batch_size"),
        ("grid: {batch_size: [8], num_steps: [2], learning_rate: [.nan]}", "learning_rate"),
        ("grid: {batch_size: [8], num_steps: [], learning_rate: [1e-3]}", "num_steps must have at least one value"),
        ("grid: {batch_size: [8], num_steps: [2], learning_rates: [1e-3]}", "learning_rates"),
        ("grid: {batch_size: [8], num_steps: [2], learning_rate: [1e-3]}\npoints: []", "either grid or points"),
        ("", "either grid or points"),
    ],
)  # fmt: skip
def test_bad_files_are_refused(body, message):
    with pytest.raises(ValueError, match=message):
        parse_space("x", HEAD + body)


def test_grid_is_the_product_and_refuses_repeated_values():
    assert triples(grid([2, 4], [1], ["1e-3", 0.002])) == [
        (2, 1, 1e-3),
        (2, 1, 2e-3),
        (4, 1, 1e-3),
        (4, 1, 2e-3),
    ]
    with pytest.raises(ValueError, match=r"\(b=2, T=1, η=0.001\) twice"):
        grid([2], [1], ["1e-3", 0.001])
    for bad in (0, -1, 2.5, True, "8"):
        with pytest.raises(ValueError, match="batch_size must be a whole number"):
            grid([bad], [1], [1e-3])
    for bad in (0, -1e-3, float("inf"), "fast", "1/3", "1e-999999999", "1e999999999"):
        with pytest.raises(ValueError, match=r"must be a finite|must be a finite decimal"):
            grid([2], [1], [bad])


def test_products_are_exact_and_order_is_t_b_eta():
    first, second = grid([8192], [250], ["3e-3"])[0], grid([4096], [500], [0.003])[0]
    assert first.compute == second.compute == 2_048_000
    assert first.updates == second.updates == 6144
    third = Configuration(batch_size=3, num_steps=1, learning_rate=0.1)
    assert third.updates == Fraction(3, 10) != 3 * 0.1
    assert sorted([first, second, third], key=lambda c: c.key) == [third, first, second]


@given(
    st.decimals(min_value="1e-12", max_value="1e6", allow_nan=False).map(lambda d: d.normalize())
)
def test_fifteen_digits_survive_a_double(decimal):
    """The reach of the exactness that `exact` promises for floats (IEEE 754: DBL_DIG = 15)."""
    rounded = Fraction(f"{decimal:.14e}")
    assert exact(float(rounded)) == rounded == exact(f"{decimal:.14e}")
