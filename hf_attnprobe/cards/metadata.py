"""The YAML of a card: scores and findings in both of the Hub's formats.

``model-index`` stands in the README, ``.eval_results/*.yaml`` beside it. Both are made by,
and read back with, huggingface_hub.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from huggingface_hub import (
    EvalResult,
    EvalResultEntry,
    ModelCardData,
    eval_result_entries_to_yaml,
)

from hf_attnprobe.cards.contents import SCORES, AuditedOn, Card, task_of
from hf_attnprobe.cards.names import LONGEST, DataName, is_hub_id, native, shown
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.verdicts import RULES, Finding


METRIC = "attention_faithfulness"
EVAL_RESULTS = f".eval_results/{METRIC}.yaml"
BY = "attnprobe card"
"""Marks our results among a user's: the value of ``by`` in a metric's arguments."""
TAGS = ("attention", "interpretability", "hf_attnprobe")


def metadata(card: Card) -> dict[str, Any]:
    """The README's front matter as plain data."""
    results = eval_results(card)
    scores = [r.metric_type for r in results if r.metric_type in SCORES]
    start = str(card.checkpoint.record.get("start") or "")
    data = [card.trained_on, *(card.known(audit.data) for audit in card.audits)]
    hub_ids = [name.hub_id for name in data if name is not None and name.hub_id]
    made = ModelCardData(
        license=card.license,
        library_name="transformers",
        pipeline_tag=task_of(card.checkpoint),
        tags=[*TAGS, *(["faithfulness"] if card.audits else [])],
        base_model=start if is_hub_id(start) else None,
        datasets=list(dict.fromkeys(hub_ids)) or None,
        metrics=list(dict.fromkeys(scores)) or None,
        eval_results=results or None,
        model_name=shown(card.checkpoint.name) if results else None,
    )
    return dict(native(made.to_dict()))


# --- model-index --------------------------------------------------------------------


def eval_results(card: Card) -> list[EvalResult]:
    """Task scores and findings; those of one split of data stand together.

    A number that is not finite is left out.
    """
    results = [*_scores(card)]
    for audit in card.audits:
        results += _of_audit(card, audit)
    order = list(dict.fromkeys(r.unique_identifier for r in results))
    return sorted(results, key=lambda r: order.index(r.unique_identifier))


def _scores(card: Card) -> Iterator[EvalResult]:
    """The scores that the training recorded, on test and validation texts."""
    record = card.checkpoint.record
    data = card.trained_on or card.known(DataName("training data"))
    for split in ("test", "validation"):
        for name, said in SCORES.items():
            value = (record.get("metrics") or {}).get(f"{split}_{name}")
            more = {"n": (record.get("n_texts") or {}).get(split)}
            if isinstance(value, int | float) and math.isfinite(value):
                yield _result(card, data, split, name, said, value, more)


def _of_audit(card: Card, audit: AuditedOn) -> Iterator[EvalResult]:
    data = card.known(audit.data)
    recorded = (card.checkpoint.record.get("metrics") or {}).keys()
    for f in audit.findings:
        if f.rule == "accuracy":
            majority = f.yardsticks.get("majority")
            if majority is not None and f"{audit.split}_accuracy" not in recorded:
                value, more = f.value + majority, {"n": f.n, "seed": audit.seed}
                yield _result(card, data, audit.split, "accuracy", "accuracy", value, more)
        elif math.isfinite(f.value):
            told = {
                "measure": RULES[f.rule].measure if f.rule in RULES else None,
                "answer": f.answer,
                "ci95": f.ci95,
                "n": f.n,
                "yardsticks": f.yardsticks,
                "seed": audit.seed,
            }
            yield _result(card, data, audit.split, METRIC, _title(f), f.value, told)


def _result(
    card: Card,
    data: DataName,
    split: str,
    metric: str,
    name: str,
    value: float,
    more: Mapping[str, Any],
) -> EvalResult:
    hub_name = shown(data.hub_id or data.name)
    return EvalResult(
        task_type=task_of(card.checkpoint) or "other",
        dataset_type=hub_name,
        dataset_name=hub_name,
        dataset_split=shown(split) or None,
        metric_type=metric,
        metric_name=shown(name),
        metric_value=float(value),
        metric_args=native({"by": BY, **more}),
    )


def _title(finding: Finding) -> str:
    """Which question a number is of."""
    rule = RULES.get(finding.rule)
    name = finding.rule if rule is None else rule.name
    group = "" if finding.group == "all" else f", texts predicted {finding.group}"
    return f"Attention: {name.lower()}{group}"


# --- .eval_results ------------------------------------------------------------------


def entries(card: Card) -> list[EvalResultEntry]:
    """The findings as entries; the number that was graded, its measure in the notes.

    Data that are not on the Hub are named by their own name.
    """
    made = []
    for audit in card.audits:
        data = card.known(audit.data)
        for f in audit.findings:
            if f.rule == "accuracy" or not math.isfinite(f.value):
                continue
            group = "" if f.group == "all" else f"/{shown(f.group)}"
            entry = EvalResultEntry(
                dataset_id=shown(data.hub_id or data.name),
                task_id=f"{METRIC}/{f.rule}{group}",
                value=float(f.value),
                source_url=audit.rows_url,
                source_name="attnprobe audit" if audit.rows_url else None,
                notes=_notes(audit, f),
            )
            made.append(entry)
    return made


def _notes(audit: AuditedOn, finding: Finding) -> str:
    rule = RULES.get(finding.rule)
    graded = "" if rule is None else f"Graded: {rule.measure}. "
    known = audit.provenance.get("data_fingerprint", "not recorded")
    text = (
        f"{finding.sentence} {graded}{finding.n} texts, split {audit.split}, "
        f"seed {audit.seed}, data fingerprint {known}"
    )
    return shown(text, most=LONGEST)


def eval_results_yaml(card: Card, existing: str | None = None) -> str | None:
    """The file ``.eval_results/attention_faithfulness.yaml``; None without results.

    Args:
        existing: the file that is there; its entries that are not ours stay.

    Raises:
        AttnProbeError: it is no list of entries.
    """
    kept = [item for item in _parsed(existing) if not _is_ours(item)]
    data = [*kept, *eval_result_entries_to_yaml(entries(card))]
    return dumped(data) if data else None


def _parsed(existing: str | None) -> list[Any]:
    try:
        data = yaml.safe_load(existing or "") or []
    except yaml.YAMLError as error:
        raise AttnProbeError(_no_entries(error)) from error
    if not isinstance(data, list):
        raise AttnProbeError(_no_entries(type(data).__name__))
    return data


def _no_entries(found: object) -> str:
    said = str(found).splitlines()[0]
    return f"expected a list of results in {EVAL_RESULTS}, got {said}; mend or delete it"


def _is_ours(item: Any) -> bool:
    data = item.get("dataset") if isinstance(item, Mapping) else None
    task = data.get("task_id") if isinstance(data, Mapping) else None
    return str(task).partition("/")[0] == METRIC


def dumped(data: Any) -> str:
    """Plain data as YAML, in their own order."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=88)
