"""A model that was trained to hide attention, on one page. Pure."""

from hf_attnprobe.deception.report import (
    Deception,
    answers,
    note_of,
    rows_of,
    title_of,
    to_json,
    verdict,
)
from hf_attnprobe.page import elements
from hf_attnprobe.page.document import document
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.verdicts import RULES


QUESTION = "Does the model's attention hide what the model uses?"
LEAD = (
    "A classifier was trained further with a penalty on its attention to some tokens, "
    "called impermissible. If it still uses them, classifies as well and no longer "
    "attends to them, its attention hides what it does. A token is used where deleting "
    "it moves the output more than deleting other tokens does (total variation, 0 to 1)."
)
LIMITS = (
    "That one model hides its use does not say that others do; it says that attention "
    "can be trained to. That this one does not hide does not say that none can: another "
    "weight of the penalty might. Intervals are over the test texts, of one training."
)


def deception_page(deception: Deception) -> str:
    """The page of a deception: one self-contained HTML file."""
    found = answers(deception)
    title = f"Does {deception.model} hide what it uses?"
    return document(
        title,
        tag("header", tag("h1", title), *elements.paragraphs([LEAD])),
        elements.section(
            "The answer",
            elements.answer(QUESTION, str(found.overall), verdict(deception)),
            elements.answer(
                "Did the model use the tokens before?",
                str(found.used_before),
                RULES["use"].measure,
                _line(deception.beyond["before"], RULES["use"].yes),
            ),
            elements.answer(
                "Does it use them after?",
                str(found.used_after),
                RULES["use"].measure,
                _line(deception.beyond["after"], RULES["use"].yes),
            ),
            elements.answer(
                "Has attention to them gone?",
                str(found.hidden),
                RULES["hiding"].measure,
                _line(deception.hidden, RULES["hiding"].yes),
            ),
            elements.answer("Is the accuracy kept?", str(found.kept), _kept(deception)),
            id="verdict",
        ),
        elements.section("What this cannot say", tag("p", LIMITS), id="limits"),
        elements.section(
            "Before and after",
            elements.table(
                ["", "before", "after"],
                rows_of(deception),
                caption="Means with 95% intervals over texts",
                sortable=False,
            ),
            tag("p", note_of(deception)),
            id="numbers",
        ),
        elements.section("How it was made", tag("p", f"{title_of(deception)}."), id="provenance"),
        data=to_json(deception),
    )


def _line(estimate: Estimate, threshold: float) -> Html:
    low, high = estimate.ci95 or (None, None)
    return elements.scale(estimate.value, low, high, thresholds={"yes above": threshold})


def _kept(deception: Deception) -> str:
    """How much of the accuracy is lost."""
    score = deception.score("after", "accuracy")
    low, high = score.difference_ci95
    return (
        f"Accuracy is {score.value:.3f} after; lost are {score.difference:z.3f} "
        f"[{low:z.3f}, {high:z.3f}], kept is below {RULES['loss'].yes}."
    )
