"""The base model of a retraining and its variants, which are trained or loaded, then measured.

In this package, a test is a function that yields variants of the base model.
:func:`run_retraining_test` performs the steps that all tests share:

1. It trains each variant with the recorded settings of the base model, or loads it if its folder
   already holds the finished model.
2. It measures the variant on the test texts and stores one value per statistic and text, so that
   rows, summaries and reports work as they do for an audit.
3. It compares scores that are not means over texts (F1, ROC-AUC) with the base model's, with
   confidence intervals that are paired by text (``statistics/scores.py``).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.adapters.pretrained import get_class_names, reads_features, reads_pairs
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    load_model,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.origins import locate_checkpoint
from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import Options, SavedModel, convert_model_name
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import (
    compute_dataset_fingerprint,
    get_dataset_name,
    get_label_names,
)
from hf_attnprobe.data.instances import has_instances
from hf_attnprobe.data.specs import Data
from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.functional.fingerprint import compute_fingerprint
from hf_attnprobe.inference.encoding import SEGMENTS
from hf_attnprobe.inference.outputs import Guide, Outputs, predict, read_outputs
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import Site
from hf_attnprobe.retraining import get_retraining_tests
from hf_attnprobe.retraining.options import OPTIONS_BY_TEST
from hf_attnprobe.statistics.scores import Score, compare_scores
from hf_attnprobe.storage.rows import append_rows, build_rows
from hf_attnprobe.training.classifier import resolve_procedure, train_classifier
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.procedures import DEFAULT_PROCEDURE
from hf_attnprobe.training.run import FINE_TUNING_DEFAULTS
from hf_attnprobe.training.trainer import TrainedClassifier


if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)
Splits = Mapping[str, "datasets.Dataset"]
"""Train, validation and test texts with labels, by the names in :data:`SPLIT_NAMES`."""
SPLIT_NAMES = ("train", "validation", "test")
"""Names of the data set splits that a retraining needs."""
SHARED_SETTINGS = (
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
"""Training settings that all variants share with the base model, by field of TrainingOptions."""


@dataclass(frozen=True, eq=False)
class BaseModel:
    """A trained model that its variants are compared with.

    Attributes:
        name: Folder or Hub id.
        model: An attention classifier. The test ``deception`` also accepts a Transformer.
        tokenizer: The model's tokenizer.
        settings: The model's training settings. Defaults are replaced by their values.
        notes: A sentence for each setting that had to be assumed.
        cached_outputs: Outputs by data set fingerprint.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: TrainingOptions
    notes: tuple[str, ...] = ()
    cached_outputs: dict[str, Outputs] = field(default_factory=dict, repr=False)

    @property
    def class_names(self) -> list[str]:
        """Class names, in the order of their labels."""
        return get_class_names(self.model.config)

    def make_config(self, changes: Mapping[str, Any] | None = None) -> AttentionClassifierConfig:
        """Return a copy of the model's configuration with some fields replaced.

        Args:
            changes: New values by field name.
        """
        fields = self.model.config.to_dict() | dict(changes or {})
        return AttentionClassifierConfig(**fields)

    def get_outputs(self, examples: "datasets.Dataset") -> Outputs:
        """Return the model's probabilities and attention on texts, computed once per data set.

        Args:
            examples: The texts.
        """
        key = compute_dataset_fingerprint(examples)
        if key not in self.cached_outputs:
            self.cached_outputs[key] = read_outputs(self.model, self.tokenizer, examples)
        return self.cached_outputs[key]


def get_shared_settings(options: TrainingOptions) -> dict[str, Any]:
    """Return the training settings that all variants share with the base model, ready for JSON.

    Args:
        options: The base model's training settings.
    """
    shared_settings = {name: getattr(options, name) for name in SHARED_SETTINGS}
    vectors_file = shared_settings["word_vectors"]
    if vectors_file is not None:
        shared_settings["word_vectors"] = str(vectors_file)
    return shared_settings


