"""The verbs ``retrain`` and ``transfer``: models trained beside others, and a report.

Each model becomes an ordinary checkpoint. ``transfer`` is the guide of ``diagnostic_mlp`` for any
pair of models.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import PreTrainedModel

from hf_attnprobe.adapters.pretrained import class_names
from hf_attnprobe.checkpoints.loading import (
    load_attention_classifier,
    load_tokenizer,
)
from hf_attnprobe.core.distributed import check_one_process
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import suited_threads
from hf_attnprobe.core.options import Asked, public_function
from hf_attnprobe.core.progress import Bar
from hf_attnprobe.data.examples import dataset_name
from hf_attnprobe.data.specs import Data, as_data
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.functional.predictions import classes
from hf_attnprobe.inference.outputs import Outputs
from hf_attnprobe.retraining import asked_retrainings, readings, retrainings
from hf_attnprobe.retraining.base_model import (
    Base,
    Setup,
    Tested,
    Variant,
    identity_of,
    load_base,
    outputs_alone,
    run_test,
    set_up,
)
from hf_attnprobe.retraining.controls import guided
from hf_attnprobe.retraining.options import (
    KINDS,
    Adversary,
    RetrainOptions,
    TransferOptions,
)
from hf_attnprobe.retraining.report import KIND, RetrainingReport
from hf_attnprobe.retraining.verdict import (
    TrainedModel,
    attention_bins,
    farther_than_a_seed,
)
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.storage.folders import alone_in
from hf_attnprobe.storage.provenance import SUMMARY, asked_for, versions
from hf_attnprobe.storage.rows import (
    NO_SITE,
    append_rows,
    prediction_statistics,
    read_rows,
    to_rows,
)


OF_TRAINING = (
    "procedure",
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "word_vectors",
)
"""Options in place of the base's own settings."""
OF_ADVERSARIES = ("tvd_scale", "epochs", "patience")
"""Options that all adversaries of a folder share."""


@public_function
def retrain(
    model: str | Path,
    dataset: Any,
    tests: Asked | None = None,
    *,
    output_dir: str | Path,
    options: RetrainOptions = RetrainOptions(),
    progress: bool = True,
) -> RetrainingReport:
    """Runs the tests that train models beside a base, and reports on the test texts.

    Each model becomes a checkpoint of its own below ``output_dir``. Run again with the same
    folder to continue after an interruption, at the epoch that was reached, to the same
    numbers; or to add tests, seeds or λ.

    Args:
        model: folder or Hub id of the base, a flat attention classifier with trained
            attention.
        dataset: the data it was trained on: a :class:`~hf_attnprobe.data.specs.Data`,
            or a name, a folder, a Hub id or a DatasetDict. Where validation texts are set
            apart, the base's seed does it.
        tests: names from :data:`hf_attnprobe.retraining.options.KINDS`, or their options, also as
            ``{"seeds": {"n_seeds": 3}}``; by default all of them.
        output_dir: a new or empty folder, or that of the same retraining.
        options: of all trainings. The models are trained with the base's
            seed and those that the test ``seeds`` lists.
        progress: show a bar on stderr.

    Returns:
        The report; its ``models`` say how long each training took.

    Raises:
        AttnProbeError: for anything the caller can mend, before anything is trained.
    """
    chosen = asked_retrainings(tests)
    check_one_process("retrain")
    base = load_base(model, **{name: getattr(options, name) for name in OF_TRAINING})
    data = as_data(dataset)
    setup = set_up(base, data, output_dir, options.seed, chosen)
    identity = identity_of(base, setup.splits, options.seed)
    mark = setup.folder / f"{KIND}.json"
    if "adversary" in chosen or not mark.exists():
        shared = asdict(chosen.get("adversary", Adversary()))
        identity["adversary"] = {name: shared[name] for name in OF_ADVERSARIES}
    with (
        alone_in(setup.folder, f"{KIND}.json", identity=identity),
        suited_threads(base.model),
    ):
        # Rows first: from here on the folder is this run's, whatever interrupts it.
        rows = _prediction_rows(setup.own)
        append_rows(setup.folder / "rows", rows, name=PREDICTION)
        known = retrainings()
        variants = [v for name, given in chosen.items() for v in known[name].variants(setup, given)]
        with Bar("retrain", progress, len(variants), of="model") as bar:

            def begin(model: Path) -> bool:
                bar.part(str(model.relative_to(setup.folder)))
                return bar.shown

            setup = replace(setup, progress=begin)
            tested = {name: run_test(name, setup) for name in chosen}
        for name, found in tested.items():
            found.write_rows(name)
        asked = asked_for(
            model,
            data,
            options,
            {} if tests is None else chosen,
            usual={name: kind() for name, kind in KINDS.items()},
            leave_out=("split", "test_limit"),
        )
        # of the mark: what an earlier run said too
        held = json.loads(mark.read_text(encoding="utf-8"))
        report = _report(setup, data, tested, {**held, "asked_for": asked})
        report = _with_statistics(report, setup)
        report.write(setup.folder, SUMMARY)
    return report


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
    """Trains a model whose attention is imposed by another one, and compares the two.

    The trained model has the configuration, settings and seed of ``model`` and becomes a
    checkpoint in ``output_dir``. Run again with the same folder to continue.

    Args:
        model: folder of an attention classifier with attention of its own, the one that is
            compared with.
        guide: the attention classifier whose weights are imposed. Its tokenizer must have
            the same vocabulary, as that of a model trained on the same texts has.
        dataset: the data that all models were trained on, as for
            :func:`hf_attnprobe.retrain`.
        output_dir: a new or empty folder, or that of the same transfer.
        options: a third model to be scored, and the seed of the bootstrap.
        progress: show a bar on stderr.

    Returns:
        The report. Its scores of ``transfer`` are those of ``own``, ``guided`` and
        ``uniform``, with differences to ``own``.

    Raises:
        AttnProbeError: models that do not fit the data or each other: of another kind, with
            other classes or another vocabulary.
    """
    base = load_base(model)
    data = as_data(dataset)
    setup = set_up(base, data, output_dir, options.seed)
    others = {"guide": _load_other(base, "guide", guide)}
    if options.uniform is not None:
        others["uniform"] = _load_other(base, "uniform", options.uniform)
    identity = identity_of(base, setup.splits, options.seed)
    identity["other_models"] = {name: model_fingerprint(other) for name, other in others.items()}
    setup = replace(setup, progress=lambda made: progress and made.name)
    with alone_in(setup.folder, f"{KIND}.json", identity=identity):
        tested = Tested(setup, setup.folder, setup.own.labels)
        tested.add("own", "own", {"probs": setup.own.probs})
        # Rows first: from here on the folder is this run's, whatever interrupts it.
        tested.write_rows("transfer")
        tested.run(guided("guided", "guided", setup, lambda: others["guide"], {}, "guided"))
        if "uniform" in others:
            tested.run(Variant("uniform", "uniform", others["uniform"], outputs_alone))
        tested.compare("own")
        tested.write_rows("transfer")
        provenance = identity | {"guide": str(guide), "notes": list(base.notes)}
        report = _report(setup, data, {"transfer": tested}, provenance)
        report.write(setup.folder, SUMMARY)
    return report


