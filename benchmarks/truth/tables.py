"""Tables of what was measured, in Markdown, and the data sheet that the package ships."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.truth import field, scoreboard, thresholds
from benchmarks.truth.kinds import CONSTRUCTED, EVERY_KIND
from benchmarks.truth.nuisances import NUISANCES
from benchmarks.truth.run import flat, read
from benchmarks.truth.trained import truth_of
from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.statistics.questions import (
    PARTLY_THRESHOLD,
    PATH_SHARE_THRESHOLD,
    YES_THRESHOLD,
)
from hf_attnprobe.statistics.scale import CLASSIFIER_PARTS
from hf_attnprobe.storage.provenance import get_versions


PART_NAMES = tuple(part.key for part in CLASSIFIER_PARTS)
PLACE = ("faithfulness", *PART_NAMES, "path_share", "effect")
MEASURES = ("faithfulness", *field.COLUMNS, "AOPC")


def of_most_texts(folder: Path, part: str) -> pd.DataFrame:
    """The models of a part, each on the most texts it was asked on."""
    records = [{**record, "said": record["said"][-1:]} for record in read(folder / part)]
    return flat(records)


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    return "\n".join(markdown.format_table(head, rows))


def digits(value: float | None) -> str:
    """A number with two digits; a dash where there is none."""
    return "–" if value is None or np.isnan(value) else f"{value:.2f}"


def told(models: pd.DataFrame) -> str:
    """How many models were told what, as in "yes 9, cannot say 1"."""
    return ", ".join(f"{answer} {n}" for answer, n in models.answer.value_counts().items())


def of_kinds(models: pd.DataFrame) -> str:
    """Each kind with its truth, its numbers and what its models were told."""
    rows = []
    for name, kind in EVERY_KIND.items():
        own = models[models.kind == name]
        means = [digits(own[rule].mean()) for rule in PLACE]
        spread = f"{digits(own.faithfulness.min())} to {digits(own.faithfulness.max())}"
        follows = " / ".join(digits(own[f"follows {p}"].mean()) for p in ("attention", "other"))
        rows.append([name, kind.truth, means[0], spread, *means[1:], follows, told(own)])
    head = ["kind", "truth", "F", "over draws", *"IERM", "path", "A", "interchange", "told"]
    return table(head, rows)


def of_reasons() -> str:
    """What each kind is, and why its truth is known."""
    rows = [[name, kind.says, kind.truth, kind.why] for name, kind in CONSTRUCTED.items()]
    return table(["kind", "what it is", "truth", "because"], rows)


def of_response(models: pd.DataFrame) -> str:
    """Faithfulness and its parts against the share of texts in which attention is right."""
    mixed = models[models.kind.str.startswith("right in")].groupby("right")[list(PLACE)].mean()
    rows = [[f"{p:.1f}", *map(digits, row)] for p, row in mixed.iterrows()]
    return table(["right in a share of", "F", *"IERM", "path", "A"], rows)


def sensitivities(models: pd.DataFrame) -> dict[str, dict[str, float]]:
    """How far each measure moves over each nuisance at equal p, at most; by nuisance."""
    found = {}
    for name in NUISANCES:
        own = models[models.nuisance == name]
        of_levels = {}
        for measure in MEASURES:
            means = own.groupby(["right", own.level.map(str)])[measure].mean().dropna()
            of_levels[measure] = field.cross_sensitivity(dict(means.items()))
        found[name] = of_levels
    return found


def of_nuisances(models: pd.DataFrame) -> str:
    """Cross-sensitivity of each measure to each nuisance, in units of its own way from p = 0 to 1."""
    moved = sensitivities(models)
    ways = {measure: _way(models, measure) for measure in MEASURES}
    rows = [
        [name, *(digits(own[m] / ways[m] if m != "faithfulness" else own[m]) for m in MEASURES)]
        for name, own in moved.items()
    ]
    return table(["nuisance", *MEASURES], rows)


def _way(models: pd.DataFrame, measure: str) -> float:
    """How far a measure goes from p = 0 to p = 1, without a nuisance."""
    plain = models[(models.nuisance == "label noise") & (models.level == 0.0)]
    means = plain.groupby("right")[measure].mean()
    return float(abs(means.loc[1.0] - means.loc[0.0]))


AT_MOST = 0.1
"""Cross-sensitivity of faithfulness that needs no reason."""


def of_causes(models: pd.DataFrame) -> str:
    """Which nuisances move faithfulness by more than that, and why."""
    moved = {name: own["faithfulness"] for name, own in sensitivities(models).items()}
    above = [name for name in moved if moved[name] > AT_MOST]
    within = ", ".join(name for name in moved if name not in above)
    causes = "".join(f"\n- {name}: {NUISANCES[name].because}." for name in above)
    return f"F changes by at most {AT_MOST:g} for these properties: {within}. It changes by more for\n{causes}"


def of_levels(models: pd.DataFrame) -> str:
    """Faithfulness at each level of each nuisance, by p."""
    shares = sorted(models.right.unique())
    rows = []
    for name, nuisance in NUISANCES.items():
        own = models[models.nuisance == name]
        for p in (0.0, 0.5, 1.0):
            means = own[own.right == p].groupby(own.level.map(str)).faithfulness.mean()
            said = ", ".join(f"{level}: {digits(means[str(level)])}" for level in nuisance.levels)
            rows.append([name if p == shares[0] else "", f"{p:g}", said])
    return table(["nuisance", "p", "F by level"], rows)


def of_trained(models: pd.DataFrame) -> str:
    """Trained readers: what is proved, and what is said."""
    rows = []
    for name, own in models.groupby("kind", sort=False):
        proof = [own[c].mean() for c in ("accuracy", "follows", "follows another", "attention")]
        spread = f"{digits(own.faithfulness.min())} to {digits(own.faithfulness.max())}"
        truths = [truth_of(name.split(",")[0], proof) for _, proof in own.iterrows()]
        named = ", ".join(dict.fromkeys(truth or "–" for truth in truths))
        numbers = [digits(v) for v in (*proof, own.named.mean(), own.faithfulness.mean())]
        rows.append([name, *numbers[:-1], named, numbers[-1], spread, told(own)])
    head = ["reader", "right", "follows the word", "another", "attention on it", "has most"]
    return table([*head, "truth", "F", "over seeds", "told"], rows)


def of_coverage(records: Sequence[Mapping[str, Any]]) -> str:
    """Share of samples whose interval holds the pool's faithfulness."""
    rows = []
    for record in records:
        by_size = [
            f"{own['inside']:.3f} ({own['below']:.3f}, {own['above']:.3f})"
            for own in record["coverage"]
        ]
        rows.append([record["pool"], digits(record["coverage"][0]["truth"]), *by_size])
    sizes = [f"{own['n']} texts" for own in records[0]["coverage"]] if records else []
    return table(["texts like", "F", *sizes], rows)


