"""The page in Chromium: silent, without requests, accessible, usable with and without scripts."""

import itertools

import pytest

from hf_attnprobe.documents.blocks import AnswerBlock, FormattedNumber, NumberLine
from hf_attnprobe.documents.html import render_cell_html, render_html
from tests.helpers import tiny_models
from tests.helpers.sample_page import demo_page, first_screen_document


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(demo_page(), encoding="utf-8")
    return file


@pytest.mark.parametrize("dark", tiny_models.daily([False, True], [True]))
def test_no_message_no_request_no_sideways_scrolling(open_page, tmp_path, dark):
    page_file = tmp_path / "large.html"
    page_file.write_text(demo_page(large=True), encoding="utf-8")
    for width in (1200, 400):
        opened = open_page(page_file, dark=dark, width=width)
        assert opened.messages == []
        assert opened.requests == [page_file.as_uri()]
        assert not opened.is_wider_than_the_screen()


@pytest.mark.parametrize("dark", tiny_models.daily([False, True], [True]))
def test_axe_finds_nothing_serious(open_page, page_file, dark):
    opened = open_page(page_file, dark=dark, axe=True)
    if not dark:  # what is folded away has the same colours, and takes its time
        unfold = "document.querySelectorAll('details').forEach(d => d.open = true)"
        opened.page.evaluate(unfold)
    assert opened.findings() == []


