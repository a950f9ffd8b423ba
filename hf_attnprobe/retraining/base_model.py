"""The base of a retraining, and its variants: trained or loaded, read, scored, compared.

A test that trains models is a function that yields variants of a base. :func:`run_test` does with
them what is the same in every test: it trains a variant with the base's recorded settings, or loads
it where a folder has it; reads it on the test texts; puts its numbers per text beside the base's, so
that rows, summary and readings are those of any test; and compares scores that are no mean of texts
(F1, AUC) with paired intervals (``statistics/scores.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.adapters.pretrained import class_names, reads_pairs
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    load_attention_classifier,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import Options
from hf_attnprobe.data.examples import dataset_fingerprint, label_names
from hf_attnprobe.data.specs import Data
from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.inference.outputs import Guide, Outputs, predict, read_outputs
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import Site
from hf_attnprobe.retraining import retrainings
from hf_attnprobe.retraining.options import KINDS
from hf_attnprobe.statistics.scores import Score, compare_scores
from hf_attnprobe.storage.rows import append_rows, to_rows
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
    """A trained model that others are compared with; an attention classifier, but to deceive.

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
        """Probabilities and attention on these texts; computed once per split."""
        key = dataset_fingerprint(examples)
        if key not in self.known:
            self.known[key] = read_outputs(self.model, self.tokenizer, examples)
        return self.known[key]


def shared_settings(options: TrainingOptions) -> dict[str, Any]:
    """Settings that retrainings share with their base, by name, as plain data."""
    values = {name: getattr(options, name) for name in SETTINGS}
    vectors = values["word_vectors"]
    return values | {"word_vectors": None if vectors is None else str(vectors)}


def identity_of(base: Base, splits: Splits, seed: int) -> dict[str, Any]:
    """Settings that must be equal for a folder to be continued."""
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
    return base_of(str(model), loaded, load_tokenizer(model), **settings)


def base_of(
    name: str,
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    **settings: Any,
) -> Base:
    """The base that a classifier is, with the settings of its training's record.

    Args:
        name: its folder or Hub id.
        settings: see :func:`load_base`.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    known = read_record(Path(name)) | given
    chosen = {name: known[name] for name in SETTINGS if name in known}
    options = TrainingOptions(**({"procedure": DEFAULT} | chosen))
    procedure = procedure_of(options, model.config).settings()
    del procedure["min_document_frequency"]  # the tokenizer is there already
    used = replace(options, **procedure)
    notes = []
    for setting in SETTINGS:
        if setting not in known:
            words, value = setting.replace("_", " "), getattr(used, setting)
            notes.append(f"{words} {value}: assumed, {name} has no record of it")
    return Base(name, model, tokenizer, used, tuple(notes))


def load_base_model(
    model: str | Path,
) -> AttentionClassifierForSequenceClassification:
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
    """Checks that train, validation and test exist and have the base's classes.

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
    """Turns progress bars off."""
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
    """Trains a model from scratch with the base's settings, or loads it from ``folder``.

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
    """A trained model with the numbers in its folder's record."""
    record = read_record(folder)
    return Trained(
        folder,
        result.model,
        result.metrics,
        record["seconds"],
        record["n_epochs"],
    )


# --- Variants ------------------------------------------------------------------------------------


def beside_base(
    base: Base, model: PreTrainedModel, examples: "datasets.Dataset"
) -> dict[str, Tensor]:
    """A model's outputs, and how far output and attention are from the base's.

    Returns:
        ``probs`` [texts, classes], and [texts]: ``tvd``, the total variation of the two outputs,
        in [0, 1], and ``jsd``, the JSD of the two attentions, in [0, ln 2].
    """
    own, other = (
        base.outputs(examples),
        read_outputs(model, base.tokenizer, examples),
    )
    return {
        "probs": other.probs,
        "tvd": tvd(own.probs, other.probs),
        "jsd": jsd(own.attention, other.attention),
    }


def outputs_alone(
    base: Base,
    model: PreTrainedModel,
    examples: "datasets.Dataset",
    guide: Guide | None = None,
) -> dict[str, Tensor]:
    """``probs`` [texts, classes] of a model whose attention is not compared.

    Args:
        guide: the attention weights that are imposed on it, if any.
    """
    return {"probs": predict(model, base.tokenizer, examples, guide=guide)}


