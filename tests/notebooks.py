"""The notebooks of ``examples/``, run from clean; what they show is stored in them.

    python -m tests.notebooks    # writes them anew

A notebook is read on the web before it is run, so its outputs are committed. A machine's folders and
the addresses of objects are no part of them.
"""

import os
import re
import tempfile
from pathlib import Path
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient


EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
KERNEL_FOLDERS = "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"


def executed() -> dict[str, nbformat.NotebookNode]:
    """Returns the notebooks by name with what they show, run in one kernel that is emptied between them.

    Progress, which the error stream shows, is no part of it.
    """
    read = {file.name: nbformat.read(file, as_version=4) for file in NOTEBOOKS}
    together = nbformat.v4.new_notebook(metadata=next(iter(read.values())).metadata)
    for notebook in read.values():
        together.cells += [*notebook.cells, nbformat.v4.new_code_cell("%reset -f")]
    with tempfile.TemporaryDirectory() as folder:
        places = {name: str(Path(folder, name)) for name in KERNEL_FOLDERS}
        with patch.dict(os.environ, places):
            where = {"metadata": {"path": str(EXAMPLES)}}
            NotebookClient(together, timeout=180, resources=where).execute()
    for cell in together.cells:
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return read


def as_stored(notebook: nbformat.NotebookNode) -> str:
    """Returns a notebook's file: cells counted from 1, no time, machine's folder or object's address."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for k, cell in enumerate(code, 1):
        cell.metadata, cell.execution_count = {}, k
        for out in cell.outputs:
            if "execution_count" in out:
                out.execution_count = k
    text = nbformat.writes(notebook)
    folder = rf"{re.escape(tempfile.gettempdir())}/tmp\w+/"
    return re.sub(rf"{folder}| at 0x[0-9a-f]+", "", text) + "\n"


if __name__ == "__main__":
    for name, notebook in executed().items():
        (EXAMPLES / name).write_text(as_stored(notebook), encoding="utf-8")
