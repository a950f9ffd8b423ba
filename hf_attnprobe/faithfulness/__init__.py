"""One file per test: file = function = command-line word = result key = report heading."""

from hf_attnprobe.faithfulness import adversarial as _adversarial
from hf_attnprobe.faithfulness import conicity as _conicity
from hf_attnprobe.faithfulness import correlation as _correlation
from hf_attnprobe.faithfulness import erasure as _erasure
from hf_attnprobe.faithfulness import explanations as _explanations
from hf_attnprobe.faithfulness import fragility as _fragility
from hf_attnprobe.faithfulness import head_ablation as _head_ablation
from hf_attnprobe.faithfulness import input_erasure as _input_erasure
from hf_attnprobe.faithfulness import permutation as _permutation
from hf_attnprobe.faithfulness import plausibility as _plausibility
from hf_attnprobe.faithfulness import screen as _screen
from hf_attnprobe.faithfulness import single_token as _single_token
from hf_attnprobe.faithfulness import uniform_attention as _uniform_attention


_MODULES = {
    "correlation": _correlation,
    "permutation": _permutation,
    "adversarial": _adversarial,
    "erasure": _erasure,
    "input_erasure": _input_erasure,
    "uniform_attention": _uniform_attention,
    "head_ablation": _head_ablation,
    "explanations": _explanations,
    "screen": _screen,
    "plausibility": _plausibility,
    "conicity": _conicity,
    "fragility": _fragility,
    "single_token": _single_token,
}
PROBES = {name: getattr(module, name) for name, module in _MODULES.items()}
READINGS = {name: module.READINGS for name, module in _MODULES.items()}
SITES = {"explanations": _explanations.with_layers}
"""Where a test looks, from the sites asked for, if it is not at those sites alone."""

__all__ = ["PROBES", "READINGS", "SITES"]
