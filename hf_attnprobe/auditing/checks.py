"""What an audit is asked to do, refused where it cannot be done."""

from collections.abc import Sequence

import torch

from hf_attnprobe.adapters.input_erasure import OPERATORS, check_operator
from hf_attnprobe.attention_model import AttentionModelBase
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import PROBES
from hf_attnprobe.options import check_at_least


METHODS = ("auto", "exact", "search")


def check_tests(tests: Sequence[str] | None) -> tuple[str, ...]:
    """The tests asked for, all of them by default."""
    tests = PROBES if tests is None else [tests] if isinstance(tests, str) else tests
    unknown = sorted(set(tests) - set(PROBES))
    if unknown:
        raise AttnProbeError(
            f"unknown test {', '.join(unknown)}; the known ones are {', '.join(PROBES)}"
        )
    if not tests:
        raise AttnProbeError(
            f"expected at least one test of {', '.join(PROBES)}; leave it out for all of them"
        )
    return tuple(dict.fromkeys(tests))


def check_options(
    method: str, dtype: torch.dtype | str | None, *, seed: int, **counts: int | None
) -> None:
    """Options whose range does not depend on the model; counts start at 1."""
    check_at_least(0, seed=seed)
    check_at_least(1, **counts)
    if method not in METHODS:
        raise AttnProbeError(
            f"expected a method of {', '.join(METHODS)}, got {method!r}"
        )
    if isinstance(dtype, str) and not isinstance(
        getattr(torch, dtype, None), torch.dtype
    ):
        raise AttnProbeError(
            f"expected a dtype such as float32 or float64, got {dtype!r}"
        )


def check_target(model: AttentionModelBase, target: int | None) -> None:
    """The class explained has to be one of the model's."""
    if target is not None and not 0 <= target < len(model.label_names):
        raise AttnProbeError(
            f"expected a target class from 0 to {len(model.label_names) - 1}, got {target}"
        )


def check_needs(
    tests: Sequence[str],
    rationales: bool,
    tokenizer,
    erase_by: str,
    mask_id: int | None,
) -> None:
    """What some tests need of data and tokenizer."""
    if "plausibility" in tests and not (rationales and tokenizer.is_fast):
        raise AttnProbeError(
            "expected human rationales for the test plausibility, found none that a fast tokenizer could place in what the "
            "model attends to (words, but sentences in a hierarchical one); give the data a column 'rationale' with the "
            "positions of the decisive words, or leave the test out"
        )
    if "input_erasure" in tests or erase_by not in OPERATORS:
        check_operator(erase_by, mask_id)


def check_query(shortest, query: int) -> None:
    """Every text has to have the query; ``shortest`` is the observation of the shortest one."""
    n_queries = min(attention.shape[2] for attention in shortest.attention)
    if not 0 <= query < n_queries:
        raise AttnProbeError(
            f"expected a query from 0 to {n_queries - 1}, which the shortest text has, got {query}; choose another --query"
        )
