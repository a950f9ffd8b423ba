"""The first screen: no sentence says more than its number, and an open answer says what to do."""

import dataclasses
import math
import re
import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.documents.blocks import GRADE_MARKS, ScoreTable
from hf_attnprobe.documents.terminal_text import render_text
from hf_attnprobe.reports.audit_document import build_question_block
from hf_attnprobe.reports.first_screen import build_first_screen, recommend_next_step
from hf_attnprobe.reports.report import Report
from hf_attnprobe.reports.verdict import (
    advise_on_display,
    describe_finding,
    explain_open_answer,
    format_answer_reason,
    format_conclusion,
    suggest_total_texts,
    warn_about_precision,
)
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import Answer, grade
from hf_attnprobe.statistics.questions import ANSWER_QUESTIONS, CLASSIFIER_QUESTIONS, Measurement
from hf_attnprobe.statistics.verdicts import RULES, apply_thresholds, conclude, grade_measurement
from hf_attnprobe.statistics.wording import CLASS_WORDING


ON_THE_SCALE = ("faithfulness", "importance", "erasure", "removal", "mass")
STRONG = {
    "faithfulness": "^the words with most attention are mostly those that decide the prediction$",
    "importance": "^words with more attention matter more for the prediction$",
    "erasure": "undermines the decision$",
    "removal": "^the prediction depends on the most attended words$",
    "mass": "^attention is distributed over the words in proportion",
}
"""What may be said from the upper threshold on alone."""
WEAK = {
    "faithfulness": r"^attention is only \d+% of the way from a random order of the words to the best",
    "importance": "hardly shows which words matter",
    "erasure": "(little|no) sooner",
    "removal": "(little|no) more",
    "mass": "much of the attention is on words that do not matter",
}
"""What may be said below the lower threshold alone."""
AT = sorted({t for rule in RULES.values() for t in rule.thresholds.values()})
EDGES = (*AT, *(t - 0.01 for t in AT), *(t + 0.01 for t in AT), 1.0)
"""At and around every threshold."""


def found(rule, value, ends=None, n=100, rules=RULES, **more):
    """A finding as the questions make it."""
    ends = (value - 0.01, value + 0.01) if ends is None else ends
    measured = Measurement(
        Estimate(value, ends, n), "It is so.", more.pop("yardsticks", {}), **more
    )
    return grade_measurement(rule, rules[rule], measured)


def report_of(*findings, n=100, **provenance):
    """A report with these findings alone."""
    asked = {"model": "m", "dataset": "sst", **provenance.pop("asked_for", {})}
    provenance = {"asked_for": asked, "classes": ["neg", "pos"], "tests": [], **provenance}
    return Report("m", get_dataset_name("sst", "test"), n, 0, (), provenance, findings=findings)


def all_yes(value=0.8, **changed):
    """Findings of a model of which all is said."""
    accuracy = {"accuracy": 0.97, "majority": 0.47}
    findings = {rule: found(rule, value) for rule in ON_THE_SCALE}
    findings["accuracy"] = found("accuracy", 0.5, yardsticks=accuracy)
    findings["path_share"] = found("path_share", 0.73)
    findings["effect"] = found("effect", 0.81)
    findings["uniqueness"] = found("uniqueness", 0.37)
    findings |= changed
    return [findings[rule] for rule in RULES if findings.get(rule) is not None]


def test_a_report_says_how_good_the_model_is():
    quality = report_of(*all_yes()).accuracy
    assert {"accuracy": 0.97, "majority": 0.47, "beyond_majority": 0.5}.items() <= quality.items()
    assert report_of(*all_yes(accuracy=None)).accuracy is None


