"""Specifications of data: columns by their usual names, and dates that stay texts."""

import json

from hf_attnprobe import Data
from hf_attnprobe.data.specs import Answers, make_answers
from tests.helpers.error_messages import refused
from tests.helpers.tiny_language_models import ROWS


def test_dates_of_json_stay_texts(tmp_path):
    row = {"context": "A passage.", "question": "When?", "answer": "2020-01-31"}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    read = Answers(str(tmp_path / "data.jsonl")).load_examples()
    assert read["answer"][:] == ["2020-01-31"]


def test_plain_data_has_its_columns_by_their_usual_names():
    data = Data(ROWS, test_limit=1)
    assert make_answers(data) == Answers(ROWS, test_limit=1)
    given = Answers(ROWS, units="word")
    assert make_answers(given) is given
    refused(
        "text_column is not an option for passages with questions",
        make_answers,
        Data(ROWS, text_column="context"),
    )
