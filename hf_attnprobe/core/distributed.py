"""State of the processes in a distributed run, based on ``accelerate.PartialState``."""

import os
from typing import TYPE_CHECKING

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    from accelerate import PartialState


def require_single_process(command: str) -> None:
    """Raise an error if several processes run a command that needs a single one.

    Args:
        command: Command name, for the error message.

    Raises:
        AttnProbeError: There are several processes.
    """
    if get_process_state().num_processes > 1:
        raise AttnProbeError(f"{command} must run in a single process. Start it without torchrun.")


def get_process_state() -> "PartialState":
    """Return the rank and the device of this process, and the number of processes.

    Returns:
        The state, which the first call creates and later calls share.

    Raises:
        AttnProbeError: The processes cannot connect to each other, or a launcher started several
            processes, but Accelerate sees only one. Each process would then do all the work.
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
            f"the {n_launched} processes (WORLD_SIZE) cannot connect to each other: {error}. "
            "Start them with torchrun or accelerate launch, or unset WORLD_SIZE to use a "
            "single process."
        ) from error
    if n_launched != str(state.num_processes):
        raise AttnProbeError(
            f"expected {n_launched} processes (WORLD_SIZE), but Accelerate was started with "
            f"{state.num_processes}. Do not create an Accelerator or PartialState before "
            "this call, or create it with cpu=True on a machine without a GPU."
        )
    return state