@given(
    rule=st.sampled_from(ON_THE_SCALE),
    low=st.sampled_from(EDGES) | st.floats(-1, 1),
    width=st.sampled_from((0.0, 0.01, 0.3)) | st.floats(0, 1),
    n=st.integers(1, 2000),
    own=st.sampled_from(((), ("faithfulness=.1,.2",), ("faithfulness=.8,.95",))),
)
def test_words_are_those_of_the_number_whatever_thresholds_were_asked(rule, low, width, n, own):
    """The bands are the calibrated ones, so that a low bar makes no strong sentence."""
    high = min(low + width, 1.0)
    one = found(rule, (low + high) / 2, (low, high), n, apply_thresholds(own))
    said = describe_finding(one)
    is_known, rule_of = n >= 30, RULES[rule]
    assert bool(re.search(STRONG[rule], said)) == (is_known and low >= rule_of.yes)
    assert bool(re.search(WEAK[rule], said)) == (is_known and 0 <= high < rule_of.partly)
    assert ("worse than a random order" in said) == (is_known and high < 0)
    if not is_known:
        verb = "is" if n == 1 else "are"
        assert said.endswith(f"there {verb} only {n} of the 30 required texts")
        assert said.startswith("cannot say whether") == (rule != "faithfulness")


@given(
    rule=st.sampled_from(["source", "drop", "erasure", "removal"]),
    value=st.sampled_from((*EDGES, 0.0, -0.21)) | st.floats(-1, 0.39),
    width=st.sampled_from((0.0, 0.01)) | st.floats(0, 0.5),
)
def test_a_little_more_is_said_of_a_number_above_nothing_alone(rule, value, width):
    """And of what stands below it "no more"; below random only where 0 is a random order."""
    one = found(rule, value, (value - width, value + width))
    said, is_no = describe_finding(one), one.answer == Answer.NO
    is_worse = is_no and value + width < 0 and rule != "source"
    assert ("worse than a random order" in said) == is_worse
    assert bool(re.search("little (more|sooner)", said)) == (is_no and value > 0)
    assert bool(re.search("no (more|sooner)", said)) == (is_no and value <= 0 and not is_worse)


@given(
    rule=st.sampled_from(
        (*ON_THE_SCALE, "source", "drop", "order", "path", "effect", "path_share")
    ),
    ends=st.tuples(*[st.sampled_from(EDGES) | st.floats(-1, 1)] * 2).map(sorted),
)
def test_an_open_number_names_every_answer_between_its_ends(rule, ends):
    one = found(rule, sum(ends) / 2, tuple(ends))
    if one.answer != Answer.CANNOT_SAY:
        return
    by_end = [grade(Estimate(end, (end, end), 100), RULES[rule]) for end in ends]
    order = ["no", "partly", "yes"]
    first, last = map(order.index, by_end)
    between = set(order[first : last + 1])
    if RULES[rule].partly == RULES[rule].yes:
        between -= {"partly"}
    said = explain_open_answer(one).partition(":")[0]
    asked = said.replace("anything from no to", "no, partly or")
    assert set(re.findall("no|partly|yes", asked)) == between
    assert f"cannot say ({asked.removeprefix('either ')})" in one.sentence


@given(value=st.sampled_from(EDGES) | st.floats(-1, 2))
def test_a_path_says_how_much_passes_by_its_number(value):
    path = found("path", value)
    said = describe_finding(path)
    amount = {"yes": "most", "partly": "some", "no": "little"}.get(path.answer)
    whole = f"blocking attention to words costs {amount} of what deleting them costs"
    assert (said == whole) == (amount is not None)
    open_question = (
        "cannot say whether blocking attention to words costs as much as deleting them: "
    )
    assert amount or re.match(f"{open_question}(either|anything)", said)


@given(
    right=st.floats(0, 1),
    usual=st.floats(0, 1),
    half=st.floats(0.001, 0.5),
    n=st.integers(30, 2000),
)
def test_an_accuracy_that_is_too_close_to_tell_says_so(right, usual, half, n):
    beyond, shares = right - usual, {"accuracy": right, "majority": usual}
    close = found("accuracy", beyond, (beyond - half, beyond + half), n, yardsticks=shares)
    said = format_answer_reason(all_yes(accuracy=close))
    is_close = beyond - half <= 0 < beyond
    too_close = (
        "The model hardly beats guessing, so it is open whether there is anything to explain; this "
        "takes more texts or a better trained model."
    )
    assert is_close == (said == too_close)
    assert (beyond <= 0) == ("not shown to be better than guessing" in said)


