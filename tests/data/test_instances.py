"""Bags of instances: every source gives the same bags, and wrong data are refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from hf_attnprobe import Data, load_examples
from hf_attnprobe.data.examples import compute_dataset_fingerprint
from hf_attnprobe.data.instances import iterate_bags
from tests.helpers.error_messages import refuses


@pytest.fixture
def bags():
    generator = np.random.default_rng(0)
    return [generator.normal(size=(n, 3)) for n in (4, 1, 6)]


def make_rows(bags):
    return [{"features": bag.tolist(), "label": "ab"[i % 2]} for i, bag in enumerate(bags)]


def write_folder(folder, bags, save, suffix):
    (folder / "bags").mkdir()
    for index, bag in enumerate(bags):
        save(folder / "bags" / f"{index}{suffix}", bag)
    paths = [f"bags/{index}{suffix}" for index in range(len(bags))]
    table = pd.DataFrame({"features": paths, "label": ["a", "b", "a"]})
    table.to_csv(folder / "labels.csv", index=False)
    return folder


def save_tensors(path, bag):
    save_file({"features": bag, "coords": np.arange(2.0 * len(bag)).reshape(-1, 2)}, path)


def test_memory_parquet_json_and_folders_give_the_same_bags(bags, tmp_path):
    frame = pd.DataFrame(make_rows(bags))
    frame.to_parquet(tmp_path / "bags.parquet")
    frame.to_json(tmp_path / "bags.json", orient="records", double_precision=15)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(folder, bags, np.save, ".npy")
    sources = [make_rows(bags), str(tmp_path / "bags.parquet"), str(folder), folder / "labels.csv"]
    loaded = [load_examples(source, "test") for source in sources]
    for examples in [*loaded, load_examples(str(tmp_path / "bags.json"), "test")]:
        assert examples.features["label"].names == ["a", "b"]
        for actual, bag in zip(iterate_bags(examples, "features"), bags, strict=True):
            np.testing.assert_allclose(actual, bag, rtol=1e-12)
    assert len({compute_dataset_fingerprint(examples) for examples in loaded}) == 1


def test_a_changed_number_changes_the_fingerprint(bags):
    before = compute_dataset_fingerprint(load_examples(make_rows(bags), "test"))
    bags[1][0, 2] += 1e-9
    assert compute_dataset_fingerprint(load_examples(make_rows(bags), "test")) != before


def test_coordinates_are_kept(bags, tmp_path):
    write_folder(tmp_path, bags, save_tensors, ".safetensors")
    examples = load_examples(str(tmp_path), "test")
    expected = [np.arange(2.0 * len(bag)).reshape(-1, 2) for bag in bags]
    for actual, positions in zip(iterate_bags(examples, "coordinates"), expected, strict=True):
        np.testing.assert_array_equal(actual, positions)


def save_hdf5(path, bag):
    """Save a bag as TRIDENT does: a compressed array with an axis of length 1, and positions."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=bag[None], compression="gzip")
        file["coords"] = np.arange(2 * len(bag)).reshape(-1, 2)
        file["features"].attrs["encoder"] = "uni"


def test_a_folder_of_hdf5_files_has_the_same_bags(bags, tmp_path):
    examples = load_examples(str(write_folder(tmp_path, bags, save_hdf5, ".h5")), "test")
    for actual, bag in zip(iterate_bags(examples, "features"), bags, strict=True):
        np.testing.assert_array_equal(actual, bag)
    for actual, bag in zip(iterate_bags(examples, "coordinates"), bags, strict=True):
        np.testing.assert_array_equal(actual, np.arange(2.0 * len(bag)).reshape(-1, 2))


def test_wrong_hdf5_files_are_refused(bags, tmp_path):
    h5py = pytest.importorskip("h5py")
    folder = write_folder(tmp_path, bags, save_hdf5, ".h5")
    with h5py.File(folder / "bags" / "1.h5", "w") as file:
        file.create_group("slide")["features"] = bags[1]
    with refuses("at its top level, got no array"):
        load_examples(str(folder), "test")
    (folder / "bags" / "1.h5").write_bytes(b"damaged")
    with refuses("cannot read the bag"):
        load_examples(str(folder), "test")
    save_hdf5(folder / "bags" / "1.h5", bags[1][:, :2])
    with refuses("same size"):
        load_examples(str(folder), "test")


