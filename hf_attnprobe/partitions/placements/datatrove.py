"""A job's partitions as tasks of datatrove: on this machine, Slurm, Ray or HF Jobs.

pip install "hf_attnprobe[datatrove]"

executor = SlurmPipelineExecutor(pipeline=[AuditStep(job)], **tasks_of(job), …)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hf_attnprobe.partitions.plan import read_plan
from hf_attnprobe.partitions.store import Store


@dataclass(frozen=True)
class AuditStep:
    """A step of a datatrove pipeline: task ``rank`` computes partition ``rank``.

    Attributes:
        job: folder or URL of a plan that every task can read.
        trust_remote_code: run code that comes with the model.
    """

    job: str
    trust_remote_code: bool = False

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Computes this rank's partitions, and passes nothing on.

        Args:
            data: of the step before; there is none.
            rank: of the task.
            world_size: number of tasks. Fewer than partitions take several each.
        """
        from hf_attnprobe.partitions.run import run_partition

        n_partitions = read_plan(Store(self.job)).n_partitions
        for k in range(rank, n_partitions, world_size):
            run_partition(self.job, k, trust_remote_code=self.trust_remote_code)
        yield from ()


def tasks_of(job: str) -> dict[str, int]:
    """The keyword ``tasks`` of an executor: one task for each partition.

    datatrove's markers of what is done forget everything, without a word, where the
    number of tasks changes; here it is the plan's.
    """
    return {"tasks": read_plan(Store(job)).n_partitions}