@given(value=st.sampled_from(EDGES) | st.floats(0, 1), n=st.sampled_from((1, 9, 10, 29, 30, 500)))
def test_sentences_beside_the_scale_are_those_of_their_number(value, n):
    flips = {"flips": 0.27}
    effect = found("effect", value, (value, value), n, yardsticks=flips)
    unique = found("uniqueness", value, (value, value), n)
    path = found("path_share", value, (value, value), n)
    text = to_text_of(*all_yes(effect=effect, uniqueness=unique, path_share=path))
    assert (f"changes the output by {value:.0%}" in text) == (n >= 10)
    note = f"{RULES['path_share'].yes:.0%} or more counts"
    # The interval is a single point, so only the number of texts can leave the question open.
    note += "" if n >= 30 else f"; only {n} of the 30 required texts"
    passes = f"{value:.0%} of the decision passes through attention ({note})"
    assert (passes in text) == (n >= 10)
    assert ("cannot say whether a substantial part of the decision" in text.lower()) == (n < 10)
    block = build_question_block(effect, CLASS_WORDING)
    assert (f"only {n} of the 30 required texts" in str(block.sentence)) == (n < 30)
    assert ("27% of the shuffles flip" in text) == (n >= 30 and value < RULES["effect"].yes)
    far = f"{1 - value:.0%} of the maximum distance away"
    is_yes = value >= RULES["uniqueness"].yes
    assert (f"ther weights that are {far} give nearly the same output" in text) == (
        n >= 30 and not is_yes
    )
    assert (f"ther weights that are more than {far} change the output" in text) == (
        n >= 30 and is_yes
    )


def to_text_of(*findings, width=400, **more):
    report = report_of(*findings, **more)
    return render_text(report.build_document(), width=width)


def test_fifteen_lines_with_every_question_by_its_one_name():
    lines = str(report_of(*all_yes())).splitlines()
    assert lines[0] == "Does attention explain these predictions?"
    assert lines[2].startswith("Yes. The words with most attention are mostly those")
    assert max(map(len, lines)) <= 100
    assert (
        lines[3]
        == "  May I show this to users? Yes, but with a note that a single text may differ."
    )
    # Wrapped lines are indented more than the names, which follow the marks.
    rows = [line for line in lines[5:] if line[:5].strip()]
    names = [re.match(r"[●◐○? ]+(.*?)  ", line)[1] for line in rows]
    audited = ["path share", "effect", "uniqueness", "accuracy", "audited"]
    assert names == [*ON_THE_SCALE, *audited]
    assert all(line.lstrip()[0] == "●" for line in rows[: len(ON_THE_SCALE)])
    assert [line[0] for line in rows[len(ON_THE_SCALE) :]] == ["●", "●", "○", "●", " "]
    assert "0.80 [0.79, 0.81]" in lines[5] and "0 = words in random order" in lines[5]
    assert "Right in 97% of 100 texts" in rows[-2] and "47%" in rows[-2]
    assert rows[-1].endswith("m, 100 texts of sst (test)")
    assert lines[-1].strip() == "● yes  ◐ partly  ○ no  ? open"
    assert {name.replace(" ", "_") for name in names} - {"audited"} <= RULES.keys()


