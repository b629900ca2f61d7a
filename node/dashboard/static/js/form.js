/**
 * Values for a change: a dialog asks for them, checks them, and goes on to the change that they make, which is confirmed
 * as any other (js/confirm.js); or it shows what a question about them is answered.
 */

import { focusAgain, openAct, roleButton } from "./confirm.js";
import { h, replace } from "./dom.js";
import { encoded, FORMS } from "./names.js";
import { current } from "./settings.js";
import { failure, loading } from "./states.js";

/** @typedef {import("./dom.js").Child} Shown */

/**
 * @typedef {object} Field
 * @property {string} label
 * @property {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input
 * @property {() => any} read the value; throws an Error that says what would be right
 * @property {string} [hint] below the input: what it means, what is in force now
 */

/**
 * @template {Record<string, Field>} F
 * @typedef {object} Form
 * @property {string} title as a question or a request: "Limit queue q"
 * @property {() => F} fields made anew each time
 * @property {Shown} [note] what the values mean
 * @property {(values: Record<keyof F, any>) => import("./confirm.js").Act} [act] the change; throws an Error for values
 *   that do not fit together
 * @property {(values: Record<keyof F, any>, signal: AbortSignal) => Promise<Shown>} [answer] without `act`: the answer
 */

/**
 * A button that opens the form; it needs the role.
 * @template {Record<string, Field>} F
 * @param {string} label
 * @param {Form<F>} form
 * @param {{role?: string, key: string, danger?: boolean}} options `key`: keeps the focus when a page draws itself anew
 */
export function formButton(label, form, { role = "operate", key, danger = false }) {
  return roleButton(label, { role, key, danger, onclick: () => openForm(form) });
}

/**
 * @template {Record<string, Field>} F
 * @param {Form<F>} form
 */
