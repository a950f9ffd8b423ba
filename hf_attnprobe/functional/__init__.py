"""Pure tensor functions: distances, rank correlations, attention edits, erasure and searches.

They only need PyTorch, do not depend on models, files or devices, and can be used on their own.
Good starting points are :func:`tvd` and :func:`jsd` (distances between outputs or between attention
weights), :func:`kendall_tau_b` (agreement between two rankings), :func:`count_removals_to_flip`
(erasure), :func:`epsilon_max_jsd` (the farthest attention with almost the same output) and
:func:`search_adversarial_attention` (a gradient search for such attention).

Tensor axes are, in this order: copies, batch, heads, queries, keys, classes. In docstrings,
``[...]`` means any leading axes, and ``[batch, keys]`` means exactly these two axes.
"""

from hf_attnprobe.functional.aopc import (
    compute_aopc_bounds,
    compute_removal_counts,
    compute_removal_steps,
    enumerate_subsets,
    expand_to_positions,
    list_unit_positions,
    normalise_aopc,
    number_distinct_sets,
    search_aopc_bounds,
)
from hf_attnprobe.functional.divergence import (
    compute_shifted_probability,
    jsd,
    kl_divergence,
    largest_jsd,
    tvd,
)
from hf_attnprobe.functional.erasure import (
    FlipSet,
    compute_removal_order,
    compute_removal_rank,
    count_removals_to_flip,
    erase_each_weight,
    find_minimal_flip_set,
)
from hf_attnprobe.functional.explanations import (
    attention_times_gradient,
    cosine_distance,
    effective_attention,
    norm_based_attention,
    norm_based_layer_attention,
    rollout,
    value_zeroing,
)
from hf_attnprobe.functional.intervention import (
    create_random_generator,
    draw_permutations,
    make_uniform,
    permute,
    replace_head,
    zero_out,
)
from hf_attnprobe.functional.linear import (
    FarthestAttention,
    JsdBounds,
    epsilon_max_jsd,
    epsilon_max_jsd_bounds,
    permutation_extremes,
    permutation_moments,
)
from hf_attnprobe.functional.plausibility import (
    SpanScores,
    auprc,
    average_precision,
    compute_iou_scores,
    compute_marked_share,
    iou_f1,
    number_spans,
    token_f1,
)
from hf_attnprobe.functional.rank import (
    RankCorrelation,
    compute_chance_of_agreement,
    dense_rank,
    kendall_tau_b,
    kendall_tau_b_matrix,
    top_overlap,
    top_tau,
)
from hf_attnprobe.functional.search import (
    Distance,
    generate_steered_candidates,
    make_linear_distance,
    search_adversarial_attention,
)
from hf_attnprobe.functional.similarity import (
    compute_alignment_to_mean,
    conicity,
    pearson,
)


__all__ = [
    "Distance",
    "FarthestAttention",
    "FlipSet",
    "JsdBounds",
    "RankCorrelation",
    "SpanScores",
    "attention_times_gradient",
    "auprc",
    "average_precision",
    "compute_alignment_to_mean",
    "compute_aopc_bounds",
    "compute_chance_of_agreement",
    "compute_iou_scores",
    "compute_marked_share",
    "compute_removal_counts",
    "compute_removal_order",
    "compute_removal_rank",
    "compute_removal_steps",
    "compute_shifted_probability",
    "conicity",
    "cosine_distance",
    "count_removals_to_flip",
    "create_random_generator",
    "dense_rank",
    "draw_permutations",
    "effective_attention",
    "enumerate_subsets",
    "epsilon_max_jsd",
    "epsilon_max_jsd_bounds",
    "erase_each_weight",
    "expand_to_positions",
    "find_minimal_flip_set",
    "generate_steered_candidates",
    "iou_f1",
    "jsd",
    "kendall_tau_b",
    "kendall_tau_b_matrix",
    "kl_divergence",
    "largest_jsd",
    "list_unit_positions",
    "make_linear_distance",
    "make_uniform",
    "norm_based_attention",
    "norm_based_layer_attention",
    "normalise_aopc",
    "number_distinct_sets",
    "number_spans",
    "pearson",
    "permutation_extremes",
    "permutation_moments",
    "permute",
    "replace_head",
    "rollout",
    "search_adversarial_attention",
    "search_aopc_bounds",
    "token_f1",
    "top_overlap",
    "top_tau",
    "tvd",
    "value_zeroing",
    "zero_out",
]
