"""The processes of a run, on Accelerate's ``PartialState``."""

import os
from typing import TYPE_CHECKING

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    from accelerate import PartialState


def check_one_process(verb: str) -> None:
    """Refuses several processes where one does all.

    Raises:
        AttnProbeError: there are several.
    """
    if process_state().num_processes > 1:
        raise AttnProbeError(f"{verb} works in one process; start it without torchrun")


def process_state() -> "PartialState":
    """Rank, number of processes and device of this process.

    Raises:
        AttnProbeError: a launcher started several processes but Accelerate sees one, so
            that each would silently do all the work.
    """
    import torch
    from accelerate import PartialState

    # An existing state stays as it is: `cpu` matters for the first one only. Without it
    # Accelerate sees one process under torchrun on a machine without an accelerator.
    n_launched = os.environ.get("WORLD_SIZE", "1")
    try:
        state = PartialState(cpu=not torch.cuda.is_available())
    except (
        ValueError,
        RuntimeError,
    ) as error:  # torch's, of addresses and numbers
        raise AttnProbeError(
            f"expected {n_launched} processes (WORLD_SIZE) that find each other, but "
            f"{error}; start them with torchrun or accelerate launch, or unset WORLD_SIZE"
        ) from error
    if n_launched != str(state.num_processes):
        raise AttnProbeError(
            f"expected {n_launched} processes (WORLD_SIZE), Accelerate sees "
            f"{state.num_processes}; create no Accelerator or PartialState before, or "
            "create it with cpu=True on a machine without GPU"
        )
    return state