@pytest.mark.parametrize("questions", [CLASSIFIER_QUESTIONS, ANSWER_QUESTIONS])
@pytest.mark.parametrize("ends", [(0.9, 1.0), (0.0, 1.0), (0.0, 0.01)])
@pytest.mark.parametrize("n", [12, 29, 200])
def test_every_row_has_a_mark_and_a_meaning_even_without_a_grade(questions, ends, n):
    """What a row measures is said of an open question, too; an answer alone explains nothing."""
    shares = {"found": 0.5, "chance": 0.1, "longest": 0.2, "first": 0.2, "last": 0.1}
    shares |= {"commonest place": 0.1}
    measured = [found(key, sum(ends) / 2, ends, n, yardsticks=shares) for key in questions]
    report = report_of(found("accuracy", 0.5, n=n), *measured, n=n)
    (table,) = (b for b in build_first_screen(report) if isinstance(b, ScoreTable))
    rows = {row.name: row for row in table.rows}
    for finding in measured:
        if finding.rule not in RULES_WITH_ROWS:
            continue
        row = rows[finding.name.lower()]
        assert row.grade == finding.answer and row.mark == GRADE_MARKS[finding.answer]
        assert re.search(TOPICS[finding.rule], row.meaning), (finding.rule, row.meaning)


RULES_WITH_ROWS = {"faithfulness", *ON_THE_SCALE[1:], "order", "drop", "source", "path_share"}
RULES_WITH_ROWS |= {"effect", "uniqueness"}
TOPICS = dict.fromkeys(RULES_WITH_ROWS, "attention|attended|random order|random ones")
TOPICS |= {
    "effect": "weight|Shuffling",
    "uniqueness": "weights|attention",
    "path_share": "decision",
}
TOPICS |= {"erasure": "weights", "faithfulness": "random order"}
"""What the row of each question must mention."""


@given(n=st.integers(1, 9))
def test_nothing_is_told_of_fewer_than_ten_texts(n):
    asked = (*ON_THE_SCALE, "path_share", "effect")
    findings = [found(rule, 0.61, (0.17, 0.93), n) for rule in asked]
    report = report_of(*findings, n=n)
    said = str(report) + report.to_html().partition("</main>")[0].partition("<main")[2]
    first = said.partition("More texts")[0]
    assert not re.search(r"0\.61|61%|0\.17|0\.93", str(report))
    verb = "is" if n == 1 else "are"
    assert f"There {verb} only {n} of the 30 required texts." in first


def test_an_open_answer_begins_with_its_reason_and_has_the_command():
    crossing = found("faithfulness", 0.6, (0.53, 0.67), 30)
    few = report_of(
        *all_yes(faithfulness=crossing), asked_for={"test_limit": 30, "layers": [1]}, n=30
    )
    lines = str(few).splitlines()
    promised = re.search(
        r"Either partly or yes: about (\d+) more texts should settle it\.$", lines[2]
    )
    assert lines[-3].startswith("Next step: Run this command.") and "--output-dir" in lines[-3]
    assert lines[-2] == ""
    assert str(few).count("more texts") == 1  # two numbers of them would be one too many
    command = shlex.split(lines[-1])
    assert command[:6] == ["attnprobe", "audit", "--model", "m", "--dataset", "sst"]
    assert command[command.index("--test-limit") + 1] == str(max(60, 30 + int(promised[1])))
    assert command[command.index("--layers") + 1] == "1"
    whole = str(report_of(*all_yes(faithfulness=crossing)))
    assert (
        "This audit used all available texts. Add more of them" in whole
        and "--test-limit" not in whole
    )
    memory = {"dataset": "an object in Python", "test_limit": 30}
    told = str(report_of(*all_yes(faithfulness=crossing), asked_for=memory))
    assert "Run the audit again with --test-limit" in told


@pytest.mark.parametrize(
    ("n_available", "advice"),
    [
        (60, "This audit used all available texts. Add more of them."),
        (100, "An answer may need about {n} texts, but the data set contains only 100. Add more"),
        (1776, "--dataset sst --test-limit {n}"),
    ],
)
def test_advice_does_not_exceed_the_data_set(n_available, advice):
    """60 texts were audited, and the interval contains a threshold."""
    crossing = all_yes(faithfulness=found("faithfulness", 0.56, (0.46, 0.67), 60))
    settings = {"asked_for": {"test_limit": 60}, "n": 60}
    command = str(report_of(*crossing, **settings)).splitlines()[-1]
    n_suggested = int(command.rpartition(" ")[2])
    assert n_suggested > 100
    text = " ".join(str(report_of(*crossing, **settings, n_available=n_available)).split())
    assert advice.format(n=n_suggested) in text


