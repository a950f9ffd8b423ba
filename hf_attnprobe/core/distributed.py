"""The processes of a distributed run, based on ``accelerate.PartialState``."""

import os
from typing import TYPE_CHECKING

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    from accelerate import PartialState


def check_one_process(verb: str) -> None:
    """Raise an error if a command that needs a single process was started in several.

    Args:
        verb: Command name.

    Raises:
        AttnProbeError: There are several processes.
    """
    if get_process_state().num_processes > 1:
        raise AttnProbeError(f"{verb} works in one process; start it without torchrun")


def get_process_state() -> "PartialState":
    """Return the rank, the number of processes and the device of this process.

    Returns:
        The state shared by the whole process, which is created by the first call.

    Raises:
        AttnProbeError: A launcher started several processes, but Accelerate sees only one (each of
            them would then do all the work), or the processes cannot connect to each other.
    """
    import torch
    from accelerate import PartialState

    n_launched = os.environ.get("WORLD_SIZE", "1")
    try:
        # Without `cpu`, Accelerate sees one process under torchrun on a machine without an
        # accelerator. An existing state stays as it is: only the first call depends on `cpu`.
        state = PartialState(cpu=not torch.cuda.is_available())
    except (ValueError, RuntimeError) as error:
        raise AttnProbeError(
            f"the {n_launched} processes (WORLD_SIZE) cannot connect to each other: {error}; start "
            "them with torchrun or accelerate launch, or unset WORLD_SIZE"
        ) from error
    if n_launched != str(state.num_processes):
        raise AttnProbeError(
            f"expected {n_launched} processes (WORLD_SIZE), but Accelerate sees "
            f"{state.num_processes}; do not create an Accelerator or PartialState before, or create "
            "it with cpu=True on a machine without a GPU"
        )
    return state
