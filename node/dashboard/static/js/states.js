/** Loading, empty, partial and failed: a page always shows one of them, or numbers. */

import { ApiError, get } from "./api.js";
import { h, replace } from "./dom.js";
import { onChange } from "./settings.js";
import { moment } from "./time.js";

export function loading() {
  return h(
    "p",
    { class: "state", role: "status" },
    h("span", { class: "spinner", "aria-hidden": "true" }),
    "Loading …",
  );
}

/** @param {string} sentence */
export function empty(sentence) {
  return h("p", { class: "state" }, sentence);
}

/**
 * The error of a request, with its reason's code.
 * @param {unknown} error
 */
export function failure(error) {
  const reason = error instanceof ApiError ? ` (${error.reason})` : "";
  const sentence = error instanceof Error ? error.message : String(error);
  return h("p", { class: "notice bad", role: "alert" }, h("span", { "aria-hidden": "true" }, "■ "), sentence + reason);
}

/**
 * That some nodes did not answer, so that what is shown lacks them; nothing when all did.
 * @param {readonly string[]} nodes
 * @param {string} [what] the sentence about what that means
 */
export function partial(nodes, what = "their numbers are unknown, and no sum has them") {
  if (!nodes.length) return null;
  const names = nodes.join(", ");
  const did = `${names} did not answer: ${what}.`;
  return h("p", { class: "notice warn", role: "status" }, h("span", { "aria-hidden": "true" }, "▲ "), did);
}

/**
 * Load a value again and again, and show it in `box`. A failure leaves what was shown, with the reason and since when it
 * is old. Nothing is loaded while the tab is hidden.
 *
 * @template T
 * @param {HTMLElement} box
 * @param {string | ((signal: AbortSignal) => Promise<T>)} source a path of the admin API, or a function
 * @param {(value: T) => import("./dom.js").Child} render
 * @param {{everyMs: number, signal: AbortSignal}} options
 * @returns {{reload: () => Promise<void>, redraw: () => void}} reload: load now, for instance after a change; redraw:
 *   show what was loaded last
 */
export function watch(box, source, render, { everyMs, signal }) {
  const load = typeof source === "string" ? (/** @type {AbortSignal} */ s) => get(source, s) : source;
  const trouble = h("div");
  const content = h("div", { class: "content" }, loading());
  replace(box, trouble, content);
  /** @type {{value: T, atMs: number} | null} */
  let last = null;
  let timer = 0;
  let number = 0;

  function show() {
    if (last === null) return;
    redraw(content, render(last.value));
  }

  async function reload() {
    clearTimeout(timer);
    const own = ++number;
    if (!document.hidden || last === null) {
      try {
        const value = await load(signal);
        if (signal.aborted || own !== number) return;
        last = { value, atMs: Date.now() };
        replace(trouble);
        show();
      } catch (error) {
        if (signal.aborted || own !== number) return;
        if (last === null) replace(content);
        const old = last && h("p", { class: "state" }, `What is shown is of ${moment(last.atMs)}.`);
        replace(trouble, failure(error), old);
      }
    }
    if (!signal.aborted) timer = setTimeout(reload, everyMs);
  }

  signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => document.hidden || reload(), { signal });
  onChange(show, signal);
  reload();
  return { reload, redraw: show };
}

/**
 * Put children in the place of all that is in a box. By `data-key`, what has the focus keeps it, details stay open, and
 * boxes of tables stay where they were scrolled to.
 * @param {HTMLElement} box
 * @param {...import("./dom.js").Child} children
 */
export function redraw(box, ...children) {
  const focus = focusedKey(box);
  const opened = new Set([...box.querySelectorAll("details[open][data-key]")].map(keyOf));
  const scrolled = new Map(
    [...box.querySelectorAll(".scroll[data-key]")].map((each) => [keyOf(each), each.scrollLeft]),
  );
  replace(box, ...children);
  for (const each of box.querySelectorAll(".scroll[data-key]")) each.scrollLeft = scrolled.get(keyOf(each)) ?? 0;
  for (const each of box.querySelectorAll("details[data-key]")) {
    if (opened.has(keyOf(each))) each.setAttribute("open", "");
  }
  if (focus !== null) {
    const again = [...box.querySelectorAll("[data-key]")].find((each) => keyOf(each) === focus);
    if (again instanceof HTMLElement) again.focus();
  }
}

/** @param {Element} element */
function keyOf(element) {
  return element instanceof HTMLElement ? element.dataset.key ?? null : null;
}

/** The `data-key` of what has the focus in a box, which is drawn anew. @param {HTMLElement} box */
function focusedKey(box) {
  const focused = document.activeElement;
  return focused && box.contains(focused) ? keyOf(focused) : null;
}
