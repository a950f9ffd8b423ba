"""Any checkpoints beside one another on the same texts: the experiments of Tutek & Šnajder 2020, Section 4."""

from collections.abc import Sequence
from pathlib import Path

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison.report import (
    CheckpointComparison,
    ComparedCheckpoint,
    fragility_scores,
    mean_estimates,
    published_for,
    regulariser_name,
    to_json,
    to_text,
)
from hf_attnprobe.checkpoints import load_model
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.retraining.base import check_kind
from hf_attnprobe.retraining.run import check_lambdas, retrain
from hf_attnprobe.retraining.verdict import Point, adversaries
from hf_attnprobe.storage.folders import check_free, write_atomically, write_json


PROBED = ("fragility", "single_token", "adversarial", "conicity")
TESTS = (*PROBED, "adversary")
MARKS = ("comparison.json", "1-*")  # what the first checkpoint's audit makes is one


def compare_checkpoints(
    models: Sequence[str | Path],
    dataset,
    *,
    output_dir: str | Path,
    tests: Sequence[str] = PROBED,
    split: str = "test",
    config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    train_limit: int | None = None,
    seed: int = 0,
    lambdas: Sequence[float] | None = None,
    adversary_epochs: int = 80,
    progress: bool = True,
) -> CheckpointComparison:
    """Runs the same tests on several attention classifiers and puts them into one table, with the published row of each.

    Every checkpoint has an audit, and with ``adversary`` a retraining, of its own below ``output_dir``, and is named by
    how it was trained. Run again with the same folder to continue, or to add checkpoints behind the others.

    Args:
        models: folders or Hub ids.
        tests: of ``fragility`` (score under uniform and permuted attention), ``single_token``, ``adversarial`` (the exact
            ε-max JSD), ``conicity``, and ``adversary``, which trains models; by default all but that.
        dataset, split, config, text_column, label_column, limit: the texts, see :func:`hf_attnprobe.data.examples.load_examples`.
        train_limit, lambdas, adversary_epochs: of ``adversary``: training texts, see ``limit`` of
            :func:`hf_attnprobe.retraining.run.retrain`, and the adversaries' λ and epochs.
        seed: with the example ids it fixes all random numbers.
        progress: bars on stderr.

    Raises:
        AttnProbeError: an unknown test, models of another kind, or what an audit and a retraining raise.
    """
    _check(models, tests)
    if "adversary" in tests and split != "test":
        raise AttnProbeError(
            f"expected the split test for adversaries, which are scored on all test texts, got {split}; leave out --split"
        )
    check_lambdas(lambdas)
    configs = [_config_of(model, as_base="adversary" in tests) for model in models]
    columns = {
        "config": config,
        "text_column": text_column,
        "label_column": label_column,
        "progress": progress,
        "seed": seed,
    }
    folder, found = check_free(output_dir, *MARKS), []
    for number, (model, own) in enumerate(zip(models, configs, strict=True), 1):
        place = folder / f"{number}-{Path(model).name}"
        probed = [test for test in tests if test in PROBED]
        report = audit(
            model,
            dataset,
            split=split,
            tests=probed,
            output_dir=place / "audit",
            limit=limit,
            **columns,
        )
        points = ()
        if "adversary" in tests:
            options = {
                "lambdas": lambdas,
                "adversary_epochs": adversary_epochs,
                "limit": train_limit,
            }
            points = _adversaries(
                model, dataset, place / "retrained", **options, **columns
            )
        found.append(_row(str(model), own, report, points, seed))
    comparison = CheckpointComparison(report.dataset, report.n, seed, tuple(found))
    write_json(folder / "comparison.json", to_json(comparison))
    write_atomically(folder / "comparison.md", to_text(comparison) + "\n")
    return comparison


def _check(models: Sequence, tests: Sequence[str]) -> None:
    unknown = sorted(set(tests) - set(TESTS))
    if unknown or not set(tests) & set(PROBED):
        raise AttnProbeError(
            f"expected tests of {', '.join(TESTS)}, and not adversary alone, got {', '.join(unknown or tests) or 'none'}"
        )
    if isinstance(models, str | Path) or not models:
        raise AttnProbeError(
            "expected a list of models to compare; give the folder of at least one"
        )


def _config_of(model: str | Path, *, as_base: bool):
    config = load_model(model).config
    if config.model_type != AttentionClassifierConfig.model_type:
        raise AttnProbeError(
            f"expected attention classifiers to compare, {model} is a {config.model_type}; audit its heads with attnprobe audit"
        )
    if as_base:
        check_kind(config, model)
    return config


def _adversaries(model, dataset, folder: Path, **options) -> tuple[Point, ...]:
    report = retrain(model, dataset, tests=["adversary"], output_dir=folder, **options)
    return tuple(adversaries(report.statistics, report.scores))


def _row(
    model: str, config, report, points: tuple[Point, ...], seed: int
) -> ComparedCheckpoint:
    rows = report.to_pandas()
    scores = (
        fragility_scores(rows, config.num_labels, seed=seed)
        if (rows.test == "fragility").any()
        else {}
    )
    layer = int(
        rows.layer.max()
    )  # of the only attention; rows about the whole model have none
    return ComparedCheckpoint(
        model=model,
        name=regulariser_name(config),
        encoder=config.encoder,
        attention=config.attention,
        found=scores | mean_estimates(report.statistics, layer),
        adversaries=points,
        published=published_for(report.dataset.published_as, config),
    )
