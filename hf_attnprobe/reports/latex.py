"""Tables with booktabs' rules, and texts that LaTeX prints as they are."""

from collections.abc import Sequence


ESCAPED = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def escape(text: str) -> str:
    r"""A text that LaTeX prints as it is.

    >>> escape("50% of a_b")
    '50\\% of a\\_b'
    """
    return "".join(ESCAPED.get(letter, letter) for letter in text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, n_texts: int) -> str:
    """A table; columns of text are aligned to the left, those of numbers to the right.

    Args:
        head, rows: cells, escaped.
        caption: escaped.
        n_texts: how many columns, the first ones, are of text.
    """
    form = "l" * n_texts + "r" * (len(head) - n_texts)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{form}}}",
        r"\toprule",
        rf"{' & '.join(head)} \\",
        r"\midrule",
        *(rf"{' & '.join(cells)} \\" for cells in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
