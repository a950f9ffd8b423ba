"""Shared fixtures: a tiny checkpoint, generated reviews on disk, and the command line in and out of process."""

import atexit
import copy
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple


# Before any library of Hugging Face is imported: they read these once. No test leaves the machine or its caches.
HOME = tempfile.mkdtemp(prefix="attnprobe-tests-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
for name in [name for name in os.environ if name.startswith(("HF_", "TRANSFORMERS_"))]:
    del os.environ[name]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
os.environ |= OFFLINE | {
    "HF_HOME": HOME,
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "100",  # of a terminal, which pytest's processes have not
    "TOKENIZERS_PARALLELISM": "false",
}

import datasets  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from hf_attnprobe import build_tokenizer  # noqa: E402
from hf_attnprobe.cli import main  # noqa: E402
from hf_attnprobe.data.synthetic import LABEL_NAMES, make_rationale_dataset  # noqa: E402
from hf_attnprobe.documents import svg  # noqa: E402
from tests.helpers import tiny_models  # noqa: E402
from tests.helpers.audit_by_name import audit_by_name  # noqa: E402
from tests.helpers.browser import browser, opened  # noqa: E402
from tests.helpers.data_folders import write_splits  # noqa: E402
from tests.helpers.forked_process import ForkServer, get_two_process_environments  # noqa: E402


torch.set_num_threads(1)
UNTIMED = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **UNTIMED)
settings.register_profile("drawn", print_blob=True, **UNTIMED)
settings.load_profile("same")  # every day the same examples; `make slow` draws others
LABELS = (*LABEL_NAMES, "mixed", "none")
DRAW = svg.render_svg


TESTS = Path(__file__).parent
TESTS_THAT_DRAW = (
    "audits/test_compare.py",
    "audits/test_shares.py",
    "cli/test_commands.py",
    "documents",
    "failures/test_kills.py",
    "integrations/test_publishing.py",
    "plots/test_chart.py",
    "reports/test_audit_document.py",
    "reports/test_comparison.py",
    "reports/test_paired_differences.py",
    "reports/test_report.py",
    "retraining/test_deception.py",
    "retraining/test_run.py",
    "storage/test_robustness.py",
    "studies",
    "test_security.py",
)
"""Folders and files of tests that inspect the charts on a page."""


def pytest_addoption(parser):
    parser.addoption("--part", help="K/N: the K-th of N parts of the tests; 0 is the first")


def pytest_collection_modifyitems(config, items):
    """A test is always in the same part, so that N parts are all of them."""
    if part := config.getoption("part"):
        k, n = map(int, part.split("/"))
        others = [item for item in items if zlib.crc32(item.nodeid.encode()) % n != k % n]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in {*others}]


@pytest.fixture
def sketched(monkeypatch):
    """Charts are not drawn: that takes half the time of a small audit with a folder."""
    monkeypatch.setattr(svg, "render_svg", lambda chart: "<svg></svg>")


@pytest.fixture(autouse=True)
def _few_draw(request):
    path = request.path.relative_to(TESTS) if request.path.is_relative_to(TESTS) else Path()
    if not any(path.is_relative_to(name) for name in TESTS_THAT_DRAW):
        request.getfixturevalue("sketched")


@pytest.fixture(autouse=True, scope="session")
def _nobody_writes_into_what_is_shared():
    yield
    assert not tiny_models.written_into()


