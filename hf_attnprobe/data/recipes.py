"""The registered data sets: source, splits, columns and the papers' rules.

The file ``recipes.yaml`` lists them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hf_attnprobe.core.serialization import read_package_yaml


_SENTENCE_END = re.compile(r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+|(?:(?<!\s)\s+)?\n\s*""")
"""Matches the end of a sentence: a line break, or white space after a punctuation mark.

The mark is . ! ? or …, and a closing quote or bracket can follow it. White space before a line break
is searched only from its first character, so that the time does not grow quadratically.
"""


@dataclass(frozen=True)
class DatasetCard:
    """Facts about a data set that ``attnprobe datasets`` prints.

    Attributes:
        task: what is predicted, such as "sentiment of a sentence".
        sizes: text counts in train, validation and test; None for an unknown count.
        sizes_from: the source of the sizes, such as "Zhang et al. 2015".
        licence: the licence as stated by the source.
        n_classes: number of classes; None if it depends on the files.
        bring: sentences about the files to provide and their origin; empty if the Hub has the data.
        rules: sentences about filters and splits, and their differences from the papers.
    """

    task: str
    sizes: tuple[int | None, int | None, int | None]
    sizes_from: str
    licence: str
    n_classes: int | None = None
    bring: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    def format_sizes(self) -> str:
        """Format the text counts in train, validation and test as one string.

        >>> RECIPES["sst"].card.format_sizes()
        '6,355 / – / 1,725'
        """
        return " / ".join("–" if n_texts is None else f"{n_texts:,}" for n_texts in self.sizes)


@dataclass(frozen=True)
class Recipe:
    """A data set's source and columns, and a paper's rules for splitting and filtering it.

    Attributes:
        hub_id: id on the Hub, or a local folder to which the same rules are applied. An id that
            starts with "./" is a folder in the working directory, for data that the Hub lacks.
        config: configuration name on the Hub, if there are several.
        text_column: text column; several columns are joined by a space. Default: the first column
            of a usual pair, otherwise `text` or `sentence`.
        text_pair_column: column with the second texts, which the tokenizer pairs with the first.
        instance_column: column with bags of instances, for data that are not texts.
        label_column: label column, or several columns of 0 and 1, one per label. Default:
            `label`; without this column the texts are unlabelled.
        label_names: class names, if the source has integers.
        first_label: number of the first class in the source.
        keep_labels: class names to keep, numbered in this order.
        splits: the source's split names, by the standard names train, validation and test; only
            names that differ.
        validation_fraction: share of `train` to use as validation if the source has no
            `validation`.
        balanced_validation: whether validation gets the same share of every class.
        longer_than: texts must have more white-space tokens than this number.
        shorter_than: texts must have fewer white-space tokens than this number.
        max_sentences: training and validation texts with more sentences are dropped as outliers.
        max_sentence_tokens: training and validation texts with a longer sentence (in white-space
            tokens) are dropped as outliers.
        authors_files: whether ``card.bring`` names files in their authors' format, which
            ``examples/authors_files.py`` converts.
        string_columns: further columns of a table that are read as strings even if all their cells
            look like numbers.
        labels: new label names as ``data=model``.
        holdout: share to use as the test split if there is a single split.
        encoding: encoding of CSV, TSV, JSON and text files; None for UTF-8, or for the encoding that
            a file's byte order mark announces.
        name: registered name; "" for other data sets.
        card: facts about a registered data set; None for other data sets.
    """

    hub_id: str
    config: str | None = None
    text_column: str | tuple[str, ...] | None = None
    text_pair_column: str | None = None
    instance_column: str | None = None
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
    encoding: str | None = None
    name: str = ""
    card: DatasetCard | None = field(default=None, compare=False, repr=False)

    @property
    def has_pairs(self) -> bool:
        """Whether the recipe names a column with second texts."""
        return self.text_pair_column is not None

    def is_within_bounds(self, text: str, *, training: bool) -> bool:
        """Return whether a text has an allowed length, so that it is not filtered out.

        Args:
            text: the text.
            training: whether the text is from the training or the validation split. The number
                and the length of sentences are only limited in these splits.

        Returns:
            Whether to keep the text.
        """
        length = len(text.split())
        if self.longer_than is not None and length <= self.longer_than:
            return False
        if self.shorter_than is not None and length >= self.shorter_than:
            return False
        limits_sentences = self.max_sentences is not None or self.max_sentence_tokens is not None
        if not training or not limits_sentences:
            return True
        sentence_lengths = [len(sentence.split()) for sentence in split_sentences(text)]
        max_sentences = self.max_sentences or math.inf
        max_sentence_tokens = self.max_sentence_tokens or math.inf
        longest = max(sentence_lengths, default=0)
        return len(sentence_lengths) <= max_sentences and longest <= max_sentence_tokens


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
    return [sentence for sentence in _SENTENCE_END.split(text.strip()) if sentence]


_PARSED_RECIPES = read_package_yaml(Path(__file__).with_suffix(".yaml"), Mapping[str, Recipe])
RECIPES: dict[str, Recipe] = {
    name: replace(recipe, name=name) for name, recipe in _PARSED_RECIPES.items()
}
"""Maps the name of each registered data set to its recipe for loading, filtering and splitting."""
