/* What a page can do with scripts: sort tables, choose texts. All controls are
   made here, so that without scripts nothing is shown that does not work. */
"use strict";

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/* --- tables: a click on a column's head sorts by it --- */

/* A number at the beginning of a cell, else its text; null where there is nothing. */
function keyOf(row, column) {
  const text = row.cells[column]?.textContent.trim() ?? "";
  if (text === "" || text === "–") return null;
  const found = /^[+\-−]?(\d[\d,]*\.?\d*|\.\d+)(e[+\-−]?\d+)?/i.exec(text);
  return found ? Number(found[0].replace(/−/g, "-").replace(/,/g, "")) : text;
}

function sort(table, column, downwards) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
  const sign = downwards ? -1 : 1;
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // always last
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return sign * a.localeCompare(b, undefined, { numeric: true });
  });
  body.append(...rows.map(([, row]) => row));
}

function makeSortable(table) {
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("n");
      const now = head.getAttribute("aria-sort");
      const downwards = now ? now === "ascending" : isNumber; // of numbers the largest first
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", downwards ? "descending" : "ascending");
      sort(table, column, downwards);
    });
  });
}

/* --- texts: by class, right or wrong --- */

const FEWEST_FILTERED = 4;
const FILTERS = { class: "predicted", right: "the model is" };
const WORDS = { true: "right", false: "wrong", unknown: "not known to be right" };

function makeFilters(texts) {
  if (texts.length < FEWEST_FILTERED) return;
  const bar = make("div", { class: "filters", role: "group", "aria-label": "Choose texts" });
  const chosen = {};
  const count = make("output", {});
  const update = () => {
    for (const text of texts)
      text.hidden = Object.entries(chosen).some(
        ([key, value]) => value && (text.dataset[key] ?? "") !== value,
      );
    const seen = texts.filter((text) => !text.hidden).length;
    count.textContent = seen < texts.length ? `${seen} of ${texts.length} texts` : "";
  };
  for (const [key, label] of Object.entries(FILTERS)) {
    const values = [...new Set(texts.map((text) => text.dataset[key] ?? ""))];
    const known = values.filter(Boolean).sort();
    if (known.length < 2) continue;
    const select = make("select", {}, make("option", { value: "" }, "all"));
    for (const value of known)
      select.append(make("option", { value }, (key === "right" && WORDS[value]) || value));
    select.addEventListener("change", () => {
      chosen[key] = select.value;
      update();
    });
    bar.append(make("label", {}, label, select));
  }
  if (!bar.children.length) return;
  bar.append(count);
  texts[0].before(bar);
}

all("table.sortable").forEach(makeSortable);
new Set(all("article.text").map((text) => text.parentElement)).forEach((parent) =>
  makeFilters(all(":scope > article.text", parent)),
);

/* A table that does not scroll needs no stop for the tab key. */
for (const box of all(".scroll"))
  if (!box.closest("details:not([open])") && box.scrollWidth <= box.clientWidth)
    box.removeAttribute("tabindex");

/* What is folded away is printed where it is opened: all of it by one button. */
const folded = all("details.more");
if (folded.length) {
  const button = make("button", { type: "button", class: "unfold" }, "Open all parts, to print them too");
  button.addEventListener("click", () => {
    for (const part of all("details")) part.open = true;
    button.remove();
  });
  folded[0].before(button);
}
