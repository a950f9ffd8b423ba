"""Which process this is, on Accelerate's ``PartialState``."""

import os

import torch
from accelerate import PartialState

from hf_attnprobe.errors import AttnProbeError


def process_state() -> PartialState:
    """The state of this process: rank, number of processes, device; the one that exists, if there is one.

    Raises:
        AttnProbeError: where a launcher started several processes but Accelerate sees one, so that each would silently
            do all the work.
    """
    exists = PartialState._shared_state != {}
    # Without cpu=True Accelerate sees one process under torchrun on a machine without an accelerator.
    state = (
        PartialState() if exists else PartialState(cpu=not torch.cuda.is_available())
    )
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != state.num_processes:
        raise AttnProbeError(
            f"expected {launched} processes (WORLD_SIZE), Accelerate sees {state.num_processes}; create no Accelerator or "
            "PartialState before, or create it with cpu=True on a machine without GPU"
        )
    return state
