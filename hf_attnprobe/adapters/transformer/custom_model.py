"""Audit a user's own module class that contains one Transformers model and returns logits.

`adapt_module` puts such a module into a `CustomModel`, which has the interface of a Transformers
model: a configuration, embeddings, and an output object with `logits`. The computation stays that
of the user's module.
"""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import ModelOutput

from hf_attnprobe.adapters.transformer.layout import (
    copy_with_shared_weights,
    create_example_inputs,
    find_inner_models,
    get_embeddings_module,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    get_first_tensor,
    hook_modules,
    replace_first_tensor,
)
from hf_attnprobe.core.errors import AttnProbeError


FORWARD_EXAMPLE = "def forward(self, input_ids, attention_mask): …; return logits"
"""Example of a suitable `forward` method for error messages."""
PROBABILITY_OPERATIONS = ("Softmax", "Sigmoid")
"""Names of the autograd operations that turn logits into probabilities."""
SHAPE_OPERATIONS = ("View", "Squeeze", "Unsqueeze", "Select", "Slice", "ToCopy", "Reshape")
"""Prefixes of the names of autograd operations that change only the form of a tensor."""
OWN_PACKAGES = ("transformers", "hf_attnprobe")
"""Packages whose model classes follow the conventions of Transformers, so they are not adapted."""


