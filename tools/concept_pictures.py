"""Draws the pictures of docs/concepts.md from raydp's own figures.

    OMP_NUM_THREADS=1 python tools/concept_pictures.py    # writes docs/images/concepts-*.svg

σ is calibrated by the accountant `pld` for the demo's n, ε and δ. Scores and losses are those of
docs/results/demo.csv.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from raydp.analysis import load_points, select
from raydp.privacy import CalibrationRequest, PrivacyTarget, calibrate_many
from raydp.system.cache import cache_dir

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
POINTS = ROOT / "docs" / "results" / "demo.csv"
KEY = ("batch_size", "num_steps", "learning_rate")
NUM_EXAMPLES, EPSILON = 4000, 8.0
DELTA = NUM_EXAMPLES**-1.1
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)
NUM_STEPS = (15, 60, 240, 960)
RIGHT = 150
"""Pixels to the right of the last panel, for labels."""
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #6e7781 } .title { font-weight: 600 } .small { font-size: 11px }
.grid { stroke: #8c959f; stroke-width: 1; stroke-opacity: 0.3 } .axis { stroke: #8c959f; stroke-width: 1 }
.c0 { stroke: #2f81f7; fill: #2f81f7 } .c1 { stroke: #d4733b; fill: #d4733b }
.c2 { stroke: #2da44e; fill: #2da44e } .c3 { stroke: #a371f7; fill: #a371f7 }
.line { fill: none; stroke-width: 2 } .chosen { fill: none; stroke-width: 2 }
"""
"""Colours that can be read on a white and on a black page. The picture has no background of its
own."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis: its name, its ends, its ticks, and whether it is logarithmic."""

    name: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the place of a value between the ends, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(kw_only=True)
class Panel:
    """A rectangle with two axes, in which lines and points are drawn."""

    title: str
    x: Axis
    y: Axis
    left: float
    top: float = 34
    width: float = 300
    height: float = 230
    parts: list[str] = field(default_factory=list)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a pair of values."""
        return self.left + self.x.share(x) * self.width, self.top + (
            1 - self.y.share(y)
        ) * self.height

    def line(
        self,
        values: Sequence[tuple[float, float]],
        colour: int,
        label: str,
        *,
        at_start: bool = False,
    ) -> None:
        """Draw a line and write its label at its end, or below its start."""
        pixels = [self.place(*value) for value in values]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        self.parts.append(f'<polyline class="line c{colour}" points="{corners}"/>')
        self.parts += [
            f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in pixels
        ]
        if at_start:
            self.text(pixels[0][0] + 6, pixels[0][1] + 12, label)
        else:
            self.text(pixels[-1][0] + 7, pixels[-1][1] + 4, label)

    def point(
        self, x: float, y: float, colour: int, *, radius: float = 5, chosen: bool = False
    ) -> None:
        """Draw a point, with a ring if it is the chosen one."""
        at_x, at_y = self.place(x, y)
        self.parts.append(
            f'<circle class="c{colour}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{radius}"/>'
        )
        if chosen:
            self.parts.append(
                f'<circle class="chosen axis" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{radius + 4}"/>'
            )

    def text(
        self, x: float, y: float, words: str, *, css: str = "small", anchor: str = "start"
    ) -> None:
        """Write words at a pixel."""
        self.parts.append(
            f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def drawn(self) -> str:
        """Return the panel with its axes."""
        bottom, right = self.top + self.height, self.left + self.width
        frame = [
            f'<text class="title" x="{self.left}" y="{self.top - 14}">{escape(self.title)}</text>'
        ]
        for tick in self.x.ticks:
            at = self.left + self.x.share(tick) * self.width
            frame.append(
                f'<line class="grid" x1="{at:.1f}" y1="{self.top}" x2="{at:.1f}" y2="{bottom}"/>'
            )
            frame.append(
                f'<text class="small" x="{at:.1f}" y="{bottom + 16}" '
                f'text-anchor="middle">{tick:g}</text>'
            )
        for tick in self.y.ticks:
            at = self.top + (1 - self.y.share(tick)) * self.height
            frame.append(
                f'<line class="grid" x1="{self.left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>'
            )
            frame.append(
                f'<text class="small" x="{self.left - 6}" y="{at + 4:.1f}" '
                f'text-anchor="end">{tick:g}</text>'
            )
        frame.append(
            f'<line class="axis" x1="{self.left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'
        )
        frame.append(
            f'<line class="axis" x1="{self.left}" y1="{self.top}" x2="{self.left}" y2="{bottom}"/>'
        )
        middle = self.left + self.width / 2
        frame.append(
            f'<text x="{middle}" y="{bottom + 34}" '
            f'text-anchor="middle">{escape(self.x.name)}</text>'
        )
        up = self.top + self.height / 2
        turned = f"rotate(-90 {self.left - 44} {up})"
        name = escape(self.y.name)
        frame.append(
            f'<text x="{self.left - 44}" y="{up}" text-anchor="middle" '
            f'transform="{turned}">{name}</text>'
        )
        return "\n".join([*frame, *self.parts])


def write(name: str, description: str, panels: Sequence[Panel]) -> None:
    """Write panels side by side into docs/images."""
    width = max(panel.left + panel.width for panel in panels) + RIGHT
    height = max(panel.top + panel.height for panel in panels) + 44
    body = "\n".join(panel.drawn() for panel in panels)
    path = IMAGES / f"concepts-{name}.svg"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n'
        f"<title>{escape(description)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n",
        encoding="utf-8",
    )
    print(path.relative_to(ROOT))


def noise_multipliers() -> dict[tuple[int, int], float]:
    """Return σ of every (b, T) for the demo's n, ε and δ."""
    target = PrivacyTarget(epsilon=EPSILON, delta=DELTA)
    pairs = [(b, t) for t in NUM_STEPS for b in BATCH_SIZES]
    requests = [
        CalibrationRequest.of_batches(
            num_examples=NUM_EXAMPLES, batch_size=b, num_steps=t, target=target
        )
        for b, t in pairs
    ]
    solved = calibrate_many(requests, "pld", cache_dir=cache_dir() / "calibration", max_workers=1)
    return {pair: one.noise_multiplier for pair, one in zip(pairs, solved, strict=True)}