class Finished(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def reviews():
    """240 generated reviews as a DatasetDict: 160 train, 40 validation, 40 test."""
    return make_rationale_dataset(240, seed=0)


@pytest.fixture(scope="session")
def reviews_folder(reviews):
    """The same as JSON lines of example_id, text and label; do not write into it."""

    return tiny_models.once("reviews", lambda folder: write_splits(folder, reviews))


@pytest.fixture(scope="session")
def once():
    """``once(name, make)``: the folder that ``make(folder)`` filled, shared by all processes; see ``zoo.once``."""
    return tiny_models.once


@pytest.fixture(scope="session")
def texts(reviews):
    """The texts of the test split."""
    return reviews["test"]["text"][:]


@pytest.fixture(scope="session")
def tokenizer(reviews):
    return build_tokenizer(reviews["train"]["text"][:])


@pytest.fixture(scope="session")
def make_model(tokenizer):
    """A function from encoder, attention and number of labels to a classifier with random weights.

    They are larger than a fresh model's, so that attention is far from uniform and every class is predicted.
    """

    def make(encoder="bilstm", attention="additive", n_labels=2):
        labels = LABELS[:n_labels]
        model = tiny_models.classifier(
            tokenizer,
            read_out=30,
            embedding_size=16,
            encoder=encoder,
            attention=attention,
            id2label=dict(enumerate(labels)),
            label2id={label: k for k, label in enumerate(labels)},
        )
        with torch.no_grad():
            for parameter in model.attention_classifier.attention.parameters():
                parameter *= 5
        return model

    return make


@pytest.fixture(scope="session")
def make_checkpoint(make_model, tokenizer):
    """The same as a folder with its tokenizer; do not write into it."""

    def make(*kind):
        name = "-".join(map(str, kind or ("bilstm",)))
        return tiny_models.once(
            name, lambda folder: tiny_models.saved(folder, make_model(*kind), tokenizer)
        )

    return make


@pytest.fixture(scope="session")
def checkpoint(make_checkpoint):
    """The folder of the BiLSTM with additive attention and two labels."""
    return make_checkpoint()


@pytest.fixture(scope="session")
def audited(checkpoint, reviews, reviews_folder, tokenizer):
    """``audited(kind)``: the folder of a finished audit with its page, made once; do not write into it.

    "classifier" is the audit of ``checkpoint`` on 40 generated reviews, "heads" of a BERT of two layers of two heads
    on 32 of them.
    """

    def classifier(folder):
        audit_by_name(
            checkpoint, reviews_folder, tests=tiny_models.OF_A_CLASSIFIER, output_dir=folder
        )

    def heads(folder):
        words = copy.deepcopy(tokenizer)
        words.model_max_length = 64
        model = tiny_models.saved(
            folder.parent / "model", tiny_models.bert(words, spread=0.5), words
        )
        few = {"test_limit": 32, "n_permutations": 5, "output_dir": folder}
        audit_by_name(str(model), reviews["test"], tests=tiny_models.OF_HEADS, **few)

    kinds = {"classifier": classifier, "heads": heads}

    def drawn(kind, folder):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(svg, "render_svg", DRAW)
            kinds[kind](folder)

    return lambda kind: tiny_models.once(f"audit-{kind}", functools.partial(drawn, kind))


@pytest.fixture
def cli(capsys):
    """The command line in this process."""

    def run(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        return Finished(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def run_python(tmp_path_factory):
    """``python arguments`` in a process of its own, in a folder that is not the repository."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(*arguments, env=None, cwd=elsewhere, timeout=300):
        command = [sys.executable, *map(str, arguments)]
        environment = {k: v for k, v in (os.environ | (env or {})).items() if v is not None}
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def run_module(run_python):
    """``python -m hf_attnprobe arguments`` in a process of its own."""
    return lambda *arguments, **options: run_python("-m", "hf_attnprobe", *arguments, **options)


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """The process whose forks have imported already what is heavy."""
    process = ForkServer(tmp_path_factory.mktemp("warm"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def run_warm(warm):
    """``python arguments`` in such a fork; ``env`` comes too late for what libraries read when they are imported."""
    return lambda *arguments, env=None: Finished(*warm.run([*map(str, arguments)], [env or {}]))


@pytest.fixture(scope="session")
def run_two(warm):
    """``python arguments`` in two such forks that are told what torchrun tells them."""
    return lambda *arguments, env=None: Finished(
        *warm.run(
            [*map(str, arguments)],
            [of_one | (env or {}) for of_one in get_two_process_environments()],
        )
    )


@pytest.fixture(scope="session")
def torchrun(run_two):
    """``attnprobe arguments`` in two such forks."""
    return lambda *arguments: run_two("-m", "hf_attnprobe", *arguments)


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    """What `datasets` prepares is kept for this test alone."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def copy_of(tmp_path):
    """A function that copies a folder, to be spoilt."""

    def copy(folder: Path, name="copy"):
        return Path(shutil.copytree(folder, tmp_path / name))

    return copy


@pytest.fixture(scope="module")
def chromium():
    """A browser, for one module: as long as it is open, no other event loop can run."""
    with browser() as running:
        yield running


@pytest.fixture
def open_page(chromium):
    """``open_page(path, dark=False, width=1200, scripts=True)``: see ``browser.Opened``."""
    with ExitStack() as stack:
        yield lambda path, **options: stack.enter_context(opened(chromium, path, **options))
