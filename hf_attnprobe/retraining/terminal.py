"""The verdict of a retraining in a few lines: a question, an answer, a number each."""

from collections.abc import Sequence

from hf_attnprobe import markdown
from hf_attnprobe.retraining.verdict import Verdict
from hf_attnprobe.statistics.summary import Statistic, find_statistic
from hf_attnprobe.statistics.verdict_lines import WIDTH, fitting, tail, verdict_line
from hf_attnprobe.statistics.verdicts import RULES, Finding


QUESTION = "Would another training have attended so, and is attention needed?"
QUESTIONS = {
    "need": "Is its attention needed?",
    "elsewhere": "Can a model look elsewhere?",
    "elsewhere_without_seeds": "Can a model look elsewhere?",
    "transfer": "Do its weights help others?",
}
"""What each rule asks, in plain words and at most thirty letters."""
MEASURES = {
    "need": "F1 it is worth",
    "elsewhere": "JSD beyond a seed's",
    "elsewhere_without_seeds": "JSD to its attention",
    "transfer": "F1 gained",
}
"""What is graded, by rule."""


def short_text(title: str, trained: str, verdict: Verdict, statistics: Sequence[Statistic]) -> str:
    """A line per question, and how far another seed moves attention.

    Args:
        title: the base and its data.
        trained: how many texts and models.
        verdict: of the retrainings.
        statistics: of the retrainings.
    """
    lines = [
        verdict_line(QUESTIONS[f.rule], str(f.answer), _numbers(f)) for f in verdict.findings()
    ]
    far = find_statistic(statistics, "seed_jsd")
    moved = find_statistic(statistics, "seed_tvd")
    if far is not None and moved is not None:
        numbers = [
            f"attention by JSD {far.mean:.2f}",
            f"the output by {moved.mean:.2f}",
        ]
        lines.append(fitting(["Another seed moves", *numbers], WIDTH))
    name = tail(title, WIDTH - len(trained) - 2)
    return "\n".join([QUESTION, f"{name}: {trained}", "", *lines])


def _numbers(found: Finding) -> list[str]:
    """The number that is graded, its yardsticks, and from where on it is a yes."""
    rule = RULES[found.rule]
    graded = markdown.interval(found.value, found.ci95)
    yes = f"yes above {rule.yes:.2f}" if rule.yes == 0 else f"yes from {rule.yes:.2f}"
    beside = [f"{name} {value:z.2f}" for name, value in found.yardsticks.items()]
    return [f"{MEASURES[found.rule]} {graded}", *beside, yes]
