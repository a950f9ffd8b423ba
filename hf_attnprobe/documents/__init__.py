"""Reports as documents of blocks, and the output formats that print them.

:mod:`hf_attnprobe.documents.blocks` defines :class:`~hf_attnprobe.documents.blocks.Document` and
all block types; start reading there. Three modules print a document:
:func:`~hf_attnprobe.documents.terminal_text.render_text` for the terminal,
:func:`~hf_attnprobe.documents.markdown.render_markdown` as Markdown, and
:func:`~hf_attnprobe.documents.html.render_html` as one self-contained HTML page.
:class:`~hf_attnprobe.documents.formats.DocumentedResult` gives a result all of these formats.
"""