def build_retraining_identity(base: BaseModel, splits: Splits, seed: int) -> dict[str, Any]:
    """Return the settings that identify a retraining.

    An interrupted retraining continues in its folder only if they are unchanged.

    Args:
        base: The base model (the trained model with which others are compared).
        splits: Train, validation and test texts.
        seed: Seed for bootstrap and search.
    """
    fingerprints = {name: compute_dataset_fingerprint(splits[name]) for name in SPLIT_NAMES}
    return {
        "model_fingerprint": compute_fingerprint(base.model),
        "data_fingerprint": fingerprints,
        "seed": seed,
        "settings": get_shared_settings(base.settings),
    }


def load_base_model(model: str | Path | SavedModel, **settings: Any) -> BaseModel:
    """Load an attention classifier that can be trained again with the same configuration.

    Args:
        model: Checkpoint that :func:`hf_attnprobe.train_classifier` wrote.
        **settings: Training settings that replace the recorded ones; None keeps the recorded value.

    Raises:
        AttnProbeError: If the model is not an attention classifier with trained attention over the
            words of the text.
    """
    saved = convert_model_name(model)
    origin, name = locate_checkpoint(saved), str(saved.model)
    loaded = load_model(origin)
    check_retrainable(name, loaded)
    assert isinstance(loaded, AttentionClassifierForSequenceClassification)
    record = read_record(Path(origin.name))
    return build_base_model(name, loaded, load_tokenizer(origin), record, **settings)


def load_further_trainable_model(
    model: str | Path | SavedModel, default_seed: int, **settings: Any
) -> BaseModel:
    """Load a classifier whose own weights can be trained further.

    An attention classifier keeps its training settings. A Transformer gets the default settings
    from :func:`hf_attnprobe.training.run.fine_tune`.

    Args:
        model: An attention classifier with trained attention over the words of the text, or a
            fine-tuned Transformer.
        default_seed: Training seed for a Transformer whose record contains no seed.
        **settings: Training settings that replace the defaults; None keeps the default.

    Raises:
        AttnProbeError: If the model is an attention classifier without trained attention.
    """
    saved = convert_model_name(model)
    origin, name = locate_checkpoint(saved), str(saved.model)
    loaded = load_model(origin, task="text-classification").eval()
    tokenizer, record = load_tokenizer(origin), read_record(Path(origin.name))
    if isinstance(loaded, AttentionClassifierForSequenceClassification):
        if not has_trained_attention(loaded.config):
            raise AttnProbeError(
                "the test deception needs a model with trained attention over the words of the text, "
                f"which {name} does not have. Choose another --model."
            )
        return build_base_model(name, loaded, tokenizer, record, **settings)
    # Other attention implementations do not return their weights.
    loaded.set_attn_implementation("eager")
    resolved = {"seed": record.get("seed", default_seed)}
    for setting, default in FINE_TUNING_DEFAULTS.items():
        value = settings.get(setting)
        resolved[setting] = default if value is None else value
    return BaseModel(name, loaded, tokenizer, TrainingOptions(**resolved))


def build_base_model(
    name: str,
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    saved_record: Mapping[str, Any],
    **settings: Any,
) -> BaseModel:
    """Combine an attention classifier with the training settings from its record.

    Settings that were not recorded get their default values, with a note for the report.

    Args:
        name: Folder or Hub id.
        model: The attention classifier.
        tokenizer: Its tokenizer.
        saved_record: Training record in the checkpoint folder; empty if there is none.
        **settings: Training settings that replace the recorded ones; None keeps the recorded value.
    """
    new_settings = {name: value for name, value in settings.items() if value is not None}
    record = dict(saved_record) | new_settings
    shared_settings = {name: record[name] for name in SHARED_SETTINGS if name in record}
    options = TrainingOptions(**({"procedure": DEFAULT_PROCEDURE} | shared_settings))
    procedure_settings = resolve_procedure(options, model.config).get_settings()
    # This setting only affects the tokenizer, which already exists.
    del procedure_settings["min_document_frequency"]
    resolved = replace(options, **procedure_settings)
    notes = []
    for setting in SHARED_SETTINGS:
        if setting not in record:
            label, value = setting.replace("_", " "), getattr(resolved, setting)
            notes.append(f"{label} {value}: assumed, because {name} has no record of it")
    return BaseModel(name, model, tokenizer, resolved, tuple(notes))


