"""Descriptions of the registered data sets: task, sizes, licence, files to provide, local copy."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError, MissingSplitError
from hf_attnprobe.core.progress import silence_datasets
from hf_attnprobe.data.columns import list_columns
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.data.recipes import RECIPES, DatasetCard
from hf_attnprobe.data.sources import find_recipe


@dataclass(frozen=True)
class KnownDataset:
    """A registered data set; ``print(dataset)`` lists the files that it needs.

    Attributes:
        name: the name that ``audit``, ``train`` and the other commands accept.
        source: its Hub id, or the folder in which its files are expected.
        at_hand: location on this machine; "" if the data set was not downloaded or provided.
        card: task, classes, sizes, licence, files and rules.
        n_texts_by_split: text count per split after applying the rules; empty unless the user
            named a folder.
    """

    name: str
    source: str
    at_hand: str
    card: DatasetCard
    n_texts_by_split: dict[str, int] = field(default_factory=dict)

    @property
    def is_on_hub(self) -> bool:
        """Whether the data set can be loaded from the Hub."""
        return RECIPES[self.name].hub_id[:2] != "./"

    def to_json(self) -> dict[str, Any]:
        """Convert the description to plain values for JSON, with the card's fields at the top level."""
        values = asdict(self)
        card = values.pop("card")
        # The key in JSON is "found".
        values["found"] = values.pop("n_texts_by_split")
        return values | card

    def __str__(self) -> str:
        card = self.card
        n_classes = card.n_classes or "as many as the files contain"
        lines = [
            f"{self.name}: {card.task}",
            f"  classes   {n_classes}",
            f"  texts     {card.format_sizes()} (train / validation / test, {card.sizes_from})",
            f"  licence   {card.licence}",
            f"  at hand   {self.at_hand or 'no'}",
        ]
        if self.n_texts_by_split:
            counts = ", ".join(f"{name} {n}" for name, n in self.n_texts_by_split.items())
            lines.append(f"  found     {counts}, after applying the rules below")
        for title, sentences in (("files", self.list_required_files()), ("rules", card.rules)):
            for index, sentence in enumerate(sentences):
                row_title = title if index == 0 else ""
                lines.append(f"  {row_title:<10}{sentence}")
        return "\n".join(lines)

    def list_required_files(self) -> list[str]:
        """Return sentences about the files that are needed to load this data set."""
        recipe = RECIPES[self.name]
        sentences = list(self.card.bring)
        if recipe.authors_files:
            sentences.append(
                f"to convert these files: python examples/authors_files.py {self.name} FILES FOLDER"
            )
        if not self.is_on_hub:
            return [
                *sentences,
                f"put the folder at {recipe.hub_id}, or pass its path as {self.name}=FOLDER",
            ]
        columns = [
            *(list_columns(recipe.text_column) or ["text"]),
            recipe.text_pair_column,
            str(recipe.label_column or "label"),
        ]
        configuration = f", configuration {recipe.config}" if recipe.config else ""
        column_names = ", ".join(filter(None, columns))
        return [
            f"none needed, since the data set is loaded from the Hub ({recipe.hub_id}{configuration})",
            f"or pass {self.name}=FOLDER, a folder of files that datasets.load_dataset can read, "
            f"with the columns {column_names}",
            *sentences,
        ]


def list_datasets(*names: str) -> list[KnownDataset]:
    """List registered data sets, with the files that they need and their location on this machine.

    Args:
        *names: data set names; default all. With ``name=folder``, the texts in the folder are
            counted too.

    Returns:
        One description per name, in the order of the names.

    Raises:
        AttnProbeError: if a name is not registered, or the data set in a folder cannot be read.

    Example::

        from hf_attnprobe import list_datasets

        for dataset in list_datasets("sst", "imdb"):
            print(dataset)
    """
    return [_describe_dataset(name) for name in names or RECIPES]


def _describe_dataset(dataset: str) -> KnownDataset:
    """Describe a registered data set, one that this package knows by name.

    Args:
        dataset: Name such as ``"sst"``, or name and folder such as ``"sst=my-folder"``. The texts
            are counted only if there is a folder.
    """
    recipe = find_recipe(dataset)
    # Only registered data sets have a card.
    if recipe.card is None:
        raise AttnProbeError(
            f"{dataset!r} is not a registered data set. Choose from {', '.join(RECIPES)}. Other "
            "folders and Hub ids need no registration: pass them with --dataset."
        )
    has_folder = "=" in dataset
    n_texts_by_split = _count_texts(dataset) if has_folder else {}
    # If a folder is given, the recipe contains it in place of the Hub id.
    location = recipe.hub_id if n_texts_by_split else _locate_dataset(recipe.hub_id)
    return KnownDataset(recipe.name, recipe.hub_id, location, recipe.card, n_texts_by_split)


@silence_datasets()
def _count_texts(dataset: str) -> dict[str, int]:
    """Count the texts in each existing split."""
    counts = {}
    for split in ("train", "validation", "test"):
        with suppress(MissingSplitError):
            counts[split] = len(load_examples(dataset, split))
    return counts


def _locate_dataset(source: str) -> str:
    """Find a data set on this machine.

    Returns:
        Its folder, or "in the Hub's cache" if at least one of its files was downloaded from the
        Hub, or "" if the data set was not found.
    """
    if source.startswith("./"):
        return source if Path(source).is_dir() else ""
    from huggingface_hub import constants

    repository = f"datasets--{source.replace('/', '--')}"
    snapshots = Path(constants.HF_HUB_CACHE) / repository / "snapshots"
    return "in the Hub's cache" if any(snapshots.glob("*/*")) else ""
