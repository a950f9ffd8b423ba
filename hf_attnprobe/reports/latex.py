"""A table of a report for LaTeX, with booktabs' rules."""

from hf_attnprobe.reports.document import Table, is_number, written


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


def to_latex(table: Table) -> str:
    """A table with booktabs' rules: text to the left, numbers to the right."""
    is_text = [not any(is_number(row[k]) for row in table.rows) for k in range(len(table.head))]
    head, *rows = ([escape(written(cell)) for cell in row] for row in (table.head, *table.rows))
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(table.caption)}}}",
        rf"\begin{{tabular}}{{{''.join('l' if text else 'r' for text in is_text)}}}",
        r"\toprule",
        rf"{' & '.join(head)} \\",
        r"\midrule",
        *(rf"{' & '.join(cells)} \\" for cells in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
