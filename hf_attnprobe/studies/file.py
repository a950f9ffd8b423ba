"""Study files: YAML in, checked jobs out; nothing is run here.

    title: What the encoder does to attention        # of the report
    grid: {dataset: [sst], encoder: [mlp, bilstm]}   # a step that uses $encoder is done for every encoder
    steps:
      - {name: base, verb: train, with: {dataset: $dataset, encoder: $encoder}, quick: {epochs: 2}}
      - {name: audit, verb: audit, with: {model: base, dataset: $dataset}}
    tables:
      - title: Agreement with importance
        columns: [{name: τ, step: audit, statistic: attention_gradient_tau, threshold: 0.3, means: attention agrees}]

``with`` are the verb's keyword arguments, in place of which ``quick`` has others. Where a verb takes a model, the name of
an earlier step stands for its folder, and ``name/folder`` for what is in it; another model needs a / in its name. Such a
step is done for all that the earlier one was done for. ``quick`` beside ``grid`` has other values of its lists.
A column may have a ``score``, as test/model/metric, in place of a ``statistic`` (of which a/b is the ratio); a table may
have ``lengths``, bounds of numbers of tokens. ``paper`` asks for that paper's tables. ``datasets: {imdb: {dataset:
imdb=folder, config: small, limit: 4000}}`` says what a name stands for; the limit is of training texts.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import describe, fits
from hf_attnprobe.published_results import PAPERS
from hf_attnprobe.studies.fields import check_fields, read_table, refuse
from hf_attnprobe.studies.plan import FolderOf, Job, Scalar, Study, name_of
from hf_attnprobe.studies.verbs import DATA, VERBS


READY = Path(__file__).parent / "ready"
FIELDS = {
    "title": str,
    "paper": str,
    "grid": dict,
    "quick": dict,
    "datasets": dict,
    "steps": list,
    "tables": list,
}
STEP_FIELDS = {"name": str, "verb": str, "with": dict, "quick": dict}


def ready_studies() -> dict[str, Path]:
    """The study files that come with the package, by name."""
    return {file.stem: file for file in sorted(READY.glob("*.yaml"))}


def read_study(
    file: str | Path,
    *,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    given: Mapping | None = None,
) -> Study:
    """Reads and checks a study file.

    Args:
        file: a path, or the name of one of :func:`ready_studies`.
        quick: with the file's shorter settings.
        datasets: in place of the grid's: names, folders, Hub ids, or name=folder.
        given: arguments that replace those of all verbs that have them: config, text_column, label_column, limit
            (not of audits), and for those that a step does not set itself, seed and vectors.

    Raises:
        AttnProbeError: whatever would not run, naming file and step.
    """
    path = ready_studies().get(str(file), Path(file))
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise AttnProbeError(
            f"expected a study file or one of {', '.join(ready_studies())}, cannot read {file} ({error})"
        ) from error
    except yaml.YAMLError as error:
        raise AttnProbeError(
            f"{file} is not YAML: {' '.join(str(error).split())}"
        ) from error
    return _Reader(path, quick, datasets, dict(given or {})).study(content)


@dataclass
class _Reader:
    file: Path
    quick: bool
    wanted: Sequence[str] | None
    given: dict
    grid: dict[str, list] = field(default_factory=dict)
    jobs: dict[str, list[Job]] = field(default_factory=dict)  # by step
    shortened: list[str] = field(default_factory=list)

    def study(self, content) -> Study:
        self._check_fields(content, FIELDS, "the file", needed=("title", "steps"))
        if content.get("paper") not in (None, *PAPERS):
            self._refuse(
                f"expected a paper of {', '.join(PAPERS)}, got {content['paper']!r}"
            )
        sources = self._datasets(content.get("datasets", {}))
        self._read_grid(content.get("grid", {}), content.get("quick", {}))
        names = self._names(content["steps"])
        for step in content["steps"]:
            self.jobs[step["name"]] = list(self._jobs(step, names, sources))
        tables = tuple(
            read_table(self.file.name, table, self.jobs)
            for table in content.get("tables", [])
        )
        jobs = tuple(job for jobs in self.jobs.values() for job in jobs)
        return Study(
            self.file.stem,
            content["title"],
            content.get("paper"),
            jobs,
            tables,
            tuple(self.shortened),
        )

    def _refuse(self, message: str, step: str | None = None):
        refuse(self.file.name, message, step)

    def _check_fields(
        self, content, fields: Mapping, what: str, *, needed=(), step: str | None = None
    ) -> None:
        check_fields(self.file.name, content, fields, what, needed=needed, step=step)

    # --- data sets and grid ---------------------------------------------------------------------------------------

    def _datasets(self, declared: Mapping) -> dict[str, dict]:
        """What every name of the file or of the command line stands for."""
        sources = {}
        for name, source in declared.items():
            source = {"dataset": source} if isinstance(source, str) else source
            self._check_fields(source, DATA, f"data set {name}")
            sources[str(name)] = {"dataset": name} | source
        for text in self.wanted or ():
            name = name_of(text)
            if text != name:
                sources[name] = sources.get(name, {}) | {"dataset": text}
        return sources

    def _read_grid(self, grid: Mapping, quick: Mapping) -> None:
        changed = dict(quick) if self.quick else {}
        if self.wanted:
            names = [name_of(text) for text in self.wanted]
            if "dataset" not in grid:
                self._refuse(
                    "expected no data sets, this study has no grid over dataset; write them into the file"
                )
            if len(set(names)) < len(names):
                self._refuse(
                    f"expected data sets of different names, got {', '.join(names)}"
                )
            grid = grid | {"dataset": names}
            changed.pop("dataset", None)
        unknown = sorted(set(quick) - set(grid))
        if unknown:
            self._refuse(
                f"expected quick to change the grid's {', '.join(grid) or 'lists'}, got {unknown[0]!r}"
            )
        self.shortened += [
            f"{name} {', '.join(map(str, values))}" for name, values in changed.items()
        ]
        for name, values in (*grid.items(), *quick.items()):
            if (
                not isinstance(values, list)
                or not values
                or not all(fits(v, Scalar) for v in values)
            ):
                self._refuse(
                    f"expected a list of values for {name} in the grid, got {values!r}"
                )
        self.grid |= {str(name): values for name, values in (grid | changed).items()}

    # --- steps ----------------------------------------------------------------------------------------------------

    def _names(self, steps: Sequence) -> list[str]:
        names: list[str] = []
        for number, step in enumerate(steps, 1):
            self._check_fields(
                step,
                STEP_FIELDS,
                "a step",
                needed=("name", "verb", "with"),
                step=f"number {number}",
            )
            name = step["name"]
            if not name or name in names or set(name) & set("/\\$. "):
                self._refuse(
                    f"expected a name of its own without / \\ $ . and blanks, got {name!r}",
                    f"number {number}",
                )
            names.append(name)
        if not names:
            self._refuse("expected at least one step")
        return names

    def _jobs(
        self, step: Mapping, names: Sequence[str], sources: Mapping
    ) -> Iterator[Job]:
        name, verb = step["name"], VERBS.get(step["verb"])
        if verb is None:
            self._refuse(
                f"expected a verb of {', '.join(VERBS)}, got {step['verb']!r}", name
            )
        quick = step.get("quick", {}) if self.quick else {}
        self._check_names(name, step["verb"], step["with"] | step.get("quick", {}))
        arguments = step["with"] | quick
        self.shortened += [f"{name}: {k} {v}" for k, v in quick.items()]
        steps = self._referred(name, verb, arguments, names)
        variables = self._variables(name, arguments, steps)
        for values in itertools.product(*(self.grid[v] for v in variables)):
            cell = dict(zip(variables, values, strict=True))
            yield self._job(step, cell, arguments, steps, sources)

    def _check_names(self, name: str, verb: str, arguments: Mapping) -> None:
        known = VERBS[verb].arguments
        unknown = [k for k in arguments if k not in known]
        if unknown:
            self._refuse(
                f"{verb} has no argument {unknown[0]!r}, but {', '.join(sorted(known))}",
                name,
            )
        missing = [k for k in VERBS[verb].needed if k not in arguments]
        if missing:
            self._refuse(f"{verb} needs {', '.join(missing)}", name)

    def _referred(
        self, name: str, verb, arguments: Mapping, names: Sequence[str]
    ) -> list[str]:
        """The earlier steps whose folders the arguments name."""
        found: list[str] = []
        for argument in verb.references:
            values = arguments.get(argument, [])
            for value in (
                [values]
                if isinstance(values, str)
                else values
                if isinstance(values, list)
                else []
            ):
                first, slash, _ = value.partition("/")
                if first in self.jobs:
                    found.append(first)
                elif first in names:
                    self._refuse(
                        f"expected a step before it as {argument}, got {value!r}, which is not",
                        name,
                    )
                elif not slash:
                    earlier = ", ".join(self.jobs) or "none"
                    self._refuse(
                        f"expected a step before it ({earlier}), or a folder or Hub id with a /, as {argument}, got {value!r}",
                        name,
                    )
        return list(dict.fromkeys(found))

    def _variables(
        self, name: str, arguments: Mapping, steps: Sequence[str]
    ) -> list[str]:
        """Of the grid, in its order, those that a step uses itself or by the steps it refers to."""
        flat = [
            v
            for value in arguments.values()
            for v in (value if isinstance(value, list) else [value])
        ]
        own = {v[1:] for v in flat if _is_variable(v)}
        unknown = sorted(own - self.grid.keys())
        if unknown:
            self._refuse(
                f"expected one of the grid's {', '.join(self.grid) or 'lists'}, got ${unknown[0]}",
                name,
            )
        inherited = {v for step in steps for v in self.jobs[step][0].cell}
        return [v for v in self.grid if v in own | inherited]

    def _job(
        self,
        step: Mapping,
        cell: Mapping,
        arguments: Mapping,
        steps: Sequence,
        sources: Mapping,
    ) -> Job:
        name, verb, after = step["name"], VERBS[step["verb"]], []
        resolved = {k: _filled(v, cell) for k, v in arguments.items()}
        resolved |= self._data(verb, resolved, sources)
        for argument, value in resolved.items():
            if not fits(value, verb.arguments[argument]):
                self._refuse(
                    f"expected {describe(verb.arguments[argument])} for {argument}, got {value!r}",
                    name,
                )
        try:
            verb.check(resolved)
        except AttnProbeError as error:
            self._refuse(str(error), name)
        for argument in verb.references:
            if argument in resolved:
                resolved[argument], folders = self._folders(
                    resolved[argument], steps, cell
                )
                after += folders
        folder = "/".join(
            [name, "-".join(_slug(v) for v in cell.values())] if cell else [name]
        )
        return Job(
            name, step["verb"], cell, resolved, folder, tuple(dict.fromkeys(after))
        )

    def _data(self, verb, arguments: Mapping, sources: Mapping) -> dict:
        """What a name of a data set, and what the command line says."""
        given = {k: v for k, v in self.given.items() if v is not None}
        firm = {k: v for k, v in given.items() if k in DATA}
        loose = {k: v for k, v in given.items() if k not in DATA and k not in arguments}
        name = arguments["dataset"]
        found = loose | (sources.get(name, {}) if isinstance(name, str) else {}) | firm
        limit = found.pop(
            "limit", None
        )  # of training texts, on the command line and of a data set
        if limit is not None and verb.training_limit is not None:
            found[verb.training_limit] = limit
        return {k: v for k, v in found.items() if k in verb.arguments}

    def _folders(self, value, steps: Sequence[str], cell: Mapping) -> tuple:
        """References with the jobs that they are of; other values stay."""
        if isinstance(value, list):
            found = [self._folders(v, steps, cell) for v in value]
            return [folder for folder, _ in found], [
                job for _, jobs in found for job in jobs
            ]
        first, _, rest = value.partition("/")
        if first not in steps:
            return value, []
        (job,) = (
            j for j in self.jobs[first] if all(cell[k] == v for k, v in j.cell.items())
        )
        return FolderOf(job.folder, rest), [job.folder]


def _filled(value, cell: Mapping):
    if isinstance(value, list):
        return [_filled(v, cell) for v in value]
    return cell[value[1:]] if _is_variable(value) else value


def _is_variable(value: Any) -> bool:
    """``$name`` is a value of the grid; ``$`` and ``$5`` are texts.

    >>> _is_variable("$encoder"), _is_variable("$"), _is_variable("$5")
    (True, False, False)
    """
    return isinstance(value, str) and value[:1] == "$" and value[1:2].isalpha()


def _slug(value: Scalar) -> str:
    return "".join(c if c.isalnum() or c in "._+" else "_" for c in str(value)) or "_"
