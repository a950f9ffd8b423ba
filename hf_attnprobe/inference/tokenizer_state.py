"""Restores a fast tokenizer's truncation and padding, which would otherwise be saved with it."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from transformers import PreTrainedTokenizerBase


Others = ParamSpec("Others")
Result = TypeVar("Result")
Using = Callable[Concatenate[PreTrainedTokenizerBase, Others], Result]


def leaves_tokenizer(function: Using[Others, Result]) -> Using[Others, Result]:
    """Decorates a function so that it leaves its tokenizer unchanged, even after an error."""

    @wraps(function)
    def restoring(
        tokenizer: PreTrainedTokenizerBase,
        /,
        *args: Others.args,
        **options: Others.kwargs,
    ) -> Result:
        if not tokenizer.is_fast:
            return function(tokenizer, *args, **options)
        backend = tokenizer.backend_tokenizer
        truncation, padding = backend.truncation, backend.padding
        try:
            return function(tokenizer, *args, **options)
        finally:
            backend.no_truncation()
            backend.no_padding()
            if truncation is not None:
                backend.enable_truncation(**truncation)
            if padding is not None:
                backend.enable_padding(**padding)

    return restoring
