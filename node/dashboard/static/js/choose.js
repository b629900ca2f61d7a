/**
 * Changes with values: a dialog whose inputs make an act, which `confirm.js` then describes and asks about.
 */

import { openAct } from "./confirm.js";
import { h, replace } from "./dom.js";
import { can } from "./session.js";
import { failure } from "./states.js";

/** @typedef {import("./confirm.js").Act} Act */

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {[string, string][]} [options] values and texts of a select; without them it is an input
 * @property {string} [hint] below the input: what it means, what is in force now
 * @property {Record<string, unknown>} [attributes] of the input: type, min, max, value, placeholder, required
 */

/**
 * A button that opens the dialog; without the role it is disabled, and says why.
 * @param {string} label
 * @param {object} choice
 * @param {string} choice.title
 * @param {() => Field[]} choice.fields
 * @param {(values: Record<string, string>) => Act} choice.act throws an Error with a sentence about wrong values
 * @param {import("./dom.js").Child} [choice.note] above the inputs
 * @param {{role?: string, key: string}} options `key`: keeps the focus when a page draws itself anew
 */
export function chooseButton(label, choice, { role = "operate", key }) {
  const allowed = can(role);
  return h("button", {
    type: "button",
    "data-key": key,
    disabled: !allowed,
    title: allowed ? null : `this needs a token of the role ${role}`,
    onclick: () => open(choice, key),
  }, label);
}

/**
 * @param {Parameters<typeof chooseButton>[1]} choice
 * @param {string} key
 */
function open({ title, fields, act, note }, key) {
  const messages = h("div");
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form",
    {},
    h("h2", { id: "choose-title" }, title),
    note,
    h("div", { class: "fields" }, fields().map(shownField)),
    messages,
    h("div", { class: "buttons" }, close, h("button", { type: "submit", class: "primary" }, "Go on …")),
  );
  const dialog = h("dialog", { "aria-labelledby": "choose-title" }, form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
    /** @type {Act} */
    let made;
    try {
      made = act(values);
    } catch (error) {
      replace(messages, failure(error));
      return;
    }
    dialog.close();
    openAct(made);
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    const again = [...document.querySelectorAll("[data-key]")].find((each) =>
      each instanceof HTMLElement && each.dataset.key === key
    );
    if (again instanceof HTMLElement) again.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {Field} field */
function shownField({ name, label, options, hint, attributes }) {
  const id = `choose-${name}`;
  const about = hint ? `${id}-hint` : null;
  const input = options
    ? h(
      "select",
      { name, id, "aria-describedby": about, ...attributes },
      options.map(([value, text]) => h("option", { value }, text)),
    )
    : h("input", { name, id, autocomplete: "off", "aria-describedby": about, ...attributes });
  return h("div", {}, h("label", { for: id }, label), input, hint && h("p", { class: "hint", id: about }, hint));
}