def check_retrainable(name: str, model: PreTrainedModel) -> None:
    """Check that a model can be trained from scratch again with the same configuration.

    Args:
        name: Model name for error messages.
        model: The model to check.

    Raises:
        AttnProbeError: If it is not an attention classifier with trained attention over the words
            of the text, or if it reads text pairs or bags of instances.
    """
    if not isinstance(model, AttentionClassifierForSequenceClassification):
        raise AttnProbeError(
            f"{name} is a {model.config.model_type} model, but retrain needs an attention "
            "classifier. Train one with attnprobe train --encoder."
        )
    config = model.config
    if reads_pairs(config):
        raise AttnProbeError(
            f"{name} reads text pairs, which retrain does not support. Choose a --model that reads "
            "single texts."
        )
    if reads_features(config):
        raise AttnProbeError(
            f"{name} reads bags of instances, which retrain does not support. Choose a --model that "
            "reads texts."
        )
    if not has_trained_attention(config):
        description = f"has {config.attention} attention"
        if config.hierarchical:
            description = "has attention over words and sentences"
        raise AttnProbeError(
            f"{name} {description}, but retrain needs a model with trained attention over the words "
            "of the text. Choose another --model."
        )


def check_splits(splits: Splits) -> None:
    """Check that there are train, validation and test splits, and that they contain texts.

    Args:
        splits: Labelled texts by split name.

    Raises:
        AttnProbeError: If a split is missing, or contains bags of instances.
    """
    missing_splits = [name for name in SPLIT_NAMES if name not in splits]
    if missing_splits:
        raise AttnProbeError(
            f"the data set has no labelled {missing_splits[0]} texts, but retrain needs train, "
            f"validation and test texts. Add a {missing_splits[0]} split."
        )
    if any(has_instances(examples) for examples in splits.values()):
        raise AttnProbeError(
            "the data has bags of instances, but retrain needs texts. Use the data that the model was "
            "trained on, or choose the column of the texts with --text-column."
        )


def drop_copies(texts: "datasets.Dataset") -> "datasets.Dataset":
    """Drop copies of texts, so that confidence intervals count every different text once.

    If several rows have the same text and the same second text, the first of them remains. A warning
    states how many rows were dropped.

    Args:
        texts: Rows with the columns of the two texts.

    Returns:
        The rows with different texts, in their original order.
    """
    columns = [read_column(texts, name) for name in SEGMENTS if name in texts.column_names]
    first_rows: dict[tuple[str, ...], int] = {}
    for row, text in enumerate(zip(*columns, strict=True)):
        first_rows.setdefault(text, row)
    n_copies = len(texts) - len(first_rows)
    if not n_copies:
        return texts
    logger.warning(
        "%d of the %d test texts are copies of other test texts and are not used, because intervals "
        "count every different text once.",
        n_copies,
        len(texts),
    )
    return texts.select(first_rows.values())


def check_same_classes(base: BaseModel, splits: Splits) -> None:
    """Check that the data have the base model's classes, in the same order.

    Args:
        base: The base model (the trained model with which others are compared).
        splits: Train, validation and test texts.

    Raises:
        AttnProbeError: If the number of classes or their names differ.
    """
    names = get_label_names(splits["train"])
    # Data whose classes have numbers but no names are assumed to use the base model's numbers.
    has_names = hasattr(splits["train"].features["label"], "names")
    if len(names) != len(base.class_names) or (has_names and names != base.class_names):
        raise AttnProbeError(
            f"the data have the classes {', '.join(names)}, but {base.name} was trained with the "
            f"classes {', '.join(base.class_names)}. Choose another --dataset."
        )


