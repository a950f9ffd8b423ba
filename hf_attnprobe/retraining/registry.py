"""The tests that train models, by name, in the order in which one can use another's models."""

from hf_attnprobe.retraining import adversary as _adversary
from hf_attnprobe.retraining import diagnostic_mlp as _diagnostic_mlp
from hf_attnprobe.retraining import seeds as _seeds
from hf_attnprobe.retraining import uniform as _uniform


_MODULES = {
    "uniform": _uniform,
    "seeds": _seeds,
    "adversary": _adversary,
    "diagnostic_mlp": _diagnostic_mlp,
}
RETRAININGS = {name: getattr(module, name) for name, module in _MODULES.items()}
READINGS = {name: module.READINGS for name, module in _MODULES.items()}
