"""Names of plug-ins and their locations: built-in ones are listed here, others are found through entry points.

An entry is `name -> "module:attribute"`, imported only when the name is used. A third party adds one with an
entry point in the group `raydp.<kind>`, for example `[project.entry-points."raydp.scores"]`.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from raydp.io.imports import imported
from raydp.search_spaces.names import unknown_name as unknown_name

Kind = Literal["tasks", "methods", "scores", "accountants", "rules", "searches"]

DEFAULT_ACCOUNTANT = "pld"

BUILTIN: dict[Kind, dict[str, str]] = {
    "tasks": {
        "audited": "raydp.tasks.wrappers.audited:AuditedTask",
        "builtin": "raydp.tasks.text.builtin:BuiltinTask",
        "chat": "raydp.tasks.chat.task:ChatTask",
        "cifar": "raydp.tasks.classification.images:CifarTask",
        "digits": "raydp.tasks.classification.digits:DigitsTask",
        "enron": "raydp.tasks.text.enron:EnronTask",
        "half": "raydp.tasks.wrappers.half:HalfTask",
        "mnist": "raydp.tasks.classification.images:MnistTask",
        "planted": "raydp.tasks.wrappers.planted:PlantedTask",
        "purchase100": "raydp.tasks.classification.tabular:Purchase100Task",
        "tabular": "raydp.tasks.classification.tabular:TabularTask",
        "texas100": "raydp.tasks.classification.tabular:Texas100Task",
        "text": "raydp.tasks.text.any_text:TextTask",
        "text_classification": "raydp.tasks.classification.text_classification:TextClassificationTask",
        "tofu": "raydp.tasks.text.tofu:TofuTask",
        "with_public": "raydp.tasks.wrappers.with_public:WithPublicTask",
        "with_reference": "raydp.tasks.wrappers.with_reference:WithReferenceTask",
        "without": "raydp.tasks.wrappers.without:WithoutTask",
    },
    "methods": {
        "advreg": "raydp.methods.advreg:AdversarialRegularization",
        "advreg_rt": "raydp.methods.advreg:AdversarialRegularizationOnBoth",
        "dp_adam": "raydp.methods.dp:DPAdam",
        "dp_mf": "raydp.methods.mf:DPMF",
        "dp_sgd": "raydp.methods.dp:DPSGD",
        "dp_weights": "raydp.methods.dp_weights:DPWeights",
        "imported": "raydp.methods.imported:Imported",
        "mmd": "raydp.methods.mmd:MMDRegularization",
        "nonprivate": "raydp.methods.nonprivate:NonPrivate",
        "output_perturbation": "raydp.methods.output_perturbation:OutputPerturbation",
        "pate": "raydp.methods.pate:PATE",
        "werm": "raydp.methods.werm:WeightedRiskMinimization",
    },
    "scores": {
        "acr": "raydp.scores.memorisation.acr:AdversarialCompression",
        "air": "raydp.scores.memorisation.air:AttributeInference",
        "exposure": "raydp.scores.memorisation.exposure:Exposure",
        "extraction": "raydp.scores.memorisation.extraction:ExtractionProbability",
        "logprob": "raydp.scores.memorisation.logprob:LogProbability",
        "mia": "raydp.scores.membership.mia:MembershipInference",
        "mia_of_reference": "raydp.scores.membership.mia:ReferenceMembershipInference",
        "mia_outputs": "raydp.scores.membership.mia_outputs:OutputMembershipInference",
        "mia_outputs_of_reference": "raydp.scores.membership.mia_outputs:ReferenceOutputMembershipInference",
        "model_distance": "raydp.scores.model_distance:ModelDistance",
        "one_run_audit": "raydp.scores.membership.one_run_audit:OneRunAudit",
        "twin_audit": "raydp.scores.membership.twin_audit:TwinAudit",
        "vmr": "raydp.scores.memorisation.vmr:VerbatimMemorization",
        "vmr_exact": "raydp.scores.memorisation.vmr:ExactVerbatimMemorization",
        "vmr_greedy": "raydp.scores.memorisation.vmr:GreedyVerbatimMemorization",
        "vmr_near": "raydp.scores.memorisation.vmr:NearVerbatimMemorization",
        "vmr_text": "raydp.scores.memorisation.vmr:TextVerbatimMemorization",
    },
    "searches": {
        "frugal": "raydp.search.frugal:FrugalSearch",
        "optuna": "raydp.search.optuna_search:OptunaSearch",
        "random": "raydp.search.random_order:RandomSearch",
    },
    "rules": {
        "best-utility": "raydp.analysis.selection.rules:BEST_UTILITY",
        "informed": "raydp.analysis.selection.rules:INFORMED",
        "oracle": "raydp.analysis.selection.rules:ORACLE",
        "pareto-knee": "raydp.analysis.selection.rules:PARETO_KNEE",
        "predicted-score": "raydp.analysis.selection.rules:PREDICTED_SCORE",
        "procedure": "raydp.analysis.selection.rules:PROCEDURE",
        "worst-utility": "raydp.analysis.selection.rules:WORST_UTILITY",
    },
    "accountants": {
        "pld": "raydp.privacy.accounting.pld:PLDAccountant",
        "prv": "raydp.privacy.accounting.prv:PRVAccountant",
        "rdp": "raydp.privacy.accounting.rdp:RDPAccountant",
    },
}


def names(kind: Kind) -> list[str]:
    """Return the known names of a kind, built in and installed, sorted."""
    return sorted({*BUILTIN[kind], *_installed(kind)})


@cache  # searching the installed packages takes about 10 ms
def _installed(kind: Kind) -> frozenset[str]:
    """Return the names that other packages provide."""
    return frozenset(e.name for e in entry_points(group=f"raydp.{kind}"))


def summary(kind: Kind, name: str) -> str:
    """Return the first line of a plug-in's docstring. A built-in module is parsed, not imported: it may load torch."""
    if (target := BUILTIN[kind].get(name)) is None:
        return (inspect.getdoc(resolve(kind, name)) or "").partition("\n")[0]
    module, attribute = target.split(":")
    source = find_spec(module)
    assert source is not None, module
    assert source.origin is not None, module
    tree = ast.parse(Path(source.origin).read_text(encoding="utf-8"))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == attribute)
    return next((ast.get_docstring(node) or "" for node in classes), "").partition("\n")[0]


def resolve(kind: Kind, name: str, *, field: str | None = None) -> Any:
    """Import the plug-in that a name stands for.

    Args:
        kind: kind of the plug-in.
        name: name as written in the spec.
        field: the field that holds the name, for the message; by default derived from the kind.

    Raises:
        ValueError: the name is unknown. The message names the nearest name.
    """
    if (target := BUILTIN[kind].get(name)) is not None:
        module, attribute = target.split(":")
        return getattr(imported(module), attribute)
    for entry in entry_points(group=f"raydp.{kind}", name=name):
        return entry.load()
    raise ValueError(unknown_name(field or f"{kind.removesuffix('s')}.name", name, names(kind)))