ProgressSetting = Callable[[Path], bool | str]
"""Function that is called with a model's folder before the model is trained.

It returns whether to show a progress bar, or the text in front of the bar.
"""


def disable_progress(folder: Path) -> bool:
    """Return False, so that no progress bar is displayed during the training of any model.

    Args:
        folder: Checkpoint folder of the model. It is not used, because the result is always False.
    """
    return False


@dataclass(frozen=True, eq=False)
class TrainedVariant:
    """A trained variant of the base model.

    Attributes:
        folder: Checkpoint folder.
        model: The trained model.
        metrics: Scores in [0, 1] by name.
        seconds: Training duration, including earlier runs that were interrupted.
        n_epochs: Number of epochs, including earlier runs that were interrupted.
    """

    folder: Path
    model: PreTrainedModel
    metrics: Mapping[str, float]
    seconds: float
    n_epochs: int


def train_variant(
    base: BaseModel,
    splits: Splits,
    folder: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    guides: Mapping[str, Guide] | None = None,
    progress: ProgressSetting = disable_progress,
    **settings: Any,
) -> TrainedVariant:
    """Train a model from scratch with the base model's settings, or load it from its folder.

    Args:
        base: The base model (the trained model with which others are compared).
        splits: Train, validation and test texts.
        folder: Checkpoint folder for the variant.
        changes: Configuration fields that differ from the base model, with their values.
        guides: Attention weights by split and example id, for ``attention="guided"``.
        progress: Decides whether a progress bar is displayed.
        **settings: Training settings that replace the base model's, such as ``seed``.
    """
    result = train_classifier(
        base.make_config(changes),
        **{name: splits[name] for name in SPLIT_NAMES},
        output_dir=folder,
        options=replace(base.settings, **settings),
        tokenizer=base.tokenizer,
        guides=guides,
        resume=True,
        progress=progress(folder),
    )
    return build_trained_variant(folder, result)


def build_trained_variant(folder: Path, result: TrainedClassifier) -> TrainedVariant:
    """Build the record of a trained model; its duration and epochs are read from the checkpoint.

    Args:
        folder: Checkpoint folder.
        result: Training result.
    """
    record = read_record(folder)
    return TrainedVariant(
        folder,
        result.model,
        result.metrics,
        record["seconds"],
        record["n_epochs"],
    )


# --- Variants ------------------------------------------------------------------------------------


def compare_with_base(
    base: BaseModel, model: PreTrainedModel, examples: "datasets.Dataset"
) -> dict[str, Tensor]:
    """Measure how different the outputs and the attention of two models are on the same texts.

    Args:
        base: The base model (the trained model with which others are compared).
        model: A variant, which was trained like the base model with one change.
        examples: The test texts.

    Returns:
        - ``probs``: the variant's probabilities, [texts, classes].
        - ``tvd``: total variation distance between the outputs, in [0, 1], [texts].
        - ``jsd``: Jensen-Shannon divergence between the attention weights, in [0, ln 2], [texts].
    """
    base_outputs = base.get_outputs(examples)
    outputs = read_outputs(model, base.tokenizer, examples)
    return {
        "probs": outputs.probs,
        "tvd": tvd(base_outputs.probs, outputs.probs),
        "jsd": jsd(base_outputs.attention, outputs.attention),
    }


