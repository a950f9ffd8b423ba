"""The machine that computes: memory, measured while work runs, and threads.

Where memory runs out, work goes on with less; small models do not wait for threads.

Memory is measured where a worst case would cut batches: a few texts are run with every storage
counted. Whether a model is small is told by its widest matrix and not by a measurement, so that a
run can be repeated: its operations take less than a thread waits for a core on a busy machine.
"""

import ctypes
import gc
import math
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_attnprobe.core.errors import AttnProbeError


# --- memory -----------------------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")
SAID = (
    "out of memory",
    "allocate memory",
    "not enough memory",
    "bad_alloc",
    "create a primitive",
)
"""What allocators say: CUDA and MPS, PyTorch's on a CPU, that on Windows, the C++ library's, and oneDNN."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation did not succeed, on whatever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in SAID)


def in_portions(items: Sequence[T], n: int) -> Iterator[Sequence[T]]:
    """Yields the items in their order, ``n`` at once; the last ones are fewer."""
    for start in range(0, len(items), n):
        yield items[start : start + n]


def in_halves(
    items: Sequence[T],
    work: Callable[[Sequence[T]], R],
    *,
    at_once: int | None = None,
    name: Callable[[T], str] = str,
    split: Callable[[Sequence[Sequence[T]]], None] = lambda halves: None,
) -> Iterator[tuple[Sequence[T], R]]:
    """Work on all items at once, or on halves of them where memory runs out.

    Args:
        items: what the work is on, in order.
        work: on some of the items; it must leave nothing behind where it fails.
        at_once: work on at most so many items; None: on all.
        name: of an item, in words.
        split: told of the halves that will be worked on in place of what failed.

    Yields:
        The items that were worked on at once, and the result, in order.

    Raises:
        AttnProbeError: a single item does not fit.
    """
    left = deque(in_portions(items, at_once or len(items) or 1))
    while left:
        part, failed = left.popleft(), None
        try:
            result = work(part)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failed = _without_frames(error)
        if failed is None:
            yield part, result
            continue
        give_back()
        if len(part) == 1:
            raise AttnProbeError(
                f"expected memory for {name(part[0])} by itself, it ran out "
                f"({_first_line(failed)}); leave it out, cut it, run fewer tests at once "
                "with --tests, or take a machine with more memory"
            ) from failed
        middle = (len(part) + 1) // 2
        halves = [part[:middle], part[middle:]]
        left.extendleft(reversed(halves))
        split(halves)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _without_frames(error: Exception) -> Exception:
    """The error alone: its frames hold the tensors that filled the memory."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def give_back() -> None:
    """Returns what no object holds any more to the system or the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    give_back_pages()


def give_back_pages() -> None:
    """Hands the C library's free pages back to the system, where it is glibc.

    Tensors of a few megabytes leave holes in its heap, and some hundred tests of changing
    shapes leave so many that an audit of MiniLM with a budget of 500 MB held 900 MB: its
    tensors kept to the budget, the heap did not. Costs 1%.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@contextmanager
def one_line_without_memory(what: str) -> Iterator[None]:
    """Turns an allocation that fails inside into one line.

    Raises:
        AttnProbeError: memory ran out; what was written before stays.
    """
    failed = None
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        failed = _without_frames(error)
    if failed is not None:
        give_back()
        raise AttnProbeError(
            f"expected memory for {what}, it ran out ({_first_line(failed)}); give a smaller "
            "--memory-budget or --batch-size, or fewer texts"
        ) from failed


class _Enough(BaseException):
    """So many operations were counted; no handler of errors takes it for one."""


class PeakMemory(TorchDispatchMode):
    """Bytes of the tensors that are made inside and alive at once, at most: ``peak``.

    Counted at each operation by the storages it returns, so that it is the same in every
    run, whatever the allocator keeps; what an operation needs only inside itself is not
    seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, int] = {}
        self._now = 0
        self._to_come: float = math.inf
        self.peak = 0

    @contextmanager
    def of(self, n_operations: int) -> Iterator[None]:
        """Leaves a block after so many operations, as if it had ended."""
        self._to_come = n_operations
        with suppress(_Enough):
            yield
        self._to_come = math.inf

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._to_come -= 1
        if self._to_come < 0:
            raise _Enough
        given = {_key(x) for x in _tensors(args)}
        result = func(*args, **(kwargs or {}))
        for x in _tensors((result,)):
            if _key(x) not in given:
                self._add(x.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self._now -= self._alive.pop(key, 0)


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors of an operation, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _key(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


# --- threads ----------------------------------------------------------------------------

LARGE = 512 * 512
"""Entries of the widest matrix of a model from which on further threads help.

Reasoned, not tuned: with 32 texts of 20 tokens such a product takes some ten milliseconds,
about as long as a thread on a busy machine waits for a core, at every operation.
"""
_AT_START = torch.get_num_threads()
"""This module is imported as soon as PyTorch and this package are."""
_THREADS_SAID = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def suited_threads(model: nn.Module | None) -> Iterator[int]:
    """One thread for a small model on a CPU, all of PyTorch's for others; then as before.

    A number that the user set is kept: by an environment variable, or by
    ``torch.set_num_threads`` after this package was imported.

    Yields:
        The number of threads.
    """
    before = torch.get_num_threads()
    is_said = before != _AT_START or any(name in os.environ for name in _THREADS_SAID)
    if is_said or before == 1 or model is None or not is_small(model):
        yield before
        return
    torch.set_num_threads(1)
    try:
        yield 1
    finally:
        torch.set_num_threads(before)


def multiplies_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself, in about half the time of float32.

    Others convert it; where PyTorch does not say, neither is known.
    """
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(has is True for name, has in known.items() if "bf16" in name)


def is_small(model: nn.Module) -> bool:
    """Whether a model's operations are too short to be shared by threads.

    By its widest matrix that a batch is multiplied by; tables of embeddings are only
    looked up. A model on another device than the CPU is not.
    """
    looked_up = {
        id(weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters()
    }
    weights = [w for w in model.parameters() if w.dim() > 1 and id(w) not in looked_up]
    if any(weight.device.type != "cpu" for weight in weights):
        return False
    return all(weight.numel() < LARGE for weight in weights)
