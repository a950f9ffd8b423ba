"""How heavy the package is: syntax nodes of function bodies by package, each counted once.

    python tests/nodes.py    # writes today's weights into BUDGET.md

A docstring weighs nothing, nor do names of contexts; density is nodes by lines of code.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import hf_attnprobe


PACKAGE = Path(hf_attnprobe.__file__).parent
BUDGET = PACKAGE.parent / "BUDGET.md"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Weight(NamedTuple):
    """A function's syntax nodes and lines of code, and whether it stands within another one."""

    nodes: int
    lines: int
    is_nested: bool


def body_of(function: FUNCTIONS) -> list[ast.stmt]:
    """Returns the statements behind the docstring."""
    first = function.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    has_docstring = is_text and isinstance(first.value.value, str)
    return function.body[has_docstring:]


@cache
def weights_of(file: Path) -> tuple[Weight, ...]:
    """Returns the weight of every function of a file that does something."""
    return tuple(_weights_of(file))


def _weights_of(file: Path) -> Iterator[Weight]:
    source = file.read_text()
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS)]
    inner = {
        id(node)
        for function in functions
        for statement in body_of(function)
        for node in ast.walk(statement)
        if isinstance(node, FUNCTIONS)
    }
    for function in functions:
        body = body_of(function)
        if body:
            nodes = [node for statement in body for node in ast.walk(statement)]
            counted = sum(not isinstance(node, ast.expr_context) for node in nodes)
            own = lines[body[0].lineno - 1 : function.end_lineno]
            code = [line for line in own if line.strip() and not line.strip().startswith("#")]
            yield Weight(counted, len(code), id(function) in inner)


def weights() -> dict[str, int]:
    """Returns the nodes of each package or module at the top, the heaviest first."""
    found: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        found[room] += sum(w.nodes for w in weights_of(file) if not w.is_nested)
    return {room: nodes for room, nodes in found.most_common() if nodes}


def share_of_dense(least_lines: int = 5, most: float = 10.0) -> float:
    """Returns the share of functions of some lines that have more nodes a line than are read once."""
    known = [w for file in PACKAGE.rglob("*.py") for w in weights_of(file)]
    long = [w.nodes / w.lines for w in known if w.lines >= least_lines]
    return sum(density > most for density in long) / len(long)


def budget() -> dict[str, int]:
    """Returns the numbers of the table in BUDGET.md."""
    rows = re.findall(r"^\| `?([\w.]+)`? \| ([\d,]+) \|", BUDGET.read_text(), re.MULTILINE)
    return {room: int(nodes.replace(",", "")) for room, nodes in rows}


if __name__ == "__main__":
    found = weights()
    table = ["| package | nodes |", "|---|---|"]
    table += [f"| `{room}` | {nodes:,} |" for room, nodes in found.items()]
    table += [f"| all | {sum(found.values()):,} |"]
    before, _, behind = BUDGET.read_text().partition("| package | nodes |")
    rest = "".join(re.split(r"\n(?!\|)", behind, maxsplit=1)[1:])
    BUDGET.write_text(before + "\n".join(table) + "\n" + rest)
