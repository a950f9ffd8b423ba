"""What a study is asked for besides its file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_attnprobe.options import LARGEST_SEED, Options, option


@dataclass(frozen=True)
class StudyOptions(Options):
    """What :func:`hf_attnprobe.study` is asked for besides the file of the study."""

    dataset: str | Sequence[str] | None = option(
        None,
        "data sets in place of the file's: names, Hub ids, folders, or name=folder: "
        "a folder that stands for a named data set and is cut as that one is",
    )
    dataset_config: str | None = option(
        None, "configuration of the data sets, where they have several"
    )
    text_column: str | Sequence[str] | None = option(
        None,
        "column of the texts, or several to be joined by a space into one text",
        metavar="COLUMN",
    )
    text_pair_column: str | None = option(
        None, "column of the second texts, where texts come in pairs"
    )
    label_column: str | Sequence[str] | None = option(
        None,
        "column of the labels, or one of 0 and 1 per label",
        metavar="COLUMN",
    )
    train_limit: int | None = option(
        None,
        "number of texts to train on, spread evenly over the classes (default: all)",
        at_least=1,
    )
    test_limit: int | None = option(
        None,
        "number of texts to test on, always the same ones (default: the file's, or all)",
        at_least=1,
    )
    epochs: int | None = option(
        None,
        "largest number of epochs of every training but adversaries "
        "(default: the file's, or the procedure's)",
        at_least=1,
        at_most=100_000,
    )
    quick: bool = option(False, "a short run, with the file's own shorter settings")
    seed: int = option(
        0, "random seed of the steps that set none", at_least=0, at_most=LARGEST_SEED
    )
    word_vectors: str | Path | None = option(
        None, "pretrained word vectors for the trainings that name none"
    )
    trust_remote_code: bool = option(
        False,
        "allow steps that say trust_remote_code to run code that comes with a model",
    )
    allow_pickle: bool = option(
        False, "allow steps that say allow_pickle to read weights that can hide code"
    )

    @property
    def datasets(self) -> list[str]:
        """The data sets that replace the file's; none where the file's own are used."""
        if self.dataset is None:
            return []
        return [self.dataset] if isinstance(self.dataset, str) else list(self.dataset)

    @property
    def replaced(self) -> dict[str, Any]:
        """Arguments that replace those of every step that has them."""
        names = (
            "dataset_config",
            "text_column",
            "text_pair_column",
            "label_column",
            "train_limit",
            "test_limit",
            "epochs",
        )
        return {k: getattr(self, k) for k in names if getattr(self, k) is not None}

    @property
    def defaults(self) -> dict[str, Any]:
        """Arguments for the steps that do not set them."""
        if self.word_vectors is None:
            return {"seed": self.seed}
        return {"seed": self.seed, "word_vectors": str(self.word_vectors)}
