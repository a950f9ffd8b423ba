"""The functions ``retrain`` and ``transfer``, which train and measure variants of a base model.

Each variant becomes an ordinary checkpoint. ``transfer`` imposes the attention of any model on
another one, as the test ``diagnostic_mlp`` does with a model without context.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import PreTrainedModel

from hf_attnprobe.adapters.pretrained import get_class_names
from hf_attnprobe.checkpoints.loading import (
    load_attention_classifier,
    load_tokenizer,
)
from hf_attnprobe.core.distributed import require_single_process
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import limit_threads
from hf_attnprobe.core.options import SavedModel, TestSelection, public_function
from hf_attnprobe.core.progress import ProgressBar
from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.data.specs import Data, make_data
from hf_attnprobe.functional.fingerprint import compute_fingerprint
from hf_attnprobe.functional.predictions import make_class_prediction
from hf_attnprobe.inference.outputs import Outputs
from hf_attnprobe.retraining import (
    get_retraining_readings,
    get_retraining_tests,
    select_retraining_tests,
)
from hf_attnprobe.retraining.base_model import (
    BaseModel,
    RetrainingSetup,
    Variant,
    VariantResults,
    build_retraining_identity,
    build_setup,
    load_base_model,
    load_further_trainable_model,
    measure_predictions,
    run_retraining_test,
)
from hf_attnprobe.retraining.controls import make_guided_variant
from hf_attnprobe.retraining.options import (
    OPTIONS_BY_TEST,
    Adversary,
    RetrainOptions,
    TransferOptions,
)
from hf_attnprobe.retraining.report import RETRAINING_FILE, RetrainingReport
from hf_attnprobe.retraining.verdict import (
    TrainedModel,
    compute_seed_bins,
    measure_distance_beyond_seed,
)
from hf_attnprobe.statistics.summary import PREDICTION_TEST, summarize
from hf_attnprobe.storage.folders import reserve_folder
from hf_attnprobe.storage.provenance import SUMMARY_FILE, collect_settings, get_versions
from hf_attnprobe.storage.rows import (
    NO_SITE,
    append_rows,
    build_rows,
    compute_prediction_statistics,
    read_rows,
)


TRAINING_SETTING_OPTIONS = (
    "procedure",
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "word_vectors",
)
"""Options of the command ``retrain`` that replace the base model's training settings."""
SHARED_ADVERSARY_OPTIONS = ("tvd_scale", "epochs", "patience")
"""Options of the test ``adversary`` that must be the same for all adversaries in an output
folder."""
PENALTY_OPTIONS = ("words", "weight", "over_heads", "layers")
"""Options of the test ``deception`` that the report shows next to its results."""


