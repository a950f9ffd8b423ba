"""Which sentence does an answer rest on, and may its attention be shown for it?

python examples/language_model.py [MODEL]  # a folder or Hub id; default: SmolLM2-135M-Instruct

Asks a language model one question about each of the passages in ``passages.jsonl`` (news, manuals,
contracts, conversations, tables in prose, written for this example), prints the verdict, a prompt
and a line for each domain, and writes ``language_model.html``, which took SmolLM2 three minutes of a
processor. Offline with a folder.
"""

import json
import sys
from pathlib import Path

import pandas as pd

from hf_attnprobe import Answers, Report, audit


PASSAGES = Path(__file__).with_name("passages.jsonl")
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else SMOLLM2
    rows = [json.loads(line) for line in PASSAGES.read_text("utf-8").splitlines()]
    report = audit(model, Answers(rows, max_new_tokens=24))
    print(report)
    print(report.examples[0])
    print(by_domain(report, rows).to_string())
    report.save_html("language_model.html")


def by_domain(report: Report, rows: list[dict[str, str]]) -> pd.DataFrame:
    """Counts prompts by domain: the right answers, and what finds the sentence they rest on.

    Returns:
        ``prompts``, ``right`` (what is expected stands in the answer), and in how many prompts
        ``knockout`` and ``attention`` put first the sentence whose deletion costs most.
    """
    units = report.sentences()
    first = {
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
        texts[name] = first[name] == first["leave_one_out"]
    counted = texts.groupby("domain", sort=False).sum()
    counted.insert(0, "prompts", texts.domain.value_counts())
    return counted


if __name__ == "__main__":
    main()
