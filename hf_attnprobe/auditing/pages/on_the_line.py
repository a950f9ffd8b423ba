"""What stands on the number line of a question beside its graded number.

Only what is on the same scale.
"""

from hf_attnprobe.page.elements import scale
from hf_attnprobe.page.html import Html
from hf_attnprobe.statistics.verdicts import RULES, Finding


def number_line_of(finding: Finding) -> Html | None:
    """The number with its interval among thresholds and yardsticks; None without one."""
    if finding.value != finding.value:
        return None
    low, high = finding.ci95 or (None, None)
    rule = RULES[finding.rule]
    is_share = set(rule.ends.values()) >= {0.0, 1.0}
    return scale(
        finding.value,
        low,
        high,
        finding.graded_by.thresholds,
        on_scale(finding),
        (0.0, 1.0) if is_share and finding.value >= 0 else None,
        "at most" if finding.is_upper_bound else "",
    )


def on_scale(finding: Finding) -> dict[str, float]:
    """What stands at which place of the scale, by what it is.

    Without a control the scale begins at chance.
    """
    ends = dict(RULES[finding.rule].ends)
    if "control" not in finding.yardsticks and "the control" in ends:
        ends = {"chance": 0.0, **{k: v for k, v in ends.items() if k != "the control"}}
    bound = finding.yardsticks.get("upper_bound")
    return ends if bound is None else {**ends, "certainly at least": 1 - bound}
