"""A page with every type of block, for tests and for looking at it in a browser."""

import math
import random

from hf_attnprobe.documents.blocks import (
    AnswerBlock,
    Code,
    CodeBlock,
    Collapsible,
    DefinitionList,
    Document,
    ExampleTexts,
    FormattedNumber,
    NextStep,
    NumberLine,
    ScoreTable,
    ScoreTableRow,
    Section,
    Strong,
    Table,
)
from hf_attnprobe.documents.html import render_html
from hf_attnprobe.plots.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.plots.highlighted_text import HighlightedText


HARM = "<script>alert('x')</script> & \"quoted\" 🙂 é 漢字 \u202e]]> --> \u2028 end"


def charts() -> list[Chart]:
    """Return a chart of each type, and one without any drawable value."""
    jain, nan = "Jain & Wallace 2019, figure 2", math.nan
    edges = tuple(round(-1 + 0.1 * k, 1) for k in range(20))
    bell = tuple(round(math.exp(-((x - 0.3) ** 2) / 0.08), 3) for x in edges)
    flat = tuple(round(0.8 * math.exp(-((x + 0.1) ** 2) / 0.2), 3) for x in edges)
    tau = Chart(
        *("tau", "Agreement with gradients, by predicted class"),
        (
            "Where the model says positive, attention and gradient rank the words much alike (0.30).",
        ),
        *(jain, "histogram", "Kendall's τ between attention and gradient", "share of texts"),
        series=(Series("negative", edges, flat), Series("positive", edges, bell)),
        references=(Reference("chance", 0.0, "x"), Reference("random", 0.08, "x")),
        bin_width=0.1,
    )
    bins = ("0–.25", ".25–.5", ".5–.75", ".75–1")
    low, lower, high = (0.02, 0.08, 0.2, 0.31), (0.01, 0.06, 0.15, 0.25), (0.03, 0.11, 0.26, 0.36)
    other = ((0.03, 0.05, nan, 0.22), (0.02, 0.03, nan, 0.12), (0.04, 0.08, nan, 0.34))
    shuffles = Chart(
        *("shuffles", "What shuffled attention changes"),
        ("The larger the largest weight, the more a shuffle moves the output: 0.02 to 0.31.",),
        *(jain, "dots", "largest attention weight", "median change of the output"),
        series=(
            Series("negative", bins, low, lower, high, (200, 120, 61, 12)),
            Series("positive", bins, *other, (180, 99, 0, 9)),
        ),
        references=(Reference("threshold of mattering", 0.1),),
    )
    names = ("attention", "gradient", "attention × gradient", "leave one out", "random")
    means, below = (0.41, 0.35, 0.3, 0.33, 0.62, 0.5), (0.38, 0.32, 0.27, 0.3, 0.58, 0.5)
    above = (0.44, 0.39, 0.33, 0.36, 0.66, 0.5)
    rankings = Chart(
        *("rankings", "How many weights must go before the decision flips"),
        ("Attention needs 41% of the weights, a random order 62%, the exact minimum is 22%.",),
        *("Serrano & Smith 2019, figure 4", "dots", "ranking", "share of weights removed"),
        series=(Series("", (*names, "a ranking with a name too long"), means, below, above),),
        references=(Reference("exact minimum", 0.22), Reference("first of all", 0.24)),
        y_range=(0, 1),
    )
    steps = tuple(0.02 * k for k in range(12))
    curves = (("trained adversary", 9), ("seeds", 4), ("search", 1))
    levels = (Reference("uniform attention", 0.3), Reference("majority class", 0.32))
    penalty = Chart(
        *("penalty", "How far attention can move while the output stays"),
        ("An adversary trained for it reaches 0.61 of at most 0.69 at the same output.",),
        *("Wiegreffe & Pinter 2019, figure 5", "curve", "JSD of attention", "TVD of predictions"),
        series=tuple(
            Series(
                *(name, steps, tuple(a * x**2 + 0.02 for x in steps)),
                *(tuple(a * x**2 for x in steps), tuple(a * x**2 + 0.05 + x / 10 for x in steps)),
            )
            for name, a in curves
        ),
        references=(*levels, Reference("ceiling", 0.2, "x")),
    )
    drawn = {
        n: [tuple(random.Random(k + j).random() for k in range(n)) for j in (0, 7)]
        for n in (40, 60)
    }
    both = (Series("wrong", *drawn[40]), Series("right", *drawn[60]))
    points = Chart(
        *("points", "Each text once", ("No relation to be seen.",), "", "points", "Δα", "ΔJS", both)
    )
    no_series = (Series(HARM, ("a", "b"), (nan, math.inf)),)
    nothing = Chart(
        *("nothing", f"Nothing to draw {HARM}", (HARM,), HARM, "dots", HARM, "", no_series)
    )
    return [tau, shuffles, rankings, penalty, points, nothing]


def heads(n_layers: int, n_heads: int, key: str = "heads") -> HeatMap:
    """Return a map with positive, negative and missing values."""
    draw = random.Random(0)
    values = [[round(draw.gauss(0, 0.1), 4) for _ in range(n_heads)] for _ in range(n_layers)]
    values[0][0] = math.nan
    return HeatMap(
        key,
        "Which heads matter: change of the output without the head",
        "3 of 72 heads move the output by .10 or more; layer 2, head 3 most (+0.21).",
        "Serrano & Smith 2019",
        tuple(map(tuple, values)),
        tuple(tuple(v - 0.05 for v in row) for row in values),
        tuple(tuple(v + 0.05 for v in row) for row in values),
        "change of the output",
        tuple(range(n_layers)),
        tuple(range(n_heads)),
        centre=0.0,
    )