def test_more_texts_are_suggested_if_some_were_left_out():
    """The audit read only 60 of 70 texts, because the logits of the others were undefined."""
    crossing = all_yes(faithfulness=found("faithfulness", 0.56, (0.46, 0.67), 60))
    settings = {"asked_for": {"test_limit": 70}, "n": 60}
    text = " ".join(str(report_of(*crossing, **settings, n_available=1776)).split())
    assert re.search(r"--dataset sst --test-limit \d{3}$", text)
    text = " ".join(str(report_of(*crossing, **settings, n_available=70)).split())
    assert "This audit used all available texts. Add more of them." in text


def test_all_texts_of_a_small_data_set_are_suggested_if_they_may_be_enough():
    few = [found(f.rule, f.value, n=20, yardsticks=f.yardsticks) for f in all_yes()]
    settings = {"asked_for": {"test_limit": 20}, "n": 20}
    assert str(report_of(*few, **settings, n_available=60)).endswith("--test-limit 60")
    text = " ".join(str(report_of(*few, **settings, n_available=25)).split())
    assert "An answer may need about 30 texts, but the data set contains only 25." in text


def test_an_audit_that_time_stopped_is_gone_on_with():
    crossing = found("faithfulness", 0.6, (0.53, 0.67), 60)
    facts = {"seconds": 480, "runs_done": 30, "runs_of_full_audit": 900, "n_texts": 1776}
    facts |= {"seconds_left": 36_000.0}
    known = all_yes(faithfulness=crossing, uniqueness=None)
    tests = ["scale", "exchange", "uniform_attention", "permutation", "erasure", "adversarial"]
    lines = str(report_of(*known, stopping=facts, tests=tests)).splitlines()
    promised = re.search(r"Either partly or yes: about (\d+) more texts", lines[2])
    times_longer = math.ceil((60 + int(promised[1])) / 60)
    command = shlex.split(lines[-1])
    assert command[command.index("--time") + 1] == f"{8 * times_longer}m"
    # Other tests would take time, although they cannot settle the answer.
    start = command.index("--tests") + 1
    assert {*command[start : start + 4]} == {"scale", "exchange", "uniform_attention", "erasure"}
    assert not {"permutation", "adversarial"} & {*command}
    heads = {"heads": {"n_screened": 72, "n_heads": 72, "n_tested": 10, "n_foremost_missing": 0}}
    assert "--tests" not in str(report_of(*known, stopping=facts | heads, tests=tests))
    assert any("Stopped after about 8 min (--time), before uniqueness." in line for line in lines)
    whole = facts | {"runs_done": 900}
    said = str(report_of(*all_yes(faithfulness=crossing), stopping=whole))
    assert "This audit used all available texts. Add more of them" in said and "Stopped" not in said


def test_a_time_that_stopped_too_few_texts_is_no_reason_to_run_them_again():
    few = [found(f.rule, f.value, n=20, yardsticks=f.yardsticks) for f in all_yes()]
    facts = {"seconds": 40, "runs_done": 30, "runs_of_full_audit": 900, "n_texts": 20}
    asked = {"test_limit": 20, "time": "40s"}
    said = str(report_of(*few, asked_for=asked, stopping=facts, n=20))
    assert said.splitlines()[-1].endswith("--dataset sst --test-limit 100")
    assert "This audit used all available texts. Add more of them" in str(
        report_of(*few, stopping=facts, n=20)
    )
    near = all_yes(faithfulness=found("faithfulness", 0.41, (0.3, 0.51), 60))
    told = str(report_of(*near, stopping=facts | {"n_texts": 1776})).splitlines()
    assert re.search("[0-9],[0-9]{3} more texts", told[2]) and "Even all 1,776 texts" in " ".join(
        told
    )