class CustomModel(PreTrainedModel):
    """Transformers interface of a user's own module.

    Args:
        module: The user's module.
        inner_name: Name of the Transformers model inside the module; "" if the module itself is
            one.
        config: Configuration of the model. It is copied.

    Attributes:
        module: The user's module.
        readout: Token from which the prediction is read: "first", "last" or "mean" for several
            tokens. None if this could not be determined.
    """

    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, module: nn.Module, inner_name: str, config: PreTrainedConfig) -> None:
        config = copy.deepcopy(config)
        config.return_dict = True
        super().__init__(config)
        self.module = module
        self.inner_name = inner_name
        self.readout: str | None = None
        self.main_input_name = self.inner_model.main_input_name

    @property
    def inner_model(self) -> PreTrainedModel:
        """The Transformers model inside the user's module."""
        inner_model = self.module.get_submodule(self.inner_name)
        assert isinstance(inner_model, PreTrainedModel)
        return inner_model

    @property
    def required_inputs(self) -> list[str]:
        """Names of the parameters of the module's `forward` method that have no default value."""
        _, required_names, _ = _list_parameters(self.module)
        return required_names

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the inner model."""
        return get_embeddings_module(self.inner_model)

    def disable_cache(self) -> None:
        """Make the inner model return no key-value cache, which would contain edited states."""
        for module in self.module.modules():
            if isinstance(module, PreTrainedModel) and hasattr(module.config, "use_cache"):
                module.config.use_cache = False

    def forward(self, **inputs: Any) -> SequenceClassifierOutput:
        """Call the user's module with the inputs that it accepts, and return its logits.

        Args:
            inputs: Model inputs by name.
        """
        names, required_names, accepts_all = _list_parameters(self.module)
        missing_names = [name for name in required_names if name not in inputs]
        if missing_names:
            raise AttnProbeError(
                f"the forward method of {type(self.module).__name__} needs "
                f"{', '.join(missing_names)}, but the inputs are {', '.join(inputs)}. Give "
                "this parameter a default value, or add a column with this name to the data."
            )
        accepted_inputs = {
            name: value for name, value in inputs.items() if accepts_all or name in names
        }
        output = self.module(**accepted_inputs)
        logits = find_logits(output, type(self.module).__name__)
        return SequenceClassifierOutput(logits=logits)


def find_logits(output: Any, name: str) -> Tensor:
    """Find the logits in the output of a user's module.

    Args:
        output: A tensor, an object or dict with `logits`, or a tuple or dict that contains only one
            tensor with one row per text.
        name: Class name of the module, for error messages.

    Returns:
        Logits `[batch, classes]`. A tensor `[batch]` becomes `[batch, 1]`.

    Raises:
        AttnProbeError: If the output has no logits, or if several tensors may be the logits.
    """
    logits = output.get("logits") if isinstance(output, Mapping) else None
    if logits is None:
        logits = getattr(output, "logits", None)
    if isinstance(output, Tensor):
        logits = output
    if logits is None:
        values: list[Any] = []
        if isinstance(output, Mapping):
            values = list(output.values())
        elif isinstance(output, tuple | list):
            values = list(output)
        # A loss has no axis, and hidden states have three axes.
        candidates = [value for value in values if isinstance(value, Tensor) and value.dim() == 2]
        if len(candidates) != 1:
            raise AttnProbeError(
                f"expected logits from {name}, got {type(output).__name__} with "
                f"{len(candidates)} tensors of shape [batch, …]. Let its forward method return "
                "only the logits: `return logits`, or `return {'logits': logits}`."
            )
        logits = candidates[0]
    if not isinstance(logits, Tensor) or logits.dim() == 0:
        raise AttnProbeError(
            f"expected logits of shape [batch, classes] from {name}, got {type(logits).__name__}. "
            "Let its forward method return the logits: `return logits`."
        )
    return logits[:, None] if logits.dim() == 1 else logits


def adapt_module(module: nn.Module) -> nn.Module:
    """Put a user's own module into a `CustomModel`, unless it has the interface of Transformers.

    Args:
        module: The model, without wrappers.

    Returns:
        `module` itself if it is a Transformers model, or if it contains none; otherwise a
        `CustomModel`.

    Raises:
        AttnProbeError: If the module contains several Transformers models, or its `forward` method
            does not accept token ids by name, fails, or returns no logits.
    """
    package = type(module).__module__.partition(".")[0]
    if isinstance(module, CustomModel) or package in OWN_PACKAGES:
        return module
    if isinstance(module, PreTrainedModel) and _returns_named_logits(module):
        return module
    inner_models = find_inner_models(module)
    if not inner_models and isinstance(module, PreTrainedModel):
        inner_models = {"": module}
    if not inner_models:
        return module
    name = type(module).__name__
    if len(inner_models) > 1:
        raise AttnProbeError(
            f"expected one Transformers model in {name}, got {len(inner_models)}: "
            f"{', '.join(inner_models)}. Audit a module that contains one of them."
        )
    ((inner_name, inner_model),) = inner_models.items()
    _check_parameters(module, inner_model)
    config = getattr(module, "config", None)
    if not isinstance(config, PreTrainedConfig):
        config = inner_model.config
    # Reports name the class of the user.
    custom_class: type[CustomModel] = type(name, (CustomModel,), {})
    custom_model = custom_class(module, inner_name, config)
    logits, hidden_gradient = _run_example(custom_model)
    n_labels = logits.shape[-1]
    if custom_model.config.num_labels != n_labels:
        custom_model.config.num_labels = n_labels
    custom_model.readout = _find_readout(hidden_gradient)
    return custom_model


def _returns_named_logits(model: PreTrainedModel) -> bool:
    """Check whether a Transformers model returns an object with logits, like the library's models.

    A model that cannot run on the example text counts as one, because the adapter reports the error.
    """
    try:
        with torch.no_grad():
            example_model = copy_with_shared_weights(model, None)
            output = example_model(**create_example_inputs(example_model))
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # A model may raise arbitrary exceptions.
        return True
    return isinstance(output, ModelOutput)


def _list_parameters(module: nn.Module) -> tuple[list[str], list[str], bool]:
    """List the parameters of a module's `forward` method.

    Returns:
        The names of all parameters; the names of those without a default value; and whether the
        method accepts any further names.
    """
    names, required_names, accepts_all = [], [], False
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            accepts_all = True
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            names.append(name)
            if parameter.default is parameter.empty:
                required_names.append(name)
    return names, required_names, accepts_all


def _check_parameters(module: nn.Module, inner_model: PreTrainedModel) -> None:
    """Raise AttnProbeError unless a module's `forward` method accepts the model inputs by name."""
    names, required_names, accepts_all = _list_parameters(module)
    input_names = [inner_model.main_input_name]
    if input_names == ["input_ids"]:
        # Without a mask, the prediction would depend on padding.
        input_names.append("attention_mask")
    missing_names = [name for name in input_names if name not in names and not accepts_all]
    unknown_names = set(required_names) - {*input_names, "token_type_ids"}
    class_name = type(module).__name__
    if missing_names:
        raise AttnProbeError(
            f"the forward method of {class_name} must accept {' and '.join(input_names)} by name, "
            f"got the parameters {', '.join(names) or 'none'}. Rename them, for example: "
            f"`{FORWARD_EXAMPLE}`."
        )
    if unknown_names:
        raise AttnProbeError(
            f"the forward method of {class_name} requires {', '.join(sorted(unknown_names))}, which "
            "an audit does not pass. Give these parameters default values, for example: "
            "`def forward(self, input_ids, attention_mask, labels=None): …`."
        )


