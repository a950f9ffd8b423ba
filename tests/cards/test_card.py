"""Model cards: they parse back to the same results in both formats, and keep what a user wrote."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.cards.card import (
    BEGIN_COMMENT,
    END_COMMENT,
    PublishedRows,
    extract_user_text,
    merge_remote_metadata,
    read_card,
    render_part,
    render_rows_readme,
    update_readme,
)
from hf_attnprobe.cards.metadata import (
    AuditSummary,
    CardContent,
    Checkpoint,
    DatasetReference,
    build_eval_results,
    build_metadata,
)
from hf_attnprobe.statistics.grades import Answer
from tests.helpers.error_messages import refused, refuses
from tests.helpers.sample_cards import CONFIG, RECORD, card, check_plain, finding, names, reread


USERS = """---
license: mit
tags: [mine, attention]
widget:
- text: "hello"
model-index:
- name: theirs
  results:
  - task: {type: text-classification}
    dataset: {name: Other, type: other/data}
    metrics:
    - {type: accuracy, value: 0.9}
---
# My model

Words of the user, with a table | a | b |
"""


def test_a_card_counts_prompts_where_prompts_were_audited():
    asked = {"prediction": {"kind": "answer", "name": "the tokens of the answer"}}
    audit = replace(card(finding()).audits[0], n_texts=1, provenance=asked)
    said = update_readme(None, replace(card(), audits=(audit,)))
    assert "Audit of 1 prompt from" in said and "Audit of 40 texts from" in update_readme(
        None, card(finding())
    )
    one, other = (replace(audit, answer=answer) for answer in (Answer.PARTLY, Answer.NO))
    for audits, may in (((one,), "Only with a warning: "), ((one, other), "No.**")):
        assert f"shown to users? **{may}" in update_readme(None, replace(card(), audits=audits))


def test_a_card_states_which_epoch_was_saved():
    with_validation = {**RECORD, "n_texts": {"train": 9, "validation": 3}, "n_epochs": 2}
    without_validation = {**with_validation, "n_texts": {"train": 9}, "data": {"train": "ab"}}
    text = update_readme(None, card(record=with_validation))
    assert "The weights of the epoch with the highest validation score were saved.\n" in text
    text = update_readme(None, card(record=without_validation))
    assert (
        "The weights of the last epoch were saved, because there were no validation texts.\n"
        in text
    )


# --- the results -------------------------------------------------------------------


def test_front_matter_of_other_kinds(tmp_path):
    """Kept where it can be; else refused in one line."""
    for front in OTHER_FRONTS:
        before = f"---\n{front}\n---\nmine\n" if front else "# Mine\n\nwords\n"
        after = update_readme(before, card(finding()))
        read = reread(after, tmp_path)
        assert read.data.eval_results == build_eval_results(card(finding()))
        for key, value in (yaml.safe_load(front) or {}).items():
            held = read_card(after).data[key]
            assert held[:1] == value if key == "tags" else held == value
        assert extract_user_text(read_card(after)) == read_card(before).text.strip()
    for front in ("a: [", "- a\n- b", "just words"):
        with refuses(r"front matter of README\.md is not valid YAML: .*\. Correct the text"):
            update_readme(f"---\n{front}\n---\nmine\n", card())
    for body in (
        BEGIN_COMMENT,
        END_COMMENT,
        f"{END_COMMENT}\n{BEGIN_COMMENT}",
        f"{BEGIN_COMMENT}{END_COMMENT}" * 2,
    ):
        refused("must contain one comment", update_readme, f"mine\n{body}\nmine\n", card())


def test_the_cards_here_parse_and_are_as_the_command_writes_them():
    """The front matter and the sentences say the same numbers; what does not need the checkpoint is as it is written now."""
    listed = (CARDS[0].parents[1] / "README.md").read_text()
    assert len(CARDS) >= 6
    written = render_part(card(finding()))
    limits = written.split("## Limits")[1].split("## Citation")[0].splitlines()[1:]
    for file in CARDS:
        read, text = ModelCard.load(file), file.read_text()
        assert f"({file.parent.name}/README.md)" in listed
        assert read.data.model_name == file.parent.name
        told = [r for r in read.data.eval_results if r.metric_type == "attention_faithfulness"]
        assert told and "accuracy" in {r.metric_type for r in read.data.eval_results}
        for r in told:
            low, high = r.metric_args["ci95"]
            shown = f"{r.metric_value:z.2f} [{low:z.2f}, {high:z.2f}]"
            of_question = r.metric_name.removeprefix("Attention: ").capitalize()
            (said,) = re.findall(rf"^- {of_question}: .*$", text, re.MULTILINE)
            assert said.startswith(f"- {of_question}: {r.metric_args['answer']}")
            assert shown in said or of_question == "Uniqueness"  # said of what is not unique
        check_plain(read.data.to_dict())
        folder = re.compile(r"(?<![:/\w.])/(home|root|tmp|work|usr|Users)/")
        assert not folder.search(text)
        assert str(read) == text
        assert text.startswith("---\n") and text.endswith(f"{END_COMMENT}\n")
        for title in re.findall("^## .*$", written, re.MULTILINE):
            of_a_transformer = title.replace("Intended use", "Use of its attention")
            assert f"\n{title}\n" in text or f"\n{of_a_transformer}\n" in text
        assert f"\n{BEGIN_COMMENT}\n" in text and all(line in text for line in limits)


def test_a_card_without_an_audit_says_so():
    text = update_readme(None, card())
    assert "Not audited yet" in text and "attention_faithfulness" not in text
    assert "Do not show its attention" in text


def test_a_card_says_what_a_reader_asks_and_no_folder_of_a_machine():
    text = update_readme(None, card(finding()))
    for said in (
        "BiLSTM with 8 units",
        "`neg`, `pos`",
        "`jain-wallace`",
        "20 texts",
        "seed `3`",
        "trust_remote_code=True",
        "attnprobe audit --model bilstm --dataset sst",
        "0.22 [0.20, 0.24]",
        "Intended use",
        "arXiv:1902.10186",
    ):
        assert said in text, said
    assert "somebody" not in text and "`glove.txt`" in text and "`base`" in text


def test_the_command_of_a_card_runs_or_says_what_is_to_be_filled_in():
    known = "attnprobe audit --model m --dataset claims.csv --text-column claim"
    audit = AuditSummary(
        DatasetReference.from_name("claims.csv"), "test", 40, 0, None, command=known
    )
    record = {"dataset": "claims.csv"}
    text = render_part(CardContent(Checkpoint("m", CONFIG, record), (audit,)))
    assert f"{known} --output-dir audit" in text and f"Command: `{known}`" in text
    for data in ("data given in memory", "claims.csv"):
        unnamed = replace(audit, data=DatasetReference.from_name(data), command="")
        text = render_part(CardContent(Checkpoint("m", CONFIG, record), (unnamed,)))
        assert "attnprobe audit --model m --dataset DATA --output-dir audit" in text
        assert "Replace DATA with a data set's name" in text and "Command: " not in text


def test_a_model_of_pairs_is_shown_with_a_pair():
    audit = AuditSummary(
        DatasetReference.from_name("claims.csv"), "test", 40, 0, None, has_pairs=True
    )
    plain = CardContent(Checkpoint("m", CONFIG, RECORD))
    assert 'tokenizer("a first text", return' in render_part(plain)
    for pairs in (replace(plain, audits=(audit,)), card(config=CONFIG | {"query_encoder": True})):
        assert 'tokenizer("a first text", "and a second one", return' in render_part(pairs)


def test_only_a_model_of_the_papers_data_is_made_to_study_attention():
    assert "## Intended use\n\nThis model is for research on attention" in render_part(card())
    own = render_part(card(record={"dataset": "claims.csv"}))
    assert "This model is for research on attention" not in own and "Intended use" not in own
    assert "## Use of its attention\n\n**Do not show its attention" in own
    bert = {"architectures": ["BertForSequenceClassification"], "model_type": "bert"}
    assert "This model is for research on attention" not in render_part(card(config=bert))


def test_the_deceiving_and_the_adversary_say_what_they_are():
    record = {"deceives_on": ["he", "she"], "start": "base", "weight": 1.0}
    assert "Trained to hide its attention" in render_part(card(record=record))
    assert "as an adversary" in render_part(card(record={"lambda": 0.1, "seed": 1}))


# --- a user's own text --------------------------------------------------------------


@pytest.mark.parametrize("eol", ["\n", "\r\n"])
def test_what_a_user_wrote_stays(eol, tmp_path):
    before = USERS.replace("\n", eol)
    once = update_readme(before, card(finding()))
    assert read_card(once).text.startswith(read_card(before).text)
    read = reread(once, tmp_path)
    assert read.data.license == "mit" and read.data["widget"] == [{"text": "hello"}]
    assert read.data.tags[:2] == ["mine", "attention"] and "hf_attnprobe" in read.data.tags
    assert read.data.model_name == "theirs"
    assert read.data.eval_results[0].metric_value == 0.9
    assert read.data.eval_results[1:] == build_eval_results(card(finding()))
    assert update_readme(once, card(finding())) == once
    # Then it is audited again: our numbers are replaced, theirs are not.
    twice = update_readme(once + f"{eol}A last word.{eol}", card(finding(value=0.5)))
    assert twice.endswith(f"A last word.{eol}") and twice.count(BEGIN_COMMENT) == 1
    values = [r.metric_value for r in reread(twice, tmp_path).data.eval_results]
    assert values == [0.9, 0.75, 0.5, 0.5]
    if eol == "\r\n":
        assert not re.search("(?<!\r)\n", twice)


printed = names.filter(str.isprintable)  # PyYAML reads some line ends back as spaces


@settings(max_examples=60)
@given(body=st.text(max_size=60), front=st.dictionaries(printed, printed, max_size=3))
def test_any_text_and_any_front_matter_stay(body, front):
    body = body.replace("\r", "").encode("utf-8", "replace").decode()
    front = {key: value for key, value in front.items() if key not in vars(build_metadata(card()))}
    text = f"---\n{yaml.safe_dump({'mine': 1, **front})}---\n{body}"
    found = read_card(update_readme(text, card(finding())))
    assert found.text.startswith(body.rstrip("\r\n"))
    assert {"mine": 1, **front}.items() <= vars(found.data).items()


OTHER_FRONTS = [
    "",
    "{license: mit, a: {b: 1}}",
    "a: x\na: y",
    "a: &k [1]\ntags: [x]\nb: *k",
    "tags: &k [x]\nb: *k",
]


def test_what_only_the_other_version_says_is_taken_over(tmp_path):
    here = update_readme(None, card(finding()))
    read = reread(merge_remote_metadata(here, USERS), tmp_path)
    assert read.data.license == "mit" and read.text == read_card(here).text
    values = [r.metric_value for r in read.data.eval_results]
    assert sorted(values) == [0.22, 0.5, 0.75, 0.9]


# --- every training writes one ------------------------------------------------------


def test_a_trained_checkpoint_has_a_card_whose_code_runs(
    cli, reviews_folder, tmp_path, monkeypatch, capsys
):
    """Here; in a fresh process without the package in ``test_publishing.py``."""
    done = cli(
        "train", "--dataset", reviews_folder, "--output-dir", tmp_path / "model",
        "--epochs", 1, "--embedding-size", 8, "--encoder-size", 4, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    text = (tmp_path / "model" / "README.md").read_text()
    read = reread(text, tmp_path)
    scores = json.loads(done.out)["metrics"]
    told = {f"{r.dataset_split}_{r.metric_type}": r.metric_value for r in read.data.eval_results}
    assert told == scores
    assert "train 160 texts" in text and str(tmp_path) not in text
    assert f"`{reviews_folder.name}`" in text
    code = re.search("```python\n(.*?)```", text, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(code, {})
    probs = [float(line.split(": ")[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(probs) == 2 and sum(probs) == pytest.approx(1, abs=2e-3)


# --- the cards in the repository ----------------------------------------------------

CARDS = sorted((Path(__file__).parents[2] / "model_cards").glob("*/README.md"))


def test_a_card_about_images_says_patches_and_images():
    answered = finding(
        sentence="Importance: yes (0.9). Words with more attention matter more in these texts.",
        rule="importance",
    )
    of_texts = card(answered)
    (audit,) = of_texts.audits
    audit = replace(audit, provenance={"instance": "patch", "input": "image"})
    of_images = replace(of_texts, audits=(audit,))
    rendered = update_readme(None, of_images)
    assert "Patches with more attention matter more in these images." in rendered
    assert "Audit of 40 images from" in rendered
    assert "All numbers on this page hold for these images" in rendered
    (result,) = [r for r in build_eval_results(of_images) if "measure" in (r.metric_args or {})]
    assert "when each patch is exchanged for a patch of an image" in result.metric_args["measure"]


def test_published_rows_about_images_are_counted_as_images():
    data = DatasetReference.from_name("images")
    provenance = {"instance": "patch", "input": "image"}
    rows = PublishedRows("all", data, "test", 40, 40, 30, None, {}, provenance=provenance)
    rendered = render_rows_readme("acme/rows", "acme/model", [rows], None)
    assert "40 images from" in rendered and "the answer is based on 30 images" in rendered


def test_a_card_about_bags_renames_no_name_of_the_user():
    config = CONFIG | {
        "inputs": "features",
        "feature_size": 8,
        "id2label": {"0": "text", "1": "no text"},
    }
    rendered = update_readme(None, card(name="word", config=config))
    assert "- Classes: `text`, `no text`" in rendered
    assert "An encoder turns the instances into states" in rendered
    assert "All numbers on this page hold for these bags" in rendered
    assert 'name = "word"' in rendered and "--model word" in rendered
