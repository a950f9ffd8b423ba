"""Write the tables of rules in docs/verdicts.md from the rules in the code.

Usage: python docs/rules_table.py
"""

import re
from pathlib import Path

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.statistics.verdicts import (
    ANSWER_SET,
    CLASSIFIER_SET,
    RULES,
    QuestionSet,
    list_verdict_steps,
)


PAGE = Path(__file__).with_name("verdicts.md")


def render_rules() -> list[str]:
    """Return the Markdown lines of a table with one row for each rule."""
    rows = []
    for rule in RULES.values():
        partly = "–" if rule.partly == rule.yes else f"{rule.partly:.2f}"
        yes = "above 0" if rule.yes == 0 else f"{rule.yes:.2f}"
        rows.append([rule.name, rule.question, rule.measure, partly, yes, rule.source])
    head = ["rule", "question", "measure", "partly from", "yes from", "source"]
    return markdown.format_table(head, rows)


def render_steps(question_set: QuestionSet) -> list[str]:
    """Return the Markdown lines of a table with the conditions that lead to an answer, in order."""
    rows = [
        [condition, f"**{verdict}**", reason]
        for condition, verdict, reason in list_verdict_steps(question_set)
    ]
    return markdown.format_table(["if", "the answer is", "because"], rows)


def render_page() -> str:
    """Return the page with its tables replaced by current ones."""
    page = PAGE.read_text()
    tables = {
        "rules": render_rules(),
        "steps": render_steps(CLASSIFIER_SET),
        "steps of answers": render_steps(ANSWER_SET),
    }
    for name, lines in tables.items():
        section = re.compile(f"(<!-- {name} -->\\n).*?(<!-- /{name} -->)", re.DOTALL)
        table = "\n".join(["", *lines, "", ""])
        page = section.sub(lambda match, table=table: match[1] + table + match[2], page)
    return page


if __name__ == "__main__":
    PAGE.write_text(render_page())
