"""Whether the tests find defects: plants them one at a time, each from a fixed seed, and runs the tests that touch it.

    python benchmarks/mutation.py draw OLD_TREE defects.json
    python benchmarks/mutation.py run TREE defects.json --first 0 --last 60

A defect is an operator, a constant or a branch that is another one. It is kept by room, function and what stood
there, so that it can be planted in a later version of the same code too, wherever that lies now. ``TREE`` is a
checkout; it is copied, never changed. First the test files that import the module or have its name are run, then
those that import from its room, then, with ``--all``, every other one, until one fails.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


ROOMS = ("functional", "faithfulness", "statistics", "adapters", "audits", "reports")
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NOT_CODE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
PER_ROOM = 12
PLACES = ("tests", "benchmarks", "examples")
"""Where tests stand."""


def changed(node: ast.AST) -> str | None:
    """The source of a node with a defect; None where there is none to plant."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        value = node.value
        return repr(not value if type(value) is bool else value + 1)
    if isinstance(node, ast.IfExp):
        test = ast.UnaryOp(ast.Not(), node.test)
        return f"({ast.unparse(ast.IfExp(test, node.body, node.orelse))})"
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
        copy = ast.parse(ast.unparse(node), mode="eval").body
        copy.op = OPERATORS[type(node.op)]()
        return f"({ast.unparse(copy)})"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        copy = ast.parse(ast.unparse(node), mode="eval").body
        copy.ops[0] = OPERATORS[type(node.ops[0])]()
        return f"({ast.unparse(copy)})"
    return None


def places(file: Path) -> Iterator[tuple[str, int, ast.AST, str]]:
    """Function, number among its equals, node and new source of everything that could be planted in a file."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, NOT_CODE):
                continue
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".strip(".")
                for statement in child.body:
                    yield from walk_statement(statement, inner)
                continue
            if name and (new := changed(child)):
                yield name, child, new
            if name and isinstance(child, ast.If | ast.While):
                yield name, child.test, f"not ({ast.unparse(child.test)})"
            yield from walk(child, name)

    def walk_statement(statement: ast.stmt, name: str) -> Iterator[tuple[str, ast.AST, str]]:
        yield from walk(ast.Module([statement], []), name)

    seen: dict[tuple[str, str, str], int] = {}
    for name, node, new in walk(ast.parse(file.read_text()), ""):
        key = name, ast.unparse(node), new
        seen[key] = seen.get(key, -1) + 1
        yield name, seen[key], node, new


def draw(tree: Path) -> list[dict[str, object]]:
    """``PER_ROOM`` defects of each room, no two in one function."""
    random.seed(23)
    drawn = []
    for room in ROOMS:
        found = [
            {
                "room": room,
                "file": str(file.relative_to(tree)),
                "function": name,
                "number": number,
                "before": ast.unparse(node),
                "after": new,
            }
            for file in sorted((tree / "hf_attnprobe" / room).rglob("*.py"))
            for name, number, node, new in places(file)
        ]
        random.shuffle(found)
        by_function = {(d["file"], d["function"]): d for d in reversed(found)}
        drawn += [d for d in found if d is by_function[d["file"], d["function"]]][:PER_ROOM]
    return drawn


def plant(tree: Path, defect: dict[str, str]) -> Path | None:
    """Writes a defect into a tree; the file that has it now, or None where its code is no more."""
    own = tree / defect["file"]
    files = [own] if own.exists() else []
    files += sorted(set((tree / "hf_attnprobe").rglob("*.py")) - {own})
    for file in files:
        for name, number, node, new in places(file):
            last = name.rpartition(".")[2] == defect["function"].rpartition(".")[2]
            found = last and number == defect["number"] and new == defect["after"]
            if found and ast.unparse(node) == defect["before"]:
                lines = file.read_text().splitlines(keepends=True)
                before = "".join(lines[: node.lineno - 1])
                start = len(before.encode()) + node.col_offset
                until = "".join(lines[: node.end_lineno - 1])
                end = len(until.encode()) + node.end_col_offset
                source = file.read_bytes()
                file.write_bytes(source[:start] + new.encode() + source[end:])
                return file
    return None


def touching(tree: Path, file: Path) -> list[list[str]]:
    """Test files that import a module or have its name, those that import from its room, and all others."""
    module = ".".join(file.relative_to(tree).with_suffix("").parts).removesuffix(".__init__")
    room = ".".join(module.split(".")[:2])
    found: list[list[str]] = [[], [], []]
    tests = [test for place in PLACES for test in sorted((tree / place).rglob("test_*.py"))]
    for test in tests:
        text = test.read_text()
        is_own = module in text or test.stem == f"test_{file.stem}"
        found[0 if is_own else 1 if room in text else 2].append(str(test.relative_to(tree)))
    found[1].sort(key=lambda test: f"/{file.parent.name}/" not in test)  # its own folder's first
    return found


def fails(tree: Path, tests: list[str], workers: str) -> str | None:
    """The first test that fails, if one does."""
    if not tests:
        return None
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        [*command, "-n", workers], cwd=tree, env=environment, capture_output=True, text=True
    )
    told = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return told[0] if told else (f"pytest ends with {done.returncode}" if done.returncode else None)


def run(tree: Path, defects: list[dict[str, str]], every: bool, workers: str) -> None:
    """Plants each defect in a copy of the tree, and prints whether the tests find it."""
    missed = []
    for defect in defects:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "tree"
            packed = subprocess.run(["git", "archive", "HEAD"], cwd=tree, capture_output=True)
            copy.mkdir()
            subprocess.run(["tar", "x"], cwd=copy, input=packed.stdout, check=True)
            (Path(folder) / "shared").symlink_to(tree.parent / "shared")
            what = "{file} {function}: {before} → {after}".format(**defect)
            if (file := plant(copy, defect)) is None:
                print(f"gone    {what}", flush=True)
                continue
            tests = touching(copy, file)[: 3 if every else 2]
            by = next(filter(None, (fails(copy, some, workers) for some in tests)), None)
            missed += [] if by else [what]
            print(f"{'caught' if by else 'MISSED'}  {what}  {by or ''}", flush=True)
    print(f"{len(missed)} of {len(defects)} missed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["draw", "run"])
    parser.add_argument("tree", type=Path)
    parser.add_argument("defects", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=None)
    parser.add_argument("--all", action="store_true", help="every other test file too")
    parser.add_argument("-n", default="0", help="workers of pytest")
    given = parser.parse_args()
    if given.verb == "draw":
        given.defects.write_text(json.dumps(draw(given.tree), indent=1, ensure_ascii=False) + "\n")
    else:
        chosen = json.loads(given.defects.read_text())[given.first : given.last]
        run(given.tree.resolve(), chosen, given.all, given.n)
