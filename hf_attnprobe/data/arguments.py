"""The data arguments that every verb takes.

What reads data is imported when data are read, so that a command knows its flags without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_attnprobe.options import Options, option


if TYPE_CHECKING:
    import datasets

    from hf_attnprobe.data.examples import OpenedSplit


@dataclass(frozen=True)
class Data(Options):
    """A data set, its columns, and how much of it is used.

    Verbs take it wherever they take a data set:
    ``audit(model, Data("sst", test_limit=200))``.
    A name, a folder, a Hub id or examples in memory alone stand for ``Data(dataset)``.
    """

    dataset: Any = option(
        help=(
            "data set: a name (sst, imdb, agnews, …), a Hub id, a folder that "
            "datasets.load_dataset reads, or, to test on, a file (csv, tsv, json, jsonl, parquet)"
        )
    )
    dataset_config: str | None = option(
        None, "configuration of a data set that has several", daily=False
    )
    text_column: str | Sequence[str] | None = option(
        None,
        "column with the texts; several columns are joined by a space into one text "
        "(default: a known pair such as premise and hypothesis, else text or sentence)",
        metavar="COLUMN",
    )
    text_pair_column: str | None = option(
        None,
        "column with the second texts, which the tokenizer pairs with the first "
        "(default: that of a known pair)",
        metavar="COLUMN",
    )
    label_column: str | Sequence[str] | None = option(
        None,
        "column with the labels; several are one column of 0 and 1 per label (default: label)",
        metavar="COLUMN",
    )
    labels: Sequence[str] | None = option(
        None,
        "what the model calls the data's labels: bad=neg good=pos, or 1=neg 5=pos; with nothing "
        "behind =, texts of that label count as not labelled",
        metavar="DATA=MODEL",
    )
    holdout: float | None = option(
        None,
        "share of a single file or split that is set apart to test on, and as much again for "
        "validation; always the same texts",
        at_least=0.01,
        at_most=0.4,
        metavar="SHARE",
    )
    split: str = option("test", "split to test on")
    test_limit: int | None = option(
        None,
        "number of texts to test on, always the same ones (default: all)",
        at_least=1,
    )
    train_limit: int | None = option(
        None,
        "number of texts to train on, spread evenly over the classes (default: all)",
        at_least=1,
    )

    def examples(
        self, *, limit: int | None = None, seed: int = 0
    ) -> "datasets.Dataset":
        """The tested split, see :func:`~hf_attnprobe.data.examples.load_examples`.

        Args:
            limit: number of rows to keep; at least 1.
            seed: chooses the rows of a validation split that has to be set apart.
        """
        from hf_attnprobe.data.examples import load_examples

        return load_examples(
            self.dataset, self.split, **self._columns(), limit=limit, seed=seed
        )

    def opened(self, *, seed: int = 0) -> "OpenedSplit":
        """The tested split before it is read; ``seed`` as :meth:`examples`."""
        from hf_attnprobe.data.examples import open_split

        return open_split(
            self.dataset, self.split, **self._columns(), seed=seed
        )

    def splits(self, *, seed: int = 0) -> "dict[str, datasets.Dataset]":
        """All splits, see :func:`~hf_attnprobe.data.examples.load_splits`.

        ``train_limit`` bounds the training texts.
        """
        from hf_attnprobe.data.examples import load_splits

        return load_splits(
            self.dataset, **self._columns(), limit=self.train_limit, seed=seed
        )

    def _columns(self) -> dict[str, Any]:
        return {
            "dataset_config": self.dataset_config,
            "text_column": self.text_column,
            "text_pair_column": self.text_pair_column,
            "label_column": self.label_column,
            "labels": self.labels,
            "holdout": self.holdout,
        }


def as_data(dataset: Any) -> Data:
    """The data given to a verb, as :class:`Data`."""
    return dataset if isinstance(dataset, Data) else Data(dataset)