@public_function
def retrain(
    model: str | Path | SavedModel,
    dataset: Any,
    tests: TestSelection | None = None,
    *,
    output_dir: str | Path,
    options: RetrainOptions = RetrainOptions(),
    progress: bool = True,
) -> RetrainingReport:
    """Run the tests that train variants of a base model, and report on the test texts.

    Each variant becomes a checkpoint of its own below ``output_dir``. Run the function again with
    the same folder to continue after an interruption, at the last epoch and to the same numbers, or
    to add tests, seeds or λ.

    Args:
        model: The base model's folder or Hub id, or a
            :class:`~hf_attnprobe.core.options.SavedModel`. It must be a flat attention classifier
            with trained attention. If ``deception`` is the only test, it may also be a fine-tuned
            Transformer.
        dataset: The data that the base model was trained on: a
            :class:`~hf_attnprobe.data.specs.Data`, or a name, a folder, a Hub id or a DatasetDict.
            If there are no validation texts, some training texts are set apart with the base
            model's seed.
        tests: Names from :data:`hf_attnprobe.retraining.options.OPTIONS_BY_TEST`, or options by
            name, such as ``{"seeds": {"n_seeds": 3}}``. By default, all tests except ``deception``,
            which needs words.
        output_dir: A new or empty folder, or the folder of the same retraining.
        options: Options for all trainings. The variants are trained with the base model's seed,
            except in the tests ``seeds``, ``adversary`` and ``deception``.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The report. Its ``models`` contain the duration of each training.

    Raises:
        AttnProbeError: If an argument is invalid. It is raised before anything is trained.

    Example:
        Train three more seeds, and a model that hides its attention to two words::

            tests = {"seeds": {"n_seeds": 3}, "deception": {"words": ["good", "bad"]}}
            report = retrain("bilstm-sst", "sst", tests, output_dir="retrained")
            print(report)
    """
    test_options = select_retraining_tests(tests)
    require_single_process("retrain")
    registered_tests = get_retraining_tests()
    settings = {name: getattr(options, name) for name in TRAINING_SETTING_OPTIONS}
    if any(registered_tests[name].trains_from_scratch for name in test_options):
        base = load_base_model(model, **settings)
    else:
        _check_further_training_options(options)
        base = load_further_trainable_model(model, options.seed, **settings)
    data = make_data(dataset)
    setup = build_setup(base, data, output_dir, options.seed, test_options)
    identity = build_retraining_identity(base, setup.splits, options.seed)
    mark = setup.folder / RETRAINING_FILE
    if "adversary" in test_options or not mark.exists():
        adversary_options = asdict(test_options.get("adversary", Adversary()))
        identity["adversary"] = {name: adversary_options[name] for name in SHARED_ADVERSARY_OPTIONS}
    with (
        reserve_folder(setup.folder, RETRAINING_FILE, identity=identity),
        limit_threads(base.model),
    ):
        # Once the folder contains rows, it is reserved for this retraining after an interruption.
        rows = _make_prediction_rows(setup.base_outputs)
        append_rows(setup.folder / "rows", rows, name=PREDICTION_TEST)
        n_variants = 0
        for name, test_option in test_options.items():
            n_variants += len(list(registered_tests[name].make_variants(setup, test_option)))
        with ProgressBar("retrain", progress, n_variants, part_name="model") as bar:

            def show_model(model: Path) -> bool:
                bar.start_part(str(model.relative_to(setup.folder)))
                return bar.visible

            setup = replace(setup, progress=show_model)
            results = {name: run_retraining_test(name, setup) for name in test_options}
        for name, test_results in results.items():
            test_results.write_rows(name)
        requested_settings = collect_settings(
            model,
            data,
            options,
            {} if tests is None else test_options,
            default_options={name: kind() for name, kind in OPTIONS_BY_TEST.items()},
            excluded=("split", "test_limit"),
        )
        # The mark also contains the options of earlier runs in the same folder.
        provenance = json.loads(mark.read_text(encoding="utf-8")) | {
            "asked_for": requested_settings
        }
        if "deception" in test_options:
            penalty = asdict(test_options["deception"])
            provenance["deception"] = {name: penalty[name] for name in PENALTY_OPTIONS}
        report = _build_report(setup, data, results, provenance)
        report = _add_statistics(report, setup)
        report.write(setup.folder, SUMMARY_FILE)
    return report


def _check_further_training_options(options: RetrainOptions) -> None:
    """Raise AttnProbeError if an option is set that has no effect on the test ``deception``.

    This test trains the base model further. Some options only affect trainings from scratch.

    Args:
        options: Options of a retraining whose only test is ``deception``.

    Raises:
        AttnProbeError: If such an option is set.
    """
    advice = {
        "epochs": "Use --set deception.epochs=N",
        "batch_size": "Use --set deception.batch_size=N",
        "procedure": "Remove it",
        "word_vectors": "Remove it",
    }
    for name, solution in advice.items():
        if getattr(options, name) is not None:
            raise AttnProbeError(
                f"--{name.replace('_', '-')} has no effect on the test deception, which trains the "
                f"base model further. {solution}."
            )


@public_function
def transfer(
    model: str | Path,
    guide: str | Path,
    dataset: Any,
    *,
    output_dir: str | Path,
    options: TransferOptions = TransferOptions(),
    progress: bool = True,
) -> RetrainingReport:
    """Train a model whose attention is imposed by another model, and compare the two.

    The trained model has the configuration, settings and seed of ``model`` and becomes a checkpoint
    in ``output_dir``. Run the function again with the same folder to continue.

    Args:
        model: Folder of an attention classifier with trained attention. The guided model is
            compared with it.
        guide: Folder of the attention classifier whose weights are imposed. Its tokenizer must have
            the same vocabulary, which is the case if both models were trained on the same texts.
        dataset: The data that all models were trained on, as for :func:`hf_attnprobe.retrain`.
        output_dir: A new or empty folder, or the folder of the same transfer.
        options: A third model to score, and the bootstrap seed.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The report. Its scores of ``transfer`` contain the models ``own`` (the original model),
        ``guided`` and, if it was passed, ``uniform``. They are compared with ``own``.

    Raises:
        AttnProbeError: If the models do not fit the data or each other, for example because their
            classes or vocabularies differ.

    Example:
        Impose the attention of an MLP on a BiLSTM::

            report = transfer("bilstm-sst", "mlp-sst", "sst", output_dir="guided")
    """
    base = load_base_model(model)
    data = make_data(dataset)
    setup = build_setup(base, data, output_dir, options.seed)
    other_models = {"guide": _load_matching_model(base, "guide", guide)}
    if options.uniform is not None:
        other_models["uniform"] = _load_matching_model(base, "uniform", options.uniform)
    identity = build_retraining_identity(base, setup.splits, options.seed)
    identity["other_models"] = {
        role: compute_fingerprint(other_model) for role, other_model in other_models.items()
    }
    setup = replace(setup, progress=lambda folder: progress and folder.name)
    with reserve_folder(setup.folder, RETRAINING_FILE, identity=identity):
        results = VariantResults(setup, setup.folder, setup.base_outputs.labels)
        results.add_measurements("own", "own", {"probs": setup.base_outputs.probs})
        # Once the folder contains rows, it is reserved for this transfer after an interruption.
        results.write_rows("transfer")
        guided = make_guided_variant(
            "guided", "guided", setup, lambda: other_models["guide"], {}, "guided"
        )
        results.run_variant(guided)
        if "uniform" in other_models:
            uniform = Variant("uniform", "uniform", other_models["uniform"], measure_predictions)
            results.run_variant(uniform)
        results.compute_scores("own")
        results.write_rows("transfer")
        provenance = identity | {"guide": str(guide), "notes": list(base.notes)}
        report = _build_report(setup, data, {"transfer": results}, provenance)
        report.write(setup.folder, SUMMARY_FILE)
    return report


