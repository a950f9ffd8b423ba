"""A study: steps that run once each into folders of their own, and tables of their results.

A study is a function of :class:`Steps`. It adds steps, of which each is a verb with arguments by
their flat names; what a step left behind is the argument of a later one. All options are made, and
so checked, before anything runs::

    def study(s: Steps) -> None:
        for cell in s.grid(dataset=["sst"], encoder=["mlp", "bilstm"]):
            base = s.add("train", "base", cell, **cell, attention="additive", epochs=5)
            s.add("audit", "audit", cell, model=base, dataset=cell["dataset"], tests=["erasure"])
        s.table("Erasure", audit={"never flips": "never_flips@attention"})
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison import ComparisonOptions
from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.deception import DeceptionOptions
from hf_attnprobe.deception.run import deceive
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import Options, check_known, from_flat, names_of
from hf_attnprobe.retraining.options import RetrainOptions, TransferOptions
from hf_attnprobe.retraining.run import retrain, transfer
from hf_attnprobe.storage.folders import differing, write_json
from hf_attnprobe.studies.plan import STATE, Column, Job, Scalar, StudyOptions, Table, load_as
from hf_attnprobe.training.options import Architecture, TrainingOptions
from hf_attnprobe.training.run import train


@dataclass(frozen=True)
class Verb:
    """What does a step: a function, its class of options, and its other arguments."""

    function: Callable[..., object]
    options: type[Options]
    further: tuple[str, ...] = ("model",)


VERBS = {
    "train": Verb(train, TrainingOptions, ("model", *names_of([Architecture]))),
    "audit": Verb(audit, AuditOptions, ("model", "tests")),
    "retrain": Verb(retrain, RetrainOptions, ("model", "tests")),
    "transfer": Verb(transfer, TransferOptions, ("model", "guide")),
    "compare": Verb(compare_checkpoints, ComparisonOptions, ("models", "tests")),
    "deceive": Verb(deceive, DeceptionOptions, ("model", "tokens")),
}


@dataclass
class Steps:
    """The steps of a study, in their order.

    Attributes:
        name, title, paper: of the study.
        folder: below which the steps go.
        options: what replaces the study's own arguments.
    """

    name: str
    folder: Path
    options: StudyOptions = StudyOptions()
    title: str = ""
    paper: str | None = None
    jobs: list[Job] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    _calls: list[Callable[[], object]] = field(default_factory=list)

    @property
    def quick(self) -> bool:
        """Whether a short run is asked for."""
        return self.options.quick

    def grid(self, **lists: Sequence[Scalar]) -> Iterator[dict[str, Any]]:
        """Every cell of a grid of lists; data sets are those of the options, if any."""
        if self.options.datasets and "dataset" in lists:
            lists["dataset"] = self.options.datasets
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))

    def add(self, verb: str, step: str, cell: Mapping[str, Any], **arguments: Any) -> str:
        """Adds a step at a cell; where its results will be.

        Raises:
            AttnProbeError: an argument that the verb does not have, or a value out of its range.
        """
        kind, known = VERBS[verb], names_of([Data, VERBS[verb].options])
        given = self.options.defaults | arguments | self.options.replaced
        given = {k: v for k, v in given.items() if k in arguments or k in known}
        check_known("option", given, [*known, *kind.further])
        made = "-".join(re.sub(r"[^\w.+]", "_", str(value)) for value in cell.values())
        job = Job(step, verb, dict(cell), given, f"{step}/{made}" if made else step)
        if any(job.folder == other.folder for other in self.jobs):
            raise AttnProbeError(f"expected every step once, got {job.folder} twice")
        data = from_flat(given | {"dataset": load_as(given["dataset"])}, Data)
        keywords = {name: given[name] for name in kind.further if name in given}
        if verb == "train":
            architecture = {k: keywords.pop(k) for k in [*keywords] if k != "model"}
            keywords |= {"architecture": architecture}
        keywords |= {"dataset": data, "options": from_flat(given, kind.options)}
        self.jobs.append(job)
        place = self.folder / job.folder
        self._calls.append(lambda: kind.function(**keywords, output_dir=place))
        return str(place)

    def table(self, title: str, lengths: Sequence[int] = (), **columns: Mapping[str, Any]) -> None:
        """Adds a table: by step the statistics, or fields of a Column, by the name of the column."""
        made = [
            Column(name, step, **({"statistic": of} if isinstance(of, str) else of))
            for step, named in columns.items()
            for name, of in named.items()
        ]
        self.tables.append(Table(title, tuple(made), tuple(lengths)))

    def run(self) -> dict[str, float]:
        """Runs the steps that are not done; seconds of each, by its folder.

        Raises:
            AttnProbeError: a step was done with other arguments, or fails.
        """
        file = self.folder / STATE
        done = json.loads(file.read_text()) if file.is_file() else {}
        for job, call in zip(self.jobs, self._calls, strict=True):
            wanted = json.loads(json.dumps(job.arguments, default=str))
            held = done.get(job.folder) if (self.folder / job.folder).is_dir() else None
            if held is not None:
                for name, (old, new) in differing(held["arguments"], wanted).items():
                    raise AttnProbeError(
                        f"step {job.folder} was done with {name} {old}, not {new}; choose another "
                        "--output-dir, or delete its folder"
                    )
                continue
            begun = time.monotonic()
            try:
                call()
            except AttnProbeError as error:
                raise AttnProbeError(f"step {job.folder}: {error}") from error
            seconds = round(time.monotonic() - begun, 2)
            done[job.folder] = {"arguments": wanted, "seconds": seconds}
            write_json(file, done)
        return {name: step["seconds"] for name, step in done.items()}
