# What `pymc_mcoem.diagnostics` has, and where it is loaded from when it is first asked for.

from .chains import IndexChains as IndexChains
from .chains import read_chains as read_chains
from .drift import Drift as Drift
from .latents import class_latents as class_latents
from .model_comparison import BayesFactors as BayesFactors
from .model_comparison import bayes_factors as bayes_factors
from .pseudo_priors import jump_pareto_k as jump_pareto_k
from .pseudo_priors import pareto_k as pareto_k
from .pseudo_priors import pseudo_prior_draws as pseudo_prior_draws
from .runs import ClassAlignment as ClassAlignment
from .runs import StoppingHint as StoppingHint
from .runs import align_classes as align_classes
from .runs import compare_runs as compare_runs
from .runs import running_evidence as running_evidence
from .runs import stopping_hint as stopping_hint
from .shares import class_shares as class_shares
from .shares import rao_blackwell_shares as rao_blackwell_shares
from .summary import ClassIndexSummary as ClassIndexSummary
from .summary import ClassIndexWarning as ClassIndexWarning
from .summary import class_index_summary as class_index_summary
from .switching import UnmovedChains as UnmovedChains
from .switching import unmoved_chains as unmoved_chains
from .transitions import HomogeneityTest as HomogeneityTest
from .transitions import StationaryDistribution as StationaryDistribution
from .transitions import class_transitions as class_transitions
from .transitions import count_transitions as count_transitions
from .transitions import homogeneity_test as homogeneity_test
from .transitions import stationary_distribution as stationary_distribution
from .transitions import within_chain_tests as within_chain_tests
from .visits import class_draws as class_draws

__all__: list[str]
