"""An audit whose options are given by name, as command line, study and metric give them."""

import dataclasses

from hf_attnprobe import AuditOptions, Data, Permutation, audit
from hf_attnprobe.core.options import from_names
from hf_attnprobe.faithfulness.registry import tests as all_tests


DATA = {field.name for field in dataclasses.fields(Data)}


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
    """Data arguments and options of the audit, all flat.

    ``n_permutations`` is of the test ``permutation``, where it is run.
    """
    tests = ["default"] if tests is None else tests
    if n_permutations is not None and ("default" in tests or "permutation" in tests):
        tests = [*tests, Permutation(n_permutations)]
    data = {name: values.pop(name) for name in DATA & values.keys()}
    return audit(
        model,
        Data(dataset, **data),
        tests,
        options=from_names(values, AuditOptions),
        output_dir=output_dir,
        tokenizer=tokenizer,
        progress=progress,
    )


# What is run of an attention classifier, with one head, on texts without rationales.
BY_DEFAULT = {name for name, test in all_tests().items() if test.default == "always"}