@dataclass(frozen=True, eq=False)
class Variant:
    """A model beside the base: how it is made, and what is measured on it.

    Attributes:
        name: in tables of scores, such as "seed 3".
        statistic: its numbers per text begin with this, as ``one_seed`` in ``one_seed_jsd@3``.
        train: ``train(base, splits, folder, progress=…)``, which loads a finished one; or the
            model itself, where it is there already.
        read: ``read(base, model, test texts)`` gives its ``probs`` [texts, classes] and further
            numbers [texts] by name.
        key: the end of the names of its numbers; None for the only one of its kind.
        folder: of its checkpoint below the test's own, "" for that one.
    """

    name: str
    statistic: str
    train: Callable[..., Trained] | PreTrainedModel
    read: Callable[..., dict[str, Tensor]] = beside_base
    key: float | None = None
    folder: str = ""


@dataclass(frozen=True, eq=False)
class Setup:
    """What all tests of a retraining share.

    Attributes:
        splits: train, validation and test texts.
        folder: of the retraining; each test has one of its own in it.
        chosen: the options of the tests that are run, by name.
        seed: of bootstrap and search.
        progress: is told the folder of every model before it is trained.
    """

    base: Base
    splits: Splits
    folder: Path
    chosen: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    progress: Progress = silent

    @property
    def own(self) -> Outputs:
        """The base's outputs on the test texts."""
        return self.base.outputs(self.splits["test"])


def set_up(
    base: Base,
    data: Data,
    folder: str | Path,
    seed: int,
    chosen: Mapping[str, Options] | None = None,
) -> Setup:
    """The base with its data, which have all splits and its classes.

    Raises:
        AttnProbeError: a split is missing, or the classes are others.
    """
    splits = data.splits(seed=base.settings.seed)
    check_splits(base, splits)
    return Setup(base, splits, Path(folder), chosen or {}, seed)


@dataclass(eq=False)
class Tested:
    """The models of a test on the test texts: filled by :func:`run_test`, one by one.

    Attributes:
        setup: of the retraining.
        folder: of the test's models.
        labels: the true classes [texts].
        statistics: their numbers, each [texts], by name.
        probs: by model [texts, classes].
        trained: the models that were trained, or loaded from the folder.
        scores: of all models, against one of them.
    """

    setup: Setup
    folder: Path
    labels: Tensor
    statistics: dict[str, Tensor] = field(default_factory=dict)
    probs: dict[str, Tensor] = field(default_factory=dict)
    trained: list[Trained] = field(default_factory=list)
    scores: tuple[Score, ...] = ()

    def run(self, variant: Variant) -> None:
        """Trains or loads a variant and adds its measurements."""
        setup, model = self.setup, variant.train
        if not isinstance(model, PreTrainedModel):
            place = self.folder / variant.folder
            trained = model(setup.base, setup.splits, place, progress=setup.progress)
            self.trained.append(trained)
            model = trained.model
        numbers = variant.read(setup.base, model, setup.splits["test"])
        self.add(variant.name, variant.statistic, numbers, variant.key)

    def add(
        self,
        name: str,
        statistic: str,
        numbers: Mapping[str, Tensor],
        key: float | None = None,
    ) -> None:
        """Adds a model's numbers per text, and whether it is right in each.

        Args:
            name, statistic, key: see :class:`Variant`.
            numbers: as :attr:`Variant.read` gives them.
        """
        probs = self.probs[name] = numbers["probs"]
        correct = (probs.argmax(-1) == self.labels).double()
        end = "" if key is None else f"@{key}"
        every = {**numbers, "correct": correct}
        for what, values in every.items():
            if what != "probs":
                self.statistics[f"{statistic}_{what}{end}"] = values

    def of_each(self, statistic: str) -> Tensor:
        """A number of every variant, [variants, texts]."""
        names = [name for name in self.statistics if name.startswith(f"{statistic}@")]
        return torch.stack([self.statistics[name] for name in names])

    def write_rows(self, test: str) -> None:
        """Writes its numbers of every text, in place of those of an earlier run."""
        ids = self.setup.own.example_ids
        rows = to_rows(test, ids, {Site(): self.statistics})
        append_rows(self.setup.folder / "rows", rows, name=test)

    def compare(self, reference: str) -> None:
        """Scores all models, and compares each with the reference."""
        arrays = {name: values.numpy() for name, values in self.probs.items()}
        self.scores = compare_scores(
            self.labels.numpy(),
            arrays,
            reference=reference,
            seed=self.setup.seed,
        )


def run_test(name: str, setup: Setup) -> Tested:
    """The models of one test, trained or loaded, read, scored and compared.

    Args:
        name: of the test; its models go into the folder of that name in the setup's.
    """
    test = retrainings()[name]
    options = setup.chosen.get(name) or KINDS[name]()
    own = setup.own
    tested = Tested(setup, setup.folder / name, own.labels)
    tested.probs["base"] = own.probs
    for variant in test.variants(setup, options):
        tested.run(variant)
    if test.together is not None:
        test.together(tested, options)
    tested.compare(test.reference)
    return tested
