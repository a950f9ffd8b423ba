"""The sections of a card about faithfulness: never more than an audit says."""

from collections.abc import Mapping

from hf_attnprobe import markdown
from hf_attnprobe.cards.contents import AuditedOn, Card
from hf_attnprobe.cards.names import LONGEST, code, prose, shown, versions
from hf_attnprobe.statistics.verdicts import RULES, Answer, Finding


NOT_AUDITED = (
    "Not audited yet: nothing is known of whether its attention explains its predictions. "
    "Do not show its weights as an explanation before that is tested."
)
QUESTION = "Does its attention explain its predictions?"
INTENDED = (
    "To study attention: to compare what attention shows with what the model uses, and to "
    "repeat the experiments of the papers below. It is not made for decisions about "
    "people, nor for texts unlike those it was trained on."
)
LIMITS = (
    "Attention weights say how states are mixed, not why the model decides. A state holds "
    "what the encoder took from other tokens too, so weight on a token is not weight on "
    "that word.",
    "Every number here is of these texts and this one training. Another seed, other texts or "
    "another split may give another answer.",
    "Rankings by leaving tokens out, gradients and erasure are yardsticks that part among "
    "themselves; none of them is the truth. Texts with tokens erased are unlike those of "
    "the training.",
    "An answer other than yes means: do not show the weights as the reason for a "
    "prediction. An answer of yes covers the questions that were asked, no more.",
)
PAPERS = {
    "jain-wallace": "Jain & Wallace 2019, Attention is not Explanation, "
    "[arXiv:1902.10186](https://arxiv.org/abs/1902.10186)",
    "serrano-smith": "Serrano & Smith 2019, Is Attention Interpretable?, "
    "[arXiv:1906.03731](https://arxiv.org/abs/1906.03731)",
    "wiegreffe-pinter": "Wiegreffe & Pinter 2019, Attention is not not Explanation, "
    "[arXiv:1908.04626](https://arxiv.org/abs/1908.04626)",
    "deyoung": "DeYoung et al. 2020, ERASER, [arXiv:1911.03429](https://arxiv.org/abs/1911.03429)",
    "pruthi": "Pruthi et al. 2020, Learning to Deceive with Attention-Based Explanations, "
    "[arXiv:1909.07913](https://arxiv.org/abs/1909.07913)",
    "tutek-snajder": "Tutek & Šnajder 2020, Staying True to Your Word, "
    "[arXiv:2005.09379](https://arxiv.org/abs/2005.09379)",
    "mohankumar": "Mohankumar et al. 2020, Towards Transparent and Explainable Attention "
    "Models, [arXiv:2004.14243](https://arxiv.org/abs/2004.14243)",
}


def summary(card: Card) -> list[str]:
    """The answer, before anything else is said."""
    if not card.audits:
        return ["", f"**{NOT_AUDITED}**"]
    said = [prose(a.conclusion or f"{QUESTION} No question was answered.") for a in card.audits]
    return ["", *(f"**{sentence}**" for sentence in dict.fromkeys(said))]


def faithfulness(card: Card) -> list[str]:
    """What the audits found: every number with interval, yardstick and n."""
    if not card.audits:
        return markdown.section(QUESTION, [NOT_AUDITED])
    lines: list[str] = []
    for audit in card.audits:
        lines += ["", *_of_audit(card, audit)]
    return markdown.section(QUESTION, lines[1:])


def _of_audit(card: Card, audit: AuditedOn) -> list[str]:
    data = card.known(audit.data)
    where = f"On {audit.n:,} texts of {code(data.name)}"
    where += f" (split {code(audit.split)})" if audit.split else ""
    said = prose(audit.conclusion) if audit.conclusion else "No question was answered."
    lines = [f"**{where}:** {said}", ""]
    lines += markdown.bullets(f"CONTRADICTION, report it: {prose(s)}" for s in audit.contradictions)
    lines += markdown.bullets(prose(f.sentence) for f in audit.findings)
    lines += markdown.bullets(prose(note) for note in audit.notes)
    if audit.findings:
        lines += ["", *_table(audit.findings)]
    lines += ["", *markdown.bullets(_besides(audit))]
    return lines


def _table(findings: tuple[Finding, ...]) -> list[str]:
    """What was graded, number by number."""
    rows = []
    for f in findings:
        rule, group = RULES.get(f.rule), _group(f)
        yardsticks = ", ".join(
            f"{prose(shown(name))} {markdown.number(value, digits=2)}"
            for name, value in f.yardsticks.items()
        )
        rows.append(
            [
                prose((rule.question if rule else f.rule) + group),
                str(f.answer),
                prose(rule.measure if rule else ""),
                markdown.interval(f.value, f.ci95, digits=2),
                yardsticks or markdown.MISSING,
                f.n,
            ]
        )
    head = ["question", "answer", "what is graded", "number [95%]", "beside", "texts"]
    return markdown.table(head, rows)


def _group(finding: Finding) -> str:
    return "" if finding.group == "all" else f" (texts predicted {shown(finding.group)})"


def _besides(audit: AuditedOn) -> list[str]:
    """Control, what was left out, how to repeat it, and where the rows are."""
    known = audit.provenance
    lines = []
    control = known.get("control", "none")
    if control != "none":
        lines.append(f"Control: the same tests on this model with {prose(str(control))}")
    else:
        lines.append("No control was run: what the same weights at other tokens reach is not known")
    left_out = known.get("left_out") or {}
    if isinstance(left_out, Mapping):
        lines += [
            f"Not tested: {shown(name)}, since {prose(shown(reason))}"
            for name, reason in left_out.items()
        ]
    if isinstance(known.get("versions"), Mapping):
        lines.append(f"Seed {audit.seed}; {versions(known['versions'])}")
    if audit.command:
        lines.append(f"Repeat it: {code(audit.command, most=LONGEST)}")
    if audit.rows_url:
        lines.append(f"Every number of every text: [{prose(audit.rows_url)}]({audit.rows_url})")
    return lines


def use_and_limits(card: Card) -> list[str]:
    """Intended use and what attention cannot tell, whatever the numbers."""
    intended = [INTENDED]
    if card.audits and all(audit.answer == Answer.YES for audit in card.audits):
        intended.append(
            "On the texts audited its weights passed every question that decides the verdict."
        )
    else:
        intended.append("**Do not show its attention as an explanation.**")
    return [
        *markdown.section("Intended use", [" ".join(intended)]),
        *markdown.section("Limits of attention as explanation", markdown.bullets(LIMITS)),
    ]


def citations(card: Card) -> list[str]:
    """The papers that architecture, training and tests are from."""
    config, record = card.checkpoint.config, card.checkpoint.record
    keys = ["jain-wallace", "serrano-smith", "wiegreffe-pinter"]
    rules = {f.rule for audit in card.audits for f in audit.findings}
    if "removal" in rules:
        keys.append("deyoung")
    if record.get("deceives_on"):
        keys.append("pruthi")
    if config.get("tying") or config.get("mlm_weight"):
        keys.append("tutek-snajder")
    if config.get("conicity_weight"):
        keys.append("mohankumar")
    lines = [PAPERS[key] for key in keys]
    return markdown.section("Citation", markdown.bullets(lines))
