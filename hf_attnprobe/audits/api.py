"""The public function ``audit``.

What computes is imported when it is called, so that help and first errors come at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import Asked, public_function


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_attnprobe.audits.audited_model import ModelLike
    from hf_attnprobe.reports.report import Report


@public_function
def audit(
    model: "Model",
    dataset: Any,
    tests: Asked | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    progress: bool = True,
) -> "Report":
    """Runs faithfulness tests on every text, at every head, and summarises them.

        audit("minilm-sst", "sst")
        audit(
            model,
            Data("sst", test_limit=200),
            ["erasure", Permutation(n_permutations=10)],
            options=AuditOptions(layers=[5]),
            tokenizer=tokenizer,
        )

    Args:
        model: a folder, a Hub id, ``org/name@revision``, a
            :class:`~hf_attnprobe.core.options.SavedModel` that says revision, token and
            what may be read, a loaded model, a (model, tokenizer) pair, a pipeline, or
            an adapter. With an object give its ``tokenizer`` too, unless it knows the
            folder it was loaded from.
        dataset: a name, folder or Hub id, examples in memory, or a
            :class:`~hf_attnprobe.data.specs.Data` that says split, columns and
            limit.
        tests: names of tests, see :func:`hf_attnprobe.faithfulness.tests`, or their
            options, also as ``{"permutation": {"n_permutations": 10}}``. "default" among them stands for those that suit model and data, and
            so does None. Of these a test is left out whose needs the model does not
            meet; the report's provenance says which, and why.
        options: where to look, and how to run.
        output_dir: where ``rows``, ``summary.json``, ``texts.json``, ``report.md`` and
            ``report.html`` go. Run again with the same folder to continue after an
            interruption, or to add texts or tests. None keeps nothing on disk.
        tokenizer: that of a model that is given as an object.
        progress: show a bar on stderr.

    Returns:
        The report; the same on every process.

    Raises:
        AttnProbeError: for anything that the caller can mend, before anything is
            written.
    """
    from hf_attnprobe.audits.pipeline import run_audit

    return run_audit(
        model,
        dataset,
        tests,
        options=options,
        output_dir=output_dir,
        tokenizer=tokenizer,
        progress=progress,
    )


DEFAULT_PROMPT_TESTS = ("sources",)
DEFAULT_SCORE_TESTS = {
    "input_erasure": {},
    "erasure": {},
    "shapley": {"exact_units": 8, "longer": "phrases"},
}
"""Tests of rankings, and their options; all sets of 8 phrases are 256 passes a text."""


@public_function
def evaluate_scores(
    model: "Model",
    dataset: Any,
    scores: Any,
    tests: Asked | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    progress: bool = True,
) -> "Report":
    """Runs tests of rankings with scores that somebody else gave the texts' tokens.

        judge("minilm-sst", Data("sst", test_limit=100), "shap.parquet")
        judge(model, data, explainer(texts), tokenizer=tokenizer)  # an Explanation of SHAP

    The report compares the scores (``given``) text by text with attention, of several heads
    their mean, with other rankings, and with the same scores at other tokens (``given_moved``).

    Args:
        scores: a file or objects, see :func:`~hf_attnprobe.audits.user_scores.read_scores`: higher
            for what speaks more for the predicted class, or for ``options.target``.
        tests: without any :data:`DEFAULT_SCORE_TESTS`, of a language model ``sources``; ``plausibility``
            judges scores too.

    The other arguments, what it returns, and what it raises are those of :func:`audit`.
    """
    from hf_attnprobe.audits.audited_model import is_language_model
    from hf_attnprobe.audits.pipeline import run_audit

    if scores is None:
        raise AttnProbeError("expected scores to judge, got None; audit() needs none")
    if tests is None:
        tests = DEFAULT_PROMPT_TESTS if is_language_model(model) else DEFAULT_SCORE_TESTS
    return run_audit(
        model,
        dataset,
        tests,
        options=options,
        output_dir=output_dir,
        tokenizer=tokenizer,
        progress=progress,
        scores=scores,
    )
