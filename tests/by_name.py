"""An audit whose options are given by name, as command line, study and metric give them."""

import dataclasses

from hf_attnprobe import Data, audit
from hf_attnprobe.auditing.options import from_names
from hf_attnprobe.faithfulness.registry import tests as all_tests


DATA = {field.name for field in dataclasses.fields(Data)}


def audit_by_name(
    model,
    dataset,
    *,
    tests=None,
    output_dir=None,
    tokenizer=None,
    progress=False,
    **values,
):
    """Data arguments, options of the audit, and options of its tests, all flat."""
    data = {name: values.pop(name) for name in DATA & values.keys()}
    request = from_names(tests, values)
    return audit(
        model,
        Data(dataset, **data),
        request.tests,
        options=request.options,
        output_dir=output_dir,
        tokenizer=tokenizer,
        progress=progress,
    )


# What is run of an attention classifier, with one head, on texts without rationales.
BY_DEFAULT = {name for name, test in all_tests().items() if test.default == "always"}
