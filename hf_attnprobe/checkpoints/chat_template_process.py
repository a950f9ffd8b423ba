"""Render chat templates in a separate process, which can be killed: see chat_templates.py.

This file is run as a script and imports nothing from this package, so that the process starts
quickly. It reads one request per line from standard input and writes one response per line to
standard output, both as JSON.
"""

import json
import sys

from transformers.utils.chat_template_utils import render_jinja_template


def answer_request(request: dict) -> dict:
    """Convert a conversation to a prompt with a chat template.

    Args:
        request: the keyword arguments of Transformers' ``render_jinja_template``.

    Returns:
        ``{"text": prompt}``, or ``{"error": message}`` if the template raises an exception.
    """
    try:
        # The function also returns the positions of the assistant's turns, which are not needed.
        texts = render_jinja_template(**request)[0]
        return {"text": texts[0]}
    # A template may raise any exception, not only Jinja's.
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def serve_requests() -> None:
    """Write "ready", then answer requests until standard input is closed."""
    write_line("ready")
    for line in sys.stdin:
        write_line(json.dumps(answer_request(json.loads(line))))


def write_line(line: str) -> None:
    """Write a line to standard output without delay."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve_requests()