def _load_matching_model(base: BaseModel, role: str, model: str | Path) -> PreTrainedModel:
    """Load a model and check that it has the base model's vocabulary and classes.

    Args:
        base: The base model (the trained model with which others are compared).
        role: ``guide`` for a model whose attention another model must use, or ``uniform`` for a
            model with uniform attention.
        model: Folder or Hub id.
    """
    loaded = load_attention_classifier(model, f"as {role}", "choose another model")
    config = loaded.config
    is_uniform = config.attention == "uniform"
    if config.attention == "guided" or (role == "uniform" and not is_uniform):
        expected_attention = "uniform attention" if role == "uniform" else "its own attention"
        raise AttnProbeError(
            f"{role} must be a model with {expected_attention}, but {model} has {config.attention} "
            "attention. Choose another model."
        )
    if load_tokenizer(model).get_vocab() != base.tokenizer.get_vocab():
        raise AttnProbeError(
            f"{model} and {base.name} must have the same vocabulary, with the same id for every "
            "word. Train both on the same texts."
        )
    if get_class_names(config) != base.class_names:
        raise AttnProbeError(
            f"{model} and {base.name} must have the same classes. Train both on the same data."
        )
    return loaded


def _make_prediction_rows(outputs: Outputs) -> pa.Table:
    """Return a table with the base model's predictions on the test texts.

    It has one row per text and statistic, such as the predicted class.
    """
    # The class names are not needed, so the classes are called "0", "1" and so on.
    prediction = make_class_prediction([str(k) for k in range(outputs.probs.shape[-1])])
    n_tokens = outputs.mask.sum(-1)
    statistics = compute_prediction_statistics(prediction, outputs.probs, outputs.labels, n_tokens)
    return build_rows(PREDICTION_TEST, outputs.example_ids, {NO_SITE: statistics})


def _add_statistics(report: RetrainingReport, setup: RetrainingSetup) -> RetrainingReport:
    """Return a copy of the report with means over texts, computed from the saved rows."""
    rows = read_rows(setup.folder / "rows")
    rows = rows[rows.test.isin([*report.scores, PREDICTION_TEST])].reset_index(drop=True)
    labels = setup.base.class_names
    statistics = summarize(rows, labels, get_retraining_readings())
    f1 = f"of class {labels[1]}" if len(labels) == 2 else "mean over the classes"
    notes = {
        "f1": f1,
        "tests": list(report.scores),
        "notes": list(setup.base.notes),
    }
    return replace(
        report,
        statistics=statistics,
        provenance=report.provenance | notes | {"versions": get_versions()},
        bins=compute_seed_bins(rows, labels),
        beyond_seed=measure_distance_beyond_seed(rows, statistics),
        rows=rows,
    )


def _build_report(
    setup: RetrainingSetup,
    data: Data,
    results_by_test: Mapping[str, VariantResults],
    provenance: Mapping[str, Any],
) -> RetrainingReport:
    """Build a report with scores and trained models. Statistics are added later."""
    models = [
        TrainedModel(
            str(trained.folder.relative_to(setup.folder)),
            trained.seconds,
            trained.n_epochs,
            dict(trained.metrics),
        )
        for results in results_by_test.values()
        for trained in results.trained
    ]
    return RetrainingReport(
        model=setup.base.name,
        dataset=get_dataset_name(data.dataset, "test"),
        n=len(setup.base_outputs.labels),
        seed=setup.seed,
        statistics=(),
        scores={test: results.scores for test, results in results_by_test.items()},
        models=tuple(models),
        provenance=dict(provenance),
    )
