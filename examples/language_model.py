"""Which sentence does an answer of a language model rest on, and does its attention show it?

Usage: python examples/language_model.py [MODEL]  # a folder or Hub id; default: SmolLM2-135M-Instruct

The script asks one question about each passage in ``passages.jsonl`` (news, manuals, contracts, conversations
and tables, written for this example). It prints the verdict, one prompt and a row for each domain, and writes
``language_model.html``. With SmolLM2 this takes three minutes on one CPU core. With a local folder it runs offline.
"""

import json
import sys
from pathlib import Path

import pandas as pd

from hf_attnprobe import Answers, Report, audit


PASSAGES = Path(__file__).with_name("passages.jsonl")
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main() -> None:
    """Audit the model on all passages, print the results and save the page."""
    model = sys.argv[1] if len(sys.argv) > 1 else SMOLLM2
    rows = [json.loads(line) for line in PASSAGES.read_text("utf-8").splitlines()]
    report = audit(model, Answers(rows, max_new_tokens=24))
    print(report)
    print(report.examples[0])
    print(count_by_domain(report, rows).to_string())
    report.save_html("language_model.html")


def count_by_domain(report: Report, rows: list[dict[str, str]]) -> pd.DataFrame:
    """Count the prompts of each domain, the correct answers, and the sources that are found.

    Returns:
        One row per domain with the columns ``prompts``, ``right`` (the answer contains the expected text),
        ``knockout`` and ``attention`` (number of prompts for which this ranking puts the sentence first whose
        deletion costs the most).
    """
    units = report.sentences()
    first_sentences = {
        name: units.loc[units.groupby("example_id")[name].idxmax()].set_index("example_id").unit
        for name in ("leave_one_out", "knockout", "attention")
    }
    texts = pd.DataFrame(
        {
            "domain": [rows[text.example_id]["domain"] for text in report.examples],
            "right": [text.correct for text in report.examples],
        },
        index=[text.example_id for text in report.examples],
    )
    for name in ("knockout", "attention"):
        texts[name] = first_sentences[name] == first_sentences["leave_one_out"]
    counts = texts.groupby("domain", sort=False).sum()
    counts.insert(0, "prompts", texts.domain.value_counts())
    return counts


if __name__ == "__main__":
    main()
