"""Which attention an audit is about, before anything is said of it."""

from collections.abc import Sequence

from hf_attnprobe.attention_model import ALL, Site
from hf_attnprobe.auditing.sweep import Sweep
from hf_attnprobe.inference.batching import collate


FIRST = "the first token"


def attention_meant(sweep: Sweep, groups: Sequence[Site], first_token: str | None) -> str:
    """ "mean of 72 heads from [CLS]"; empty where heads are tested one by one alone.

    Args:
        sweep: whose first text is read once more.
        groups: of heads that are tested together.
        first_token: the name of the special token that texts begin with.
    """
    n_heads = len(sweep.adapter.sites())
    if n_heads == 1:
        return "the only head"
    whole = [site for site in groups if (site.layer, site.head) == (ALL, ALL)]
    if not whole:
        return ""
    batch = collate(sweep.adapter, sweep.texts[:1], sweep.pad_token_id)
    row = sweep.adapter.read_from(sweep.adapter.observe(batch))
    if whole[0].query is not None:
        row = f"the token at place {whole[0].query}"
    elif row == FIRST and first_token:
        row = first_token
    return f"mean of {n_heads} heads{f' from {row}' if row else ''}"
