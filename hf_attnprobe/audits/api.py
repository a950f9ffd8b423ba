"""Public functions ``audit`` and ``evaluate_scores``.

Heavy modules are imported inside the functions, so that ``--help`` and the first error messages of
the command line do not wait for them.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import TestSelection, public_function


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_attnprobe.audits.audited_model import ModelLike
    from hf_attnprobe.reports.report import Report


DEFAULT_SCORE_TESTS = {
    "exchange": {},
    "scale": {},
    "erasure": {},
    "input_erasure": {},
    "shapley": {"exact_units": 8, "longer": "phrases"},
}
"""Tests that ``evaluate_scores`` runs by default on a classifier.

The keys are test names, and the values are options. The first three measure the faithfulness of the
scores. A test that the model does not support is left out. The Shapley values of up to 8 units are exact,
which takes 2**8 = 256 forward passes per text. Longer texts are divided into phrases.
"""
DEFAULT_PROMPT_SCORE_TESTS = ("sources",)
"""Names of the tests that ``evaluate_scores`` runs by default on a language model."""


@public_function
def audit(
    model: "ModelLike",
    dataset: Any,
    tests: TestSelection | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    progress: bool = True,
) -> "Report":
    """Run faithfulness tests on a model's attention, and summarise them in a report.

    Every test runs on every text, for single heads, layers and all heads together.

    Args:
        model: The model: a folder, a Hub id, ``org/name@revision``, a
            :class:`~hf_attnprobe.core.options.SavedModel` (which also sets an access token and
            permissions for loading), a loaded model, a (model, tokenizer) pair, a pipeline, an
            adapter, or a `Trainer`. A loaded model may be a module of your own class that contains
            one Transformers model and returns logits.
        dataset: The data set: a name, a folder, a Hub id, examples in memory, or a
            :class:`~hf_attnprobe.data.specs.Data` that also sets the split, the columns and the
            number of texts.
        tests: Names of tests, see :func:`hf_attnprobe.faithfulness.registry.load_tests`, or their options,
            which may be written as ``{"permutation": {"n_permutations": 10}}``. The name "default"
            stands for all tests that suit the model and the data, and so does None. A default test
            that the model does not support is left out, and the report's provenance gives the
            reason.
        options: Audit options, such as the heads to test, the batch size and a time limit.
        output_dir: Folder for ``rows``, ``summary.json``, ``texts.json``, ``report.md`` and
            ``report.html``. Run again with the same folder to resume after an interruption, or to
            add texts or tests. None writes nothing.
        tokenizer: Tokenizer for a model that is passed as an object. It is not needed if the model
            knows the folder from which it was loaded.
        progress: Whether to display a progress bar on stderr.

    Returns:
        The report, which is the same on every process.

    Raises:
        AttnProbeError: If an argument is invalid or does not suit the model, before anything is
            written.

    Example::

        audit("minilm-sst", "sst")
        audit(
            model,
            Data("sst", test_limit=200),
            ["erasure", Permutation(n_permutations=10)],
            options=AuditOptions(layers=[5]),
            tokenizer=tokenizer,
        )
    """
    # A time limit includes these imports, which take several seconds in a new process.
    start_time = time.perf_counter()

    from hf_attnprobe.audits.pipeline import run_requested_audit
    from hf_attnprobe.audits.setup import AuditRequest

    request = AuditRequest(model, dataset, tests, options, tokenizer)
    return run_requested_audit(request, output_dir, show_progress=progress, start_time=start_time)


@public_function
def evaluate_scores(
    model: "ModelLike",
    dataset: Any,
    scores: Any,
    tests: TestSelection | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    progress: bool = True,
) -> "Report":
    """Evaluate another explainer's token scores with faithfulness tests.

    For each text, the report compares the scores (called ``given``) with attention (the mean over
    all heads), with other rankings, and with the same scores at random tokens (called
    ``given_moved``). Its ``answer`` and ``score`` are about the scores: whether they explain the
    predictions, and their faithfulness. Single heads are tested only if ``options.heads`` or
    ``options.layers`` is set.

    Args:
        model: The model, as :func:`audit` accepts it.
        dataset: The data set, as :func:`audit` accepts it.
        scores: A file or objects, see :func:`~hf_attnprobe.audits.user_scores.read_scores`. A
            higher score means more evidence for the predicted class, or for ``options.target``.
        tests: Test names or test options. None stands for :data:`DEFAULT_SCORE_TESTS`, or for
            ``sources`` with a language model. Faithfulness needs ``exchange`` or ``scale``, or
            ``sources``. The test ``plausibility`` supports scores too.
        options: Audit options.
        output_dir: Output folder, as :func:`audit` writes it; None writes nothing.
        tokenizer: Tokenizer for a model that is passed as an object.
        progress: Whether to display a progress bar on stderr.

    Returns:
        The report.

    Raises:
        AttnProbeError: If the scores do not fit the texts, or if :func:`audit` would raise an error.

    Example::

        evaluate_scores("minilm-sst", Data("sst", test_limit=100), "shap.parquet")
        evaluate_scores(model, data, explainer(texts), tokenizer=tokenizer)
    """
    start_time = time.perf_counter()

    from hf_attnprobe.audits.audited_model import is_language_model
    from hf_attnprobe.audits.pipeline import run_requested_audit
    from hf_attnprobe.audits.setup import AuditRequest

    if scores is None:
        raise AttnProbeError(
            "expected scores, got None. Use audit() to audit a model without scores."
        )
    uses_default_tests = tests is None
    if tests is None:
        is_prompted = is_language_model(model)
        tests = DEFAULT_PROMPT_SCORE_TESTS if is_prompted else DEFAULT_SCORE_TESTS
    request = AuditRequest(
        model,
        dataset,
        tests,
        options,
        tokenizer,
        scores,
        leaves_out_unsupported=uses_default_tests,
    )
    return run_requested_audit(request, output_dir, show_progress=progress, start_time=start_time)
