"""What rankings of the tokens are worth, beside a random one. Pure."""

from hf_attnprobe.charts.chart import Chart, Reference
from hf_attnprobe.charts.evidence import Evidence, ranking_name, said, series_of_means


def comprehensiveness(evidence: Evidence) -> Chart | None:
    """What is lost without the tokens that each ranking puts first."""
    words = evidence.words
    return _by_ranking(
        evidence,
        family="comprehensiveness",
        title="What is lost without the tokens that a ranking puts first",
        y_label=f"{words.lost} without them",
        source="DeYoung et al. 2020, comprehensiveness",
        said_of=f"Without the first tokens of {{name}} {words.said} loses {{value}} "
        f"{words.amount}{words.aside}",
        yardstick="A ranking that is no better than random says nothing of the "
        "prediction. Texts with tokens erased are unlike those of the training.",
    )


def sufficiency(evidence: Evidence) -> Chart | None:
    """What is lost on nothing but the tokens that each ranking puts first."""
    words = evidence.words
    return _by_ranking(
        evidence,
        family="sufficiency",
        title="What is lost on the first tokens of a ranking alone",
        y_label=f"{words.lost} on them alone",
        source="DeYoung et al. 2020, sufficiency",
        said_of=f"On the first tokens of {{name}} alone {words.said} loses {{value}} "
        f"{words.amount}{words.aside}",
        yardstick="Here less is better. Texts with tokens erased are unlike those of the training.",
    )


def plausibility(evidence: Evidence) -> Chart | None:
    """How well each ranking finds the words that people marked."""
    return _by_ranking(
        evidence,
        family="auprc",
        title="Agreement of rankings with the words that people marked",
        y_label="area under the precision-recall curve",
        source="DeYoung et al. 2020, Section 4 (AUPRC)",
        said_of="Against the words that people marked, the ranking of {name} has area "
        "{value} (1 is all of them in front)",
        yardstick="People agreeing with a ranking does not make it faithful.",
        y_range=(0.0, 1.0),
    )


def _by_ranking(
    evidence: Evidence,
    *,
    family: str,
    title: str,
    y_label: str,
    source: str,
    said_of: str,
    yardstick: str,
    y_range: tuple[float, float] | None = None,
) -> Chart | None:
    """Means with their intervals, random as a line too; None without values."""
    found = evidence.rankings(family)
    if not found:
        return None
    means = {ranking_name(key): evidence.mean(name) for key, name in found.items()}
    random = found.get("random")
    references = [Reference("random order", evidence.mean(random).value)] if random else []
    return Chart(
        key="plausibility" if family == "auprc" else family,
        title=title,
        finding=_finding(evidence, found, said_of, yardstick),
        source=source,
        kind="dots",
        x_label="ranking",
        y_label=y_label,
        series=(series_of_means("mean over texts", means),),
        references=tuple(references),
        y_range=y_range,
    )


def _finding(evidence: Evidence, found: dict[str, str], said_of: str, yardstick: str) -> str:
    own = [key for key in ("attention", "mean_attention") if key in found]
    key = [*own, *found][0]
    mean = evidence.mean(found[key])
    sentence = said_of.format(name=ranking_name(key), value=said(mean))
    if "random" in found and key != "random":
        random = evidence.mean(found["random"])
        difference = evidence.beyond_random(found[key])
        sentence += f"; random has {said(random)}, a difference of {said(difference)}"
    return f"{sentence} ({mean.n} texts). {yardstick}"
