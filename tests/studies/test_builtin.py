"""Built-in studies: all of them are sound."""

import itertools

from hf_attnprobe.studies.builtin import STUDIES_BY_NAME
from hf_attnprobe.studies.published import PUBLISHED
from hf_attnprobe.studies.run import plan_study
from hf_attnprobe.studies.steps import StudyOptions


def test_ready_studies_are_sound(cli):
    assert {
        "which-tasks",
        "encoders",
        "transfer",
        "room",
        *PUBLISHED.papers,
    } == STUDIES_BY_NAME.keys()
    shown = "".join(cli("study", "--help").out.split())
    for name, quick in itertools.product(STUDIES_BY_NAME, (False, True)):
        assert name in shown
        found = plan_study(name, StudyOptions(quick=quick, seed=3, train_limit=50))
        folders = [job.folder for job in found.jobs]
        assert len(set(folders)) == len(folders) > 0 and (found.tables or found.paper), name
        assert found.paper == (name if name in PUBLISHED.papers else None) and found.title
        for number, job in enumerate(found.jobs):
            assert set(job.depends_on) <= set(folders[:number]), name
            assert job.arguments["seed" if job.verb != "transfer" else "train_limit"], name
            assert job.arguments.get("train_limit", 50) == 50
