"""Text becomes HTML and comes back the same; the file allows its own script and nothing else."""

import base64
import hashlib
import json
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe.documents.blocks import Document, Section, Table
from hf_attnprobe.documents.html import build_security_policy, render_cell_html, render_html
from hf_attnprobe.documents.token_shading import escape_invisible
from tests.helpers.page_reader import Reader
from tests.helpers.sample_page import HARM, demo_page


# What HTML can hold; a carriage return is read as a line feed by every parser.
WRITABLE = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff")
    | st.sampled_from("<>&\"'\n\t")
)


def in_a_cell(*blocks):
    """What a notebook's cell has below the style."""
    return render_cell_html(blocks).partition("</style>")[2].removesuffix("</div>").strip()


@given(WRITABLE.filter(str.strip))
def test_text_comes_back_as_it_was_in_elements_and_attributes(text):
    text = escape_invisible(text)
    read = Reader(in_a_cell(text, Table(["a"], [[1]], caption=text)))
    assert "".join(read.text).startswith(text) and read.elements[0][0] == "p"
    assert read.elements[1][1]["aria-label"] == text


def test_a_character_that_html_cannot_hold_is_named():
    assert in_a_cell("a\x00b\ud800c") == "<p>a[U+0000]b[U+D800]c</p>"


# --- the whole file -----------------------------------------------------------------------------------------------


def test_the_policy_names_the_script_that_is_there():
    html = demo_page()
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (allowed,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    rules = dict(rule.strip().split(" ", 1) for rule in unescape(allowed).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert len(script.encode()) < 10_000
    assert digest in build_security_policy(script)
    assert html.index("Content-Security-Policy") < html.index("<style") < html.index("<script")


def test_data_come_back_and_end_no_script():
    html = render_html(
        Document("t", [], [], data={"harm": HARM, "half": "\ud800", "n": [1, None, 0.5]})
    )
    (written,) = re.findall(
        r'<script type="application/json" id="report-data">(.*?)</script>', html
    )
    assert json.loads(written) == {"harm": HARM, "half": "\ud800", "n": [1, None, 0.5]}
    assert not set("<>&\u2028\u2029") & set(written)
    html.encode()


def test_numbers_that_json_does_not_have_are_refused():
    with pytest.raises(ValueError):
        render_html(Document("t", [], [], data={"x": float("nan")}))


def test_titles_and_contents():
    sections = [Section(f"A & {k}", [str(k)], id=f"s{k}", is_collapsed=k == 2) for k in range(6)]
    html = render_html(Document("<b>", [], sections))
    assert "<title>&lt;b&gt;</title>" in html and html.count("<details") == 1
    assert html.count("<h1") == 1 and html.count("<h2") == 6
    assert re.findall('href="(#s.*?)"', html) == ["#s0", "#s1", "#s3", "#s4", "#s5"]
    own = render_html(Document("t", [], [], heading="own"))
    assert "<title>t</title>" in own and "<h1>own</h1>" in own


def test_a_fragment_has_no_script_and_one_root():
    read = Reader(render_cell_html(["text"])).elements
    assert [tag for tag, _ in read] == ["div", "style", "p"]
    assert read[0][1] == {"class": "attnprobe"}
