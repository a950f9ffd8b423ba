"""The data sets that have a name here: where they are, how the papers cut them, what they are.

They stand in ``recipes.yaml``.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hf_attnprobe.core.serialization import read_packaged


# White space after . ! ? … and a closing quote or bracket, or a line's end.
_END = re.compile(r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+|\s*\n\s*""")


@dataclass(frozen=True)
class Card:
    """One data set in words.

    Attributes:
        task: what is predicted from what.
        sizes: texts in train, validation and test; None where it is not stated.
        sizes_from: who states them.
        licence: as its source states it.
        n_classes: number of classes; None where it depends on the files.
        bring: the files to bring, and where they come from; none where the Hub has it.
        rules: how it is cut, and what differs from the papers.
    """

    task: str
    sizes: tuple[int | None, int | None, int | None]
    sizes_from: str
    licence: str
    n_classes: int | None = None
    bring: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    def sizes_in_words(self) -> str:
        """Texts in train, validation and test.

        >>> RECIPES["sst"].card.sizes_in_words()
        '6,355 / – / 1,725'
        """
        return " / ".join("–" if n is None else f"{n:,}" for n in self.sizes)


@dataclass(frozen=True)
class Recipe:
    """Where a data set is and how a paper cuts it.

    Attributes:
        hub_id: on the Hub; with a folder instead, local files are cut in the same way.
            "./…" where nothing is on the Hub: a folder in the working directory.
        config: configuration of the data set, where it has several.
        text_column: default: that of a known pair, else `text` or `sentence`; several
            are joined by a space.
        text_pair_column: the second text, which the tokenizer pairs with the first.
        label_column: default: `label`; without that column there are no labels. Several
            are one column of 0 and 1 per label.
        label_names: names of the classes, where the source has integers.
        first_label: the source's number of the first class.
        keep_labels: names of the classes to keep, renumbered in this order.
        splits: our name of a split -> the source's, where they differ.
        validation_fraction: share of `train` set apart where the source has no
            `validation`.
        balanced_validation: whether that share is taken of every class.
        longer_than, shorter_than: strict bounds on the number of whitespace tokens.
        max_sentences: of training and validation texts; longer ones are dropped as
            outliers.
        max_sentence_tokens: whitespace tokens in any sentence of these texts.
        authors_files: whether ``card.bring`` names files in a layout of their authors', which
            ``examples/authors_files.py`` converts.
        as_text: further columns whose cells are texts, whatever they look like in a table.
        labels: ``data=model``, what the source's labels are called here.
        holdout: share of the only split that is set apart to test on.
        name: by which the data set is known here; "" for none.
        card: what people should know of it; of data sets with a name.
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
    as_text: Sequence[str] = ()
    labels: tuple[str, ...] = ()
    holdout: float | None = None
    name: str = ""
    card: Card | None = field(default=None, compare=False, repr=False)

    @property
    def is_pairs(self) -> bool:
        """Whether its texts are known to come in pairs; unknown is False."""
        return self.text_pair_column is not None

    def admits(self, text: str, *, training: bool) -> bool:
        """Whether a text is within the bounds on its length.

        The bounds on sentences hold for texts of ``training`` and validation only.
        """
        length = len(text.split())
        if self.longer_than is not None and length <= self.longer_than:
            return False
        if self.shorter_than is not None and length >= self.shorter_than:
            return False
        if not training or self.max_sentences is self.max_sentence_tokens is None:
            return True
        lengths = [len(sentence.split()) for sentence in split_sentences(text)]
        most_sentences = self.max_sentences or math.inf
        most_tokens = self.max_sentence_tokens or math.inf
        return len(lengths) <= most_sentences and max(lengths, default=0) <= most_tokens


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in order, without the white space between them.

    A rule, not a model: abbreviations such as "Dr. No" end a sentence too.

    >>> split_sentences('He asked "why?" Nobody knew... It was 3.5 metres\\nby two .')
    ['He asked "why?"', 'Nobody knew...', 'It was 3.5 metres', 'by two .']
    """
    return [sentence for sentence in _END.split(text.strip()) if sentence]


_READ = read_packaged(Path(__file__).with_suffix(".yaml"), Mapping[str, Recipe])
RECIPES: dict[str, Recipe] = {name: replace(recipe, name=name) for name, recipe in _READ.items()}