def measure_predictions(
    base: BaseModel,
    model: PreTrainedModel,
    examples: "datasets.Dataset",
    guide: Guide | None = None,
) -> dict[str, Tensor]:
    """Compute a model's probabilities on the test texts.

    Unlike :func:`compare_with_base`, this does not compare the model with the base model.

    Args:
        base: The base model, whose tokenizer is used.
        model: The variant: a model that was trained like the base model, except for one difference
            such as the seed.
        examples: The test texts.
        guide: Fixed attention weights that the variant uses in place of its own, or None.

    Returns:
        A dictionary with the single entry ``probs``: the variant's probabilities, [texts, classes].
    """
    return {"probs": predict(model, base.tokenizer, examples, guide=guide)}


@dataclass(frozen=True, eq=False)
class Variant:
    """A variant of the base model: how to train it, and how to measure it.

    Attributes:
        name: Name in score tables, such as "seed 3".
        statistic: Prefix for its statistic names. For example, ``one_seed`` in
            ``one_seed_jsd@3``.
        train: A trained model, or a function ``train(base, splits, folder, progress=…)`` that
            trains the variant or loads it if it is finished.
        measure: Function ``measure(base, model, test_texts)`` that returns ``probs``
            [texts, classes] and further statistics [texts] by name.
        key: Suffix for its statistic names, such as the seed; None if there is only one
            variant with this prefix.
        folder: Checkpoint folder below the test folder; "" for the test folder itself.
    """

    name: str
    statistic: str
    train: Callable[..., TrainedVariant] | PreTrainedModel
    measure: Callable[..., dict[str, Tensor]] = compare_with_base
    key: float | None = None
    folder: str = ""


@dataclass(frozen=True, eq=False)
class RetrainingSetup:
    """The inputs that all retraining tests share.

    Attributes:
        base: The base model (the trained model with which others are compared).
        splits: Train, validation and test texts.
        folder: Output folder. It contains one folder per test.
        test_options: Options for every selected test, by name.
        seed: Seed for bootstrap and search.
        progress: Decides whether a progress bar is displayed.
        data_name: Data set name.
    """

    base: BaseModel
    splits: Splits
    folder: Path
    test_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    progress: ProgressSetting = disable_progress
    data_name: str | None = None

    @property
    def base_outputs(self) -> Outputs:
        """The base model's outputs on the test texts."""
        return self.base.get_outputs(self.splits["test"])


def build_setup(
    base: BaseModel,
    data: Data,
    folder: str | Path,
    seed: int,
    test_options: Mapping[str, Options] | None = None,
) -> RetrainingSetup:
    """Load the data splits and check that they fit the base model and the tests.

    Args:
        base: The base model (the trained model with which others are compared).
        data: The data that the base model was trained on.
        folder: Output folder.
        seed: Seed for bootstrap and search.
        test_options: Options for every selected test, by name.

    Raises:
        AttnProbeError: If a split is missing, if the classes differ, or if a test cannot run.
    """
    splits = data.load_splits(seed=base.settings.seed)
    check_splits(splits)
    splits = {**splits, "test": drop_copies(splits["test"])}
    test_options = test_options or {}
    name = get_dataset_name(data.dataset, "").name
    setup = RetrainingSetup(base, splits, Path(folder), test_options, seed, data_name=name)
    tests = get_retraining_tests()
    # `transfer` passes no tests, and also trains from scratch.
    if not test_options or any(tests[test].trains_from_scratch for test in test_options):
        check_same_classes(base, splits)
    for test, options in test_options.items():
        check = tests[test].check
        if check is not None:
            check(setup, options)
    return setup


