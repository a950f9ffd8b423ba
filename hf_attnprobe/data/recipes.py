"""The registered data sets: source, splits, columns and rules of the papers.

They are listed in ``recipes.yaml``.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hf_attnprobe.core.serialization import read_package_yaml


_SENTENCE_BOUNDARY = re.compile(r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+|\s*\n\s*""")
"""White space after . ! ? or …, also after a closing quote or bracket, or a line break."""


@dataclass(frozen=True)
class DatasetCard:
    """Facts about a data set, for its users.

    Attributes:
        task: what is predicted, such as "sentiment of a sentence".
        sizes: number of texts in train, validation and test; None if it is not stated.
        sizes_from: the source of the sizes.
        licence: the licence as its source states it.
        n_classes: number of classes; None if it depends on the files.
        bring: the files to provide and where to get them; empty if the Hub has the data.
        rules: how the data is filtered and split, and how this differs from the papers.
    """

    task: str
    sizes: tuple[int | None, int | None, int | None]
    sizes_from: str
    licence: str
    n_classes: int | None = None
    bring: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    def format_sizes(self) -> str:
        """Return the number of texts in train, validation and test as one string.

        >>> RECIPES["sst"].card.format_sizes()
        '6,355 / – / 1,725'
        """
        return " / ".join("–" if n_texts is None else f"{n_texts:,}" for n_texts in self.sizes)


@dataclass(frozen=True)
class Recipe:
    """The source of a data set, its columns, and the rules by which a paper splits and filters it.

    Attributes:
        hub_id: id on the Hub, or a local folder to which the same rules are applied. An id that
            starts with "./" is a folder in the working directory, for data that the Hub lacks.
        config: configuration name on the Hub, if there are several.
        text_column: text column; several columns are joined by a space. Default: that of a
            usual pair, otherwise `text` or `sentence`.
        text_pair_column: column with the second texts, which the tokenizer pairs with the first.
        label_column: label column, or several columns of 0 and 1, one per label. Default:
            `label`; without this column the texts are unlabelled.
        label_names: class names, if the source has integers.
        first_label: the first class's number in the source.
        keep_labels: class names to keep, renumbered in this order.
        splits: names of the splits in the source that differ from train, validation and test.
        validation_fraction: share of `train` to use as validation if the source has no
            `validation`.
        balanced_validation: whether to take the same share of every class for validation.
        longer_than: texts must have more white-space tokens than this number.
        shorter_than: texts must have fewer white-space tokens than this number.
        max_sentences: training and validation texts with more sentences are dropped as outliers.
        max_sentence_tokens: training and validation texts with a sentence of more white-space
            tokens are dropped as outliers.
        authors_files: whether ``card.bring`` names files in their authors' format, which
            ``examples/authors_files.py`` converts.
        string_columns: further columns of a table that are read as strings even if all their cells
            look like numbers.
        labels: new names of labels as ``data=model``.
        holdout: share of a single split to use as the test split.
        name: name of a registered data set; "" for other data sets.
        card: facts about a registered data set; None for other data sets.
    """

    hub_id: str
    config: str | None = None
    text_column: str | tuple[str, ...] | None = None
    text_pair_column: str | None = None
    label_column: str | tuple[str, ...] | None = None
    label_names: tuple[str, ...] | None = None
    first_label: int = 0
    keep_labels: tuple[str, ...] | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    validation_fraction: float | None = None
    balanced_validation: bool = False
    longer_than: int | None = None
    shorter_than: int | None = None
    max_sentences: int | None = None
    max_sentence_tokens: int | None = None
    authors_files: bool = False
    string_columns: Sequence[str] = ()
    labels: tuple[str, ...] = ()
    holdout: float | None = None
    name: str = ""
    card: DatasetCard | None = field(default=None, compare=False, repr=False)

    @property
    def has_pairs(self) -> bool:
        """Whether the recipe names a column of second texts."""
        return self.text_pair_column is not None

    def is_within_bounds(self, text: str, *, training: bool) -> bool:
        """Return whether a text meets the bounds on its length.

        Args:
            text: the text.
            training: whether the text is from the training or the validation split. Only these
                have bounds on the number and the length of sentences.

        Returns:
            Whether to keep the text.
        """
        length = len(text.split())
        if self.longer_than is not None and length <= self.longer_than:
            return False
        if self.shorter_than is not None and length >= self.shorter_than:
            return False
        if not training or self.max_sentences is self.max_sentence_tokens is None:
            return True
        lengths = [len(sentence.split()) for sentence in split_sentences(text)]
        max_sentences = self.max_sentences or math.inf
        max_sentence_tokens = self.max_sentence_tokens or math.inf
        return len(lengths) <= max_sentences and max(lengths, default=0) <= max_sentence_tokens


def split_sentences(text: str) -> list[str]:
    r"""Split a text into sentences by punctuation and line breaks.

    The rule does not know abbreviations: a sentence also ends after "Dr." in "Dr. No".

    Args:
        text: the text.

    Returns:
        The sentences in order, without the white space between them.

    >>> split_sentences('He asked "why?" Nobody knew... It was 3.5 metres\nby two .')
    ['He asked "why?"', 'Nobody knew...', 'It was 3.5 metres', 'by two .']
    """
    return [sentence for sentence in _SENTENCE_BOUNDARY.split(text.strip()) if sentence]


_PARSED_RECIPES = read_package_yaml(Path(__file__).with_suffix(".yaml"), Mapping[str, Recipe])
RECIPES: dict[str, Recipe] = {
    name: replace(recipe, name=name) for name, recipe in _PARSED_RECIPES.items()
}
"""The registered data sets by name."""
