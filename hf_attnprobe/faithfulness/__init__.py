"""One file per test: file = function = command-line word = result key = report heading."""

from hf_attnprobe.faithfulness import adversarial as _adversarial
from hf_attnprobe.faithfulness import correlation as _correlation
from hf_attnprobe.faithfulness import permutation as _permutation


PROBES = {
    "correlation": _correlation.correlation,
    "permutation": _permutation.permutation,
    "adversarial": _adversarial.adversarial,
}
READINGS = {
    "correlation": _correlation.READINGS,
    "permutation": _permutation.READINGS,
    "adversarial": _adversarial.READINGS,
}

__all__ = ["PROBES", "READINGS"]
