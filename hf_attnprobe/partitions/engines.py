"""Engines that place the work of a job: thin, and none of them a dependency."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.partitions.plan import read_plan, records
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
        from hf_attnprobe.partitions.work import run_partition

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


# --- A job's partitions on a Ray cluster that may grow and shrink --------------------------------
# pip install "hf_attnprobe[ray]"
#
# records = run_on_ray(job, n_workers=8, num_gpus=1)


class PartitionAuditor:
    """A callable class for ``map_batches`` of Ray Data: an actor keeps its model.

    Attributes:
        job: folder or URL of a plan that every machine can read.
        trust_remote_code: run code that comes with the model.
    """

    def __init__(self, job: str, trust_remote_code: bool = False) -> None:
        self.job = job
        self.trust_remote_code = trust_remote_code

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Computes the partitions of a batch with the column ``partition``."""
        from hf_attnprobe.partitions.work import run_partition

        trusted = self.trust_remote_code
        found = [
            run_partition(self.job, int(k), trust_remote_code=trusted) for k in batch["partition"]
        ]
        return {
            "partition": [record["partition"] for record in found],
            "rows": [record["rows"] for record in found],
            "sha256": [record["files"]["parquet"]["sha256"] for record in found],
        }


def run_on_ray(
    job: str,
    *,
    n_workers: int | tuple[int, int] = 1,
    trust_remote_code: bool = False,
    **resources: Any,
) -> list[dict[str, Any]]:
    """Computes the open partitions of a job with Ray Data.

    Args:
        job: folder or URL of a plan that every machine can read.
        n_workers: actors, or the fewest and the most of them.
        trust_remote_code: run code that comes with the model.
        resources: of an actor, such as ``num_gpus=1``.

    Returns:
        Partition, rows and SHA-256 of each partition that was computed now.

    Raises:
        AttnProbeError: Ray is not installed.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise AttnProbeError(
            "expected Ray Data, it is not installed; pip install 'hf_attnprobe[ray]'"
        ) from error
    store = Store(job)
    plan = read_plan(store)
    done = records(store, plan)
    left = [{"partition": k} for k in range(plan.n_partitions) if k not in done]
    if not left:
        return []
    sizes = n_workers if isinstance(n_workers, tuple) else (n_workers, n_workers)
    found = ray.data.from_items(left, override_num_blocks=len(left)).map_batches(
        PartitionAuditor,
        fn_constructor_args=(job, trust_remote_code),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=sizes[0], max_size=sizes[1]),
        **resources,
    )
    return sorted(found.take_all(), key=lambda record: record["partition"])
