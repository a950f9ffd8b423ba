"""What is not the same in several audits: their names and their settings. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from hf_attnprobe.auditing.differences.report import Setting
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.markdown import MISSING
from hf_attnprobe.storage.provenance import in_words


OPTIONS = "options: "
MEANING = (
    "level",
    "segment",
    "units",
    "attended",
    "query",
    "prediction",
    "unit_of_number",
)
"""Settings that say what is explained: of others nothing but accuracy is compared."""


def short_names(reports: Sequence[AuditResult]) -> tuple[str, ...]:
    """A short name for each, all different, of what tells them apart.

    The end of the model's path; where models do not differ the data set, the precision,
    the seed or what else does; a number where nothing does.
    """
    parts = [
        _tails([r.model for r in reports]),
        _tails([str(r.dataset) for r in reports]),
        [in_words(r.provenance.get("dtype")) for r in reports],
        [f"seed {r.seed}" for r in reports],
        [str(r.provenance.get("model_fingerprint", ""))[:6] for r in reports],
    ]
    names = parts[0]
    for part in parts[1:]:
        if len(set(names)) == len(names):
            break
        if len(set(zip(names, part, strict=True))) > len(set(names)):
            names = [f"{name}, {said}" for name, said in zip(names, part, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return tuple(names)


def _tails(paths: Sequence[str]) -> list[str]:
    """The ends of paths, as long as it takes to tell different ones apart."""
    wanted = len(set(paths))
    longest = max(len(PurePath(path).parts) for path in paths)
    for length in range(1, longest + 1):
        ends = ["/".join(PurePath(path).parts[-length:]) for path in paths]
        if len(set(ends)) == wanted:
            return ends
    return list(paths)


def differing_settings(reports: Sequence[AuditResult]) -> tuple[Setting, ...]:
    """Everything of data, settings and versions that is not the same in all.

    Options of tests that an audit did not run, or does not know, are left out.
    """
    flat = [dict(_flat(_all_of(report))) for report in reports]
    names = dict.fromkeys(name for settings in flat for name in settings)
    found = []
    for name in names:
        values = tuple(settings.get(name, MISSING) for settings in flat)
        if len(set(values)) > 1 and not (name.startswith(OPTIONS) and MISSING in values):
            found.append(Setting(name, values))
    return tuple(found)


def _all_of(report: AuditResult) -> dict:
    """What may differ; of the prediction what it is, not its parts one by one."""
    prediction = report.provenance.get("prediction")
    kept = {k: v for k, v in report.provenance.items() if k != "prediction"}
    if isinstance(prediction, Mapping):
        kept["predicts"] = prediction.get("name")
    return {
        "model": report.model,
        "dataset": str(report.dataset),
        "texts": report.n,
        "seed": report.seed,
        **kept,
    }


def _flat(settings: Mapping, before: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings one by one, with the names on the way."""
    for name, value in settings.items():
        named = f"{before}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{named}: ")
        else:
            yield named, in_words(value)


def other_meaning(first: AuditResult, other: AuditResult) -> list[str]:
    """The settings by which two audits explain different things; none where they do not."""
    wrong = []
    for name in MEANING:
        ours, theirs = (_meaning(report, name) for report in (first, other))
        if ours != theirs:
            wrong.append(name.replace("_", " "))
    return wrong


def _meaning(report: AuditResult, name: str) -> object:
    if name == "query":
        return (report.provenance.get("sites") or {}).get("query")
    value = report.provenance.get(name)
    if name != "prediction":
        return None if value in ("", "default") else value
    value = value or {}  # audits from before other predictions are of classes
    kind = value.get("kind", "classes")
    return kind, value.get("scale") if kind == "number" else None


def comparable_tests(
    first: AuditResult, other: AuditResult
) -> tuple[list[str], list[str], list[str]]:
    """Tests of both with the same options; those with others; those of one audit only."""
    ours, theirs = (r.provenance.get("tests", []) for r in (first, other))
    both = [test for test in ours if test in theirs]
    options = [r.provenance["options"] for r in (first, other)]
    same = [t for t in both if options[0].get(t) == options[1].get(t)]
    alone = [t for t in dict.fromkeys([*ours, *theirs]) if t not in both]
    return same, [t for t in both if t not in same], alone


def cautions(
    reports: Sequence[AuditResult], names: Sequence[str], n_shared: Sequence[int]
) -> Iterator[str]:
    """What the differences cannot say, and what was not compared."""
    first = reports[0]
    prints = {r.provenance.get("model_fingerprint", r.model) for r in reports}
    if len(prints) > 1:
        yield (
            "Each name stands for one trained model. A difference is of these models "
            "and not of their kinds: another seed of the training may move a number by "
            "more, and no interval over texts shows that."
        )
    for name, report, n in zip(names[1:], reports[1:], n_shared, strict=True):
        between = f"{name} and {names[0]}"
        if not n:
            yield (
                f"{between} were tested on other texts, so no text is a pair: the "
                "intervals are of two independent samples, and what differs may be the "
                "texts and not the models."
            )
        elif n < max(report.n, first.n):
            yield (
                f"{between} share {n} of {max(report.n, first.n)} texts; differences are "
                "over those alone, means over all of each."
            )
        wrong = other_meaning(first, report)
        if wrong:
            yield (
                f"{between} do not explain the same thing (other {', '.join(wrong)}), so "
                "nothing but accuracy is compared."
            )
            continue
        _, others, alone = comparable_tests(first, report)
        if others:
            yield f"Not compared of {between}, for other options: {', '.join(others)}."
        if alone:
            yield f"In only one of {between}, so not compared: {', '.join(alone)}."
    if len(prints) > 1 and any((r.rows["head"] > 0).any() for r in reports):
        yield (
            "Heads are compared by their numbers. Head 3 of one model is head 3 of "
            "another only where one was trained from the other."
        )
    if len({r.seed for r in reports}) > 1:
        yield "The audits drew their shuffles with other seeds, which adds noise."