def test_the_policy_keeps_injected_scripts_and_requests_out(open_page, page_file):
    opened = open_page(page_file)
    opened.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.injected = 1";
            document.body.append(script);
            const image = new Image();
            image.src = "http://127.0.0.1:9/x.png";
            document.body.append(image);
        }"""
    )
    opened.page.wait_for_timeout(100)
    assert opened.page.evaluate("window.injected") is None
    assert len(opened.messages) == 2 and all("violates" in m for m in opened.messages)


def column(opened, k):
    rows = opened.page.locator("#tables tbody tr")
    return [row.locator("th, td").nth(k).inner_text() for row in rows.all()]


def test_a_click_on_a_head_sorts(open_page, page_file):
    opened = open_page(page_file)
    assert column(opened, 1) == ["872", "1200", "95", "10"]
    button = opened.page.locator("#tables thead button").nth(1)
    head = opened.page.locator("#tables thead th").nth(1)
    button.click()
    assert column(opened, 1) == ["1200", "872", "95", "10"]
    assert head.get_attribute("aria-sort") == "descending"
    button.press("Enter")
    assert column(opened, 1) == ["10", "95", "872", "1200"]
    assert head.get_attribute("aria-sort") == "ascending"
    opened.page.locator("#tables thead button").nth(0).click()
    assert column(opened, 0) == ["average", "bilstm", "cnn", "minilm"]
    assert head.get_attribute("aria-sort") is None


def test_what_is_missing_is_sorted_last_and_small_numbers_are_numbers(open_page, page_file):
    opened = open_page(page_file)
    button = opened.page.locator("#tables thead button").nth(2)
    button.click()
    assert column(opened, 2) == ["0.812", "0.790", "-1.0e-05", "–"]
    button.click()
    assert column(opened, 2) == ["-1.0e-05", "0.790", "0.812", "–"]


def test_texts_are_chosen_by_class_and_right(open_page, page_file):
    opened = open_page(page_file)
    shown = "article.text:not([hidden]) h3"
    by_class, right = opened.page.locator(".filters select").all()
    by_class.select_option("positive")
    assert opened.page.locator(shown).all_inner_texts() == ["About positive", "About positive"]
    right.select_option(label="right")
    assert opened.page.locator(shown).all_inner_texts() == ["About positive"]
    assert opened.page.locator(".filters output").inner_text() == "1 of 4 texts"
    by_class.select_option("negative")
    assert opened.page.locator(shown).all_inner_texts() == ["About negative", "About negative"]


def test_without_scripts_everything_is_there_and_nothing_is_dead(open_page, page_file):
    opened = open_page(page_file, scripts=False)
    assert opened.page.locator("button, select, output").count() == 0
    for text in ("Does attention agree", "How to repeat it", "Text 2: predicted", "bilstm"):
        assert opened.page.get_by_text(text).first.is_visible()


def test_what_is_folded_is_printed_where_it_is_open(open_page, page_file):
    opened = open_page(page_file)
    folded = [opened.page.get_by_text(f"{what} folded away.") for what in ("What was", "It was")]
    opened.page.emulate_media(media="print")
    assert not any(part.is_visible() for part in folded)
    opened.page.emulate_media(media="screen")
    opened.page.get_by_role("button", name="Open all sections").click()
    opened.page.emulate_media(media="print")
    assert all(part.is_visible() for part in folded)


def test_the_first_printed_page_has_the_answer_its_rows_and_a_text(open_page, tmp_path):
    """A4 with margins of one centimetre, at 96 pixels per inch."""
    width, height = 718, 1047
    file = tmp_path / "report.html"
    file.write_text(render_html(first_screen_document()), encoding="utf-8")
    page = open_page(file, width=width).page
    page.emulate_media(media="print")
    background, rows, text_top = page.evaluate(
        """() => [
            getComputedStyle(document.body).backgroundColor,
            [...document.querySelectorAll(".scores td.t")].map(cell => {
                const box = cell.getBoundingClientRect();
                const lineHeight = parseFloat(getComputedStyle(cell).lineHeight);
                return [box.width, Math.floor(box.height / lineHeight), box.bottom];
            }),
            document.querySelector(".text").getBoundingClientRect().top,
        ]"""
    )
    assert background == "rgb(255, 255, 255)"
    for cell_width, n_lines, bottom in rows:
        assert cell_width > 0.4 * width and n_lines <= 3 and bottom < height
    assert len(rows) == 8 and text_top < 0.75 * height


def test_a_fragment_leaves_the_notebook_as_it_is(open_page, tmp_path):
    cell = render_cell_html([AnswerBlock("Why?", "no", "So.", [NumberLine(FormattedNumber(0.1))])])
    outside = '<h3 id="mine">mine</h3><table><td>mine</td></table>'
    looks = []
    for k, body in enumerate(("", cell)):
        file = tmp_path / f"{k}.html"
        file.write_text(f"<html><body>{outside}{body}</body></html>", encoding="utf-8")
        page = open_page(file).page
        looks.append(
            page.evaluate(
                "['h3', 'td', 'body'].map(s => JSON.stringify([...getComputedStyle("
                "document.querySelector(s))].filter(n => !/size|height|origin/.test(n))"
                ".map(n => getComputedStyle(document.querySelector(s))[n])))"
            )
        )
    assert looks[0] == looks[1]
    assert page.locator(".answer").evaluate("e => getComputedStyle(e).borderLeftWidth") != "0px"


# --- the first screen of an audit ------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_screen(tmp_path_factory):
    file = tmp_path_factory.mktemp("first") / "report.html"
    file.write_text(render_html(first_screen_document()), encoding="utf-8")
    return file


def box(locator):
    bounds = locator.bounding_box()
    return bounds | {
        "right": bounds["x"] + bounds["width"],
        "bottom": bounds["y"] + bounds["height"],
    }


@pytest.mark.parametrize("width", [320, 390, 400, 430, 767])
def test_on_a_phone_every_row_is_name_and_number_then_bar_then_meaning(
    open_page, first_screen, width
):
    opened = open_page(first_screen, width=width)
    assert not opened.is_wider_than_the_screen()
    rows = opened.page.locator("tr:has(td.on-scale)").all()
    assert len(rows) == 5
    for row in rows:
        name, number = box(row.locator("th")), box(row.locator("td.value"))
        scale, meaning = box(row.locator(".rail")), box(row.locator("td.t"))
        assert abs(name["bottom"] - number["bottom"]) < 4 and name["right"] <= number["x"]
        assert scale["y"] >= name["bottom"] and meaning["y"] >= scale["bottom"]
        assert scale["width"] > 0.85 * width and meaning["right"] <= width
    first_part = opened.page.locator("tr.part").first
    heading = first_part.evaluate("e => getComputedStyle(e, '::before').content")
    top = box(first_part)["y"]
    assert heading == '"Faithfulness is the mean of"'
    # The heading has a line of its own above the name.
    assert box(first_part.locator("th"))["y"] > top + 20


@pytest.mark.parametrize("width", [320, 430, 1280])
def test_the_advice_for_users_follows_the_answer_and_a_command_ends_the_first_screen(
    open_page, first_screen, width
):
    opened = open_page(first_screen, width=width)
    advice, score = opened.page.get_by_text("May I show"), opened.page.locator("tr").first
    answer, step = opened.page.locator(".lead"), opened.page.locator(".next")
    texts = box(opened.page.locator("#texts"))
    assert box(answer)["bottom"] <= box(advice)["y"] < box(advice)["bottom"] <= box(score)["y"]
    assert box(score)["bottom"] <= box(step)["y"] and box(step)["bottom"] <= texts["y"]


def test_thresholds_run_through_all_rows_at_one_position(open_page, first_screen):
    page = open_page(first_screen, width=1280).page
    lines = page.locator(".grid i").all()
    positions = {round(box(line)["x"]) for line in lines}
    assert len(lines) == 10 and len(positions) == 2
    # Without a gap between two rows.
    column = sorted((box(k)["y"], box(k)["bottom"]) for k in lines[::2])
    assert all(below[0] - above[1] < 2 for above, below in itertools.pairwise(column))
    assert page.locator(".cut-low").count() == page.locator(".cut-high").count() == 1


def test_marks_are_read_as_answers_and_the_passage_is_there_once(open_page, first_screen):
    page = open_page(first_screen, width=1280).page
    table = page.locator("table.scores").first.aria_snapshot()
    for name, answer in {"removal": "partly", "source": "no", "mass": "cannot say"}.items():
        assert f'rowheader "{answer} {name}"' in table
    article = page.locator("article.text")
    assert article.locator("h3").inner_text() == "When does it sail?"
    said = article.inner_text()
    assert "helpful ferry" not in said and "knockout" not in said
    assert all(said.count(unit) == 1 for unit in ("sails at noon", "9 euros", "bicycle"))
    marked = article.locator(".passage span[class^=s]")
    assert marked.all_inner_texts() == ["The ferry sails at noon."]
    bars = [box(bar)["width"] for bar in article.locator(".weight i").all()]
    assert bars[0] / bars[1] == pytest.approx(0.5, abs=0.03)


def test_a_button_copies_the_command(open_page, first_screen):
    page = open_page(first_screen).page
    button = page.locator(".next .copy")
    button.click()
    page.wait_for_function("document.querySelector('.next .copy').textContent !== 'Copy'")
    assert page.evaluate("getSelection().toString().trim()").startswith("attnprobe audit")
    assert open_page(first_screen, scripts=False).page.locator(".copy").count() == 0


@pytest.mark.parametrize("dark", tiny_models.daily([False, True], [True]))
@pytest.mark.parametrize("width", tiny_models.daily([320, 390, 430, 1280], [390]))
def test_axe_reports_no_violation_at_all(open_page, first_screen, dark, width):
    opened = open_page(first_screen, dark=dark, width=width, axe=True)
    assert opened.list_violations() == []
