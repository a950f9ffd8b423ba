"""Pure tensor functions behind the tests: no model, no file, no device of their own.

The axes of their tensors are, in this order, copies, batch, heads, queries, keys,
classes; ``[...]`` stands for any leading axes, ``[batch, keys]`` for exactly these two.
"""

from hf_attnprobe.functional.aopc import (
    at_positions,
    beam_bounds,
    chain_bounds,
    normalised,
    removal_counts,
    removal_steps,
    same_sets,
    subsets,
    units_first,
)
from hf_attnprobe.functional.bounds import JsdBounds, epsilon_max_jsd_bounds
from hf_attnprobe.functional.divergence import (
    jsd,
    kl_divergence,
    largest_jsd,
    small_side,
    tvd,
)
from hf_attnprobe.functional.erasure import (
    FlipSet,
    erase_each,
    minimal_flip_set,
    removal_order,
    removal_rank,
    removals_to_flip,
)
from hf_attnprobe.functional.explanations import (
    attention_times_gradient,
    cosine_distance,
    effective_attention,
    norm_based,
    norm_based_layer,
    rollout,
    value_zeroing,
)
from hf_attnprobe.functional.intervention import (
    at_head,
    permute,
    random_generator,
    random_permutations,
    uniform,
    zero_out,
)
from hf_attnprobe.functional.linear import (
    FarthestAttention,
    epsilon_max_jsd,
    permutation_extremes,
    permutation_moments,
)
from hf_attnprobe.functional.plausibility import (
    SpanScores,
    auprc,
    average_precision,
    iou_f1,
    iou_scores,
    share_of_marked,
    spans,
    token_f1,
)
from hf_attnprobe.functional.rank import (
    RankCorrelation,
    chance_of_agreement,
    dense_rank,
    kendall_tau_b,
    kendall_tau_b_matrix,
    top_overlap,
    top_tau,
)
from hf_attnprobe.functional.search import (
    Distance,
    linear_distance,
    search_adversarial_attention,
)
from hf_attnprobe.functional.similarity import (
    alignment_to_mean,
    conicity,
    pearson,
)
from hf_attnprobe.functional.steering import steered_candidates


__all__ = [
    "Distance",
    "FarthestAttention",
    "FlipSet",
    "JsdBounds",
    "RankCorrelation",
    "SpanScores",
    "alignment_to_mean",
    "at_head",
    "at_positions",
    "attention_times_gradient",
    "auprc",
    "average_precision",
    "beam_bounds",
    "chain_bounds",
    "chance_of_agreement",
    "conicity",
    "cosine_distance",
    "dense_rank",
    "effective_attention",
    "epsilon_max_jsd",
    "epsilon_max_jsd_bounds",
    "erase_each",
    "iou_f1",
    "iou_scores",
    "jsd",
    "kendall_tau_b",
    "kendall_tau_b_matrix",
    "kl_divergence",
    "largest_jsd",
    "linear_distance",
    "minimal_flip_set",
    "norm_based",
    "norm_based_layer",
    "normalised",
    "pearson",
    "permutation_extremes",
    "permutation_moments",
    "permute",
    "random_generator",
    "random_permutations",
    "removal_counts",
    "removal_order",
    "removal_rank",
    "removal_steps",
    "removals_to_flip",
    "rollout",
    "same_sets",
    "search_adversarial_attention",
    "share_of_marked",
    "small_side",
    "spans",
    "steered_candidates",
    "subsets",
    "token_f1",
    "top_overlap",
    "top_tau",
    "tvd",
    "uniform",
    "units_first",
    "value_zeroing",
    "zero_out",
]