def noise(sigma: dict[tuple[int, int], float]) -> None:
    """Draw σ and the noise of the mean gradient against b, a line for each T."""
    batch = Axis(name="batch size b", low=32, high=1024, ticks=BATCH_SIZES, log=True)
    multiplier = Axis(name="noise multiplier σ", low=0.3, high=8, ticks=(0.5, 1, 2, 4, 8), log=True)
    mean = Axis(name="σ / b", low=0.0006, high=0.03, ticks=(0.001, 0.003, 0.01, 0.03), log=True)
    panels = [
        Panel(title="Noise on the sum of gradients", x=batch, y=multiplier, left=70),
        Panel(title="Noise on the mean gradient", x=batch, y=mean, left=520),
    ]
    for colour, t in enumerate(NUM_STEPS):
        panels[0].line([(b, sigma[b, t]) for b in BATCH_SIZES], colour, f"T = {t}")
        panels[1].line([(b, sigma[b, t] / b) for b in BATCH_SIZES], colour, f"T = {t}")
    write(
        "noise",
        "Noise multiplier and noise of the mean gradient against batch size, at one ε",
        panels,
    )


def signal(sigma: dict[tuple[int, int], float]) -> None:
    """Draw signal over noise of the sum of all updates against compute, and the drift against the
    number of steps."""
    compute = Axis(
        name="compute C = b·T", low=480, high=983_040, ticks=(1000, 10_000, 100_000), log=True
    )
    ratio = Axis(name="b √T / σ", low=200, high=10_000, ticks=(300, 1000, 3000, 10_000), log=True)
    steps = Axis(name="steps T", low=15, high=960, ticks=NUM_STEPS, log=True)
    drift = Axis(name="η √T σ / b", low=0.00005, high=0.01, ticks=(0.0001, 0.001, 0.01), log=True)
    panels = [
        Panel(title="Signal over noise of all updates", x=compute, y=ratio, left=70),
        Panel(title="Drift by noise alone, b = 128", x=steps, y=drift, left=520),
    ]
    for colour, t in enumerate(NUM_STEPS):
        values = [(float(b * t), b * math.sqrt(t) / sigma[b, t]) for b in BATCH_SIZES]
        panels[0].line(values, colour, f"T = {t}", at_start=True)
    for colour, rate in enumerate((0.005, 0.01, 0.02)):
        values = [(float(t), rate * math.sqrt(t) * sigma[128, t] / 128) for t in NUM_STEPS]
        panels[1].line(values, colour, f"η = {rate:g}")
    write(
        "signal", "Signal over noise against compute, and drift against the number of steps", panels
    )


