"""What may be said of a machine: nothing."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raydp.tracking.portable import portable, to_json
from raydp.tracking.records import as_params, clean_key, flatten


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/alice/models/tiny", "tiny"),
        ("/home/alice smith/models/tiny", "tiny"),
        ("~/models/tiny", "tiny"),
        ("file:///home/alice/x.csv", "file://x.csv"),
        ("sqlite:////home/alice/raydp.db", "sqlite:///raydp.db"),
        ("https://alice:pw@host:5000/path", "https://host:5000/path"),
        ("cannot open '/home/alice/x.csv' (line 3)", "cannot open 'x.csv' (line 3)"),
        # not paths of this machine
        ("sqlite:///raydp.db", "sqlite:///raydp.db"),
        ("data/enron_emails.jsonl.gz", "data/enron_emails.jsonl.gz"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("https://host:5000/a/b", "https://host:5000/a/b"),
        ("tokens / second and/or n/a", "tokens / second and/or n/a"),
        (r"model.*/layers/q_proj", r"model.*/layers/q_proj"),
    ],
)
def test_paths_and_credentials_go(text, expected):
    assert portable(text) == expected
    assert portable({"a": [text]}) == {"a": [expected]}


def test_records_are_strict_json():
    record = {
        "epsilon": float("inf"),
        "nan": float("nan"),
        "n": np.int64(3),
        "x": np.float32(0.5),
        "t": (1, None),
    }
    record |= {"low": -np.inf, "yes": True, "path": Path("/a/b/c")}
    text = to_json(record)
    assert json.loads(text, parse_constant=pytest.fail) == {
        **{"epsilon": "inf", "nan": None, "n": 3, "x": 0.5, "t": [1, None]},
        **{"low": "-inf", "yes": True, "path": "c"},
    }


def test_numbers_round_trip_as_parameters():
    values = {"a": 0.1 + 0.2, "b": 5e-4, "c": 1e-7, "d": 3}
    assert {k: float(v) for k, v in as_params(values).items()} == values
    assert as_params({"none": None, "flag": False, "list": [1, 2]}) == {
        "flag": "false",
        "list": "[1, 2]",
    }


def test_nested_mappings_become_dotted_keys():
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": []}, "x.") == {
        "x.a.b": 1,
        "x.a.c.d": 2,
        "x.e": [],
    }


def test_only_characters_that_mlflow_refuses_are_replaced():
    assert clean_key("score.vmr.std_error") == "score.vmr.std_error"
    assert clean_key("score[0]@5%") == "score_0__5_"


def test_importing_the_room_does_not_import_mlflow():
    code = "import sys, raydp.tracking; assert not {'mlflow', 'torch', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