def test_bags_of_different_precision_get_the_higher_one(bags, tmp_path):
    folder = write_folder(tmp_path, bags, np.save, ".npy")
    np.save(folder / "bags" / "1.npy", bags[1].astype(np.float16))
    actual = list(iterate_bags(load_examples(str(folder), "test"), "features"))
    expected = [bags[0], bags[1].astype(np.float16).astype(float), bags[2]]
    for actual_bag, bag in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(actual_bag, bag)


def test_bags_in_files_stay_in_their_files(bags, tmp_path):
    folder = write_folder(tmp_path, bags, np.save, ".npy")
    examples = load_examples(str(folder), "test")
    assert [Path(path).name for path in examples["features"]] == ["0.npy", "1.npy", "2.npy"]
    again = load_examples(examples, "test")
    assert compute_dataset_fingerprint(again) == compute_dataset_fingerprint(examples)
    (folder / "bags" / "1.npy").unlink()
    with refuses("1.npy in row 1 of column 'features' does not exist"):
        list(iterate_bags(examples, "features"))


def test_items_and_named_columns(bags):
    rows = [{"history": [3, 1, 4], "label": 0}, {"history": [1], "label": 1}]
    examples = load_examples(rows, "test", instance_column="history")
    assert examples["items"][:] == [[3, 1, 4], [1]]
    again = load_examples(examples, "test")
    assert again["items"][:] == [[3, 1, 4], [1]]


def test_names_of_instance_columns_are_read_as_those_of_texts():
    """White space around a name is removed, and a dot names a column inside another one."""
    rows = [{"visit": {"codes": [3, 1]}, " codes ": [4, 2], "label": 0}]
    assert load_examples(rows, "test", instance_column="visit.codes")["items"][:] == [[3, 1]]
    assert load_examples(rows, "test", instance_column=" codes ")["items"][:] == [[4, 2]]


def test_a_data_set_with_texts_stays_a_data_set_of_texts():
    rows = [{"text": "a fine film", "features": [[1.0]], "label": 0}]
    assert load_examples(rows, "test").column_names == ["example_id", "text", "label"]


WRONG_CELLS = {
    "ragged": ([[1.0, 2.0], [3.0]], "ragged"),
    "NaN": ([[1.0, float("nan")]], "finite"),
    "infinite": ([[1.0, float("inf")]], "finite"),
    "empty": ([], "matrix"),
    "numbers": (3.5, "matrix"),
}


@pytest.mark.parametrize("case", WRONG_CELLS)
def test_wrong_bags_are_refused(case):
    cell, message = WRONG_CELLS[case]
    with refuses(message):
        load_examples([{"features": cell, "label": 0}], "test")


def test_wrong_files_sizes_and_columns_are_refused(bags, tmp_path):
    with refuses("same size"):
        rows = [{"features": [[1.0]], "label": 0}, {"features": [[1.0, 2.0]], "label": 1}]
        load_examples(rows, "test")
    with refuses("can run code"):
        load_examples([{"features": "bag.pt", "label": 0}], "test")
    with refuses("does not exist"):
        load_examples([{"features": "missing.npy", "label": 0}], "test")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with refuses("cannot read the bag"):
        load_examples([{"features": str(pickled), "label": 0}], "test")
    (tmp_path / "bag.h5").write_bytes(b"")
    with refuses("h5py|cannot read the bag"):
        load_examples([{"features": str(tmp_path / "bag.h5"), "label": 0}], "test")
    np.save(tmp_path / "bag.npy", bags[0])
    (tmp_path / "blank.csv").write_text("features,label\nbag.npy,0\n,1\n")
    with refuses("path of a file in every row, but row 1 has an empty cell"):
        load_examples(tmp_path / "blank.csv", "test")
    with refuses("--instance-column"):
        load_examples([{"slide": "a", "label": 0}], "test")
    with refuses("no column 'h'"):
        load_examples(make_rows(bags), "test", instance_column="h")
    with refuses("text column"):
        load_examples([{"h": [[1.0]], "label": 0}], "test")
    with refuses("one position per instance"):
        row = {"features": [[1.0]], "coordinates": [[1.0], [2.0]], "label": 0}
        load_examples([row], "test")
    with refuses("integers of at least 0"):
        load_examples([{"items": [1, -2], "label": 0}], "test")
    with refuses("cannot be combined"):
        rows = [{"features": [[1.0]], "text": "a", "label": 0}]
        load_examples(rows, "test", instance_column="features", text_column="text")


def test_unit_is_refused_for_passages():
    from hf_attnprobe import Answers

    assert Data([], unit="patch").unit == "patch"
    with refuses("unit is not an option"):
        Answers([], unit="patch")