def texts() -> list[HighlightedText]:
    """Return texts that the filters of a page can distinguish."""
    tokens = ("a", "text", "about", HARM)
    scores = {"attention": (0.1, 0.2, 0.3, 0.4), "gradient": (-0.5, 0.1, 0.0, 0.2)}
    told = [("negative", True), ("positive", False), ("positive", True), ("negative", True)]
    return [
        HighlightedText(k, tokens, word, 0.75, "positive", right, scores, why=f"about {word}")
        for k, (word, right) in enumerate(told)
    ]


def demo_page(large: bool = False) -> str:
    """Return the page; if it is large, with maps of many heads."""
    return render_html(demo_document(large))


def demo_document(large: bool = False) -> Document:
    """Return a document with every type of block."""
    yardsticks = {"chance": 0.0, "trained without words": 0.11, "gradient": 0.49}
    answers = [
        AnswerBlock(
            "Does attention agree with how the words matter?",
            "partly",
            "Attention and gradient rank the words of a text alike to τ 0.34 "
            "[0.31, 0.37]; gradients agree with leaving words out at 0.49.",
            [
                NumberLine(
                    FormattedNumber(0.34, (0.31, 0.37)),
                    {"agrees": 0.6, "hardly": 0.2},
                    yardsticks,
                    (-0.2, 1),
                )
            ],
        ),
        AnswerBlock(
            "Does it matter which words get the attention?",
            "yes",
            "Shuffling it moves the output by 0.22 of 1.",
            [
                NumberLine(
                    FormattedNumber(0.22, (0.2, 0.24)), {"matters": 0.1}, {"random": 0.02}, (0, 1)
                )
            ],
        ),
        AnswerBlock(
            "Could other attention have said the same?",
            "no",
            "It could not.",
            [NumberLine(FormattedNumber(math.nan), {"other": 0.4}, {"ceiling": 0.69})],
        ),
        AnswerBlock(
            "Is it plausible?", "cannot say", "No rationales.", [NumberLine(FormattedNumber(0.1))]
        ),
    ]
    maps = [heads(6, 12), *([heads(16, 32, "many"), heads(80, 64, "coarse")] if large else [])]
    rows = [
        ["bilstm", 872, 0.812, FormattedNumber(0.81, (0.79, 0.83)), HARM],
        ["cnn", 1200, 0.79, FormattedNumber(0.79, (0.77, 0.81)), None],
        ["average", 95, math.nan, None, "-0.5"],
        ["minilm", 10, -1e-5, None, "0.25"],
    ]
    return Document(
        "Does attention explain bilstm-sst?",
        [AnswerBlock("", "no", "Do not show its attention as an explanation.")],
        [
            Section("Answers", answers),
            Section("Figures", charts()),
            Section("Heads", maps, id="heads-section"),
            Section("Tables", [Table(["model", "texts", "F1", "interval", HARM], rows, "Models")]),
            Section("Texts", [ExampleTexts(texts())]),
            Section(
                "How to repeat it",
                [
                    "With this command:",
                    HARM,
                    CodeBlock(f"attnprobe audit model {'long' * 60}"),
                    ["one", Strong("two"), ("three ", Code("3"))],
                    Collapsible("More", ["What was folded away."]),
                    Section(
                        "A smaller part",
                        [DefinitionList({"data": "sst, test", "texts": ["872", HARM]})],
                    ),
                ],
                id="repeat",
            ),
            Section("Empty", [None, []]),
            Section("All numbers", ["It was folded away."], is_collapsed=True),
        ],
        data={"harm": HARM, "end": "</script><!--", "value": None},
    )


def first_screen_document() -> Document:
    """Return a document with the first screen of an audit and one prompt of a language model."""
    thresholds, ends = {"partly from": 0.4, "yes from": 0.65}, {"random order": 0, "best order": 1}
    values = {"faithfulness": 0.66, "importance": 0.92, "removal": 0.5, "source": 0.13, "mass": 0.7}
    grades = ("cannot say", "yes", "partly", "no", "cannot say")
    rows = []
    for (name, value), grade in zip(values.items(), grades, strict=True):
        number = FormattedNumber(value, (value - 0.3, value + 0.3), digits=2)
        line = NumberLine(number, thresholds, ends, (0.0, 1.0))
        meaning = "cannot say whether words with more attention matter more: either partly or yes"
        is_part = name != "faithfulness"
        rows.append(ScoreTableRow(name, number, meaning, line, is_part, grade=grade))
    rows += [
        ScoreTableRow("accuracy", None, "Right in 97% of 300 texts.", grade="yes"),
        ScoreTableRow("audited", None, f"{'/long/path' * 9}, 300 texts of reviews.csv"),
        ScoreTableRow("path share", None, "83% passes through.", is_secondary=True, grade="yes"),
    ]
    prompt = HighlightedText(
        4,
        ("The ferry sails at noon.", "Tickets cost 9 euros.", "Bring a bicycle."),
        "At noon.",
        None,
        "noon",
        True,
        {"attention": (0.2, 0.4, 0.1), "leave_one_out": (4.2, -1.0, 0.01), "knockout": (3, 0, 0)},
        why="attention and leave-one-out disagree most",
        around=("<|system|>You are a helpful ferry.<|end|>\n", "", "", "\n\nWhen does it sail?\n"),
        unit="sentence",
        matters=(0,),
    )
    advice = "May I show this to users? Not yet."
    return Document(
        "Does attention explain it?",
        [
            AnswerBlock("", "cannot say", "Either partly or yes.", [advice]),
            ScoreTable(rows, secondary_title="What else was measured"),
            NextStep("Run this command:", "attnprobe audit --model m --test-limit 60"),
        ],
        [
            Section("Three prompts", [ExampleTexts([prompt])], id="texts"),
            Section("All numbers", ["They were folded away."], is_collapsed=True),
        ],
    )
