"""Whose a folder is: what may be written to, what is refused, what a failed run leaves."""

import json

import pytest

from hf_attnprobe import AttnProbeError
from hf_attnprobe.storage.folders import (
    check_available,
    find_differences,
    reserve_folder,
    write_json,
)
from tests.helpers.error_messages import refused


IDENTITY = {"seed": 0, "layers": (0, 1), "options": {"erasure": {"draw": "uniform"}}}


def test_settings_are_compared_as_json_gives_them_back():
    held = json.loads(json.dumps(IDENTITY))
    assert find_differences(held, IDENTITY) == {}
    expected = {"seed": (0, 1), "layers": ([0, 1], [0])}
    assert find_differences(held, {"seed": 1, "layers": [0]}) == expected
    assert find_differences("no settings", {"seed": 0}) == {"seed": (None, 0)}


def test_a_folder_is_free_if_new_empty_or_marked(tmp_path):
    assert check_available(tmp_path / "new") == tmp_path / "new"
    (tmp_path / ".hidden").touch()
    assert check_available(str(tmp_path), "study.json") == tmp_path
    (tmp_path / "thesis.tex").touch()
    refused("contains other files", check_available, tmp_path, "study.json")
    write_json(tmp_path / "study.json", {})
    assert check_available(tmp_path, "study.json") == tmp_path
    refused("cannot use", check_available, tmp_path / "thesis.tex")


def test_links_at_any_depth_are_refused_if_they_lead_out(tmp_path):
    (tmp_path / "out" / "uniform" / "0").mkdir(parents=True)
    (tmp_path / "out" / "study.json").touch()
    (tmp_path / "out" / "inside").symlink_to(tmp_path / "out" / "uniform")
    assert check_available(tmp_path / "out", "study.json")
    (tmp_path / "out" / "uniform" / "0" / "rows").symlink_to(tmp_path / "nowhere")
    refused("leads out of the output folder", check_available, tmp_path / "out", "study.json")


def test_a_refused_run_leaves_no_parent_folders(tmp_path):
    with (
        pytest.raises(AttnProbeError, match="a wrong option"),
        reserve_folder(tmp_path / "new" / "deep" / "out", "audit.json", identity=IDENTITY),
    ):
        raise AttnProbeError("a wrong option")
    assert not [*tmp_path.iterdir()]
    with reserve_folder(tmp_path / "new" / "deep" / "out") as folder:
        (folder / "result").touch()
    assert [file.name for file in (tmp_path / "new" / "deep" / "out").iterdir()] == ["result"]


def test_another_identity_is_refused_with_what_differs(tmp_path):
    with reserve_folder(tmp_path, "audit.json", identity=IDENTITY):
        pass
    with reserve_folder(tmp_path, "audit.json", identity=IDENTITY):
        pass
    other = IDENTITY | {"options": {"erasure": {"draw": "released"}}}
    message = (
        r"another audit with different settings: options \(erasure draw uniform instead of "
        r"erasure draw released\)"
    )
    with (
        pytest.raises(AttnProbeError, match=message),
        reserve_folder(tmp_path, "audit.json", identity=other),
    ):
        pass


@pytest.mark.parametrize("rows", [False, True])
def test_the_mark_of_a_run_that_failed_before_its_rows_goes(rows, tmp_path):
    folder = tmp_path / "out"
    with (
        pytest.raises(KeyboardInterrupt),
        reserve_folder(folder, "retraining.json", identity=IDENTITY),
    ):
        (folder / "rows").mkdir()
        if rows:
            (folder / "rows" / "part-0.parquet").touch()
        raise KeyboardInterrupt
    assert folder.exists() == rows
    assert (folder / "retraining.json").exists() == rows
