"""A calibration as one self-contained HTML file. Pure."""

from hf_attnprobe.calibration.report import (
    OPENING,
    TOLD,
    Calibration,
    by_construct,
    by_rule,
    by_texts,
    reasons,
    to_json,
)
from hf_attnprobe.page.document import document
from hf_attnprobe.page.elements import bullets, paragraphs, section, table
from hf_attnprobe.page.html import tag


TITLE = "How often the verdict is wrong"


def calibration_page(found: Calibration) -> str:
    """The page of a calibration."""
    drawn = (
        f"{found.draws} models of each kind, seeds from {found.seed} on, "
        f"{', '.join(map(str, found.texts))} texts; {found.seconds:.0f} s of one processor."
    )
    plain = [line.replace("`", "") for line in OPENING]
    told = table(*by_construct(found), caption=f"On {found.texts[-1]} texts")
    kinds = [
        [tag("h3", name), *paragraphs([f"{says}."]), bullets(truths)]
        for name, says, truths in reasons(found)
    ]
    return document(
        TITLE,
        tag("header", tag("h1", TITLE), *paragraphs([*plain, drawn])),
        section("By question", table(*by_rule(found), caption="Errors"), id="rules"),
        section("What was told", *paragraphs([TOLD]), told, id="told"),
        section(
            "Right answers by number of texts",
            table(*by_texts(found), caption="Power"),
            id="texts",
        ),
        section("What is true, and why", *kinds, id="truths"),
        data=to_json(found),
    )
