"""Public function ``compare``, which audits a model and its versions, and compares the results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from hf_attnprobe.audits.audited_model import is_language_model
from hf_attnprobe.audits.options import AuditOptions, WeightChange
from hf_attnprobe.audits.pipeline import prepare_and_run
from hf_attnprobe.audits.setup import AuditRequest
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import SavedModel, TestSelection, convert_model_name, public_function
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.reports.comparison import AuditComparison, compare_audits
from hf_attnprobe.storage.folders import reserve_folder


ORIGINAL_MODEL_FOLDER = "0-model"
"""Name of the subfolder that contains the audit of the original model.

The other subfolders, such as "1-int8", contain the audits of the versions that are compared with it.
"""


@public_function
def compare(
    model: Any,
    versions: Sequence[Any],
    dataset: Any,
    tests: TestSelection | None = None,
    *,
    output_dir: str | Path,
    options: AuditOptions = AuditOptions(),
    tokenizer: Any = None,
    progress: bool = True,
) -> AuditComparison:
    """Audit a model and other versions of it with the same settings, and compare them.

    A version is another model, such as a checkpoint that was trained further, or a change to the
    model's own weights, such as rounding or pruning. Every statistic is compared with the model's,
    text by text. If the model is a language model that generates answers, all versions explain
    the model's answers.

    Every audit has its own folder inside ``output_dir``. Run the function again with the same
    folder to resume, or to add versions at the end of the list.

    Args:
        model: The model, as :func:`~hf_attnprobe.audit` accepts it.
        versions: One or more versions. Each is another model or the name of a weight change:
            ``bfloat16``, ``float16``, ``int8``, ``int4``, ``pruned``, ``randomised`` or
            ``untrained``; see :mod:`hf_attnprobe.checkpoints.weights`.
        dataset: The data set, as :func:`~hf_attnprobe.audit` accepts it.
        tests: Test names or test options; None for all tests that suit the model and the data.
        output_dir: A new or empty folder, or the folder from an earlier run.
        options: Options for all audits.
        tokenizer: Tokenizer for a model that is passed as an object.
        progress: Whether to display progress bars on stderr.

    Returns:
        The comparison between the model and every version; see :func:`list_changed_answers`.

    Raises:
        AttnProbeError: If there is no version, or if an audit cannot run.

    Example::

        compare("minilm-sst", ["int8", "minilm-sst-merged"], "sst", output_dir="comparison")
    """
    _check_versions(versions, options)
    audits = [(model, options)]
    audits += [_resolve_version(model, version, options) for version in versions]
    # Reading all configurations first reports a missing model before the first audit.
    for audited_model, _ in audits:
        is_language_model(audited_model)
    folder_names = [_name_folder(number, version) for number, version in enumerate(versions, 1)]
    reference_examples = None
    with reserve_folder(output_dir, ORIGINAL_MODEL_FOLDER) as folder:
        audit_folders = [folder / name for name in (ORIGINAL_MODEL_FOLDER, *folder_names)]
        for audit_folder, (audited_model, audit_options) in zip(audit_folders, audits, strict=True):
            audit, _ = prepare_and_run(
                AuditRequest(audited_model, dataset, tests, audit_options, tokenizer),
                audit_folder,
                reference_examples=reference_examples,
                show_progress=progress,
            )
            if reference_examples is None and isinstance(audit.data, Answers):
                reference_examples = audit.examples
        comparison = compare_audits(audit_folders, seed=options.seed)
        if get_process_state().is_main_process:
            comparison.write(folder, "comparison.json")
    return comparison


def _check_versions(versions: Sequence[Any], options: AuditOptions) -> None:
    """Raise AttnProbeError if the versions to compare, or the options for all of them, are invalid.

    Two options are invalid here: ``weights`` would change the weights of every version, and ``map``
    belongs to one model.
    """
    if not versions:
        raise AttnProbeError(
            "compare() needs at least one version to compare with the model, got none. A version is "
            f"another model, or one of the names {', '.join(map(repr, get_args(WeightChange)))} for "
            "the same model with changed weights."
        )
    if any(version is None for version in versions):
        raise AttnProbeError("expected models or names as versions, got None")
    if options.weights is not None:
        raise AttnProbeError(
            f"compare() does not accept the option weights={options.weights!r}. To compare the model "
            f"with its {options.weights} version, pass versions=[{options.weights!r}] instead."
        )
    if options.map is not None:
        raise AttnProbeError(
            "--map belongs to one model, and compare audits several. Leave it out, or audit each model "
            "with its own map."
        )


def _resolve_version(model: Any, version: Any, options: AuditOptions) -> tuple[Any, AuditOptions]:
    """Return the model to load for a version, and its audit options.

    The name of a weight change, such as "int8", becomes an option for an audit of the same model.
    """
    if version in get_args(WeightChange):
        return model, replace(options, weights=version)
    return version, options


def _name_folder(number: int, version: Any) -> str:
    """Make a version's folder name from its number and its name, such as "2-int8"."""
    resolved_version = convert_model_name(version)
    if isinstance(resolved_version, SavedModel):
        return f"{number}-{Path(resolved_version.model).name}"
    return f"{number}-{type(version).__name__}"
