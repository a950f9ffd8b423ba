"""The runner of the tests that train models: every model an ordinary checkpoint, restartable, a report at the end."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from hf_attnprobe.attention_model import Site
from hf_attnprobe.checkpoints import RECORD
from hf_attnprobe.data.examples import dataset_fingerprint, dataset_name
from hf_attnprobe.data.splits import load_splits
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.options import check_at_least
from hf_attnprobe.retraining.adversary import (
    GUIDE_LAMBDA,
    default_lambdas,
    lambda_folder,
)
from hf_attnprobe.retraining.base import SPLITS, Base, check_splits, load_base
from hf_attnprobe.retraining.registry import READINGS, RETRAININGS
from hf_attnprobe.retraining.report import (
    RetrainingReport,
    TrainedModel,
    attention_bins,
    from_json,
    to_json,
    to_markdown,
)
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.storage.folders import claim, write_atomically
from hf_attnprobe.storage.provenance import SUMMARY, versions
from hf_attnprobe.storage.rows import (
    NO_SITE,
    append_rows,
    read_rows,
    statistics_of,
    to_rows,
)


IDENTITY = "retraining.json"  # what the models of a folder were trained beside


def retrain(
    model: str | Path,
    dataset,
    *,
    output_dir: str | Path,
    tests: Sequence[str] | None = None,
    config: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    n_seeds: int = 8,
    lambdas: Sequence[float] | None = None,
    tvd_scale: str = "true",
    adversary_epochs: int = 80,
    patience: int = 10,
    recipe: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    vectors: str | Path | None = None,
    progress: bool = True,
) -> RetrainingReport:
    """Runs the tests that train models beside a base, and summarises what they found on the test texts.

    Each model becomes a checkpoint of its own below ``output_dir``. Run again with the same folder to continue after an
    interruption, at the epoch that was reached, to the same numbers; to add tests, seeds or λ.

    Args:
        model: folder or Hub id of the base, a flat attention classifier with trained attention.
        dataset, config, text_column, label_column: the data it was trained on, see
            :func:`hf_attnprobe.data.examples.load_examples`. limit: so many training texts, see
            :func:`hf_attnprobe.data.splits.load_splits`. Where validation texts are set apart, the base's seed does it.
        tests: names from :data:`hf_attnprobe.retraining.registry.RETRAININGS`; by default all.
        seed: of bootstrap and search; the models are trained with the base's and those that ``seeds`` lists.
        n_seeds: of ``seeds``.
        lambdas, tvd_scale, adversary_epochs, patience: of ``adversary``, see
            :func:`hf_attnprobe.retraining.adversary.adversary`.
        recipe, epochs, batch_size, learning_rate, weight_decay, vectors: of the training; None is as the base was
            trained. All but ``epochs`` hold for the adversaries too.
        progress: a bar on stderr for every model.

    Returns:
        The report; its ``models`` say how long each training took.

    Raises:
        AttnProbeError: for anything the caller can mend, before anything is trained.
    """
    tests = check_retrainings(tests)
    lambdas = _check_options(
        lambdas, tvd_scale, n_seeds, seed, adversary_epochs, patience
    )
    state = process_state()
    if state.num_processes > 1:
        raise AttnProbeError("retrain works in one process; start it without torchrun")
    settings = {
        "recipe": recipe,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
    }
    base = load_base(
        model, **settings, weight_decay=weight_decay, vectors=vectors and str(vectors)
    )
    columns = {
        "config": config,
        "text_column": text_column,
        "label_column": label_column,
        "limit": limit,
    }
    sets = load_splits(dataset, seed=base.settings["seed"], **columns)
    check_splits(base, sets)
    folder = Path(output_dir)
    options = {
        "seeds": {"n_seeds": n_seeds},
        "adversary": {
            "lambdas": lambdas,
            "tvd_scale": tvd_scale,
            "epochs": adversary_epochs,
            "patience": patience,
        },
        "diagnostic_mlp": {
            "adversary": _adversary_guide(folder, tests, lambdas, tvd_scale)
        },
    }
    identity = _identity(
        base,
        sets,
        seed,
        {k: v for k, v in options["adversary"].items() if k != "lambdas"},
    )
    with claim(folder, identity, state, name=IDENTITY):
        own = base.outputs(sets["test"])
        # Rows first: from here on the folder is this run's, whatever interrupts it.
        append_rows(folder / "rows", _prediction_rows(own), name=PREDICTION)
        announce = _Announcer(
            folder, _n_models(tests, n_seeds, lambdas, options), progress
        )
        results = {
            test: RETRAININGS[test](
                base,
                sets,
                output_dir=folder / test,
                seed=seed,
                progress=announce,
                **options.get(test, {}),
            )
            for test in tests
        }
        for test, result in results.items():
            rows = to_rows(test, statistics_of(result), own.example_ids, Site())
            append_rows(folder / "rows", rows, name=test)
        report = _report(
            base, dataset_name(dataset, "test"), folder, results, identity, seed
        )
        _write(report, folder)
    return report


def check_retrainings(tests: Sequence[str] | None) -> tuple[str, ...]:
    """The tests asked for, all of them by default, in the order in which one can use another's models."""
    tests = (
        list(RETRAININGS)
        if tests is None
        else [tests]
        if isinstance(tests, str)
        else list(tests)
    )
    unknown = sorted(set(tests) - set(RETRAININGS))
    if unknown or not tests:
        raise AttnProbeError(
            f"expected tests of {', '.join(RETRAININGS)}, got {', '.join(unknown) or 'none'}; those that train no model "
            "are attnprobe audit's"
        )
    return tuple(test for test in RETRAININGS if test in tests)


