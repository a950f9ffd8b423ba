"""Memory and threads of the machine.

- :func:`run_with_halving` repeats work on smaller batches if memory runs out.
- :class:`PeakMemory` measures the memory that a forward pass needs; batch sizes depend on it.
- :func:`limit_threads` uses one thread for small models, because their operations take less time than
  waiting for further threads. Whether a model is small depends on its weight sizes and not on a time
  measurement, so that repeated runs behave in the same way.
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


# --- Memory ---

T = TypeVar("T")
R = TypeVar("R")
OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "allocate memory",
    "not enough memory",
    "bad_alloc",
    "create a primitive",
)
"""Parts of error messages that show that memory ran out.

Their sources, in this order, are CUDA and MPS, PyTorch on a CPU, PyTorch on Windows, the C++ standard
library, and oneDNN.
"""

MAX_MESSAGE_LENGTH = 120
"""Number of characters to which PyTorch's out-of-memory message is shortened in an error message."""


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an exception was raised because a CPU or GPU ran out of memory.

    Args:
        error: Any exception.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)


def split_into_chunks(items: Sequence[T], chunk_size: int) -> Iterator[Sequence[T]]:
    """Split a sequence into consecutive chunks.

    Args:
        items: The sequence.
        chunk_size: Number of items in each chunk.

    Yields:
        Slices of the sequence; the last one may be shorter.
    """
    for start in range(0, len(items), chunk_size):
        yield items[start : start + chunk_size]


def run_with_halving(
    items: Sequence[T],
    work: Callable[[Sequence[T]], R],
    *,
    max_items: int | None = None,
    describe_item: Callable[[T], str] = str,
    on_split: Callable[[Sequence[Sequence[T]]], None] = lambda halves: None,
) -> Iterator[tuple[Sequence[T], R]]:
    """Run a function on chunks of items, and halve a chunk whenever memory runs out.

    Args:
        items: All items, in order.
        work: Function that takes a chunk. It must have no side effects if it fails.
        max_items: Maximum number of items in a chunk; None for all items at once.
        describe_item: Function that returns the name of an item for an error message.
        on_split: Function that is called with both halves of a chunk that did not fit into memory.

    Yields:
        Each chunk with its result, in the order of the items.

    Raises:
        AttnProbeError: A single item does not fit into memory.
    """
    chunks = deque(split_into_chunks(items, max_items or len(items) or 1))
    while chunks:
        chunk, memory_error = chunks.popleft(), None
        try:
            result = work(chunk)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            memory_error = _drop_traceback(error)
        if memory_error is None:
            yield chunk, result
            continue
        release_memory()
        if len(chunk) == 1:
            raise AttnProbeError(
                f"memory ran out for {describe_item(chunk[0])} alone "
                f"({_get_first_line(memory_error)}). Leave it out, run fewer tests at once "
                "with --tests, or use a machine with more memory."
            ) from memory_error
        middle = (len(chunk) + 1) // 2
        halves = [chunk[:middle], chunk[middle:]]
        chunks.extendleft(reversed(halves))
        on_split(halves)


def _get_first_line(error: Exception) -> str:
    """Return the first line of an error message, or the class of an error without a message."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:MAX_MESSAGE_LENGTH]


def _drop_traceback(error: Exception) -> Exception:
    """Remove the traceback and causes of an error, whose frames keep large tensors alive."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def release_memory() -> None:
    """Release unreferenced memory on the GPU and on the CPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    release_free_pages()


def release_free_pages() -> None:
    """Return free heap pages to the operating system, if the C library is glibc.

    Tensors with a few megabytes and changing shapes fragment the heap. Without this call, an audit of
    MiniLM with a memory budget of 500 MB used 900 MB. The call takes 1% of the audit time.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@contextmanager
def convert_memory_errors(purpose: str) -> Iterator[None]:
    """Convert an out-of-memory error inside the block to an `AttnProbeError`.

    Args:
        purpose: Purpose of the memory for the error message, such as "the attention of layer 3".

    Raises:
        AttnProbeError: Memory ran out.
    """
    memory_error = None
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        memory_error = _drop_traceback(error)
    if memory_error is not None:
        release_memory()
        raise AttnProbeError(
            f"memory ran out for {purpose} ({_get_first_line(memory_error)}). Use a smaller "
            "--memory-budget or --batch-size, or fewer texts."
        ) from memory_error


class _OperationLimitReached(BaseException):
    """Signal that interrupts a block inside :meth:`PeakMemory.limit_operations`.

    It is not a subclass of ``Exception``, so that handlers in the interrupted code do not catch it.
    """