@torch.enable_grad()
def _run_example(model: CustomModel) -> tuple[Tensor, Tensor | None]:
    """Run a module on the example text, and check its output.

    Returns:
        The logits, and the gradient of their sum with respect to the output of the last block,
        `[1, keys, hidden]`. The gradient is None if the logits do not depend on this output.
    """
    name = type(model.module).__name__
    hidden_states: list[Tensor] = []

    def record_hidden(module: nn.Module, args: Any, output: Any) -> None:
        hidden_states.append(get_first_tensor(output))

    def require_gradient(module: nn.Module, args: Any, output: Any) -> Any:
        leaf = get_first_tensor(output).detach().requires_grad_()
        # A model may change its embeddings in place, which a leaf does not allow.
        return replace_first_tensor(output, leaf.clone())

    # Only the copy is hooked. Its weights have no gradients, so a graph starts at the embeddings.
    example_model = copy_with_shared_weights(model, None)
    assert isinstance(example_model, CustomModel)
    inputs = create_example_inputs(example_model)
    blocks = _find_blocks(example_model.inner_model)
    try:
        with (
            hook_modules([example_model.get_input_embeddings()], require_gradient),
            hook_modules(blocks, record_hidden),
        ):
            logits = example_model(**inputs).logits
    except (AttnProbeError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # A user's module may raise arbitrary exceptions.
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise AttnProbeError(
            f"{name} failed on an example text with {', '.join(inputs)}: {reason}. Its forward "
            f"method must run with these inputs, for example: `{FORWARD_EXAMPLE}`."
        ) from error
    _check_is_logits(logits, name)
    gradient = None
    has_one_stack = not model.config.is_encoder_decoder
    if has_one_stack and hidden_states and logits.requires_grad and hidden_states[-1].requires_grad:
        (gradient,) = torch.autograd.grad(logits.sum(), hidden_states[-1], allow_unused=True)
    return logits.detach(), gradient


def _find_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """Find the blocks of a Transformers model, which are the modules of its longest module list."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    longest = max(lists, key=len, default=nn.ModuleList())
    return [*longest]


def _check_is_logits(logits: Tensor, name: str) -> None:
    """Raise AttnProbeError if a module returns probabilities and not logits.

    The last operations show this: a softmax or a sigmoid.
    """
    operation = logits.grad_fn
    while operation is not None:
        operation_name = operation.name().lstrip("_")
        if operation_name.startswith(PROBABILITY_OPERATIONS):
            raise AttnProbeError(
                f"expected logits from {name}, got probabilities, because its forward method ends "
                f"with a {operation_name.removesuffix('Backward0').lower()}. Return the values "
                "before this function: `return logits`."
            )
        if not operation_name.startswith(SHAPE_OPERATIONS) or not operation.next_functions:
            return
        operation = operation.next_functions[0][0]


def _find_readout(gradient: Tensor | None) -> str | None:
    """Find the tokens from which a prediction is read, from a gradient at the last block.

    Args:
        gradient: Gradient of the logits `[1, keys, hidden]`, or None.

    Returns:
        "first", "last", or "mean" for several tokens; None if it is unknown.
    """
    if gradient is None or gradient.dim() != 3:
        return None
    positions = gradient[0].abs().sum(-1).nonzero()[:, 0].tolist()
    if not positions:
        return None
    if positions == [0]:
        return "first"
    if positions == [gradient.shape[1] - 1]:
        return "last"
    return "mean"
