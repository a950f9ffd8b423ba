"""The base of a retraining, what it says of every text, and models trained as it was."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.adapters.pretrained import class_names, reads_pairs
from hf_attnprobe.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    load_attention_classifier,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.data.examples import dataset_fingerprint, label_names
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.inference.guides import Guide
from hf_attnprobe.inference.outputs import Outputs, read_outputs
from hf_attnprobe.retraining.result import TrainedModel
from hf_attnprobe.statistics.scores import Score, compare_scores
from hf_attnprobe.training.classifier import procedure_of, train_classifier
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.procedures import DEFAULT
from hf_attnprobe.training.trainer import TrainedClassifier


if TYPE_CHECKING:
    import datasets

Splits = Mapping[str, "datasets.Dataset"]
"""Data sets by the names in :data:`SPLITS`."""
SPLITS = ("train", "validation", "test")
SETTINGS = (
    "seed",
    "procedure",
    "word_vectors",
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "max_grad_norm",
    "plateau_factor",
    "patience",
)
"""The settings of a base's training that its retrainings share."""


@dataclass(frozen=True, eq=False)
class Base:
    """A trained attention classifier.

    Attributes:
        name: its folder or Hub id.
        settings: of its training, none of them left to the procedure.
        notes: which of them had to be assumed, one sentence each.
    """

    name: str
    model: AttentionClassifierForSequenceClassification
    tokenizer: PreTrainedTokenizerBase
    settings: TrainingOptions
    notes: tuple[str, ...] = ()
    known: dict[str, Outputs] = field(default_factory=dict, repr=False)

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return class_names(self.model.config)

    def config(self, changes: Mapping[str, Any] | None = None) -> AttentionClassifierConfig:
        """A copy of its configuration with some fields replaced."""
        fields = self.model.config.to_dict() | dict(changes or {})
        return AttentionClassifierConfig(**fields)

    def outputs(self, examples: "datasets.Dataset") -> Outputs:
        """What it says of these texts and where it looks; computed once per split."""
        key = dataset_fingerprint(examples)
        if key not in self.known:
            self.known[key] = read_outputs(self.model, self.tokenizer, examples)
        return self.known[key]


def shared_settings(options: TrainingOptions) -> dict[str, Any]:
    """The settings that retrainings share with their base, by name, as plain data."""
    values = {name: getattr(options, name) for name in SETTINGS}
    vectors = values["word_vectors"]
    return values | {"word_vectors": None if vectors is None else str(vectors)}


def identity_of(base: Base, splits: Splits, seed: int) -> dict[str, Any]:
    """What has to be the same for a folder to be continued."""
    return {
        "model_fingerprint": model_fingerprint(base.model),
        "data_fingerprint": {name: dataset_fingerprint(splits[name]) for name in SPLITS},
        "seed": seed,
        "settings": shared_settings(base.settings),
    }


def load_base(model: str | Path, **settings: Any) -> Base:
    """Loads a checkpoint that :func:`hf_attnprobe.train_classifier` wrote.

    Args:
        settings: of its training, in place of those in its record; None leaves the
            record's.

    Raises:
        AttnProbeError: a model of another kind, which cannot be trained again with the same
            configuration.
    """
    loaded = load_base_model(model)
    tokenizer = load_tokenizer(model)
    given = {name: value for name, value in settings.items() if value is not None}
    known = read_record(Path(model)) | given
    chosen = {name: known[name] for name in SETTINGS if name in known}
    options = TrainingOptions(**({"procedure": DEFAULT} | chosen))
    procedure = procedure_of(options, loaded.config).settings()
    del procedure["min_document_frequency"]  # the tokenizer is there already
    used = replace(options, **procedure)
    notes = []
    for name in SETTINGS:
        if name not in known:
            words, value = name.replace("_", " "), getattr(used, name)
            notes.append(f"{words} {value}: assumed, {model} has no record of it")
    return Base(str(model), loaded, tokenizer, used, tuple(notes))