class PeakMemory(TorchDispatchMode):
    """Measures the peak memory of all tensors that are created inside a ``with`` block.

    Every tensor that an operation returns counts until it is freed. The result does not depend on the
    allocator, so it is the same in every run. Temporary buffers inside an operation do not count.

    Attributes:
        peak: Largest total size of tensors that existed at the same time, in bytes.

    Example:
        with PeakMemory() as memory:
            model(**inputs)
        print(memory.peak)
    """

    def __init__(self) -> None:
        super().__init__()
        self._live_storages: dict[int, int] = {}
        self._live_bytes = 0
        self._operations_left: float = math.inf
        self.peak = 0

    @contextmanager
    def limit_operations(self, n_operations: int) -> Iterator[None]:
        """Leave a ``with`` block after a number of tensor operations, without an error.

        Args:
            n_operations: Number of operations to execute.
        """
        self._operations_left = n_operations
        with suppress(_OperationLimitReached):
            yield
        self._operations_left = math.inf

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operations_left -= 1
        if self._operations_left < 0:
            raise _OperationLimitReached
        input_storages = {_get_storage_id(tensor) for tensor in _iterate_tensors(args)}
        result = func(*args, **(kwargs or {}))
        for tensor in _iterate_tensors((result,)):
            if _get_storage_id(tensor) not in input_storages:
                self._count_storage(tensor.untyped_storage())
        return result

    def _count_storage(self, storage: torch.UntypedStorage) -> None:
        """Count the memory of a tensor storage until the storage is freed.

        A storage that is already counted is ignored.
        """
        storage_id = storage._cdata
        if storage_id in self._live_storages:
            return
        self._live_storages[storage_id] = storage.nbytes()
        self._live_bytes += storage.nbytes()
        self.peak = max(self.peak, self._live_bytes)
        weakref.finalize(storage, self._discount_storage, storage_id)

    def _discount_storage(self, storage_id: int) -> None:
        """Subtract the size of a freed tensor storage from the total."""
        self._live_bytes -= self._live_storages.pop(storage_id, 0)


def _iterate_tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield every dense tensor in a list of arguments, including those in nested lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _iterate_tensors(value)


def _get_storage_id(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage, which is the same for all views of the tensor."""
    return tensor.untyped_storage()._cdata


# --- Threads ---

LARGE_MATRIX_ENTRIES = 512 * 512
"""Weight matrices with at least this many entries are multiplied with several threads.

The product of a matrix of this size with 32 texts of 20 tokens takes about ten milliseconds on one
thread. For smaller matrices, several threads can save less than this. On a busy machine, they lose
more, because they wait about ten milliseconds for a free core.
"""
_INITIAL_N_THREADS = torch.get_num_threads()
"""Number of PyTorch threads when this module is imported.

If the number is different later, the user has changed it.
"""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables with which users can set the number of CPU threads."""


@contextmanager
def limit_threads(model: nn.Module | None) -> Iterator[int]:
    """Use one thread inside a ``with`` block if the model is small and on the CPU.

    The thread count does not change if the user chose it, either with an environment variable or with
    ``torch.set_num_threads`` after this package was imported.

    Args:
        model: The model; None changes nothing.

    Yields:
        The thread count.
    """
    n_threads = torch.get_num_threads()
    is_chosen_by_user = n_threads != _INITIAL_N_THREADS or any(
        name in os.environ for name in _THREAD_VARIABLES
    )
    if is_chosen_by_user or n_threads == 1 or model is None or not is_small_model(model):
        yield n_threads
        return
    torch.set_num_threads(1)
    try:
        yield 1
    finally:
        torch.set_num_threads(n_threads)


def has_native_bfloat16() -> bool:
    """Check whether the CPU has instructions for products of bfloat16 numbers.

    With these instructions, bfloat16 products take about half as long as float32 products. Other CPUs
    convert the numbers to float32 first.

    Returns:
        False if PyTorch does not know which instructions the CPU has.
    """
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(is_present is True for name, is_present in capabilities.items() if "bf16" in name)


def list_number_formats(model: nn.Module) -> list[torch.dtype]:
    """List the number formats of a model's floating-point parameters, in the order of the parameters.

    A model without such parameters, for example a rule that is written as a module, has no format of
    its own. It then counts as float32, the default format of PyTorch.

    Args:
        model: The model.

    Returns:
        One format per floating-point parameter, or float32 alone.
    """
    formats = [weight.dtype for weight in model.parameters() if weight.is_floating_point()]
    return formats or [torch.float32]


def is_small_model(model: nn.Module) -> bool:
    """Check whether a model is so small that several threads would not make it faster.

    Args:
        model: The model.

    Returns:
        True if the model is on the CPU and all its weight matrices have fewer than
        `LARGE_MATRIX_ENTRIES` entries. Embedding tables do not count, because they are not multiplied.
    """
    embedding_ids: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embedding_ids.update(id(weight) for weight in module.parameters())
    matrices = [
        weight
        for weight in model.parameters()
        if weight.dim() > 1 and id(weight) not in embedding_ids
    ]
    if any(matrix.device.type != "cpu" for matrix in matrices):
        return False
    return all(matrix.numel() < LARGE_MATRIX_ENTRIES for matrix in matrices)
