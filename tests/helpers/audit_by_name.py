"""Run an audit with flat options, as the command line, studies and the metric pass them."""

import dataclasses

from hf_attnprobe import AuditOptions, Data, Permutation, audit
from hf_attnprobe.core.options import build_options
from hf_attnprobe.faithfulness.registry import load_tests


DATA_OPTIONS = {field.name for field in dataclasses.fields(Data)}
"""Names of the options that describe the data."""


def audit_by_name(
    model,
    dataset,
    *,
    tests=None,
    n_permutations=None,
    output_dir=None,
    tokenizer=None,
    progress=False,
    **values,
):
    """Run an audit whose options and data arguments are passed by name.

    ``n_permutations`` is an option of the test ``permutation``, if this test runs.
    """
    tests = ["default"] if tests is None else tests
    if n_permutations is not None and ("default" in tests or "permutation" in tests):
        tests = [*tests, Permutation(n_permutations)]
    data_options = {name: values.pop(name) for name in DATA_OPTIONS & values.keys()}
    return audit(
        model,
        Data(dataset, **data_options),
        tests,
        options=build_options(values, AuditOptions),
        output_dir=output_dir,
        tokenizer=tokenizer,
        progress=progress,
    )


DEFAULT_TESTS = {name for name, test in load_tests().items() if test.default == "always"}
"""Default tests of an attention classifier with one head, on texts without rationales."""
