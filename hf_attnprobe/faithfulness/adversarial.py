"""Could attention have looked elsewhere with the same output?

Jain & Wallace 2019, Section 4.2.2, Algorithm 3.

Question: how different can the weights of one text be while the output stays within ε?
Measure:  ε-max JSD, the largest Jensen-Shannon divergence (nats, at most ln 2) from the
          model's attention among attentions that move the output by at most ε in total
          variation. Of a head with several queries, and of a group of heads, the mean
          over the rows that can reach the output; only those are moved.
Exactly:  for a linear read-out of two classes, by vertex enumeration
          (functional/linear.py).
Bounds:   for a linear read-out of more classes, what an attention attains, and what
          none can exceed (functional/bounds.py).
Search:   the paper's gradient search (functional/search.py), for a linear read-out on
          request. For heads of a Transformer, where 500 steps through the model are out
          of reach, candidates from the linearised model (functional/steering.py),
          checked by running it; the paper's search through the model on request
          (``n_steps``). For one head with one query that is read by no linear map (pairs
          of texts), all single tokens and pairs of tokens (functional/edges.py), then the
          paper's search from its random starts and from the best of these. All are lower
          bounds.
Reading:  beside ``largest_jsd``, the farthest with no regard to the output: a share of 0
          says that the output pins the weights down, 1 that it does not at all. What
          was found is a lower bound, so only an upper bound can say "pinned down".
"""

from hf_attnprobe.attention_model import (
    Differentiable,
    LinearReadout,
    Observation,
    Site,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.farthest import (
    AdversarialResult,
    Search,
    by_search,
    exactly,
    has_one_row,
    of_group,
    of_head,
    of_row,
    within_bounds,
)
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.readings import TestReadings, share


EPSILONS = (0.01, 0.05)
"""The paper's, for classification and for question answering; its code evaluates at .05."""
FRONTIER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
PAPERS_STEPS = 500

READINGS: TestReadings = {
    "epsilon_max_jsd": (
        "the farthest attention found that keeps the output within {key} lies at a divergence "
        "of {mean:.2f}"
    ),
    "epsilon_max_jsd_upper": (
        "no attention that keeps the output within {key} lies beyond a divergence of {mean:.2f}"
    ),
    "epsilon_max_jsd_exact": share(
        "how far attention can be moved is known exactly in {mean:.0%} of texts; in the "
        "others it is the farthest attention that was found"
    ),
    "share_of_largest": share(
        "that is at least {mean:.0%} of the largest divergence there is (ε = {key}; mean over "
        "texts)"
    ),
    "share_of_largest_upper": share(
        "that is at most {mean:.0%} of the largest divergence there is (ε = {key}; mean over texts)"
    ),
    "largest_jsd": (
        "whatever the output, the farthest attention lies at a divergence of {mean:.2f}"
    ),
}


def _check_method(observation: Observation, options: Adversarial) -> None:
    token_logits = observation.token_logits
    is_binary = token_logits is not None and token_logits.shape[-1] == 2
    if options.method == "exact" and not is_binary:
        raise AttnProbeError(
            "method='exact' needs a binary linear read-out (two labels, logit = Σ a_t "
            "u_t), which this model does not have; use method='search', or 'auto', which "
            "gives bounds for linear read-outs of more labels"
        )


@register_test(
    readings=READINGS,
    does="searches other attention that keeps the output",
    needs=((LinearReadout, Differentiable),),
    groups=True,
    check=lambda preview, options: _check_method(preview.shortest, options),
)
def adversarial(
    observation: Observation,
    site: Site,
    options: Adversarial = Adversarial(),
    *,
    seed: int = 0,
) -> AdversarialResult:
    """Finds the attention farthest from the model's own that moves the output by at most ε.

    The paper's search has 5 random starts and 500 steps of Adam with ε = .01.

    Raises:
        AttnProbeError: ``exact`` on a model whose read-out is not binary and linear.
    """
    _check_method(observation, options)
    site = _only_member(observation, site)
    token_logits = observation.token_logits
    is_exact = token_logits is not None and token_logits.shape[-1] == 2
    is_exact = is_exact and options.method != "search" and not site.is_group
    epsilons = options.epsilons
    if epsilons is None:
        epsilons = FRONTIER if is_exact else EPSILONS
    if site.is_group:
        return of_group(observation, site, epsilons)
    if token_logits is None and has_one_row(observation, site):
        search = _search(options, seed, PAPERS_STEPS)
        return of_row(observation, site, epsilons, search)
    if token_logits is None:
        search = _search(options, seed, 0)
        return of_head(observation, site, epsilons, search)
    if is_exact:
        return exactly(observation, site, token_logits, epsilons)
    if options.method == "search":
        search = _search(options, seed, PAPERS_STEPS)
        return by_search(observation, site, token_logits, epsilons, search)
    n_steps = options.n_steps or 0
    return within_bounds(observation, site, token_logits, epsilons, n_steps)


def _search(options: Adversarial, seed: int, default_steps: int) -> Search:
    n_steps = default_steps if options.n_steps is None else options.n_steps
    return Search(options.n_starts, n_steps, seed)


def _only_member(observation: Observation, site: Site) -> Site:
    """A group of one head is that head."""
    if site.is_group:
        members = observation.model.members(site)
        heads = [
            Site(layer, head) for layer in members for head in members[layer]
        ]
        if len(heads) == 1:
            return heads[0]._replace(query=site.query)
    return site
