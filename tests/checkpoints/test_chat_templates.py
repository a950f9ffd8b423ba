"""Chat templates are rendered as Transformers renders them, and none can hang an audit."""

import threading
import time

import pytest

from hf_attnprobe.checkpoints.chat_templates import render_chat_template
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.tokenizer import build_tokenizer


TURNS = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "  Ünï «x»\n\n{{ 1 }} <b> \U0001f600 "},
]
CHATML = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>"
    "{{ message['content'] | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
WITH_NAMESPACE = (
    "{%- set state = namespace(n=0) %}{% for message in messages %}"
    "{% set state.n = state.n + message.content | length %}{% endfor %}"
    "{{ state.n }} {{ messages | tojson(indent=2) }} {{ tools is defined and tools }}"
)
NESTED_LOOPS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
# Python cannot interrupt this operation, not even with a signal.
HUGE_POWER = "{{ 9 ** (9 ** (9 ** 9)) }}"


@pytest.fixture
def tokenizer():
    return build_tokenizer(["a fine film"])


def render_in_thread(tokenizer, **options):
    """The result or the error of rendering outside the main thread."""
    results = []

    def render():
        try:
            results.append(render_chat_template(tokenizer, TURNS, **options))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(60)
    return results[0]


@pytest.mark.parametrize("template", [CHATML, WITH_NAMESPACE, "{{ range(3) | list }}"])
def test_the_text_is_that_of_apply_chat_template(tokenizer, template):
    tokenizer.chat_template = template
    expected = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert render_chat_template(tokenizer, TURNS) == expected
    assert render_in_thread(tokenizer) == expected


@pytest.mark.parametrize("template", [NESTED_LOOPS, HUGE_POWER])
def test_a_template_without_an_end_is_stopped_and_the_next_one_is_rendered(tokenizer, template):
    tokenizer.chat_template, tokenizer.name_or_path = CHATML, "org/model"
    expected = render_chat_template(tokenizer, TURNS)
    tokenizer.chat_template = template
    start = time.monotonic()
    with pytest.raises(
        AttnProbeError, match=r"rendering row 3 with .* of org/model took more than 0\.5 s"
    ):
        render_chat_template(tokenizer, TURNS, "row 3", max_seconds=0.5)
    error = render_in_thread(tokenizer, max_seconds=0.5)
    assert isinstance(error, AttnProbeError) and "provide complete prompts" in str(error)
    assert time.monotonic() - start < 30
    tokenizer.chat_template = CHATML
    assert render_chat_template(tokenizer, TURNS) == expected


def test_an_error_of_the_template_is_passed_on(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('no system turn') }}"
    with pytest.raises(AttnProbeError, match="refuses the prompt with the error: no system turn"):
        render_chat_template(tokenizer, TURNS)
    tokenizer.chat_template = "{{ cycler.__init__.__globals__.os.getcwd() }}"
    with pytest.raises(AttnProbeError, match="unsafe"):
        render_chat_template(tokenizer, TURNS)
    tokenizer.chat_template = CHATML
    assert "<|user|>" in render_chat_template(tokenizer, TURNS)


def test_a_tokenizer_with_its_own_method_uses_it(tokenizer, monkeypatch):
    def format_turns(self, turns, **_):
        return " / ".join(turn["role"] for turn in turns)

    own_class = type("Own", (type(tokenizer),), {"apply_chat_template": format_turns})
    monkeypatch.setattr(tokenizer, "__class__", own_class)
    assert render_chat_template(tokenizer, TURNS) == "system / user"
