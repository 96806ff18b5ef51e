"""A made-up space and what running all of it would give."""

from __future__ import annotations

import numpy as np
import pandas as pd

from raydp.search_spaces import grid

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
SPACE = grid([64, 128, 256, 512], [30, 60, 120, 240], ["2.5e-3", "5e-3", "1e-2", "2e-2"])


def surface(rng: np.random.Generator, noise: float = 0.1) -> pd.DataFrame:
    """A made-up sweep: scores with slopes around Hu et al.'s Table 2 (Enron); the loss falls with
    compute and learning rate, and rises beyond a best learning rate; two seeds."""
    best, falls, turns = rng.uniform(-5.2, -3.8), rng.uniform(0.05, 0.2), rng.uniform(0.1, 0.6)
    slopes = np.array([0.13, 0.37, 0.51]) * np.exp(0.3 * rng.standard_normal(3))
    rows = []
    for c in SPACE:
        b, t, rate = np.log(c.batch_size), np.log(c.num_steps), np.log(c.learning_rate)
        loss = 4 - falls * (b + t) - 0.15 * min(rate, best) + turns * max(rate - best, 0) ** 2
        score = slopes @ [b, t, rate]
        for seed in range(2):
            noisy = (loss + 0.01 * rng.standard_normal(), score + noise * rng.standard_normal())
            rows.append((c.batch_size, c.num_steps, c.learning_rate, seed, *noisy))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.assign(score=table["score"] - table["score"].min() + 0.2)


def median_loss(table: pd.DataFrame) -> float:
    return float(table.groupby(COLUMNS[:3])["utility_loss"].mean().median())