# --- the page --------------------------------------------------------------------------------


def page(folder: Path) -> str:
    """The documentation's page: what is written in ``page.md`` around the tables."""
    kinds = of_most_texts(folder, "kinds")
    nuisances = of_most_texts(folder, "nuisances")
    trained = of_most_texts(folder, "trained")
    records = sorted(read(folder / "coverage"), key=lambda record: record["pool"])
    own = sheet(folder)
    origin = own["where_they_come_from"]
    sample, loo = origin["even_seeds_half_of_the_kinds"], origin["leaving_one_kind_out"]
    wrong = [kind for errors in sample["errors"] for kind in errors["wrong"]]
    n_of = {
        truth: sum(kind.truth == truth for kind in CONSTRUCTED.values()) for truth in ("yes", "no")
    }
    said = (
        f"partly {_range(loo['partly'])}, yes {_range(loo['yes'])}, wrong: {_named(loo['wrong'])}"
    )
    return (
        (Path(__file__).parent / "page.md")
        .read_text()
        .format(
            n_kinds=len(CONSTRUCTED),
            n_yes=n_of["yes"],
            n_no=n_of["no"],
            n_partly=len(CONSTRUCTED) - sum(n_of.values()),
            errors=of_errors(own["errors"]),
            partly=PARTLY_THRESHOLD,
            yes=YES_THRESHOLD,
            path_share=PATH_SHARE_THRESHOLD,
            partly_share=origin["right_in_a_share_of"]["partly"],
            yes_share=origin["right_in_a_share_of"]["yes"],
            sample_partly=sample["partly"],
            sample_yes=sample["yes"],
            sample_wrong=_named(wrong),
            loo=said,
            response=of_response(kinds),
            draws=own["draws"],
            texts=own["texts"],
            kinds=of_kinds(kinds),
            reasons=of_causes(nuisances),
            nuisances=of_nuisances(nuisances),
            levels=of_levels(nuisances),
            **scoreboard.format_sections(folder / "scoreboard"),
            trained=of_trained(trained),
            n_coverage=records[0]["draws"],
            n_pool=records[0]["texts"],
            coverage=of_coverage(records),
            versions=", ".join(f"{name} {number}" for name, number in own["versions"].items()),
        )
    )


