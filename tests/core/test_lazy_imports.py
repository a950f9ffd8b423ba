"""What is imported when: a command answers at once, and what is registered is there in either order."""

import json

import pytest

from tests.helpers import tiny_models


HEAVY = {"accelerate", "datasets", "evaluate", "huggingface_hub", "matplotlib", "numpy", "pandas"}
HEAVY |= {"pyarrow", "scipy", "torch", "transformers"}
SAYS = """
import json, sys, time
{code}
print(json.dumps([sorted(sys.modules), time.process_time()]), file=sys.stderr)
"""


@pytest.fixture
def imported(run_python):
    """What a program imports of the heavy libraries, and the CPU seconds that it takes."""

    def run(code):
        done = run_python("-c", SAYS.format(code=code))
        assert done.code == 0, done.err
        modules, seconds = json.loads(done.err.splitlines()[-1])
        return HEAVY & set(modules), seconds

    return run


REGISTERED = """
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.pipelines import PIPELINE_REGISTRY
config = AutoConfig.for_model("attention_classifier", vocab_size=9, embedding_size=4, encoder_size=4)
print(type(AutoModel.from_config(config)).__name__)
print(type(AutoModelForSequenceClassification.from_config(config)).__name__)
print("attention-explain" in PIPELINE_REGISTRY.get_supported_tasks())
"""


ORDERS = (
    "import hf_attnprobe, transformers",
    "import transformers, hf_attnprobe",
    "from hf_attnprobe import AttentionClassifierModel",
    "import hf_attnprobe, importlib.util; importlib.util.find_spec('transformers')",
    "import hf_attnprobe; from transformers import Trainer",
    "import hf_attnprobe; import transformers.models.auto.modeling_auto",
    "from hf_attnprobe.models.attention_classifier.layers_attention_classifier import CNNEncoder",
    "from hf_attnprobe.adapters import wrap",
)


@pytest.mark.parametrize("imports", tiny_models.daily(ORDERS, ORDERS[:1]))
def test_the_auto_classes_know_ours_in_either_order(imports, run_python):
    done = run_python("-c", imports + REGISTERED)
    assert done.code == 0, done.err
    names = ["AttentionClassifierModel", "AttentionClassifierForSequenceClassification", "True"]
    assert done.out.split() == names


THREADS = """
import hf_attnprobe, torch
torch.set_num_threads(7)
from hf_attnprobe.core.hardware import limit_threads
with limit_threads(torch.nn.Linear(2, 2)) as n:
    print(n)
"""


def test_a_number_of_threads_that_was_set_before_anything_was_used_is_kept(run_python):
    done = run_python("-c", THREADS, env={"OMP_NUM_THREADS": None})
    assert (done.out, done.code) == ("7\n", 0), done.err


AUDIT = ("audit", "--model", "x", "--dataset", "d")

ANSWERS = [
    (["--help"], 0, "detection-limit"),
    (["audit", "--help"], 0, "--text-column"),
    (["train", "--help"], 0, "--encoder"),
    (["audit", "--modell", "x"], 2, "did you mean --model?"),
    (["audti"], 2, "attnprobe: unknown command 'audti'; did you mean audit?"),
    (["--verison"], 2, "attnprobe: unknown flag --verison; did you mean --version?"),
    (["audit", "--n-permutations", "5"], 2, "use --set TEST.OPTION=VALUE; --help-all lists them"),
    (["audit", "--model", "x", "--dataset", "y.csv"], 1, "the data file y.csv does not exist"),
    (["audit", "--model", "./x", "--dataset", "sst"], 1, "expected a model at ./x"),
    (["train", "--dataset", "sst", "--output-dir", "/dev/null/x"], 1, "--output-dir"),
    (["train", "--dataset", "sst", "--output-dir", "x", "--epochs", "0"], 2, "at least 1"),
    ([*AUDIT, "--set", "permutation.n_permutations=0"], 2, "--set: n_permutations must be"),
    ([*AUDIT, "--set", "permutation.n=3"], 2, "unknown option 'n' of permutation"),
    ([*AUDIT, "--set", "permutation"], 2, "expected TEST.OPTION=VALUE"),
    (["compare", "x", "--dataset", "d", "--set", "adversarial.seed=1"], 2, "of adversarial"),
    ([*AUDIT, "--tests", "erasures"], 2, "--tests: unknown test 'erasures'; did you mean"),
]


def test_a_command_answers_before_anything_heavy_is_imported(run_python):
    """Help, usage errors and the first checks: all of them in one process; .2 CPU seconds on a machine at rest."""
    done = run_python("-c", COMMANDS, json.dumps([arguments for arguments, *_ in ANSWERS]))
    modules, seconds, ended = json.loads(done.out.splitlines()[-1])
    for (arguments, code, said), (ended_with, printed) in zip(ANSWERS, ended, strict=True):
        assert ended_with == code and said in printed, arguments
    assert not HEAVY & set(modules)
    assert seconds < 4


STUDIES = [
    (("x.yaml",), "expected a Python file or the name of a study (encoders"),
    (("room", "--dataset", "a/x", "b/x"), "must have different names, but a/x and b/x"),
]


@pytest.mark.parametrize(("arguments", "said"), STUDIES)
def test_a_study_that_cannot_begin_says_why(cli, tmp_path, arguments, said):
    """A study is Python that uses the verbs: it is read once they are imported."""
    done = cli("study", *arguments, "--output-dir", tmp_path)
    assert done.code == 1 and said in done.err


COMMANDS = """
import contextlib, io, json, sys, time
from hf_attnprobe.cli import main
ended = []
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    ended.append((code, said.getvalue()))
print(json.dumps([sorted(sys.modules), time.process_time(), ended]))
"""


def test_what_is_light_is_imported_alone(imported):
    """The package, a module of it as its attribute, and the verbs without what they use."""
    code = "import hf_attnprobe; dir(hf_attnprobe); from hf_attnprobe.core.errors import AttnProbeError;"
    code += "from hf_attnprobe import AuditOptions, Data, audit, demo"
    modules, seconds = imported(code)
    assert not modules
    assert seconds < 1  # .1 on a machine at rest