def test_few_texts_are_the_reason_and_not_what_they_seem_to_say():
    asked = ("accuracy", "path_share", "faithfulness")
    for n_predicted in (20, 120):
        sizes = (n_predicted, 16, 20)
        few = [found(rule, 0.2, (0.1, 0.3), n) for rule, n in zip(asked, sizes, strict=True)]
        assert format_answer_reason(few) == "There are only 20 of the 30 required texts."


@given(n=st.integers(1, 100))
def test_too_few_texts_are_said_before_they_run(n):
    verb = "is" if n == 1 else "are"
    said = f"there {verb} only {n} of the 30 required texts" if n < 30 else ""
    assert warn_about_precision(n, False) == said


def test_a_question_that_was_not_asked_is_asked_by_the_command():
    report = report_of(*all_yes(path_share=None), asked_for={"tests": {"scale": {}}})
    lines = str(report).splitlines()
    assert lines[2].startswith("Cannot say. A verdict also needs path share")
    asked = shlex.split(lines[-1])
    assert asked[asked.index("--tests") + 1 :] == [
        "scale",
        "erasure",
        "exchange",
        "uniform_attention",
    ]
    few = [found(f.rule, f.value, n=20) for f in all_yes(path_share=None)]
    assert "Add more of them" in str(
        report_of(*few, n=20)
    )  # to ask more of so few would ask in circles
    unshuffled = all_yes(effect=None)  # which decides nothing
    assert conclude(unshuffled).answer == Answer.YES
    assert str(report_of(*unshuffled)).splitlines()[2].startswith("Yes. ")


def test_an_open_question_that_decides_nothing_asks_for_no_texts():
    """Shuffles are open, and so is a part; the verdict is not."""
    open_effect = found("effect", 0.05, (0.03, 0.07))
    open_part = found("mass", 0.4, (0.3, 0.5))
    unasked = report_of(*all_yes(effect=open_effect, mass=open_part))
    assert recommend_next_step(unasked) is None and unasked.answer == Answer.YES
    crossing = found("faithfulness", 0.6, (0.53, 0.67), 400)
    wide = found("effect", 0.05001, (0.0, 0.1), 400)
    asked = {"test_limit": 400}
    first, second = (
        recommend_next_step(
            report_of(*all_yes(faithfulness=crossing, effect=effect), n=400, asked_for=asked)
        ).text
        for effect in (wide, found("effect", 0.81))
    )
    assert first == second and "--test-limit" in first
    close = found("path_share", RULES["path_share"].yes + 0.05, (0.0, 0.4), 400)
    report = report_of(*all_yes(faithfulness=crossing, path_share=close), n=400, asked_for=asked)
    advice = shlex.split(recommend_next_step(report).text)
    n_texts = [int(text[text.index("--test-limit") + 1]) for text in (advice, shlex.split(first))]
    assert n_texts[0] > n_texts[1]  # the path share needs even more texts


@given(value=st.sampled_from((0.0, 0.144, 0.38, -0.03)) | st.floats(-0.2, 0.389))
def test_a_no_states_where_attention_lies(value):
    """As a share of the way; never below 0, because a random order is the start of it."""
    one = found("faithfulness", value, (value - 0.2, min(value + 0.01, 1.0)))
    said = describe_finding(one)
    if value + 0.01 < 0:
        assert said == "worse than a random order of the words"
        return
    share = f"{max(value, 0):.0%}"
    assert said.startswith(f"attention is only {share} of the way from a random order of the words")
    report = str(report_of(*all_yes(faithfulness=one)))
    assert f"No. Attention is only {share} of the way" in report
    assert "{" not in said and "{" not in format_conclusion(all_yes(faithfulness=one))


