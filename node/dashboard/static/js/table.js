/** Tables in a box that scrolls sideways, also by keyboard, so that the page never does. */

import { h } from "./dom.js";

/**
 * @template Row
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: Row) => import("./dom.js").Child} cell
 * @property {boolean} [number] aligned to the right
 * @property {string} [hint] what the column means
 */

/**
 * @template Row
 * @param {string} caption what the table is of, for screen readers and as the name of its box
 * @param {Column<Row>[]} columns the first one is the row's heading
 * @param {readonly Row[]} rows
 */
export function table(caption, columns, rows) {
  const head = columns.map((c) => h("th", { scope: "col", class: c.number ? "number" : null, title: c.hint }, c.title));
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      columns.map((column, index) =>
        index === 0
          ? h("th", { scope: "row" }, column.cell(row))
          : h("td", { class: column.number ? "number" : null }, column.cell(row))
      ),
    )
  );
  return h(
    "div",
    { class: "scroll", "data-key": caption, tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  );
}

/**
 * Names and values beside each other.
 * @param {[string, import("./dom.js").Child][]} pairs
 */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}