function openForm({ title, fields, note, act, answer }) {
  const leave = new AbortController();
  const opener = document.activeElement;
  const asked = fields();
  const result = h("div", { class: "content", "aria-live": "polite" });
  const close = h("button", { type: "button", onclick: () => dialog.close() }, act ? "Cancel" : "Close");
  const next = h("button", { type: "submit", class: "primary" }, act ? "Next" : "Ask");
  const element = h(
    "form",
    { novalidate: true },
    h("h2", { id: "form-title" }, title),
    note ? h("div", {}, note) : null,
    h("div", { class: "fields" }, Object.entries(asked).map(([name, field]) => shownField(name, field))),
    result,
    h("div", { class: "buttons" }, close, next),
  );
  const dialog = h("dialog", { "aria-labelledby": "form-title" }, element);
  let questions = 0;

  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    const own = ++questions;
    try {
      const values = valuesOf(asked);
      if (act) {
        const change = act(values);
        dialog.close();
        focusAgain(opener);
        openAct(change);
      } else {
        replace(result, loading());
        const found = await answer?.(values, leave.signal);
        if (own === questions) replace(result, found); // an answer that comes late is to an older question
      }
    } catch (error) {
      if (!leave.signal.aborted && own === questions) replace(result, failure(error));
    }
  });
  dialog.addEventListener("close", () => {
    leave.abort();
    dialog.remove();
    focusAgain(opener);
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {string} name @param {Field} field */
function shownField(name, { label, input, hint }) {
  if (!hint) return h("label", {}, label, input);
  const id = `form-${name}-hint`;
  input.setAttribute("aria-describedby", id);
  return h("div", {}, h("label", {}, label, input), h("p", { class: "hint", id }, hint));
}

/**
 * What is typed. Throws an Error that names the first field that is not right, which gets the focus.
 * @template {Record<string, Field>} F
 * @param {F} fields
 * @returns {Record<keyof F, any>}
 */
export function valuesOf(fields) {
  /** @type {Record<string, any>} */
  const values = {};
  for (const [name, { label, input, read }] of Object.entries(fields)) {
    try {
      values[name] = read();
      input.removeAttribute("aria-invalid");
    } catch (error) {
      input.setAttribute("aria-invalid", "true");
      input.focus();
      throw new Error(`${label}: ${error instanceof Error ? error.message : error}`);
    }
  }
  return /** @type {Record<keyof F, any>} */ (values);
}

// -- fields -----------------------------------------------------------------------------------------------------------

/**
 * A text; empty is refused unless `optional`, and is null then.
 * @param {string} label
 * @param {{value?: string, optional?: boolean, hint?: string}} [options]
 * @returns {Field}
 */
export function textField(label, { value = "", optional = false, hint } = {}) {
  const input = h("input", { value, maxlength: "4000", autocomplete: "off" });
  return { label, input, read: () => filled(input.value, optional), hint };
}

/** How names of buckets and keys are typed, for fields of names. @returns {Field} */
export function formField() {
  return choiceField("Names are typed as", FORMS);
}

/**
 * A name of a bucket, percent-encoded; empty is refused unless `optional`, and is null then.
 * @param {string} label
 * @param {Field} form how it is typed
 * @param {{optional?: boolean}} [options]
 * @returns {Field}
 */
export function nameField(label, form, { optional = false } = {}) {
  const { input } = textField(label);
  return { label, input, read: () => input.value || !optional ? encoded(input.value, form.read()) : null };
}

/**
 * A text of lines, without the empty ones.
 * @param {string} label
 * @param {number} most
 * @returns {Field}
 */
export function linesField(label, most) {
  const input = h("textarea", { rows: "4" });
  const read = () => {
    const lines = input.value.split("\n").map((line) => line.replace(/\r$/, "")).filter(Boolean);
    if (!lines.length) throw new Error("at least one line is needed");
    if (lines.length > most) throw new Error(`${lines.length} lines: at most ${most} are right`);
    return lines;
  };
  return { label, input, read };
}

/**
 * A whole number; empty is null, unless it is `required`.
 * @param {string} label
 * @param {{value?: number | null, least?: number, most: number, required?: boolean, hint?: string}} options
 * @returns {Field}
 */
export function numberField(label, { value = null, least = 0, most, required = false, hint }) {
  const input = h("input", { value: value ?? "", inputmode: "numeric", autocomplete: "off" });
  const read = () => {
    const text = input.value.trim();
    if (!text && !required) return null;
    const found = /^[0-9]{1,15}$/.test(text) ? Number(text) : NaN;
    if (!(least <= found && found <= most)) throw new Error(`a whole number from ${least} to ${most} is right`);
    return found;
  };
  return { label, input, read, hint };
}

/**
 * A moment in ms, in the zone that pages show.
 * @param {string} label
 * @returns {Field}
 */
export function momentField(label) {
  const { utc } = current();
  const input = h("input", { type: "datetime-local", step: "1" });
  const read = () => {
    const ms = new Date(utc ? `${input.value}Z` : input.value).getTime();
    if (!input.value || Number.isNaN(ms)) throw new Error("a date with a time is needed");
    return ms;
  };
  return { label: `${label} (${utc ? "UTC" : "local time"})`, input, read };
}

/**
 * Bytes, as "5MB" or as a number; empty is null.
 * @param {string} label
 * @param {{value?: number | null, most: number}} options
 * @returns {Field}
 */
export function sizeField(label, { value = null, most }) {
  const input = h("input", { value: value === null ? "" : sizeText(value), autocomplete: "off" });
  const read = () => {
    const text = input.value.trim();
    if (!text) return null;
    const [, number, unit] = /^([0-9]{1,15}(?:\.[0-9]{1,3})?) ?([kKMG]?)B?$/.exec(text) ?? [];
    const found = number === undefined ? NaN : Math.round(Number(number) * (UNITS[unit.toUpperCase()] ?? 1));
    if (!(found <= most)) throw new Error('a size is right, such as "5MB", "200KB" or a number of bytes');
    return found;
  };
  return { label, input, read };
}

/** @type {Record<string, number>} as in config files */
const UNITS = { "": 1, K: 1e3, M: 1e6, G: 1e9 };

/** @param {number} value */
function sizeText(value) {
  const unit = ["G", "M", "K"].find((each) => value && value % UNITS[each] === 0);
  return unit ? `${value / UNITS[unit]}${unit}B` : String(value);
}

/**
 * One of several, named by the first of each pair and shown by the second.
 * @param {string} label
 * @param {[string, string][]} choices
 * @param {string} [chosen]
 * @param {string} [hint]
 * @returns {Field}
 */
export function choiceField(label, choices, chosen, hint) {
  const options = choices.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  const input = h("select", {}, options);
  return { label, input, read: () => input.value, hint };
}

/**
 * @param {string} text
 * @param {boolean} optional
 */
function filled(text, optional) {
  if (!text && !optional) throw new Error("a text is needed");
  return text || null;
}