def test_a_no_says_why():
    bypassed = found("path_share", 0.02)
    said = format_answer_reason(all_yes(path_share=bypassed))
    assert said == "Hardly any of the decision passes through attention."
    report = str(report_of(*all_yes(path_share=bypassed)))
    assert report.splitlines()[2] == f"No. {said}"
    little = found("effect", 0.02, yardsticks={"flips": 0.27})
    unmoved = all_yes(effect=little)
    assert format_answer_reason(unmoved) == format_answer_reason(all_yes())
    text = to_text_of(*unmoved)
    assert "changes the output by 2%, and 27% of the shuffles flip" in text
    reason = (
        "Attention is only 20% of the way from a random order of the words to the best one, so many "
        "of the highlighted words do not decide the prediction."
    )
    assert format_answer_reason(all_yes(0.2)) == reason
    assert to_text_of(*all_yes(0.2)).splitlines()[2] == f"No. {reason}"
    guessing = found("accuracy", -0.1)
    told = str(report_of(*all_yes(accuracy=guessing)))
    assert "not shown to be better than guessing" in told and "train the model further" in told


@pytest.mark.parametrize(
    ("changed", "answer", "begin"),
    [
        ({}, "yes", "Yes, but with a note"),
        ({"faithfulness": found("faithfulness", 0.5)}, "partly", "Only with a warning"),
        ({"faithfulness": found("faithfulness", 0.2)}, "no", "No."),
        ({"faithfulness": found("faithfulness", 0.4)}, "cannot say", "Not yet"),
    ],
)
def test_what_is_said_to_users_follows_the_verdict(changed, answer, begin):
    findings = all_yes(**changed)
    said = advise_on_display(findings)
    assert conclude(findings).answer == answer
    assert said[0].startswith(begin) and len(said) <= 4
    assert said[1] == "Importance, erasure, removal, mass and path share: yes."
    assert format_conclusion(findings).startswith(
        f"Does attention explain these predictions? {answer.capitalize()}. "
    )


@given(
    rule=st.sampled_from((*ON_THE_SCALE, "path_share", "effect", "uniqueness")),
    value=st.sampled_from(EDGES) | st.floats(-1, 1),
    halves=st.tuples(st.floats(0.001, 0.5), st.floats(0.001, 0.5)),
    n=st.integers(1, 5000),
    stops=st.sampled_from(["", "nothing more is known"]),
)
@example("uniqueness", 0.5, (0.125, 0.5), 30, "")
def test_promised_texts_give_an_answer(rule, value, halves, n, stops):
    """An interval that narrows with √n excludes every threshold, if the mean stays."""
    one = found(rule, value, (value - halves[0], value + halves[1]), n)
    one = dataclasses.replace(one, open_reason=stops)
    if one.answer != Answer.CANNOT_SAY:
        return
    said, enough = explain_open_answer(one), suggest_total_texts(one)
    if stops:
        assert (
            said.startswith(("there is only", "there are only")) or stops in said
        ) and enough is None
        return
    if n < 30:  # so many texts at least, and more where the interval is too wide for them
        assert (
            said.startswith(f"there {'is' if n == 1 else 'are'} only {n} of the 30")
            and enough >= 30
        )
        if n < 10 or enough == 30:
            return
    elif enough is None:
        assert "too close to a threshold for more texts" in said
        return
    assert n < 30 or f"about {enough - n:,} more texts" in said
    narrower = (n / enough) ** 0.5
    ends = value - halves[0] * narrower, value + halves[1] * narrower
    assert grade(Estimate(value, ends, enough), RULES[rule]) != Answer.CANNOT_SAY


def test_thresholds_of_ones_own_are_named():
    rules = apply_thresholds(["faithfulness=.1,.2"])
    low = found("faithfulness", 0.3, rules=rules)
    assert format_answer_reason(all_yes(faithfulness=low)) == (
        "With your own thresholds: partly from 0.10, yes from 0.20."
    )
    assert conclude(all_yes(faithfulness=low)).answer == Answer.YES


def test_bounds_that_leave_it_open_are_said_to():
    """Of uniqueness only that it lies between a bound and what was found."""
    low = Estimate(0.3, (0.2, 0.4), 100)
    one = found("uniqueness", 0.9, (0.85, 0.95), lower_estimate=low, is_upper_bound=True)
    assert one.answer == Answer.CANNOT_SAY
    assert describe_finding(one).endswith(": the known bounds do not settle this question")
