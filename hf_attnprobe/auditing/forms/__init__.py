"""An audit in every form: terminal, Markdown, tables. Pure: its result in."""
