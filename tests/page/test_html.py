"""Text becomes HTML and comes back the same; the file allows its own script and nothing else."""

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo_page import HARM, demo_page
from hf_attnprobe.reports.document import Document, Section, Table
from hf_attnprobe.reports.html import policy, to_cell, to_html
from hf_attnprobe.reports.texts import legible


# What HTML can hold; a carriage return is read as a line feed by every parser.
WRITABLE = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff")
    | st.sampled_from("<>&\"'\n\t")
)


class Read(HTMLParser):
    """Tags, texts and attributes as Python's own parser sees them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        self.attributes: list[dict[str, str | None]] = []
        self.data: dict[str, str] = {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data):
        self.text += data
        if self.tags:
            self.data[self.tags[-1]] = self.data.get(self.tags[-1], "") + data


def in_a_cell(*blocks):
    """What a notebook's cell has below the style."""
    return to_cell(blocks).partition("</style>")[2].removesuffix("</div>").strip()


@given(WRITABLE.filter(str.strip))
def test_text_comes_back_as_it_was_in_elements_and_attributes(text):
    text = legible(text)
    read = Read(in_a_cell(text, Table(["a"], [[1]], caption=text)))
    assert read.tags[0] == "p" and read.data["p"].strip("\n") == text.strip("\n")
    assert read.attributes[1]["aria-label"] == text


@given(st.text(st.characters(), min_size=1))
def test_any_string_can_be_written_to_a_file(text):
    html = in_a_cell(text)
    assert Read(html.encode().decode()).tags == ["p"]
    assert not re.search("[\x00-\x08\x0b-\x1f\ud800-\udfff]", html)


def test_a_character_that_html_cannot_hold_is_named():
    assert in_a_cell("a\x00b\ud800c") == "<p>a[U+0000]b[U+D800]c</p>"


@settings(max_examples=30)
@given(st.lists(WRITABLE, min_size=1, max_size=4))
def test_a_table_holds_its_cells(cells):
    cells = list(map(legible, cells))
    read = Read(in_a_cell(Table(cells, [cells, cells])))
    assert re.sub(r"\s", "", read.text) == re.sub(r"\s", "", "".join(cells) * 3)
    assert "script" not in read.tags


def test_numbers_of_every_library_are_numbers():
    np = pytest.importorskip("numpy")
    html = in_a_cell(Table(["a", "b", "c"], [[np.float32(0.5), np.int64(7), np.float64("nan")]]))
    assert html.count('<th scope="col" class="n">') == 3 and 'class="t"' not in html
    assert re.findall(r"<td[^>]*>\s*(.*?)\s*<", html) == ["0.500", "7", "–"]


def test_a_small_number_is_not_zero():
    assert "1.0e-05" in in_a_cell(Table(["p"], [[1e-5]]))
    assert ">0.000<" in in_a_cell(Table(["p"], [[0.0]]))


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
    assert digest in policy(script)


def test_the_policy_stands_before_anything_it_forbids():
    html = demo_page()
    assert html.index("Content-Security-Policy") < html.index("<style")
    assert html.index("Content-Security-Policy") < html.index("<script")


def test_no_address_leads_out_of_the_file():
    html = demo_page()
    outside = re.sub(r'<script type="application/json".*?</script>', "", html)
    links = re.findall(r"""(?:href|src|url\()[=(]?["']?([^"')\s>]+)""", outside)
    assert links
    assert {link[:1] for link in links} - {"d"} == {"#"}
    assert "//" not in re.sub(r"<script>.*?</script>", "", outside, flags=re.DOTALL)


def test_data_come_back_and_end_no_script():
    html = to_html(
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
        to_html(Document("t", [], [], data={"x": float("nan")}))


def test_titles_and_contents():
    sections = [Section(f"A & {k}", [str(k)], id=f"s{k}", folded=k == 2) for k in range(6)]
    read = Read(to_html(Document("<b>", [], sections)))
    assert read.data["title"].strip() == "<b>"
    assert read.tags.count("h1") == 1 and read.tags.count("h2") == 6
    links = [a["href"] for a in read.attributes if a.get("href", "").startswith("#s")]
    assert links == ["#s0", "#s1", "#s3", "#s4", "#s5"]
    assert read.tags.count("details") == 1
    own = to_html(Document("t", [], [], heading="own"))
    assert "<title>t</title>" in own and "<h1>own</h1>" in own


def test_every_id_is_there_once_and_every_link_leads_somewhere():
    read = Read(demo_page())
    ids = [a["id"] for a in read.attributes if "id" in a]
    assert len(set(ids)) == len(ids)
    named = " ".join(a.get("aria-labelledby") or "" for a in read.attributes).split()
    links = [a["href"][1:] for a in read.attributes if (a.get("href") or "").startswith("#")]
    assert {*named, *links} <= set(ids)


def test_the_same_page_twice_is_the_same():
    assert demo_page() == demo_page()


def test_a_fragment_has_no_script_and_one_root():
    html = to_cell(["text"])
    read = Read(html)
    assert read.tags == ["div", "style", "p"]
    assert read.attributes[0] == {"class": "attnprobe"}
