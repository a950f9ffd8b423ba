"""The data sets that have a name: what they are, what to bring, and whether they are at hand."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError, NoSuchSplit
from hf_attnprobe.core.progress import quiet_datasets
from hf_attnprobe.data.columns import each
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.data.recipes import RECIPES, Card
from hf_attnprobe.data.sources import named


@dataclass(frozen=True)
class KnownDataset:
    """A data set with a name here. ``print(dataset)`` says which files it needs.

    Attributes:
        name: by which ``audit``, ``train`` and the others take it.
        source: its Hub id, or the folder in which its files are looked for.
        at_hand: where it is on this machine; "" where it is not.
        card: task, classes, sizes, licence, files and rules.
        found: number of texts by split in a folder that was given, after the rules.
    """

    name: str
    source: str
    at_hand: str
    card: Card
    found: dict[str, int] = field(default_factory=dict)

    @property
    def is_on_hub(self) -> bool:
        """Whether the Hub has it, under an id that was verified."""
        return RECIPES[self.name].hub_id[:2] != "./"

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        own = asdict(self)
        return own | own.pop("card")

    def __str__(self) -> str:
        card = self.card
        classes = card.n_classes or "as many as the files show"
        lines = [
            f"{self.name}: {card.task}",
            f"  classes   {classes}",
            f"  texts     {card.sizes_in_words()} (train / validation / test, {card.sizes_from})",
            f"  licence   {card.licence}",
            f"  at hand   {self.at_hand or 'no'}",
        ]
        if self.found:
            counts = ", ".join(f"{name} {n}" for name, n in self.found.items())
            lines.append(f"  found     {counts}, after the rules below")
        for label, said in (("bring", self.to_bring()), ("rules", card.rules)):
            for first, text in enumerate(said):
                lines.append(f"  {'' if first else label:<10}{text}")
        return "\n".join(lines)

    def to_bring(self) -> list[str]:
        """Says in sentences which files are needed."""
        recipe = RECIPES[self.name]
        files = [*self.card.bring]
        if recipe.authors_files:
            files.append(
                f"such files are converted by examples/authors_files.py {self.name} FILES FOLDER"
            )
        if not self.is_on_hub:
            here = recipe.hub_id
            return [
                *files,
                f"put FOLDER at {here}, or say where it is with {self.name}=FOLDER",
            ]
        columns = [
            *(each(recipe.text_column) or ["text"]),
            recipe.text_pair_column,
            str(recipe.label_column or "label"),
        ]
        part = f", configuration {recipe.config}" if recipe.config else ""
        return [
            f"nothing: it is loaded from the Hub ({recipe.hub_id}{part})",
            f"or, as {self.name}=FOLDER, files that datasets.load_dataset reads, with "
            f"the columns {', '.join(filter(None, columns))}",
            *files,
        ]


def known_datasets(*names: str) -> list[KnownDataset]:
    """The data sets with a name here, and whether they are available.

    Args:
        names: the ones to say something of, default all. ``name=folder`` reads the
            folder and counts its texts.

    Raises:
        AttnProbeError: no such name; the folder does not hold the data set.
    """
    return [_describe(name) for name in names or RECIPES]


def _describe(dataset: str) -> KnownDataset:
    recipe = named(dataset)
    if not recipe.name:
        raise AttnProbeError(
            f"expected one of {', '.join(RECIPES)}, or name=folder of one, got "
            f"{dataset!r}; any other folder or Hub id is taken as it comes"
        )
    found = _count(dataset) if "=" in dataset else {}
    at_hand = recipe.hub_id if found else _at_hand(recipe.hub_id)
    assert recipe.card is not None  # of a data set with a name
    return KnownDataset(recipe.name, recipe.hub_id, at_hand, recipe.card, found)


@quiet_datasets()
def _count(dataset: str) -> dict[str, int]:
    """Number of texts in each existing split."""
    counts = {}
    for split in ("train", "validation", "test"):
        with suppress(NoSuchSplit):
            counts[split] = len(load_examples(dataset, split))
    return counts


def _at_hand(source: str) -> str:
    """Where a data set is on this machine; "" if it is not.

    Of the Hub's, what was once downloaded counts; whether it is whole shows when it is
    loaded.
    """
    if source.startswith("./"):
        return source if Path(source).is_dir() else ""
    from huggingface_hub import constants

    repository = f"datasets--{source.replace('/', '--')}"
    snapshots = Path(constants.HF_HUB_CACHE) / repository / "snapshots"
    return "in the Hub's cache" if any(snapshots.glob("*/*")) else ""
