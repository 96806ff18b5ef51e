"""Random points tables, and the definitions of the paper written out naively as loops over exact
fractions."""

from __future__ import annotations

from fractions import Fraction

import pandas as pd
from hypothesis import strategies as st

from tests.marks import WHOLE

Point = tuple[int, int, Fraction]  # (b, T, η)
Means = dict[Point, tuple[float, float]]  # -> (utility loss, score)

# Few values with many common products, so that ties in C and U are frequent, some of which floats
# miss: 3·0.1, 1·0.3.
BATCH_SIZES = [1, 2, 3, 4, 6, 8]
NUM_STEPS = [1, 2, 3, 4, 6]
LEARNING_RATES = ["1e-3", "2e-3", "0.003", "3E-3", "1.5e-3", "6.0e-3", "0.1", "0.3", "0.7", "0.2"]


@st.composite
def tables(
    draw: st.DrawFn, *, min_configurations: int = 1, min_seeds: int = 1, min_score: int = 0
) -> pd.DataFrame:
    """Configurations with up to three seeds each; losses and scores lie on a lattice, so that means
    tie often."""
    chosen = draw(
        st.lists(
            st.tuples(
                st.sampled_from(BATCH_SIZES),
                st.sampled_from(NUM_STEPS),
                st.sampled_from(LEARNING_RATES),
            ),
            min_size=min_configurations,
            max_size=14,
            unique_by=lambda c: (c[0], c[1], float(c[2])),
        )
    )
    rows = []
    for b, t, rate in chosen:
        for seed in draw(st.lists(st.integers(0, 3), min_size=min_seeds, max_size=3, unique=True)):
            loss, score = draw(st.integers(8, 16)), draw(st.integers(min_score, 6))
            rows.append((b, t, rate, seed, loss / 8, score / 8))
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    return pd.DataFrame(draw(st.permutations(rows)), columns=columns)


def naive_means(table: pd.DataFrame) -> Means:
    """Means over seeds in exact arithmetic."""
    rows: dict[Point, list[tuple[float, float]]] = {}
    for row in table.itertuples():
        key = (int(row.batch_size), int(row.num_steps), Fraction(str(row.learning_rate)))
        rows.setdefault(key, []).append((row.utility_loss, row.score))
    return {
        key: tuple(
            float(sum(map(Fraction, column)) / len(column)) for column in zip(*values, strict=True)
        )
        for key, values in rows.items()
    }


def naive_prefers(heuristic: str, p: Point, q: Point) -> bool:
    """Whether p is predicted to be more private than q (Hu et al. 2025, §4.2)."""
    (b1, t1, rate1), (b2, t2, rate2) = p, q
    if heuristic == "individual":
        return p != q and t1 <= t2 and b1 <= b2 and rate1 <= rate2
    if heuristic == "compute":
        return b1 * t1 == b2 * t2 and rate1 == rate2 and b1 > b2
    return b1 * t1 * rate1 == b2 * t2 * rate2 and rate1 < rate2


def naive_procedure(pool: Means) -> tuple[list[set[Point]], Point]:
    """Algorithm 1 as printed: the survivors of steps 1 to 3, and what the final step returns."""
    by_updates: dict[Fraction, list[Point]] = {}
    for p in pool:
        by_updates.setdefault(p[0] * p[1] * p[2], []).append(p)
    first = {p for group in by_updates.values() for p in group if p[2] == min(q[2] for q in group)}
    by_compute: dict[tuple[Fraction, int], list[Point]] = {}
    for p in first:
        by_compute.setdefault((p[0] * p[1] * p[2], p[0] * p[1]), []).append(p)
    second = {p for group in by_compute.values() for p in group if p[0] == max(q[0] for q in group)}
    third = {p for p in second if not any(naive_prefers("individual", q, p) for q in second)}
    worst = max(pool[p][0] for p in third)
    return [first, second, third], naive_first(p for p in third if pool[p][0] == worst)


def naive_first(points: object) -> Point:
    """The first in the order (T, b, η)."""
    return min(points, key=lambda p: (p[1], p[0], p[2]))  # type: ignore[call-overload]


def naive_knee(pool: Means) -> list[Point]:
    """The members nearest to both ends of the Pareto front, found by going through the front in
    exact arithmetic."""
    front = {
        p: (Fraction(loss), Fraction(score))
        for p, (loss, score) in pool.items()
        if not any(a <= loss and b <= score and (a, b) != (loss, score) for a, b in pool.values())
    }
    (least_loss, its_score), (its_loss, least_score) = (
        min(front.values()),
        min(front.values(), key=lambda f: f[::-1]),
    )
    if least_loss == its_loss:
        return list(front)

    def nearness(p: Point) -> Fraction:
        loss, score = front[p]
        return (loss - least_loss) / (its_loss - least_loss) + (score - least_score) / (
            its_score - least_score
        )

    nearest = [p for p in front if nearness(p) == min(map(nearness, front))]
    return [p for p in nearest if front[p][1] == min(front[q][1] for q in nearest)]


def naive_select(rule: str, pool: Means) -> Point:
    """What a rule selects from a pool."""
    if rule == "procedure":
        return naive_procedure(pool)[1]
    if rule == "pareto-knee":
        return naive_first(naive_knee(pool))
    figure = {
        p: {"best-utility": loss, "worst-utility": -loss, "oracle": score}[rule]
        for p, (loss, score) in pool.items()
    }
    return naive_first(p for p in pool if figure[p] == min(figure.values()))


NAIVE_RULES = ["best-utility", "oracle", "procedure", "worst-utility"]
if WHOLE:
    NAIVE_RULES.append("pareto-knee")