def demo() -> None:
    """Draw score against loss of the demo's configurations, all at one ε, and the expected scores
    of the choice."""
    points = load_points(POINTS)
    chosen = select(points, min_gain_share=0.9)
    best = select(points, rule="best-utility", min_gain_share=0.9)
    means = points.groupby(list(KEY))[["utility_loss", "score"]].mean()
    loss = Axis(
        name="utility loss (nats a token)", low=1.21, high=1.48, ticks=(1.25, 1.3, 1.35, 1.4, 1.45)
    )
    score = Axis(
        name="score vmr_exact", low=0.002, high=0.6, ticks=(0.003, 0.01, 0.03, 0.1, 0.3), log=True
    )
    panel = Panel(
        title="18 configurations at ε = 8", x=loss, y=score, left=70, width=420, height=270
    )
    for row in means.reset_index().to_dict("records"):
        ring = all(row[name] == getattr(chosen.configuration, name) for name in KEY)
        colour, radius = (64, 128, 256).index(row["batch_size"]), 4 if row["num_steps"] == 60 else 6
        panel.point(row["utility_loss"], row["score"], colour, radius=radius, chosen=ring)
    for number, b in enumerate((64, 128, 256)):
        panel.parts.append(f'<circle class="c{number}" cx="512" cy="{60 + 22 * number}" r="5"/>')
        panel.text(524, 64 + 22 * number, f"b = {b}")
    for number, words in enumerate(
        ("small point: T = 60", "large point: T = 120", "ring: selected")
    ):
        panel.text(506, 136 + 20 * number, words)
    assert chosen.max_loss is not None
    at, _ = panel.place(chosen.max_loss, 0.01)
    panel.parts.append(
        f'<line class="axis" stroke-dasharray="4 4" x1="{at:.1f}" y1="34" x2="{at:.1f}" y2="304"/>'
    )
    panel.text(at + 5, 46, "threshold")
    at_x, at_y = panel.place(best.utility_loss, best.score)
    panel.text(at_x - 10, at_y + 4, "best utility", anchor="end")
    write("demo", "Score against utility loss of the demo's 18 configurations", [panel])


def choice() -> None:
    """Draw what the decision says of the selected configuration and the alternatives."""
    chosen = select(load_points(POINTS), min_gain_share=0.9)
    decision = chosen.decision
    assert decision is not None
    assert decision.interval is not None
    rows = [(str(chosen.configuration), decision.probability, decision.estimate, decision.interval)]
    for other in decision.alternatives:
        name = f"(b={other['batch_size']}, T={other['num_steps']}, η={other['learning_rate']:g})"
        low, high = other["score_interval"]
        rows.append((name, other["probability"], other["score"], (low, high)))
    score = Axis(
        name="expected score, with its 95 % interval",
        low=0,
        high=0.16,
        ticks=(0, 0.04, 0.08, 0.12, 0.16),
    )
    place = Axis(name="", low=-0.5, high=len(rows) - 0.5, ticks=())
    title = "The selected configuration and the alternatives"
    panel = Panel(title=title, x=score, y=place, left=170, width=330, height=40.0 * len(rows))
    for number, (name, probability, estimate, (low, high)) in enumerate(reversed(rows)):
        colour = 0 if number == len(rows) - 1 else 1
        (start, y), (end, _) = panel.place(low, number), panel.place(min(high, score.high), number)
        panel.parts.append(
            f'<line class="line c{colour}" x1="{start:.1f}" y1="{y:.1f}" x2="{end:.1f}" '
            f'y2="{y:.1f}"/>'
        )
        panel.point(estimate, number, colour)
        panel.text(panel.left - 8, y + 4, name, anchor="end")
        panel.text(panel.left + panel.width + 8, y + 4, f"P(lowest) {probability:.0%}")
    write("choice", "Expected scores of the selected configuration and its alternatives", [panel])


def main() -> None:
    sigma = noise_multipliers()
    noise(sigma)
    signal(sigma)
    demo()
    choice()


if __name__ == "__main__":
    main()
