"""A view of an experiment's runs for MLflow's pages: configuration, loss and score come first.

By default MLflow's page shows none of them, and no server can change that. A named view stands in
the page's menu `Views`, and has an address.
"""

from __future__ import annotations

import json

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

NOTE_TAG = "mlflow.note.content"
VIEW_KEY = "raydp"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
"""The tag of an experiment that holds a view, as MLflow 3.17 writes it."""
_PARAMS = ("batch_size", "num_steps", "learning_rate", "seed")
_COLUMNS = ("metrics.`utility_loss`", "metrics.`score`", *(f"params.`{name}`" for name in _PARAMS))


def view_of(experiment_id: str) -> str:
    """Return the address of the view, within MLflow's pages."""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW_KEY}"


def save_view(client: MlflowClient, experiment_id: str) -> None:
    """Save the view in an experiment, and link to it in a description that nobody has written."""
    tags = client.get_experiment(experiment_id).tags
    # A filter lets MLflow list the runs of sweeps without their parents.
    state = {
        "searchFilter": "tags.`raydp.run_id` LIKE '%'",
        "orderByKey": "metrics.`score`",
        "orderByAsc": True,
        "selectedColumns": _COLUMNS,
    }
    times = dict.fromkeys(("createdAt", "updatedAt"), 0)
    view = json.dumps({"name": "Runs by score", "state": json.dumps(state), **times})
    link = f"[The runs with configuration, loss and score]({view_of(experiment_id)})"
    for tag, text in {VIEW_TAG: view, NOTE_TAG: link}.items():
        try:
            if tag not in tags:
                client.set_experiment_tag(experiment_id, tag, text)
        except MlflowException:
            # Of two sweeps that start at one moment, the store refuses the second.
            if tag not in client.get_experiment(experiment_id).tags:
                raise
