"""The verb ``retrain``: tests that train models, each an ordinary checkpoint, and a report."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from hf_attnprobe.attention_model import Site
from hf_attnprobe.checkpoints.records import RECORD
from hf_attnprobe.data.arguments import Data, as_data
from hf_attnprobe.data.examples import DatasetName, dataset_name
from hf_attnprobe.distributed import check_one_process, process_state
from hf_attnprobe.functional.predictions import classes
from hf_attnprobe.hardware import suited_threads
from hf_attnprobe.inference.outputs import Outputs
from hf_attnprobe.options import Asked, Options
from hf_attnprobe.progress import Bar, quiet_libraries
from hf_attnprobe.retraining.adversary import GUIDE_LAMBDA, lambda_folder
from hf_attnprobe.retraining.base import (
    Base,
    Splits,
    as_row,
    check_splits,
    identity_of,
    load_base,
)
from hf_attnprobe.retraining.options import Adversary, RetrainOptions
from hf_attnprobe.retraining.registry import asked_retrainings, readings, retrainings
from hf_attnprobe.retraining.report import KIND, RetrainingReport, write_report
from hf_attnprobe.retraining.result import attention_bins, farther_than_a_seed
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.storage.asked import asked_for
from hf_attnprobe.storage.folders import claim
from hf_attnprobe.storage.provenance import versions
from hf_attnprobe.storage.rows import (
    NO_SITE,
    append_rows,
    prediction_statistics,
    read_rows,
    statistics_of,
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


@quiet_libraries()
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
        dataset: the data it was trained on: a :class:`~hf_attnprobe.data.arguments.Data`,
            or a name, a folder, a Hub id or a DatasetDict. Where validation texts are set
            apart, the base's seed does it.
        tests: names from :data:`hf_attnprobe.retraining.TESTS`, or their options, also as
            ``{"seeds": {"n_seeds": 3}}``; by default all but ``rationale``.
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
    splits = data.splits(seed=base.settings.seed)
    check_splits(base, splits)
    folder = Path(output_dir)
    identity = identity_of(base, splits, options.seed)
    if "adversary" in chosen or not (folder / f"{KIND}.json").exists():
        identity["adversary"] = _settings_of(chosen.get("adversary"))
    with (
        claim(folder, identity, process_state(), kind=KIND),
        suited_threads(base.model),
    ):
        own = base.outputs(splits["test"])
        # Rows first: from here on the folder is this run's, whatever interrupts it.
        append_rows(folder / "rows", _prediction_rows(own), name=PREDICTION)
        n_models = sum(retrainings()[name].n_models(given) for name, given in chosen.items())
        with Bar("retrain", progress, n_models, of="model") as bar:
            results = _run_tests(base, splits, chosen, folder, options.seed, bar)
        for test, result in results.items():
            rows = to_rows(test, statistics_of(result), own.example_ids, Site())
            append_rows(folder / "rows", rows, name=test)
        name = dataset_name(data.dataset, "test")
        asked = _asked_for(model, data, options, chosen, given=tests)
        provenance = {**identity, "asked_for": asked}
        report = _report(base, name, folder, results, provenance, options.seed)
        write_report(report, folder)
    return report


def _run_tests(
    base: Base,
    splits: Splits,
    chosen: Mapping[str, Options],
    folder: Path,
    seed: int,
    bar: Bar,
) -> dict[str, Any]:
    """The results of the tests, by name."""
    further: dict[str, dict[str, Any]] = {}
    guide = _adversary_guide(folder, chosen.get("adversary"))
    if guide is not None and "diagnostic_mlp" in chosen:
        further["diagnostic_mlp"] = {"adversary": guide}
        bar.n_parts += 1

    def begin(model: Path) -> bool:
        bar.part(str(model.relative_to(folder)))
        return bar.shown

    results = {}
    for name, given in chosen.items():
        results[name] = retrainings()[name].function(
            base,
            splits,
            given,
            output_dir=folder / name,
            seed=seed,
            progress=begin,
            **further.get(name, {}),
        )
    return results


def _settings_of(adversary: Options | None) -> dict[str, Any]:
    """What all adversaries of a folder share; None is the default."""
    options = asdict(adversary or Adversary())
    return {name: options[name] for name in ("tvd_scale", "epochs", "patience")}


def _asked_for(
    model: str | Path,
    data: Data,
    options: RetrainOptions,
    chosen: Mapping[str, Options],
    given: Asked | None,
) -> dict[str, Any]:
    """What was asked beyond the defaults."""
    usual = {name: test.options() for name, test in retrainings().items()}
    tests = {} if given is None else chosen
    return asked_for(model, data, options, tests, usual, leave_out=("split", "test_limit"))


def _adversary_guide(folder: Path, adversary: Any) -> Path | None:
    """The adversary whose λ is nearest to that of the paper's Table 3, or None.

    It is among the folder's, or will be once the test ``adversary`` has run.

    Args:
        adversary: options of that test; None where it is not run.
    """
    options = adversary or Adversary()
    wanted = GUIDE_LAMBDA * options.tvd_factor
    nearest = min(options.sorted_lambdas(), key=lambda value: abs(value - wanted))
    guide = lambda_folder(folder / "adversary", nearest)
    if adversary is not None or (guide / RECORD).is_file():
        return guide
    return None


def _prediction_rows(own: Outputs) -> pd.DataFrame:
    """The base's predictions on the test texts."""
    one_class = classes([str(k) for k in range(own.probs.shape[-1])])
    n_tokens = own.mask.sum(-1)
    statistics = prediction_statistics(one_class, own.probs, own.labels, n_tokens)
    return to_rows(PREDICTION, statistics, own.example_ids, NO_SITE)


def _report(
    base: Base,
    dataset: DatasetName,
    folder: Path,
    results: Mapping[str, Any],
    identity: Mapping[str, Any],
    seed: int,
) -> RetrainingReport:
    """The report of these results, from the rows on disk."""
    rows = read_rows(folder / "rows")
    rows = rows[rows.test.isin([*results, PREDICTION])].reset_index(drop=True)
    labels = base.labels
    f1 = f"of class {labels[1]}" if len(labels) == 2 else "mean over the classes"
    statistics = summarize(rows, labels, readings())
    models = []
    for result in results.values():
        models += [as_row(trained, folder) for trained in result.trained]
    return RetrainingReport(
        model=base.name,
        dataset=dataset,
        n=rows.example_id.nunique(),
        seed=seed,
        statistics=statistics,
        scores={test: result.scores for test, result in results.items()},
        models=tuple(models),
        provenance={
            **identity,
            "f1": f1,
            "tests": list(results),
            "notes": list(base.notes),
            "versions": versions(),
        },
        bins=attention_bins(rows, labels),
        beyond_seed=farther_than_a_seed(rows, statistics),
        rows=rows,
    )
