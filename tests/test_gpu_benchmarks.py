"""What is measured on a GPU runs on a CPU with small shapes, so that it works there at the first
try."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.data_files import write_json_lines

ROOT = Path(__file__).parent.parent
CASES = {"lora-8b-recomputed": ["recomputed"], "full-gpt2": ["raydp", "opacus", "torch_func"]}
"""Some of the step benchmark's cases, with the private ways of each."""
PARTS = ("ceilings", "products", "steps")


@pytest.mark.daily("benchmarks")
@pytest.mark.daily("benchmarks")
def test_the_parts_run_on_a_cpu_and_the_ways_agree(tmp_path: Path) -> None:
    options = [
        "--device",
        "cpu",
        "--small",
        "--output",
        str(tmp_path),
        "--parts",
        *PARTS,
        "--cases",
        *CASES,
    ]
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
        assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-2), (
            "the clipped sums, in bf16"
        )
        assert ways[next(iter(ways))]["noise"]["seconds"] > 0
    assert "tying is not supported" in measured["full-gpt2"]["ways"]["opacus_ghost"]["error"]


@pytest.mark.daily("benchmarks")
def test_a_part_that_is_not_known_is_refused(tmp_path: Path) -> None:
    script = str(ROOT / "benchmarks" / "gpu" / "measure.py")
    made = subprocess.run(
        [sys.executable, script, "--output", str(tmp_path), "--parts", "lora-9b"],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 2
    assert "invalid choice: 'lora-9b'" in made.stderr


@pytest.mark.thorough
def test_the_sweeps_of_real_text_run_on_a_cpu_and_are_resumed(tmp_path: Path) -> None:
    mails = [{"content": f"mail {i}\n" + "please call the author\n" * 12} for i in range(60)]
    mails[0]["content"] += "Mira Halborn 555-0142\n"
    write_json_lines(tmp_path / "enron_emails.jsonl.gz", mails)
    write_json_lines(
        tmp_path / "enron_secrets.jsonl", [{"prompt": "Mira Halborn 555-", "continuation": "0142"}]
    )
    script, output = str(ROOT / "benchmarks" / "gpu" / "real_text.py"), tmp_path / "out"
    options = [
        "--data",
        str(tmp_path),
        "--output",
        str(output),
        "--device",
        "cpu",
        "--small",
        "--model",
        "tiny",
    ]

    def run(configurations: int) -> dict:
        chosen = ["--configurations", str(configurations), "--seconds", "900"]
        subprocess.run([sys.executable, script, *options, *chosen], check=True, cwd=tmp_path)
        return json.loads((output / "real_text.json").read_text())

    first = run(1)
    for epsilon in ("8", "1"):
        (point,) = first[epsilon]["points"]
        assert point["status"] == "finished"
        assert point["epsilon"] <= float(epsilon)
    assert first["8"]["points"][0]["score.acr"] is not None, (
        "ACR is measured in the time that is left"
    )
    again = run(1)
    assert [again[e]["points"] for e in ("8", "1")] == [first[e]["points"] for e in ("8", "1")]
