"""The tokenizer of a model, and whether it is that.

Where its files are missing Transformers makes an empty one and says nothing: then every
word is unknown, and an audit would be of nothing but that.
"""

from pathlib import Path
from typing import Any

from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.checkpoints.loading import adapter_config, base_of
from hf_attnprobe.checkpoints.origins import Origin, first_line, origin_of
from hf_attnprobe.errors import AttnProbeError


SMALLEST_SHARE = 0.5
"""Of a model's embeddings; some pad theirs, none doubles them."""

FEWEST_TOKENS = 3
"""Beside the special ones. An empty tokenizer has up to two, such as a lone space."""

ADVICE = "save one beside the weights with tokenizer.save_pretrained"


def load_tokenizer(
    model: str | Path | Origin, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer saved with a model; of an adapter without one, its base's.

    Raises:
        AttnProbeError: there is none, it does not load, or it knows no tokens.
    """
    origin = origin_of(model, trust_remote_code=trust_remote_code)
    values = adapter_config(origin)
    if values is not None and origin.file("tokenizer_config.json") is None:
        origin = base_of(origin, values)
    try:
        # the revision is in `place`: that of the model
        tokenizer = AutoTokenizer.from_pretrained(  # nosec B615
            origin.name, trust_remote_code=origin.trust_remote_code, **origin.place
        )
    except Exception as error:
        raise AttnProbeError(
            f"expected a tokenizer with the model {origin.name!r}, but none loads "
            f"({first_line(error)}); {ADVICE}"
        ) from error
    check_tokenizer(tokenizer, origin.name)
    return tokenizer


def load_processor(origin: Origin) -> Any:
    """The image processor saved with a model; None where none loads."""
    try:
        # the revision is in `place`: that of the model
        return AutoImageProcessor.from_pretrained(  # nosec B615
            origin.name, trust_remote_code=origin.trust_remote_code, **origin.place
        )
    except Exception:  # none was saved, or what it needs is not installed
        return None


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Checks a tokenizer by itself.

    Args:
        name: of the model, for the error.

    Raises:
        AttnProbeError: it knows special tokens only, gives no attention mask, or has a
            length that is no number.
    """
    n_content = len(tokenizer) - len(set(tokenizer.all_special_ids))
    if n_content < FEWEST_TOKENS:
        raise AttnProbeError(
            f"expected a tokenizer with the model {name!r}, but none loads (its files are "
            f"missing, the {type(tokenizer).__name__} made without them knows special "
            f"tokens only); {ADVICE}"
        )
    if "attention_mask" not in tokenizer.model_input_names:
        raise AttnProbeError(
            f"expected attention_mask in model_input_names of the tokenizer of {name!r}, "
            f"got {tokenizer.model_input_names}; correct its tokenizer_config.json"
        )
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, int | float):
        raise AttnProbeError(
            f"expected a number for model_max_length of the tokenizer of {name!r}, got "
            f"{longest!r}; correct its tokenizer_config.json"
        )


def check_belongs(
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig | None,
    n_embeddings: int | None,
) -> None:
    """Checks that a tokenizer may be the model's.

    Args:
        config: of the model; None if it has none.
        n_embeddings: how many token ids the model embeds; None: not known.

    Raises:
        AttnProbeError: far fewer tokens than the model embeds, padding that it does not
            embed, or special tokens under other ids than the configuration's.
    """
    if n_embeddings is not None and len(tokenizer) < SMALLEST_SHARE * n_embeddings:
        raise AttnProbeError(
            f"expected the tokenizer of the model, which embeds {n_embeddings} tokens, "
            f"this one knows {len(tokenizer)}; load the tokenizer saved with the model"
        )
    padding = tokenizer.pad_token_id
    if n_embeddings is not None and padding is not None and padding >= n_embeddings:
        raise AttnProbeError(
            f"the tokenizer pads with {tokenizer.pad_token!r}, id {padding}, the model "
            f"embeds ids below {n_embeddings}; load the tokenizer saved with the model"
        )
    for name in ("pad", "cls", "sep"):
        said = getattr(config, f"{name}_token_id", None)
        given = getattr(tokenizer, f"{name}_token_id")
        if None not in (said, given) and said != given:
            raise AttnProbeError(
                f"the configuration says {name}_token_id {said}, the tokenizer {given}; "
                "load the tokenizer saved with the model"
            )
