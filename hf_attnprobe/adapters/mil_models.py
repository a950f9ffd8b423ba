"""Adapters for published models of multiple-instance learning, which attend over bags of instances.

The classes of these models are recognised by their names, so that their packages need not be
installed. `MIL_ADAPTERS` lists them.

- ABMIL and CLAM_SB of the package torchmil have one attention distribution and one logit.
- CLAM_SB and CLAM_MB of Lu et al. 2021 (the module `models.model_clam` of their code) have one
  logit per class. CLAM_MB has one attention distribution per class.
- TransMIL of torchmil is refused, because its weights are not an attention distribution.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hf_attnprobe.adapters.pooling import PoolingAdapter
from hf_attnprobe.adapters.pretrained import use_eval_mode


class MILAdapter(PoolingAdapter):
    """Base class for adapters that know the classes of a model only by their number.

    Args:
        model: The model.
        n_classes: Number of classes. They are called LABEL_0, LABEL_1 and so on, as in Transformers.
        dtype: Data type for all computations.
    """

    has_linear_head = True
    # The attributes of a model of another package are unknown to type checkers.
    model: Any

    def __init__(self, model: nn.Module, n_classes: int, dtype: torch.dtype) -> None:
        names = [f"LABEL_{index}" for index in range(n_classes)]
        super().__init__(model, label_names=names, dtype=dtype)

    def _run_user_model(self, *inputs: Tensor) -> Any:
        """Run the original model in eval mode, with floating-point inputs in its own data type."""
        dtype = next(self.user_model.parameters()).dtype
        with use_eval_mode(self.user_model):
            return self.user_model(*(values.to(dtype) for values in inputs))


class TorchMILAdapter(MILAdapter):
    """Adapter for the models ABMIL and CLAM_SB of torchmil.

    Args:
        model: The model.
        dtype: Data type for all computations.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(model, 2, dtype)

    def encode(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Compute the output of the feature extractor, `[batch, instances, width]`."""
        return self.model.feat_ext(vectors)

    def score(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention scores, `[batch, instances]`."""
        return self.model.pool(states, mask.to(states.dtype), return_att=True)[1]

    def classify(self, pooled: Tensor) -> Tensor:
        """Compute the logit of the second class, `[rows, 1]`."""
        return self.model.classifier(pooled)

    def run_module(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Compute the logit of the second class with the original model, `[batch, 1]`."""
        return self._run_user_model(inputs, mask)[:, None]


class ClamAdapter(MILAdapter):
    """Adapter for the models CLAM_SB and CLAM_MB of Lu et al. 2021.

    Args:
        model: The model. Its attention network returns one score per branch for each instance.
        dtype: Data type for all computations.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype = torch.float64) -> None:
        clam: Any = model
        super().__init__(clam, clam.n_classes, dtype)
        # CLAM_MB has one branch per class, and one classifier per branch.
        self._has_branches = isinstance(clam.classifiers, nn.ModuleList)
        self.n_heads = clam.n_classes if self._has_branches else 1

    def encode(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Compute the states of the instances, `[batch, instances, width]`."""
        return self.model.attention_net[:-1](vectors)

    def score(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention scores, `[batch, branches, instances]`."""
        return self.model.attention_net[-1](states)[0].transpose(1, 2)

    def classify(self, pooled: Tensor) -> Tensor:
        """Compute the logits, `[rows, classes]`.

        Args:
            pooled: Pooled states `[rows, width]`, or `[rows, classes, width]` for several branches.
        """
        if not self._has_branches:
            return self.model.classifiers(pooled)
        logits = [
            classifier(pooled[:, branch])
            for branch, classifier in enumerate(self.model.classifiers)
        ]
        return torch.cat(logits, -1)

    def run_module(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Compute the logits with the original model, which reads one bag at a time."""
        bags = [bag[is_real] for bag, is_real in zip(inputs, mask, strict=True)]
        return torch.cat([self._run_user_model(bag)[0] for bag in bags])


MIL_ADAPTERS: dict[str, type[Any]] = {
    "torchmil.ABMIL": TorchMILAdapter,
    "torchmil.CLAM_SB": TorchMILAdapter,
    "models.CLAM_SB": ClamAdapter,
    "models.CLAM_MB": ClamAdapter,
}
"""Maps the package and the name of a model's class to its adapter."""
UNSUPPORTED_MODELS = {
    "torchmil.TransMIL": "TransMIL cannot be audited, because it has no attention distribution over "
    "the instances. It multiplies three matrices (Nyströmformer), one of which is a pseudo-inverse. "
    "The products do not sum to 1, may be negative, and also cover a class token and copies of "
    "instances. Audit ABMIL or CLAM, or a Transformer with softmax attention.",
}
"""Maps the package and the name of a model's class to the reason why it cannot be audited."""