def load_base_model(model: str | Path) -> AttentionClassifierForSequenceClassification:
    """Loads a model that can be a base.

    Raises:
        AttnProbeError: it is no flat attention classifier with trained attention.
    """
    loaded = load_attention_classifier(
        model,
        "to train again from scratch",
        "make one with attnprobe train --encoder",
    )
    config = loaded.config
    if reads_pairs(config):
        raise AttnProbeError(
            f"expected a base that reads one text, {model} has a query encoder; models "
            "of pairs are not trained again yet, choose another --model"
        )
    if not has_trained_attention(config):
        kind = "two levels of" if config.hierarchical else config.attention
        raise AttnProbeError(
            f"expected a base with one level of trained attention, {model} has {kind} "
            "attention; choose another --model"
        )
    return loaded


def check_splits(base: Base, splits: Splits) -> None:
    """Checks that train, validation and test are there, with the base's classes.

    Raises:
        AttnProbeError: a split is missing, or the classes are others.
    """
    missing = [name for name in SPLITS if name not in splits]
    if missing:
        raise AttnProbeError(
            "expected train, validation and test texts to train models and compare "
            f"them, there are no {missing[0]} texts with labels; add the split"
        )
    names = label_names(splits["train"])
    # Classes that the data only number are the base's own.
    named = hasattr(splits["train"].features["label"], "names")
    if len(names) != len(base.labels) or (named and names != base.labels):
        raise AttnProbeError(
            f"expected the data that {base.name} was trained on, with the classes "
            f"{', '.join(base.labels)}, got {', '.join(names)}; choose another --dataset"
        )


# Is told the folder of a model that is about to be trained; whether to show a bar, or
# what stands before it.
Progress = Callable[[Path], bool | str]


def silent(folder: Path) -> bool:
    """Shows no progress."""
    return False


@dataclass(frozen=True, eq=False)
class Trained:
    """A model trained beside the base.

    Attributes:
        folder: where it is saved.
        metrics: scores in [0, 1] by name.
        seconds, n_epochs: of its training, over all runs that it took.
    """

    folder: Path
    model: PreTrainedModel
    metrics: Mapping[str, float]
    seconds: float
    n_epochs: int


def train_again(
    base: Base,
    splits: Splits,
    folder: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    guides: Mapping[str, Guide] | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Trained:
    """Trains a model from scratch as the base was, or loads it if ``folder`` has it.

    Args:
        splits: train, validation and test texts.
        changes: to the base's configuration.
        guides: attention weights by split and example id, for ``attention="guided"``.
        settings: in place of the base's, such as ``seed``.
    """
    result = train_classifier(
        base.config(changes),
        **{name: splits[name] for name in SPLITS},
        output_dir=folder,
        options=replace(base.settings, **settings),
        tokenizer=base.tokenizer,
        guides=guides,
        resume=True,
        progress=progress(folder),
    )
    return as_trained(folder, result)


def as_trained(folder: Path, result: TrainedClassifier) -> Trained:
    """A trained model with the figures in its folder's record."""
    record = read_record(folder)
    return Trained(folder, result.model, result.metrics, record["seconds"], record["n_epochs"])


def as_row(trained: Trained, folder: Path) -> TrainedModel:
    """A trained model as the report in ``folder`` lists it."""
    name = str(trained.folder.relative_to(folder))
    return TrainedModel(name, trained.seconds, trained.n_epochs, dict(trained.metrics))


def is_correct(probs: Tensor, labels: Tensor) -> Tensor:
    """1 where the most probable class is the true one, else 0, float64 [texts].

    Args:
        probs: [texts, classes].
        labels: the true classes [texts].
    """
    return (probs.argmax(-1) == labels).double()


def compare_probs(
    labels: Tensor, probs: Mapping[str, Tensor], *, reference: str, seed: int
) -> tuple[Score, ...]:
    """The scores of several models, see :func:`hf_attnprobe.statistics.scores.compare_scores`.

    Args:
        labels: the true classes [texts].
        probs: by model [texts, classes].
    """
    arrays = {name: values.numpy() for name, values in probs.items()}
    return compare_scores(labels.numpy(), arrays, reference=reference, seed=seed)
