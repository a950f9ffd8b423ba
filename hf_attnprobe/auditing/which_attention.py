"""Which attention an audit is about, and where it lies, before anything is said of it."""

from collections.abc import Sequence

from hf_attnprobe.attention_model import ALL, Site
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.sweep import Sweep
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.statistics.summary import ALL_TEXTS


FIRST = "the first token"


def attention_in_words(
    sweep: Sweep, groups: Sequence[Site], first_token: str | None
) -> str:
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


def attention_line(report: AuditResult) -> str:
    """Which attention is meant, and its share that is not shown; empty if not known."""
    which = report.provenance.get("attention")
    if not which:
        return ""
    share = _special_share(report)
    if share is None or share < 0.005:
        return f"Attention: {which}"
    held = " and the text that is held" if report.provenance.get("segment") else ""
    return f"Attention: {which}; {share:.0%} of it on special tokens{held}, not shown"


def _special_share(report: AuditResult) -> float | None:
    """Of all heads at once, else of the only one."""
    known = {
        (s.layer, s.head): s.mean
        for s in report.statistics
        if s.statistic == "special_attention" and s.group == ALL_TEXTS and s.n
    }
    if (ALL, ALL) in known:
        return known[ALL, ALL]
    return next(iter(known.values())) if len(known) == 1 else None
