/* Sorting of tables, filtering of texts, and a button that opens all sections. This script
   creates all controls, so that a page without scripts shows none that do not work. */
"use strict";

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function createElement(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/* --- tables: a click on a column header sorts by that column --- */

/* Return the number at the beginning of a cell, else its text; null if the cell is empty. */
function getSortKey(row, column) {
  const text = row.cells[column]?.textContent.trim() ?? "";
  if (text === "" || text === "–") return null;
  const match = /^[+\-−]?(\d[\d,]*\.?\d*|\.\d+)(e[+\-−]?\d+)?/i.exec(text);
  return match ? Number(match[0].replace(/−/g, "-").replace(/,/g, "")) : text;
}

function sortRows(table, column, descending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [getSortKey(row, column), row]);
  const sign = descending ? -1 : 1;
  rows.sort(([a], [b]) => {
    // Empty cells are always last.
    if (a === null || b === null) return (a === null) - (b === null);
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
    const button = createElement("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("n");
      const order = head.getAttribute("aria-sort");
      // The first click sorts numbers from the largest and texts from A to Z.
      const descending = order ? order === "ascending" : isNumber;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortRows(table, column, descending);
    });
  });
}

/* --- texts: filters by predicted class and by correctness --- */

const MIN_FILTERED_TEXTS = 4;
const FILTERS = { class: "predicted", right: "prediction is" };
const CORRECTNESS = { true: "right", false: "wrong", unknown: "without a label" };

function makeFilters(texts) {
  if (texts.length < MIN_FILTERED_TEXTS) return;
  const bar = createElement("div", { class: "filters", role: "group", "aria-label": "Filter texts" });
  const selection = {};
  const count = createElement("output", {});
  const update = () => {
    for (const text of texts)
      text.hidden = Object.entries(selection).some(
        ([key, value]) => value && (text.dataset[key] ?? "") !== value,
      );
    const nVisible = texts.filter((text) => !text.hidden).length;
    count.textContent = nVisible < texts.length ? `${nVisible} of ${texts.length} texts` : "";
  };
  for (const [key, label] of Object.entries(FILTERS)) {
    const values = [...new Set(texts.map((text) => text.dataset[key] ?? ""))];
    const options = values.filter(Boolean).sort();
    if (options.length < 2) continue;
    const select = createElement("select", {}, createElement("option", { value: "" }, "all"));
    for (const value of options)
      select.append(createElement("option", { value }, (key === "right" && CORRECTNESS[value]) || value));
    select.addEventListener("change", () => {
      selection[key] = select.value;
      update();
    });
    bar.append(createElement("label", {}, label, select));
  }
  if (!bar.children.length) return;
  bar.append(count);
  texts[0].before(bar);
}

all("table.sortable").forEach(makeSortable);
new Set(all("article.text").map((text) => text.parentElement)).forEach((parent) =>
  makeFilters(all(":scope > article.text", parent)),
);

/* --- commands: a button copies them --- */

/* Browsers without clipboard access, such as for some local files, only select the text. */
async function copyText(element, button) {
  getSelection().selectAllChildren(element);
  try {
    await navigator.clipboard.writeText(element.textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  }
}

for (const block of all("pre")) {
  const button = createElement("button", { type: "button", class: "copy", "aria-live": "polite" }, "Copy");
  button.addEventListener("click", () => copyText(block, button));
  const box = createElement("div", { class: "code" });
  block.replaceWith(box);
  box.append(block, button);
}

/* Only tables that scroll need to be reachable by the tab key. */
for (const box of all(".scroll"))
  if (!box.closest("details:not([open])") && box.scrollWidth <= box.clientWidth)
    box.removeAttribute("tabindex");

/* Printing includes only open sections, so a button opens all of them. */
const collapsedSections = all("details.more");
if (collapsedSections.length) {
  const button = createElement("button", { type: "button", class: "unfold" }, "Open all sections (also for printing)");
  button.addEventListener("click", () => {
    for (const details of all("details")) details.open = true;
    button.remove();
  });
  collapsedSections[0].before(button);
}