@dataclass(eq=False)
class VariantResults:
    """Measurements of a test's variants, which :func:`run_retraining_test` adds one by one.

    Attributes:
        setup: Inputs that all tests share, such as the base model and the texts.
        folder: Test folder.
        labels: The true classes, [texts].
        statistics: Values of each statistic [texts], by statistic name.
        probs: Probabilities [texts, classes] by variant name.
        trained: The variants that were trained, or loaded from their folder.
        scores: Scores of all variants, compared with the reference.
    """

    setup: RetrainingSetup
    folder: Path
    labels: Tensor
    statistics: dict[str, Tensor] = field(default_factory=dict)
    probs: dict[str, Tensor] = field(default_factory=dict)
    trained: list[TrainedVariant] = field(default_factory=list)
    scores: tuple[Score, ...] = ()

    def run_variant(self, variant: Variant) -> None:
        """Train one model of a test, measure it, and add the results.

        Args:
            variant: Description of the model. Its attribute ``train`` is a trained model, or a
                function that trains it or loads it from its folder.
        """
        setup = self.setup
        if isinstance(variant.train, PreTrainedModel):
            model = variant.train
        else:
            folder = self.folder / variant.folder
            trained = variant.train(setup.base, setup.splits, folder, progress=setup.progress)
            self.trained.append(trained)
            model = trained.model
        measurements = variant.measure(setup.base, model, setup.splits["test"])
        self.add_measurements(variant.name, variant.statistic, measurements, variant.key)

    def add_measurements(
        self,
        name: str,
        statistic: str,
        measurements: Mapping[str, Tensor],
        key: float | None = None,
    ) -> None:
        """Add the measurements of one model, and whether its prediction is correct for each text.

        Args:
            name: Model name.
            statistic: Prefix for the names of the statistics, such as ``one_seed``.
            measurements: ``probs`` [texts, classes] and further statistics [texts], by name.
            key: Suffix for the names of the statistics, such as the seed. For example, the JSD of
                seed 2 is stored as ``one_seed_jsd@2``.
        """
        probs = measurements["probs"]
        self.probs[name] = probs
        correct = (probs.argmax(-1) == self.labels).double()
        suffix = "" if key is None else f"@{key}"
        for quantity, values in {**measurements, "correct": correct}.items():
            if quantity != "probs":
                self.statistics[f"{statistic}_{quantity}{suffix}"] = values

    def stack_statistic(self, statistic: str) -> Tensor:
        """Return a statistic's values for several models as one tensor, [models, texts].

        Args:
            statistic: Name before the "@". For example, ``one_seed_jsd`` selects the JSD of all
                seeds, ``one_seed_jsd@1``, ``one_seed_jsd@2`` and so on.
        """
        names = [name for name in self.statistics if name.startswith(f"{statistic}@")]
        return torch.stack([self.statistics[name] for name in names])

    def write_rows(self, test: str) -> None:
        """Write all statistics to the folder ``rows``, and replace the test's earlier rows there.

        Args:
            test: Test name.
        """
        ids = self.setup.base_outputs.example_ids
        rows = build_rows(test, ids, {Site(): self.statistics})
        append_rows(self.setup.folder / "rows", rows, name=test)

    def compute_scores(self, reference: str) -> None:
        """Compute F1, accuracy and ROC-AUC of all models, and compare them with one of the models.

        Args:
            reference: Name of the model with which all others are compared.
        """
        arrays = {name: values.numpy() for name, values in self.probs.items()}
        self.scores = compare_scores(
            self.labels.numpy(),
            arrays,
            reference=reference,
            seed=self.setup.seed,
        )


def run_retraining_test(name: str, setup: RetrainingSetup) -> VariantResults:
    """Run a retraining test: train its models, measure them and compare their scores.

    Models that were already trained are loaded from their folders.

    Args:
        name: Test name. The test's models are stored in a folder with this name.
        setup: Inputs that all tests share, such as the base model and the texts.
    """
    test = get_retraining_tests()[name]
    options = setup.test_options.get(name) or OPTIONS_BY_TEST[name]()
    base_outputs = setup.base_outputs
    results = VariantResults(setup, setup.folder / name, base_outputs.labels)
    results.probs["base"] = base_outputs.probs
    for variant in test.make_variants(setup, options):
        results.run_variant(variant)
    if test.summarize is not None:
        test.summarize(results, options)
    results.compute_scores(test.reference)
    return results