def of_errors(errors: Sequence[Mapping[str, Any]]) -> str:
    """Wrong and open kinds by truth."""
    rows = [[e["truth"], e["kinds"], _named(e["wrong"]), _named(e["open"])] for e in errors]
    return table(["truth", "kinds", "told something wrong", "told cannot say in some draw"], rows)


def _named(kinds: Sequence[str]) -> str:
    return f"{len(kinds)} ({'; '.join(kinds)})" if kinds else "none"


def _range(ends: Sequence[float]) -> str:
    low, high = ends
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


# --- the data sheet --------------------------------------------------------------------------


def sheet(folder: Path) -> dict[str, Any]:
    """What the package ships, and its pages cite."""
    models = of_most_texts(folder, "kinds")
    found = thresholds.errors(models, models.answer)
    kinds = [_of_sheet(name, models[models.kind == name]) for name in EVERY_KIND]
    response = thresholds.curve(models).round(3)
    return {
        "draws": int(models.groupby("kind").size().min()),
        "texts": int(models.n.max()),
        "versions": get_versions(),
        "thresholds": {
            "partly": PARTLY_THRESHOLD,
            "yes": YES_THRESHOLD,
            "path_share": PATH_SHARE_THRESHOLD,
        },
        "where_they_come_from": {
            "right_in_a_share_of": {
                name: round(thresholds.share_at(response, value), 2)
                for name, value in (("partly", PARTLY_THRESHOLD), ("yes", YES_THRESHOLD))
            },
            "even_seeds_half_of_the_kinds": thresholds.out_of_sample(models),
            "leaving_one_kind_out": thresholds.leaving_one_out(models),
        },
        "response": {f"{p:.1f}": value for p, value in response.items()},
        "kinds": kinds,
        "errors": found.drop(columns="draws").to_dict("records"),
    }


def _of_sheet(name: str, models: pd.DataFrame) -> dict[str, Any]:
    kind = EVERY_KIND[name]
    place = {rule: round(float(models[rule].mean()), 5) for rule in PLACE}
    answers = {answer: int(n) for answer, n in models.answer.value_counts().items()}
    about = {"name": name, "says": kind.says, "truth": kind.truth, "why": kind.why}
    return about | {"place": place, "answers": answers}


def packed(found: Mapping[str, Any]) -> str:
    """The data sheet as JSON, a kind per line."""
    lines = []
    for key, value in found.items():
        if key == "kinds":
            kinds = ",\n  ".join(json.dumps(kind, ensure_ascii=False) for kind in value)
            lines.append(f' "kinds": [\n  {kinds}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
