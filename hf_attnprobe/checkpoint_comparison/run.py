"""The verb ``compare_checkpoints``: checkpoints beside one another on the same texts.

Source: the experiments of Tutek & Šnajder 2020, Section 4.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_attnprobe.adapters.pretrained import class_names
from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.session import run_audit
from hf_attnprobe.checkpoint_comparison import AUDITED, ComparisonOptions, asked_comparison
from hf_attnprobe.checkpoint_comparison.report import (
    CheckpointComparison,
    ComparedCheckpoint,
    Numbers,
    numbers_of,
    published_for,
    regulariser_name,
    to_json,
)
from hf_attnprobe.checkpoints.loading import load_attention_classifier
from hf_attnprobe.data.arguments import Data, as_data
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import Asked, Options
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.retraining.base import load_base_model
from hf_attnprobe.retraining.options import RetrainOptions
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.retraining.verdict import ADVERSARY, Point, points_of
from hf_attnprobe.storage.folders import alone_in, write_atomically, write_json


MARKS = ("comparison.json", "1-*")  # what the first checkpoint's audit makes is one


@quiet_libraries()
def compare_checkpoints(
    models: Sequence[str | Path],
    dataset: Any,
    tests: Asked | None = None,
    *,
    output_dir: str | Path,
    options: ComparisonOptions = ComparisonOptions(),
    progress: bool = True,
) -> CheckpointComparison:
    """Runs the same tests on several attention classifiers and puts them into one table.

    The published row of each stands beside it. Every checkpoint has an audit, and with the
    test ``adversary`` a retraining, of its own below ``output_dir``, and is named by how it
    was trained. Run again with the same folder to continue, or to add checkpoints behind the
    others.

    Args:
        models: folders or Hub ids.
        dataset: a :class:`~hf_attnprobe.data.arguments.Data`, or a name, a folder, a Hub id
            or a DatasetDict. ``test_limit`` is of the audits, ``train_limit`` of adversaries.
        tests: of :data:`~hf_attnprobe.checkpoint_comparison.TESTS`, names or
            options, also as ``{"adversary": {"epochs": 20}}``; by default all but
            ``adversary``, which trains models besides.
        output_dir: a new or empty folder, or that of an earlier comparison.
        options: the seed.
        progress: show bars on stderr.

    Raises:
        AttnProbeError: models of another kind, or what an audit and a retraining raise.
    """
    if isinstance(models, str | Path) or not models:
        raise AttnProbeError(
            "expected a list of models to compare; give the folder of at least one"
        )
    data = as_data(dataset)
    chosen = asked_comparison(tests)
    retrained = "adversary" in chosen
    if retrained and data.split != "test":
        raise AttnProbeError(
            "expected the split test for adversaries, which are scored on all test texts, "
            f"got {data.split}; leave out --split"
        )
    configs = [_config_of(model, as_base=retrained) for model in models]
    with alone_in(output_dir, *MARKS) as folder:
        comparison = _compared(models, configs, data, folder, chosen, options.seed, progress)
        if process_state().is_main_process:
            write_json(folder / "comparison.json", to_json(comparison))
            write_atomically(folder / "comparison.md", comparison.to_markdown())
            write_atomically(folder / "report.html", comparison.to_html())
    return comparison


def _compared(
    models: Sequence[str | Path],
    configs: Sequence[AttentionClassifierConfig],
    data: Data,
    folder: Path,
    chosen: Mapping[str, Options],
    seed: int,
    progress: bool,
) -> CheckpointComparison:
    """Every checkpoint tested, below ``folder``, and the first one's numbers beside it."""
    compared: list[ComparedCheckpoint] = []
    audited = {name: given for name, given in chosen.items() if name in AUDITED}
    first: Numbers | None = None
    for number, (model, config) in enumerate(zip(models, configs, strict=True), 1):
        own = folder / f"{number}-{Path(model).name}"
        report = run_audit(
            model,
            data,
            audited,
            options=AuditOptions(seed=seed),
            output_dir=own / "audit",
            progress=progress,
        )
        points: list[Point] = []
        if "adversary" in chosen:
            retrained = retrain(
                model,
                data,
                chosen["adversary"],
                output_dir=own / "retrained",
                options=RetrainOptions(seed=seed),
                progress=progress,
            )
            points = points_of(retrained.statistics, retrained.scores)
        numbers = numbers_of(report.to_pandas(), len(class_names(config)), seed=seed)
        row = ComparedCheckpoint(
            model=str(model),
            name=regulariser_name(config),
            encoder=config.encoder,
            attention=config.attention,
            found=numbers.estimates(),
            adversaries=tuple(point for point in points if point.series == ADVERSARY),
            published=published_for(report.dataset.published_as, config),
            differences={} if first is None else numbers.minus(first).estimates(),
        )
        first = first or numbers
        compared.append(row)
    return CheckpointComparison(report.dataset, report.n, seed, tuple(compared))


def _config_of(model: str | Path, *, as_base: bool) -> AttentionClassifierConfig:
    """The configuration of an attention classifier.

    Args:
        as_base: whether adversaries will be trained beside it.
    """
    if as_base:
        return load_base_model(model).config
    return load_attention_classifier(
        model, "to compare", "audit its heads with attnprobe audit"
    ).config
