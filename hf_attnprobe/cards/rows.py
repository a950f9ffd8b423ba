"""The card of a data set of rows: an audit's numbers, one per test, statistic and text."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe import markdown
from hf_attnprobe.cards.metadata import dumped
from hf_attnprobe.cards.names import DataName, code, native, prose, shown


COLUMNS = {
    "test": "the test, such as correlation",
    "statistic": "what was measured, such as attention_leave_one_out_tau",
    "example_id": "the text's number within its split",
    "layer": "of the attention; −1 stands for all, or for the model's prediction",
    "head": "of the attention; −1 stands for all",
    "value": "the number; NaN where it is undefined",
}


@dataclass(frozen=True)
class PublishedRows:
    """One audit in a data set of rows.

    Attributes:
        config: name of the configuration, and of its folder.
        data: what was audited on.
        split: of these data.
        n: texts.
        conclusion: the question with its graded answer; None without evidence.
        files: of the folder, by the split's name in the data set: ``model`` and, where
            one was run, ``control``.
        beside: names of the other files in the folder.
    """

    config: str
    data: DataName
    split: str
    n: int
    conclusion: str | None
    files: dict[str, str]
    beside: tuple[str, ...] = ()


def rows_readme(
    repository: str, model: str, audits: Sequence[PublishedRows], license: str | None
) -> str:
    """The README of the data set, with a configuration for each audit."""
    configs = [
        {
            "config_name": audit.config,
            "data_files": [
                {"split": split, "path": f"{audit.config}/{file}"}
                for split, file in audit.files.items()
            ],
        }
        for audit in audits
    ]
    front = {
        "license": license,
        "tags": ["attention", "interpretability", "faithfulness", "hf_attnprobe"],
        "configs": configs,
    }
    lines = [f"# Audit of {shown(model)}", ""]
    lines += [
        f"Every number that `attnprobe audit` measured on {code(model)}: does its "
        "attention explain its predictions? The means, intervals and sentences of the "
        "model's card can be computed from them again.",
        "",
    ]
    for audit in audits:
        said = prose(audit.conclusion or "No question was answered.")
        where = f"{audit.n:,} texts of {code(audit.data.name)}"
        where += f", split {code(audit.split)}" if audit.split else ""
        lines.append(f"- {code(audit.config)}: {where}. {said}")
        if audit.beside:
            files = ", ".join(code(name) for name in audit.beside)
            lines.append(f"  In the folder of that name also {files}.")
    named = f'"{repository}", "{audits[0].config}", split="model"'
    lines += ["", "```python", "from datasets import load_dataset", ""]
    lines += [f"rows = load_dataset({named})", "```", ""]
    lines += [
        "The split `control`, where there is one, holds the same numbers of the control, "
        "the mean over its draws. `texts.json` and the reports show a few texts of the "
        "data audited; their terms are those of these data.",
        "",
        *markdown.table(["column", "what it is"], COLUMNS.items()),
    ]
    return f"---\n{dumped(native(front))}---\n\n" + "\n".join(lines) + "\n"
