/**
 * Tables in a box that scrolls sideways, also by keyboard, so that the page never does. Tables whose rows are long stack
 * the cells of a row on narrow screens, each with its column's title.
 */

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
 * @param {{stacks?: boolean}} [options]
 */
export function table(caption, columns, rows, { stacks = false } = {}) {
  /** Stacked cells are no table for screen readers without it. @param {string} name */
  const role = (name) => stacks ? name : null;
  const head = columns.map((c) =>
    h("th", { scope: "col", role: role("columnheader"), class: c.number ? "number" : null, title: c.hint }, c.title)
  );
  const body = rows.map((row) =>
    h(
      "tr",
      { role: role("row") },
      columns.map((column, index) => {
        const content = column.cell(row);
        if (index === 0) return h("th", { scope: "row", role: role("rowheader") }, content);
        const classes = [column.number && "number", stacks && isBlank(content) && "blank"].filter(Boolean);
        return h(
          "td",
          { class: classes.join(" ") || null, role: role("cell"), "data-title": stacks ? column.title : null },
          stacks ? h("div", {}, content) : content,
        );
      }),
    )
  );
  return h(
    "div",
    {
      class: stacks ? "scroll stacks" : "scroll",
      "data-key": caption,
      tabindex: "0",
      role: "region",
      "aria-label": caption,
    },
    h(
      "table",
      { role: role("table") },
      h("caption", { class: "hidden" }, caption),
      h("thead", { role: role("rowgroup") }, h("tr", { role: role("row") }, head)),
      h("tbody", { role: role("rowgroup") }, body),
    ),
  );
}

/** Whether a cell has nothing to say, so that a stacked row needs no line for it. @param {import("./dom.js").Child} value */
function isBlank(value) {
  return value === null || value === undefined || value === false || value === "" || value === "–";
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
