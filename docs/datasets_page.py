"""Write the list of registered data sets in docs/datasets.md: python docs/datasets_page.py"""

from pathlib import Path

from hf_attnprobe.data.catalog import KnownDataset
from hf_attnprobe.data.recipes import RECIPES


PAGE = Path(__file__).with_name("datasets.md")
"""Path of the page. The text above ``MARK`` is written by hand."""
MARK = "<!-- from here on: python docs/datasets_page.py -->\n"
"""Comment in the page. All text below it is generated."""


def render_page() -> str:
    """Return the text of the page, with the hand-written part of the current one."""
    introduction = PAGE.read_text().partition(MARK)[0]
    datasets = [KnownDataset(name, "", "", recipe.card) for name, recipe in RECIPES.items()]
    return introduction + MARK + "\n" + "\n".join(map(_render_section, datasets))


def _render_section(dataset: KnownDataset) -> str:
    """Return the section of one data set."""
    card = dataset.card
    lines = [
        f"## {dataset.name}\n",
        f"{_capitalize(card.task)}. Classes: {card.n_classes or 'as many as the files contain'}. "
        f"Texts (train / validation / test, {card.sizes_from}): {card.format_sizes()}. "
        f"Licence: {card.licence}.\n",
    ]
    lines += [f"- Files: {sentence}" for sentence in dataset.list_required_files()]
    lines += [f"- {_capitalize(rule)}" for rule in card.rules]
    return "\n".join(lines).replace("<TAB>", "⇥") + "\n"


def _capitalize(sentence: str) -> str:
    """Return a sentence with an upper-case first letter."""
    return sentence[0].upper() + sentence[1:]


if __name__ == "__main__":
    PAGE.write_text(render_page())
