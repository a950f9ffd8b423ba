"""The data sets that have a name here: where they are and how the papers cut them. Data, no code."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """Where a data set is and how the papers cut it. With a folder as `hub_id` the same cut is made of local files."""

    hub_id: str
    config: str | None = None
    text_column: str | None = None  # None: `text`, else `sentence`
    label_column: str | None = None  # None: `label`; without that column the examples are unlabelled
    label_names: tuple[str, ...] | None = None  # where the source has bare integers
    keep_labels: tuple[str, ...] | None = None  # names of the classes to keep, renumbered in this order
    splits: Mapping[str, str] = field(default_factory=dict)  # our name of a split -> the source's, where they differ
    validation_fraction: float | None = None  # share of `train` set apart where the source has no `validation`
    longer_than: int | None = None  # strict bounds on the number of whitespace tokens
    shorter_than: int | None = None


RECIPES: dict[str, Recipe] = {
    "sst": Recipe("SetFit/sst2", label_names=("neg", "pos"), longer_than=5),
    # The test labels of GLUE are secret, so its validation split is the test split here: do not tune on it.
    "sst2": Recipe("stanfordnlp/sst2", text_column="sentence", splits={"test": "validation"}),
    "imdb": Recipe("stanfordnlp/imdb", validation_fraction=0.2, longer_than=6, shorter_than=400),
    "agnews": Recipe("fancyzhx/ag_news", validation_fraction=0.15),
    "agnews-binary": Recipe("fancyzhx/ag_news", keep_labels=("World", "Business"), validation_fraction=0.15),
    "20news": Recipe(
        "SetFit/20_newsgroups",
        label_column="label_text",
        keep_labels=("rec.sport.baseball", "rec.sport.hockey"),
        validation_fraction=0.2,
        longer_than=6,
        shorter_than=500,
    ),
}
"""The tasks of Jain & Wallace (2019) that are public, with their classes, length bounds and validation shares.

Their splits are not all on the Hub: 20 Newsgroups has its split by date here, and the IMDB test split is not thinned
to a fifth. Lengths count whitespace tokens, theirs spaCy tokens.
"""
