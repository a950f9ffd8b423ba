"""The verbs ``compare`` and ``survive``: models, or versions of one, audited alike and compared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from hf_attnprobe.audits.audited_model import is_language_model
from hf_attnprobe.audits.options import AuditOptions, WeightChange, parse_time_limit
from hf_attnprobe.audits.pipeline import run_prepared_audit
from hf_attnprobe.audits.runner import Clock
from hf_attnprobe.audits.setup import prepare_audit
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    Asked,
    SavedModel,
    as_saved,
    public_function,
)
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.reports.comparison import (
    AuditComparison,
    compare_audits,
)
from hf_attnprobe.storage.answers import AnswerCache
from hf_attnprobe.storage.folders import alone_in


FIRST = "0-model"


@public_function
def survive(
    model: Any,
    versions: Sequence[Any],
    dataset: Any,
    tests: Asked | None = None,
    *,
    output_dir: str | Path,
    options: AuditOptions = AuditOptions(),
    tokenizer: Any = None,
    progress: bool = True,
) -> AuditComparison:
    """Audits a model and versions of it alike, and compares them text by text.

        survive("minilm-sst", ["int8", "minilm-sst-merged"], "sst", output_dir="survival")

    Every version has an audit of its own below ``output_dir``. Run again with the same folder
    to continue, or to add versions behind the others. Where a language model answers, all
    versions explain the model's answers.

    Args:
        model: as :func:`~hf_attnprobe.audit` takes it.
        versions: each a way to change the model's weights (``bfloat16``, ``float16``, ``int8``,
            ``int4``, ``pruned``, see :mod:`hf_attnprobe.checkpoints.weights`), or another model.
        dataset, tests, options, tokenizer: as of an audit, the same for all.
        output_dir: a new or empty folder, or that of an earlier run.
        progress: show bars on stderr.

    Returns:
        The comparison of all audits with that of the model; see :func:`changed_answers`.

    Raises:
        AttnProbeError: no version, or what an audit raises.
    """
    if not versions:
        raise AttnProbeError(
            "expected versions to compare with the model; give at least one of "
            f"{', '.join(get_args(WeightChange))}, or another model"
        )
    if any(version is None for version in versions):
        raise AttnProbeError("expected versions of the model, got None among them; leave it out")
    if options.weights is not None:
        raise AttnProbeError(
            f"expected the model as it is saved, got weights={options.weights}; name it among "
            "the versions instead"
        )
    folders = [_name_of(number, version) for number, version in enumerate(versions, 1)]
    asked = [
        (model, options),
        *(_as_audited(model, version, options) for version in versions),
    ]
    for which, _ in asked:  # a missing one is said before the first is audited
        is_language_model(which)
    kept = None
    with alone_in(output_dir, FIRST) as folder:
        places = [folder / name for name in (FIRST, *folders)]
        for place, (which, how) in zip(places, asked, strict=True):
            clock = Clock(progress and process_state().is_main_process, parse_time_limit(how))
            with AnswerCache() as told:
                job = prepare_audit(
                    which,
                    dataset,
                    tests,
                    how,
                    tokenizer,
                    folder=place,
                    told=told,
                    kept=kept,
                    shown=clock.shown,
                )
                run_prepared_audit(job, place, clock)
            if kept is None and isinstance(job.data, Answers):
                kept = job.examples
        comparison = compare_audits(places, seed=options.seed)
        if process_state().is_main_process:
            comparison.write(folder, "survival.json")
    return comparison


@public_function
def compare_checkpoints(
    models: Sequence[Any],
    dataset: Any,
    tests: Asked | None = None,
    *,
    output_dir: str | Path,
    options: AuditOptions = AuditOptions(),
    progress: bool = True,
) -> AuditComparison:
    """Audits several models alike, and compares each with the first text by text.

    Run again with the same folder to continue, or to add models behind the others.

    Args:
        models: two or more, each as :func:`~hf_attnprobe.audit` takes it.
        dataset, tests, options: as of an audit, the same for all.
        output_dir: a new or empty folder, or that of an earlier run.
        progress: show bars on stderr.

    Raises:
        AttnProbeError: fewer than two models, or what an audit raises.
    """
    if len(models) < 2:
        raise AttnProbeError("expected two models or more to compare, got one; give another one")
    first, *others = models
    return survive(
        first,
        others,
        dataset,
        tests,
        output_dir=output_dir,
        options=options,
        progress=progress,
    )


def _as_audited(model: Any, version: Any, options: AuditOptions) -> tuple[Any, AuditOptions]:
    """The model that is loaded, and the options by which its weights are changed."""
    if version in get_args(WeightChange):
        return model, replace(options, weights=version)
    return version, options


def _name_of(number: int, version: Any) -> str:
    """The folder of a version's audit."""
    saved = as_saved(version)
    if isinstance(saved, SavedModel):
        return f"{number}-{Path(saved.model).name}"
    return f"{number}-{type(version).__name__}"