def _check_options(
    lambdas,
    tvd_scale: str,
    n_seeds: int,
    seed: int,
    adversary_epochs: int,
    patience: int,
):
    """The λ, each once and in order."""
    check_at_least(0, seed=seed)
    check_at_least(
        1, n_seeds=n_seeds, adversary_epochs=adversary_epochs, patience=patience
    )
    if tvd_scale not in ("true", "half"):
        raise AttnProbeError(f"expected a tvd_scale of true or half, got {tvd_scale!r}")
    return check_lambdas(lambdas, tvd_scale)


def check_lambdas(
    lambdas: Sequence[float] | None, tvd_scale: str = "true"
) -> tuple[float, ...]:
    """The λ, each once and in order; None is the default's."""
    lambdas = (
        default_lambdas(tvd_scale)
        if lambdas is None
        else tuple(sorted({float(k) for k in lambdas}))
    )
    if not lambdas or not all(0 <= k < float("inf") for k in lambdas):
        raise AttnProbeError(
            f"expected finite lambdas of 0 or more, got {', '.join(map(str, lambdas)) or 'none'}"
        )
    return lambdas


def _adversary_guide(
    folder: Path, tests: Sequence[str], lambdas: Sequence[float], tvd_scale: str
) -> Path | None:
    """The adversary whose λ is nearest to the one in the paper's Table 3, if there is one or will be."""
    wanted = GUIDE_LAMBDA / 2 if tvd_scale == "half" else GUIDE_LAMBDA
    nearest = lambda_folder(
        folder / "adversary", min(lambdas, key=lambda k: abs(k - wanted))
    )
    return nearest if "adversary" in tests or (nearest / RECORD).is_file() else None


def _n_models(
    tests: Sequence[str], n_seeds: int, lambdas: Sequence[float], options: Mapping
) -> int:
    guides = 4 if options["diagnostic_mlp"]["adversary"] else 3
    counts = {
        "uniform": 1,
        "seeds": n_seeds,
        "adversary": len(lambdas),
        "diagnostic_mlp": guides,
    }
    return sum(counts[test] for test in tests)


class _Announcer:
    """Names the model that is about to be trained, for the bar on stderr."""

    def __init__(self, folder: Path, n_models: int, shown: bool):
        self.folder, self.n_models, self.shown, self.n_begun = (
            folder,
            n_models,
            shown,
            0,
        )

    def __call__(self, folder: Path) -> bool | str:
        self.n_begun += 1
        return (
            self.shown
            and f"model {self.n_begun} of {self.n_models}: {folder.relative_to(self.folder)}"
        )


def _identity(base: Base, sets: Mapping, seed: int, adversary: Mapping) -> dict:
    return {
        "model_fingerprint": model_fingerprint(base.model),
        "data_fingerprint": {name: dataset_fingerprint(sets[name]) for name in SPLITS},
        "seed": seed,
        "settings": dict(base.settings),
        "adversary": dict(adversary),
    }


def _prediction_rows(own) -> pd.DataFrame:
    prob, predicted = own.probs.max(-1)
    statistics = {
        "predicted_class": predicted,
        "probability": prob,
        "label": own.labels,
        "n_tokens": own.mask.sum(-1),
    }
    return to_rows(PREDICTION, statistics, own.example_ids, NO_SITE)


def _report(
    base: Base,
    dataset: str,
    folder: Path,
    results: Mapping,
    identity: Mapping,
    seed: int,
) -> RetrainingReport:
    rows = read_rows(folder / "rows")
    rows = rows[rows.test.isin([*results, PREDICTION])].reset_index(drop=True)
    labels = [
        str(base.model.config.id2label[k]) for k in range(base.model.config.num_labels)
    ]
    models = [m for result in results.values() for m in result.trained]
    return RetrainingReport(
        model=base.name,
        dataset=dataset,
        n=rows.example_id.nunique(),
        seed=seed,
        statistics=summarize(rows, labels, READINGS, seed=seed),
        scores={test: result.scores for test, result in results.items()},
        models=tuple(
            TrainedModel(
                str(m.folder.relative_to(folder)),
                m.seconds,
                m.n_epochs,
                dict(m.metrics),
            )
            for m in models
        ),
        provenance=dict(identity)
        | {
            "f1": f"of class {labels[1]}"
            if len(labels) == 2
            else "mean over the classes"
        }
        | {"tests": list(results), "notes": list(base.notes), "versions": versions()},
        bins=attention_bins(rows, labels),
        rows=rows,
    )


def _write(report: RetrainingReport, folder: Path) -> None:
    write_atomically(folder / SUMMARY, json.dumps(to_json(report), indent=1) + "\n")
    write_atomically(folder / "report.md", to_markdown(report))


def read_retraining(folder: str | Path) -> RetrainingReport:
    """The report of a retraining's folder, with its rows."""
    file = Path(folder) / SUMMARY
    if not file.is_file():
        raise AttnProbeError(
            f"expected a retraining in {folder}, found no {SUMMARY} there; finish or run it first"
        )
    try:
        report = from_json(json.loads(file.read_text()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise AttnProbeError(
            f"cannot read the summary in {file}; run attnprobe retrain again"
        ) from error
    return dataclasses.replace(report, rows=read_rows(Path(folder) / "rows"))
