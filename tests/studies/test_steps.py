"""Steps of studies: quick ones, data sets, names and folders of their own."""

import pytest

from hf_attnprobe.studies.run import plan_study
from hf_attnprobe.studies.steps import StudyOptions, name_dataset, resolve_dataset
from tests.studies.test_run import base


@pytest.mark.parametrize("name", ["jain-wallace", "room", "transfer"])
def test_a_quick_study_is_a_smaller_one(name):
    whole, quick = (plan_study(name, StudyOptions(quick=quick)) for quick in (False, True))
    assert len(quick.jobs) < len(whole.jobs)
    assert {job.step for job in quick.jobs} == {job.step for job in whole.jobs}
    assert [table.title for table in quick.tables] == [table.title for table in whole.tables]


def test_a_step_that_is_there_already_is_not_added_again():
    def study(s):
        assert base(s) == base(s) == "base"

    assert len(plan_study(study).jobs) == 1


def test_cells_with_names_alike_have_folders_of_their_own():
    names = ["x_y", "x-y", "X y", "..", ".", "..."]

    def study(s):
        for cell in s.grid(name=names):
            s.add("train", "base", cell, dataset="sst")

    folders = [job.folder for job in plan_study(study).jobs]
    assert folders[0] == "base/x_y"
    assert len({folder.casefold() for folder in folders}) == len(names)
    assert all(folder.partition("/")[2].strip(".") for folder in folders)


def test_a_folder_stands_for_a_named_data_set():
    assert (
        resolve_dataset("sst=folder").hub_id == "folder"
        and resolve_dataset("sst=folder").longer_than == 5
    )
    assert resolve_dataset("mine=folder") == "folder"
    assert resolve_dataset("sst") == "sst" and resolve_dataset("/data/sst") == "/data/sst"
    assert name_dataset("/data/IMDB") == "imdb" and name_dataset("agnews-binary") == "agnews-binary"


def test_data_sets_of_the_options_replace_those_of_the_grid():
    given = {"dataset": "sst=there", "train_limit": 9, "dataset_config": "b"}
    train, *_, retrained = plan_study("which-tasks", StudyOptions(**given)).jobs
    assert train.arguments.items() >= given.items() and train.folder == "base/sst-bilstm"
    assert retrained.arguments.items() >= given.items()
    audit = plan_study("encoders", StudyOptions(**given)).jobs[1].arguments
    assert audit["dataset_config"] == "b" and "train_limit" not in audit  # of training texts
    (train, *_) = plan_study("which-tasks", StudyOptions(dataset="/data/other")).jobs
    assert train.arguments["dataset"] == "/data/other" and train.folder == "base/other-bilstm"
