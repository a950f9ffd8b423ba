"""What a retraining cannot say, and what the words on its page mean."""

import re
import shlex
from collections.abc import Iterator, Sequence

from hf_attnprobe import markdown
from hf_attnprobe.page import elements
from hf_attnprobe.page.html import Child, Html, tag
from hf_attnprobe.retraining.registry import retrainings
from hf_attnprobe.retraining.result import (
    RetrainingResult,
)
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import RULES


ONE_TRAINING = (
    "Intervals in the tables are over the test texts, of one training each: another seed "
    "may move a score by more. Only where an answer says so does its interval cover "
    "another seed."
)
AS_REASON = (
    "Retrainings alone do not answer this. They say whether attention is needed, whether "
    "other attention can be trained, and whether its weights help a simpler model."
)
AUDIT = (
    "Whether this model's own output follows its attention is what an audit tests; it "
    "says no more than that of this model and these texts:"
)
GLOSSARY = {
    "attention": "weights that a model computes over the tokens of a text; they sum to 1",
    "seed": "the number that random starting weights and the order of the texts come "
    "from; nothing else differs between the seeds",
    "adversary": "a model trained to say what the base says while attending elsewhere",
    "chosen adversary": "for each text, the adversary that the other half of the texts "
    "chose: the farthest of those that kept the base's F1 there",
    "λ": "how much the training of an adversary rewards attending elsewhere; a larger one "
    "moves attention farther and may cost output",
    "uniform": "of attention: equal weights for all tokens, so none is preferred",
    "frontier": "for every ε, the farthest attention over the base's own states that moves "
    "the output by at most ε; computed, not trained",
    "ε": "by how much the output may move",
    "search": "the frontier approached by small steps, which may stop short of it",
    "model without context": "a simpler model that reads each token by itself; test "
    "diagnostic_mlp gives it weights from outside",
    "guide": "where that model's weights come from: the base, an adversary, equal weights, "
    "or itself (trained guide)",
    "F1": "harmonic mean of precision and recall, 0 to 1",
    "ROC": "its area is how often a text of the positive class is ranked above one of the "
    "other; .5 is chance",
    "JSD": "Jensen-Shannon divergence of two attentions, 0 (the same) to .69 = ln 2 (no "
    "token in common)",
    "TVD": "total variation of two outputs: how much probability moves, 0 to 1",
    "constant guess": "always the same class, whatever the text",
    "95% interval": "where the number over all such texts lies, if these were drawn from "
    "them at random; it covers another seed only where that is said",
}
"""Terms with what they mean; the page lists those that occur in it."""


def as_reason(report: RetrainingResult) -> Iterator[Html]:
    """What retrainings leave open, and the command that tests it."""
    words = ["attnprobe", "audit", "--model", report.model]
    words += ["--dataset", report.dataset.name, "--output-dir", "DIR"]
    yield tag("p", AS_REASON)
    yield tag("p", AUDIT)
    yield tag("pre", tag("code", shlex.join(words)))


def limits(report: RetrainingResult) -> Iterator[Child]:
    """What was not tested, how sure the rest is, and what would change an answer."""
    tests = report.provenance.get("tests", list(report.scores))
    left = [f"{name} ({t.title})" for name, t in retrainings().items() if name not in tests]
    said = [ONE_TRAINING]
    n_seeds = len({s.model for s in report.scores.get("seeds", ())})
    if n_seeds > 1:
        said.append(
            f"How much a seed moves F1 is estimated from {n_seeds} trainings; more "
            "(--set seeds.n_seeds) make the intervals that cover seeds narrower."
        )
    else:
        said.append(
            "No other seeds were trained (test seeds), so nothing is said about what "
            "chance alone does to F1 and attention."
        )
    undecided = [
        f for f in report.verdict.findings() if f.answer == Answer.CANNOT_SAY and f.ci95 is not None
    ]
    for f in undecided:
        rule = RULES[f.rule]
        said.append(
            f"{rule.name} would be a yes with an interval wholly above {rule.yes:g} and a "
            f"no with one wholly below; it is {markdown.bounds(f.ci95)}."
        )
    if any(f.rule.startswith("elsewhere") for f in report.verdict.findings()):
        said.append(
            "That no adversary was found does not show that there is none: another λ or "
            "a longer training might find one."
        )
    if left:
        said.append(f"Not tested: {'; '.join(left)}.")
    said += report.provenance.get("notes", [])
    yield elements.bullets(said)


def glossary(parts: Sequence[Child]) -> Html | None:
    """The terms that occur in what was written so far."""
    text = re.sub("<[^>]*>", " ", " ".join(str(part) for part in parts if part))
    pairs = [
        [tag("dt", term), tag("dd", meaning)]
        for term, meaning in GLOSSARY.items()
        if re.search(rf"(?<!\w){re.escape(term)}", text, re.IGNORECASE)
    ]
    if not pairs:
        return None
    terms = tag("dl", *[part for pair in pairs for part in pair])
    return elements.section("What the words mean", terms, id="glossary")
