"""Render a tokenizer's chat template with a time limit.

A chat template is a program in the template language Jinja that comes with a checkpoint.
Transformers renders it in a sandbox, which prevents access to files and to Python objects, but does
not limit the time. For example, two nested loops can run forever. Templates are therefore rendered
in a separate process, which is killed when the limit is reached. This also works outside the main
thread, and for operations that Python cannot interrupt, such as a huge power. The process is
started for the first template, and renders all later templates as well.
"""

import atexit
import json
import os
import subprocess  # nosec B404
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError


MAX_RENDERING_SECONDS = 10.0
"""Maximum time for rendering one conversation, in seconds. Ordinary templates take milliseconds."""


def render_chat_template(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Mapping[str, str]],
    name: str = "the prompt",
    *,
    max_seconds: float = MAX_RENDERING_SECONDS,
) -> str:
    """Render a conversation with a tokenizer's chat template, up to the start of the answer.

    The result equals ``tokenizer.apply_chat_template(turns, tokenize=False,
    add_generation_prompt=True)``. A tokenizer class with its own ``apply_chat_template`` has no
    time limit: its Python code runs in this process.

    Args:
        tokenizer: a tokenizer with a chat template.
        turns: the turns of the conversation, each with ``role`` and ``content``.
        name: name of the prompt for error messages, such as "row 3".
        max_seconds: time limit for the template, in seconds.

    Returns:
        The rendered prompt.

    Raises:
        AttnProbeError: if the time limit is reached, or the template raises an error.

    Example::

        from transformers import AutoTokenizer
        from hf_attnprobe.checkpoints.chat_templates import render_chat_template

        tokenizer = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
        render_chat_template(tokenizer, [{"role": "user", "content": "Where is Ann?"}])
    """
    conversation = [dict(turn) for turn in turns]
    has_own_method = (
        type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
    )
    if has_own_method:
        # The tokenizer formats conversations with its own Python code instead of a template. This
        # code is part of Transformers (Mistral), or the user has allowed it.
        return str(
            tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        )
    request = {
        "conversations": [conversation],
        "chat_template": tokenizer.get_chat_template(),
        "add_generation_prompt": True,
        **tokenizer.special_tokens_map,
    }
    response = _RENDERING_PROCESS.render(request, max_seconds)
    if response is None:
        tokenizer_name = tokenizer.name_or_path or "the tokenizer"
        raise AttnProbeError(
            f"rendering {name} with the chat template of {tokenizer_name} took more than "
            f"{max_seconds:g} s. Correct its chat_template.jinja, or provide complete prompts with "
            "prompt_column."
        )
    if "error" in response:
        first_line = (response["error"].splitlines() or ["no message"])[0]
        raise AttnProbeError(
            f"the chat template refuses {name} with the error: {first_line}. Correct the "
            "conversation, or provide a complete prompt with prompt_column."
        )
    return response["text"]


class _RenderingProcess:
    """A child process that renders one conversation after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def render(self, request: Mapping[str, Any], max_seconds: float) -> dict[str, str] | None:
        """Send a request and return the response, or None if the time limit was reached.

        Args:
            request: the keyword arguments of Transformers' ``render_jinja_template``.
            max_seconds: time limit in seconds, not counting the start of the process.

        Returns:
            ``{"text": …}``, ``{"error": …}`` or None.
        """
        with self._lock:
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            is_timed_out = threading.Event()

            def kill_process() -> None:
                is_timed_out.set()
                process.kill()

            timer = threading.Timer(max_seconds, kill_process)
            timer.daemon = True
            try:
                timer.start()
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            except BaseException:
                # The response was not read, so it would be mistaken for that to the next request.
                self._stop()
                raise
            finally:
                timer.cancel()
            if line and not is_timed_out.is_set():
                return json.loads(line)
            self._stop()
            return None if is_timed_out.is_set() else {"error": "the rendering process has ended"}

    def _start(self) -> "subprocess.Popen[str]":
        """Start the process that renders chat templates, and wait until it is ready."""
        script = Path(__file__).with_name("chat_template_process.py")
        # Both processes must import the same Transformers, so the child gets this search path. With
        # -P, modules in this folder cannot hide others with the same name.
        search_path = os.pathsep.join(filter(None, sys.path))
        # The command is a script of this package and contains no user input.
        process = subprocess.Popen(  # nosec B603
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search_path},
            encoding="utf-8",
        )
        assert process.stdout is not None
        self._process = process
        # Skip what imported libraries may print before the process is ready.
        is_ready = any(line == "ready\n" for line in process.stdout)
        if not is_ready:
            self._stop()
            raise AttnProbeError(
                "the process that renders chat templates does not start. Check that `python -c "
                "'import transformers'` works, or provide complete prompts with prompt_column."
            )
        return process

    def _stop(self) -> None:
        """Kill the process that renders chat templates, if it is running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def close(self) -> None:
        """Kill the process at the end of the program."""
        with self._lock:
            self._stop()


_RENDERING_PROCESS = _RenderingProcess()
"""Child process that renders all chat templates.

It is started when the first template is rendered.
"""
atexit.register(_RENDERING_PROCESS.close)
