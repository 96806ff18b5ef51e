"""Names of plug-ins and where they live: built-in ones here, others' through entry points.

An entry is `name -> "module:attribute"`, imported only when the name is used. A third party adds one with an
entry point in the group `raydp.<kind>`, for example `[project.entry-points."raydp.scores"]`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

from search_spaces.names import unknown_name as unknown_name

Kind = Literal["tasks", "methods", "scores", "accountants", "rules", "searches"]

BUILTIN: dict[Kind, dict[str, str]] = {
    "tasks": {
        "audited": "raydp.tasks.audited:AuditedTask",
        "builtin": "raydp.tasks.builtin:BuiltinTask",
        "cifar": "raydp.tasks.images:CifarTask",
        "digits": "raydp.tasks.digits:DigitsTask",
        "enron": "raydp.tasks.enron:EnronTask",
        "half": "raydp.tasks.half:HalfTask",
        "mnist": "raydp.tasks.images:MnistTask",
        "planted": "raydp.tasks.planted:PlantedTask",
        "purchase100": "raydp.tasks.tabular:Purchase100Task",
        "tabular": "raydp.tasks.tabular:TabularTask",
        "texas100": "raydp.tasks.tabular:Texas100Task",
        "text": "raydp.tasks.text:TextTask",
        "text_classification": "raydp.tasks.text_classification:TextClassificationTask",
        "tofu": "raydp.tasks.tofu:TofuTask",
        "with_public": "raydp.tasks.with_public:WithPublicTask",
        "with_reference": "raydp.tasks.with_reference:WithReferenceTask",
        "without": "raydp.tasks.without:WithoutTask",
    },
    "methods": {
        "advreg": "raydp.methods.advreg:AdversarialRegularization",
        "advreg_rt": "raydp.methods.advreg:AdversarialRegularizationOnBoth",
        "dp_adam": "raydp.methods.dp:DPAdam",
        "dp_mf": "raydp.methods.mf:DPMF",
        "dp_sgd": "raydp.methods.dp:DPSGD",
        "dp_weights": "raydp.methods.dp_weights:DPWeights",
        "mmd": "raydp.methods.mmd:MMDRegularization",
        "nonprivate": "raydp.methods.nonprivate:NonPrivate",
        "output_perturbation": "raydp.methods.output_perturbation:OutputPerturbation",
        "pate": "raydp.methods.pate:PATE",
        "werm": "raydp.methods.werm:WeightedRiskMinimization",
    },
    "scores": {
        "acr": "raydp.scores.acr:AdversarialCompression",
        "air": "raydp.scores.air:AttributeInference",
        "exposure": "raydp.scores.exposure:Exposure",
        "extraction": "raydp.scores.extraction:ExtractionProbability",
        "logprob": "raydp.scores.logprob:LogProbability",
        "mia": "raydp.scores.mia:MembershipInference",
        "mia_of_reference": "raydp.scores.mia:ReferenceMembershipInference",
        "mia_outputs": "raydp.scores.mia_outputs:OutputMembershipInference",
        "mia_outputs_of_reference": "raydp.scores.mia_outputs:ReferenceOutputMembershipInference",
        "model_distance": "raydp.scores.model_distance:ModelDistance",
        "one_run_audit": "raydp.scores.one_run_audit:OneRunAudit",
        "vmr": "raydp.scores.vmr:VerbatimMemorization",
        "vmr_exact": "raydp.scores.vmr_exact:ExactVerbatimMemorization",
        "vmr_greedy": "raydp.scores.vmr_greedy:GreedyVerbatimMemorization",
        "vmr_near": "raydp.scores.vmr_near:NearVerbatimMemorization",
        "vmr_text": "raydp.scores.vmr_text:TextVerbatimMemorization",
    },
    "searches": {
        "frugal": "raydp.search.frugal:FrugalSearch",
        "optuna": "raydp.search.optuna_search:OptunaSearch",
        "random": "raydp.search.random_order:RandomSearch",
    },
    "rules": {
        "best-utility": "analysis.selection.rules:BEST_UTILITY",
        "oracle": "analysis.selection.rules:ORACLE",
        "pareto-knee": "analysis.selection.rules:PARETO_KNEE",
        "predicted-score": "analysis.selection.rules:PREDICTED_SCORE",
        "procedure": "analysis.selection.rules:PROCEDURE",
        "worst-utility": "analysis.selection.rules:WORST_UTILITY",
    },
    "accountants": {
        "pld": "raydp.privacy.accountants:PLDAccountant",
        "prv": "raydp.privacy.accountants:PRVAccountant",
        "rdp": "raydp.privacy.accountants:RDPAccountant",
    },
}


def names(kind: Kind) -> list[str]:
    """The known names of a kind, built in and installed by others, sorted."""
    return sorted({*BUILTIN[kind], *(e.name for e in entry_points(group=f"raydp.{kind}"))})


def resolve(kind: Kind, name: str, *, field: str | None = None) -> Any:
    """Import the plug-in that a name stands for.

    Args:
        kind: the seam.
        name: as written in the spec.
        field: where the name was written, for the message; defaults to the kind's own word.

    Raises:
        ValueError: the name is unknown; says which is nearest.
    """
    if (target := BUILTIN[kind].get(name)) is not None:
        module, attribute = target.split(":")
        return getattr(import_module(module), attribute)
    for entry in entry_points(group=f"raydp.{kind}", name=name):
        return entry.load()
    raise ValueError(unknown_name(field or f"{kind.removesuffix('s')}.name", name, names(kind)))
