"""Writes the list of data sets in docs/datasets.md: python docs/datasets_page.py"""

from pathlib import Path

from hf_attnprobe.data.catalog import KnownDataset
from hf_attnprobe.data.recipes import RECIPES


PAGE = Path(__file__).with_name("datasets.md")
MARK = "<!-- from here on: python docs/datasets_page.py -->\n"


def expected() -> str:
    """The page as it should be, whatever is at hand here."""
    kept = PAGE.read_text().partition(MARK)[0]
    parts = [_section(KnownDataset(name, "", "", recipe.card)) for name, recipe in RECIPES.items()]
    return kept + MARK + "\n" + "\n".join(parts)


def _section(dataset: KnownDataset) -> str:
    card = dataset.card
    lines = [
        f"## {dataset.name}\n",
        f"{card.task[0].upper()}{card.task[1:]}. Classes: "
        f"{card.n_classes or 'as many as the files show'}. "
        f"Texts (train / validation / test, {card.sizes_from}): {card.sizes_in_words()}. "
        f"Licence: {card.licence}.\n",
    ]
    lines += [f"- Bring: {text}" for text in dataset.to_bring()]
    lines += [f"- {text[0].upper()}{text[1:]}" for text in card.rules]
    return "\n".join(lines).replace("<TAB>", "⇥") + "\n"


if __name__ == "__main__":
    PAGE.write_text(expected())
