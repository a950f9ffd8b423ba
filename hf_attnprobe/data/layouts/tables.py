"""Tables of texts and labels: the CSV files of Jain & Wallace, and tweets in a TSV file.

The code of the paper writes every data set as one CSV file with the columns `text`,
`label` and `exp_split`; that of the ADR tweets is in its repository.
"""

from pathlib import Path

from hf_attnprobe.data.layouts.files import Contents, cut, read_prepared, read_table
from hf_attnprobe.errors import AttnProbeError


def read_tables(folder: Path, name: str) -> Contents | None:
    """Rows of `text` and `label`; None without such files.

    A TSV file alone has no splits: a fifth of every class becomes the test split.
    """
    prepared = read_prepared(folder, name)
    if prepared is not None:
        return prepared
    files = sorted(folder.glob("*.tsv"))
    if not files:
        return None
    if len(files) > 1:
        named = {path.stem: path for path in files}
        if {"train", "test"} <= named.keys() <= {"train", "validation", "test"}:
            return Contents({split: read_table(named[split], "\t") for split in named})
        raise AttnProbeError(
            f"expected one TSV file, or train.tsv and test.tsv, in {folder}, got "
            f"{', '.join(path.name for path in files)}; leave the others out"
        )
    return Contents(cut(read_table(files[0], "\t"), share=0.2, seed=13020))
