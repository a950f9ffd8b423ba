"""The card of a data set of rows: an audit's numbers, one per test, statistic and text."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe.cards.card import templates
from hf_attnprobe.cards.names import DataName, native
from hf_attnprobe.cards.readme import dumped


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
    text = (
        templates()
        .get_template("rows.md")
        .render(
            repository=repository,
            model=model,
            audits=audits,
            with_texts=any("texts.json" in audit.beside for audit in audits),
        )
    )
    return f"---\n{dumped(native(front))}---\n\n{text.strip()}\n"
