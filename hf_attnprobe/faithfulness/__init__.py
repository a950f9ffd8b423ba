"""The faithfulness tests, one file each.

File = function = name in commands, rows and reports.
"""

# In the order of reports, which is that of their registration; importing registers them.
# ruff: noqa: F401
# isort: off
from hf_attnprobe.faithfulness.correlation import Correlation
from hf_attnprobe.faithfulness.permutation import Permutation
from hf_attnprobe.faithfulness.adversarial import Adversarial
from hf_attnprobe.faithfulness.erasure import Erasure
from hf_attnprobe.faithfulness.input_erasure import InputErasure
from hf_attnprobe.faithfulness import uniform_attention as _uniform_attention
from hf_attnprobe.faithfulness import head_ablation as _head_ablation
from hf_attnprobe.faithfulness.explanations import Explanations
from hf_attnprobe.faithfulness.screen import Screen
from hf_attnprobe.faithfulness import plausibility as _plausibility
from hf_attnprobe.faithfulness import conicity as _conicity
from hf_attnprobe.faithfulness.fragility import Fragility
from hf_attnprobe.faithfulness.single_token import SingleToken
from hf_attnprobe.faithfulness.attribution_agreement import AttributionAgreement
from hf_attnprobe.faithfulness import attention_by_tag as _attention_by_tag

# isort: on
from hf_attnprobe.faithfulness.registry import (
    DEFAULT,
    AuditPreview,
    ExplainsClass,
    FaithfulnessTest,
    NoOptions,
    check_target,
    readings,
    register_test,
    tests,
)


__all__ = [
    "DEFAULT",
    "Adversarial",
    "AttributionAgreement",
    "AuditPreview",
    "Correlation",
    "Erasure",
    "ExplainsClass",
    "Explanations",
    "FaithfulnessTest",
    "Fragility",
    "InputErasure",
    "NoOptions",
    "Permutation",
    "Screen",
    "SingleToken",
    "check_target",
    "readings",
    "register_test",
    "tests",
]
