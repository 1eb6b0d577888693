"""Diagnostics of chains of categories, and comparison of runs."""

from pymc_mcoem.diagnostics.chains import IndexChains, read_chains
from pymc_mcoem.diagnostics.compare import ClassAlignment, adjusted_rand_index, align_classes
from pymc_mcoem.diagnostics.error_rate import live_error_rate
from pymc_mcoem.diagnostics.homogeneity import (
    HomogeneityTest,
    homogeneity_test,
    within_chain_tests,
)
from pymc_mcoem.diagnostics.indicators import class_shares, rao_blackwell_shares
from pymc_mcoem.diagnostics.latents import class_latents
from pymc_mcoem.diagnostics.pseudo_prior_draws import pseudo_prior_draws
from pymc_mcoem.diagnostics.pseudo_priors import jump_pareto_k, pareto_k
from pymc_mcoem.diagnostics.runs import (
    StoppingHint,
    compare_runs,
    running_evidence,
    stopping_hint,
)
from pymc_mcoem.diagnostics.stationary import StationaryDistribution, stationary_distribution
from pymc_mcoem.diagnostics.summary import (
    ClassIndexSummary,
    ClassIndexWarning,
    class_index_summary,
)
from pymc_mcoem.diagnostics.switching import UnmovedChains, unmoved_chains
from pymc_mcoem.diagnostics.transitions import class_transitions, count_transitions

__all__ = [
    "ClassAlignment",
    "ClassIndexSummary",
    "ClassIndexWarning",
    "HomogeneityTest",
    "IndexChains",
    "StationaryDistribution",
    "StoppingHint",
    "UnmovedChains",
    "adjusted_rand_index",
    "align_classes",
    "class_index_summary",
    "class_latents",
    "class_shares",
    "class_transitions",
    "compare_runs",
    "count_transitions",
    "homogeneity_test",
    "jump_pareto_k",
    "live_error_rate",
    "pareto_k",
    "pseudo_prior_draws",
    "rao_blackwell_shares",
    "read_chains",
    "running_evidence",
    "stationary_distribution",
    "stopping_hint",
    "unmoved_chains",
    "within_chain_tests",
]