def _load_other(base: Base, role: str, model: str | Path) -> PreTrainedModel:
    """A model that reads the base's tokens and has its classes.

    Args:
        role: ``guide`` or ``uniform``.
    """
    loaded = load_attention_classifier(model, f"as {role}", "choose another")
    config = loaded.config
    is_uniform = config.attention == "uniform"
    if config.attention == "guided" or (role == "uniform" and not is_uniform):
        wanted = "uniform attention" if role == "uniform" else "attention of its own"
        raise AttnProbeError(
            f"expected as {role} a model with {wanted}, that of {model} is "
            f"{config.attention}; choose another"
        )
    if load_tokenizer(model).get_vocab() != base.tokenizer.get_vocab():
        raise AttnProbeError(
            f"expected the same vocabulary in {model} and {base.name}, where every number "
            "stands for the same word; train both on the same texts"
        )
    if class_names(config) != base.labels:
        raise AttnProbeError(
            f"expected the same classes in {model} and {base.name}; train both on the same data"
        )
    return loaded


def _prediction_rows(own: Outputs) -> pa.Table:
    """The base's predictions on the test texts."""
    one_class = classes([str(k) for k in range(own.probs.shape[-1])])
    n_tokens = own.mask.sum(-1)
    statistics = prediction_statistics(one_class, own.probs, own.labels, n_tokens)
    return to_rows(PREDICTION, own.example_ids, {NO_SITE: statistics})


def _with_statistics(report: RetrainingReport, setup: Setup) -> RetrainingReport:
    """Adds to the report the statistics in the rows of its tests on disk."""
    rows = read_rows(setup.folder / "rows")
    rows = rows[rows.test.isin([*report.scores, PREDICTION])].reset_index(drop=True)
    labels = setup.base.labels
    statistics = summarize(rows, labels, readings())
    f1 = f"of class {labels[1]}" if len(labels) == 2 else "mean over the classes"
    notes = {
        "f1": f1,
        "tests": list(report.scores),
        "notes": list(setup.base.notes),
    }
    return replace(
        report,
        statistics=statistics,
        provenance=report.provenance | notes | {"versions": versions()},
        bins=attention_bins(rows, labels),
        beyond_seed=farther_than_a_seed(rows, statistics),
        rows=rows,
    )


def _report(
    setup: Setup,
    data: Data,
    tested: Mapping[str, Tested],
    provenance: Mapping[str, Any],
) -> RetrainingReport:
    """The report of these tests, without the statistics of their rows."""
    models = [
        TrainedModel(
            str(trained.folder.relative_to(setup.folder)),
            trained.seconds,
            trained.n_epochs,
            dict(trained.metrics),
        )
        for found in tested.values()
        for trained in found.trained
    ]
    return RetrainingReport(
        model=setup.base.name,
        dataset=dataset_name(data.dataset, "test"),
        n=len(setup.own.labels),
        seed=setup.seed,
        statistics=(),
        scores={test: found.scores for test, found in tested.items()},
        models=tuple(models),
        provenance=dict(provenance),
    )
