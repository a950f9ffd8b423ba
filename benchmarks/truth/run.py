"""Measures every model once and keeps what was said of it, a JSON file per model."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.truth import coverage, trained
from benchmarks.truth.kinds import EVERY_KIND
from benchmarks.truth.measure import OF_VERDICT, measured
from benchmarks.truth.nuisances import NUISANCES, SHARES_RIGHT
from hf_attnprobe.storage.folders import write_json


logger = logging.getLogger(__name__)
SIZES = (30, 100)
"""Numbers of texts on which a verdict is asked beside that of all."""


def kept(file: Path, compute: Callable[[], Mapping[str, Any]]) -> None:
    """Writes what is computed, unless the file is there."""
    if file.exists():
        return
    begun = time.process_time()
    found = dict(compute())
    seconds = round(time.process_time() - begun, 2)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, found | {"seconds": seconds})
    logger.info("%s: %.1f s", file.relative_to(file.parents[2]), seconds)


def run_kinds(folder: Path, seeds: Sequence[int], n_texts: int) -> None:
    """A model of each kind and seed."""
    for seed in seeds:
        for name, kind in EVERY_KIND.items():

            def of_kind(name: str = name, kind: Any = kind, seed: int = seed) -> dict[str, Any]:
                n_drawn = min(n_texts, kind.max_texts)
                sizes = [*(n for n in SIZES if n < n_drawn), n_drawn]
                model, batch = kind.draw(name, seed=seed, n_texts=n_drawn)
                said = measured(model, batch, seed=seed, n_texts=sizes, tests=OF_VERDICT)
                about = {"kind": name, "truth": kind.truth, "right": kind.right, "seed": seed}
                return about | {"said": said}

            kept(folder / "kinds" / name / f"{seed}.json", of_kind)


def run_nuisances(folder: Path, seeds: Sequence[int], n_texts: int) -> None:
    """A model of each nuisance, level, share of right texts and seed."""
    for seed, (name, nuisance) in ((s, item) for s in seeds for item in NUISANCES.items()):
        for level, p in ((level, p) for level in nuisance.levels for p in SHARES_RIGHT):

            def of_level(
                level: Any = level, p: float = p, name: str = name, seed: int = seed
            ) -> dict[str, Any]:
                model, batch = NUISANCES[name].kind(p, level).draw(name, seed=seed, n_texts=n_texts)
                said = measured(model, batch, seed=seed, n_texts=[n_texts])
                about = {"nuisance": name, "level": level, "right": p, "seed": seed}
                return about | {"said": said}

            kept(folder / "nuisances" / name / f"{level}, {p}, {seed}.json", of_level)


def run_trained(folder: Path, seeds: Sequence[int], n_texts: int) -> None:
    """A trained reader of each task, architecture and seed."""
    for seed, reader in ((seed, reader) for seed in seeds for reader in trained.READERS):

        def of_reader(reader: trained.Reader = reader, seed: int = seed) -> dict[str, Any]:
            return trained.told(reader, seed=seed, n_texts=n_texts)

        kept(folder / "trained" / reader.name / f"{seed}.json", of_reader)


def run_coverage(folder: Path) -> None:
    """Coverage of the interval on each pool of texts."""
    for name in coverage.POOLS:

        def of_pool(name: str = name) -> dict[str, Any]:
            found = coverage.coverage(coverage.pool_of(name), seed=0)
            sizes = {"texts": coverage.N_POOL, "draws": coverage.N_DRAWS}
            return {"pool": name, **sizes, "coverage": found.to_dict("records")}

        kept(folder / "coverage" / name / "0.json", of_pool)


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """What is kept of the models of a part, a record per model."""
    for file in sorted(folder.rglob("*.json")):
        yield json.loads(file.read_text())


def flat(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per model and number of texts: what it is, each number with its ends, the answer."""
    rows = []
    for record in records:
        about = {k: v for k, v in record.items() if k != "said"}
        for said in record["said"]:
            follows = {f"follows {place}": share for place, share in said["follows"].items()}
            row = about | {"n": said["n"], "answer": said["answer"]} | follows
            for rule, (value, low, high, n) in said["numbers"].items():
                row |= {rule: value, f"{rule} low": low, f"{rule} high": high, f"{rule} n": n}
            rows.append(row | said.get("field", {}))
    return pd.DataFrame(rows)
