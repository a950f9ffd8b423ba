"""What was not tested and why, what the tests cannot tell, and what the words mean."""

import re
from collections.abc import Sequence

from hf_attnprobe.auditing.pages.plain_words import GLOSSARY
from hf_attnprobe.auditing.pages.which_heads import heads_of_model, tested_heads
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import zero_ablation_only
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.page.elements import bullets, section
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.statistics.questions import QUESTIONS
from hf_attnprobe.statistics.verdicts import RULES


LIMITS = (
    "Everything here is a mean over these texts. Of a single text the opposite may be true.",
    "The model was trained once. Another seed may attend otherwise: attnprobe retrain tells.",
    "Intervals are over texts; they say nothing about other kinds of texts.",
    "Edited attention and texts with tokens taken out are not what the model was trained on.",
    "A yes means that a test found no disagreement of this size. It is no proof that "
    "people draw the right conclusions from a heat map.",
)
DOES = {
    "correlation": "compares the order of attention with that of gradients and of "
    "leaving tokens out",
    "permutation": "shuffles the weights among the tokens",
    "adversarial": "searches other attention that keeps the output",
    "erasure": "sets weights to 0 one after the other until the decision flips",
    "input_erasure": "takes the tokens of most attention out of the text",
    "uniform_attention": "gives all tokens of a text the same weight",
    "head_ablation": "replaces the output of a head",
    "explanations": "compares other explanations of a head with leaving tokens out",
    "screen": "estimates quickly what each head does",
    "plausibility": "compares attention with the tokens that people marked",
    "conicity": "measures how alike the states are that attention chooses from",
    "fragility": "asks whether decisions stay with even and with shuffled attention",
    "single_token": "lets each token be read alone",
    "attribution_agreement": "compares attention with integrated gradients",
    "attention_by_tag": "counts which kinds of words get the attention",
}
"""What each test does, in a clause; tests of other packages have only their name."""


def not_tested(report: AuditResult) -> Html:
    """Questions without an answer, tests that did not run, and limits."""
    asked = {f.rule for f in report.findings}
    unasked = [
        f"{RULES[rule].name}: {RULES[rule].question} No test of this audit says."
        for rule in QUESTIONS
        if rule not in asked
    ]
    left_out = report.provenance.get("left_out", {})
    ran = set(report.provenance.get("tests", []))
    others = [n for n in tests() if n not in ran and n not in left_out]
    not_run = [f"{_test(name)} was left out: {why}" for name, why in left_out.items()]
    if report.provenance.get("control", "none") == "none":
        not_run.append(
            "no control: what the same weights at other tokens reach is not known; "
            "--control auto runs one"
        )
    n_all, n_tested = len(heads_of_model(report)), len(tested_heads(report))
    if n_tested < n_all:
        untested = f"{n_all - n_tested} of {n_all} heads were not tested one by one"
        not_run.append(untested)
    not_run += [f"not asked for: {_test(name)}" for name in others]
    ablated = zero_ablation_only(report.statistics)
    return section(
        "What was not tested, and limits",
        bullets([*unasked, *not_run]) if unasked or not_run else None,
        tag("h3", "Limits"),
        bullets([*LIMITS, *_of_texts(report), *([ablated] if ablated else [])]),
        id="limits",
    )


def _test(name: str) -> str:
    return f"{name} ({DOES[name]})" if name in DOES else name


def _of_texts(report: AuditResult) -> list[str]:
    """What happened to texts before they were read."""
    said = report.provenance
    notes = []
    if said.get("truncated"):
        notes.append(
            f"{said['truncated']} texts were cut to what the model can read; what was "
            "cut is not tested."
        )
    if said.get("skipped_empty"):
        notes.append(f"{said['skipped_empty']} empty texts were left out.")
    if said.get("unknown_tokens"):
        share = said["unknown_tokens"]
        notes.append(f"{share:.1%} of the tokens are unknown to the model's tokenizer.")
    return notes


def glossary(parts: Sequence[object]) -> Html | None:
    """The terms that occur in what stands above, with what they mean."""
    text = re.sub("<[^>]*>", " ", " ".join(str(part) for part in parts if part))
    known = {
        term: meaning
        for term, meaning in GLOSSARY.items()
        if re.search(rf"(?<!\w){re.escape(term)}", text, re.IGNORECASE)
    }
    if not known:
        return None
    pairs = [[tag("dt", term), tag("dd", said)] for term, said in known.items()]
    return section("What the words mean", tag("dl", *pairs), id="glossary")
