"""What is measured on a GPU runs on a CPU with small shapes, so that it works there at the first try."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CASES = {"lora-8b-recomputed": ["recomputed"], "full-gpt2": ["raydp", "opacus", "torch_func"]}
"""Some of the step benchmark's cases, with the private ways of each."""
PARTS = ("ceilings", "products", "steps")


@pytest.mark.slow
def test_the_parts_run_on_a_cpu_and_the_ways_agree(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--small", "--output", str(tmp_path), "--parts", *PARTS, "--cases", *CASES]
    script = str(ROOT / "benchmarks" / "gpu" / "measure.py")
    subprocess.run([sys.executable, script, *options], check=True, cwd=tmp_path)
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert {name: part.get("end") for name, part in parts.items()} == dict.fromkeys(PARTS)
    assert parts["ceilings"]["result"]["copy_gb_per_second"] > 0
    measured = parts["steps"]["result"]
    for case, private in CASES.items():
        ways = measured[case]["ways"]
        assert all(ways[way]["tokens_per_second"] > 0 for way in private)
        norms = [ways[way]["norm_of_sum"] for way in private]
        assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-2), "the clipped sums, in bf16"
        assert ways[next(iter(ways))]["noise"]["seconds"] > 0
    assert "tying is not supported" in measured["full-gpt2"]["ways"]["opacus_ghost"]["error"]


@pytest.mark.slow
def test_a_part_that_is_not_known_is_refused(tmp_path: Path) -> None:
    script = str(ROOT / "benchmarks" / "gpu" / "measure.py")
    made = subprocess.run(
        [sys.executable, script, "--output", str(tmp_path), "--parts", "lora-9b"], capture_output=True, text=True
    )
    assert made.returncode == 2
    assert "invalid choice: 'lora-9b'" in made.stderr
