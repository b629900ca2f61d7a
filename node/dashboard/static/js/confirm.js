/**
 * Changes: a dialog that says what will happen, asks for the reason, sends the request, and shows the result.
 *
 * Where the API has a dry run, the dialog shows its answer first, and offers the change only after that.
 */

import { get, post } from "./api.js";
import { h, replace } from "./dom.js";
import { can } from "./session.js";
import { change, current } from "./settings.js";
import { failure, loading } from "./states.js";

/** @typedef {import("./dom.js").Child} Shown */

/** @typedef {(words: object, show: (shown: Shown) => void, signal: AbortSignal) => Promise<any>} Run */

/**
 * @typedef {object} Act
 * @property {string} title as a question: "Drain node n1?"
 * @property {string} path of the POST request
 * @property {Record<string, unknown>} [body] without `by`, `reason` and `dry_run`
 * @property {string} [sentence] what will happen, where the API has no dry run
 * @property {boolean} [dryRun] whether the API has one, which is sent first (`dry_run: true`)
 * @property {(plan: any) => Shown} [describe] what the dry run's answer means
 * @property {(plan: any) => Record<string, unknown>} [bind] fields of the change that name the plan that was shown
 * @property {(plan: any) => boolean} [nothing] whether the plan changes nothing, so that there is nothing to confirm
 * @property {string} [verb] the button's word
 * @property {boolean} [danger]
 * @property {(answer: any) => Shown} [result] the result in words
 * @property {(answer: any) => boolean} [ended] whether it ended before all was done, which `result` says
 * @property {() => void} [done] called after the change, for instance to load again
 * @property {Run} [run] sends the change in several requests, and shows how far it is, until the signal is aborted, which
 *   "Stop" does; without it `path` is asked once
 */

/**
 * A button that opens the dialog of a change; without the role it is disabled, and says why.
 * @param {string} label
 * @param {Act} act
 * @param {{role?: string, key?: string}} [options] `key`: keeps the focus when a page draws itself anew
 */
export function actButton(label, act, { role = "operate", key } = {}) {
  const { path, danger } = act;
  return roleButton(label, { role, key: key ?? `${path} ${label}`, danger, onclick: () => openAct(act) });
}

/**
 * A button that needs a role; without the role it is disabled, and says why.
 * @param {string} label
 * @param {{role: string, key: string, danger?: boolean, onclick: () => void}} options
 */
export function roleButton(label, { role, key, danger = false, onclick }) {
  const allowed = can(role);
  return h("button", {
    type: "button",
    class: danger ? "danger" : null,
    "data-key": key,
    disabled: !allowed,
    title: allowed ? null : `this needs a token of the role ${role}`,
    onclick,
  }, label);
}

/** @param {Act} act */
export function openAct(act) {
  const leave = new AbortController();
  const opener = document.activeElement;
  const content = h("div", { class: "content" });
  const buttons = h("div", { class: "buttons" });
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const stop = h("button", { type: "button", onclick: stopped }, "Stop");
  const form = h("form", {}, h("h2", { id: "act-title" }, act.title), content, buttons);
  const dialog = h("dialog", { "aria-labelledby": "act-title" }, form);
  const by = h("input", { name: "by", value: current().by, maxlength: "1000", autocomplete: "name" });
  const why = h("textarea", { name: "reason", rows: "2", maxlength: "1000" });
  const fields = h(
    "div",
    { class: "fields" },
    h("label", {}, "Your name, which is recorded with the change (empty: the node’s user)", by),
    h("label", {}, "Reason, shown with the change", why),
  );
  /** @type {any} */
  let plan = null;
  let sent = false;

  /** The act ends after the request under way, and the dialog has its result. */
  function stopped() {
    stop.disabled = true;
    leave.abort();
  }

  function ask() {
    const verb = h("button", { type: "submit", class: act.danger ? "danger" : "primary" }, act.verb ?? "Do it");
    replace(
      content,
      act.dryRun ? act.describe?.(plan) : null,
      act.sentence ? h("p", {}, act.sentence) : null,
      fields,
    );
    replace(buttons, close, verb);
  }

  async function begin() {
    if (!act.dryRun) return ask();
    replace(content, loading());
    replace(buttons, close);
    try {
      plan = await post(act.path, { ...act.body, dry_run: true }, leave.signal);
      if (act.nothing?.(plan)) {
        close.textContent = "Close";
        replace(content, act.describe?.(plan));
      } else ask();
    } catch (error) {
      if (leave.signal.aborted) return;
      replace(content, failure(error));
      act.done?.(); // the page may be older than what refused the change
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (sent) return;
    sent = true;
    change({ by: by.value.trim() });
    const words = { by: by.value.trim() || null, reason: why.value.trim() || null };
    replace(buttons, loading(), act.run ? stop : null);
    try {
      const answer = act.run
        ? await act.run(words, (shown) => replace(content, shown), leave.signal)
        : await post(act.path, { ...act.body, ...act.bind?.(plan), ...words });
      replace(
        content,
        act.ended?.(answer)
          ? null
          : h("p", { class: "notice good", role: "status" }, h("span", { "aria-hidden": "true" }, "● "), "Done."),
        act.result?.(answer),
      );
    } catch (error) {
      replace(content, failure(error));
    }
    close.textContent = "Close";
    replace(buttons, close);
    close.focus();
    act.done?.();
  });
  dialog.addEventListener("close", () => {
    leave.abort();
    dialog.remove();
    focusAgain(opener);
  });
  document.body.append(dialog);
  dialog.showModal();
  begin();
}

/**
 * Give the focus back to what had it before a dialog, though the page may have drawn itself anew since.
 * @param {Element | null} opener
 */
export function focusAgain(opener) {
  if (!(opener instanceof HTMLElement)) return;
  const { key } = opener.dataset;
  const again = opener.isConnected
    ? opener
    : [...document.querySelectorAll("[data-key]")].find((each) =>
      each instanceof HTMLElement && each.dataset.key === key
    );
  if (again instanceof HTMLElement) again.focus();
}

/**
 * A command to type, for what the dashboard does not do.
 * @param {string} text
 */
export function command(text) {
  const copied = h("span", { role: "status", class: "copied" });
  const copy = h("button", {
    type: "button",
    class: "small",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        copied.textContent = "copied";
      } catch {
        copied.textContent = "select it to copy";
      }
    },
  }, "Copy");
  return h("div", { class: "command" }, h("code", { tabindex: "0" }, text), copy, copied);
}

/**
 * A GET that a dialog shows, for details too large for a table.
 * @param {string} title
 * @param {string} path
 * @param {(answer: any) => Shown} render
 */
export async function openDetails(title, path, render) {
  const leave = new AbortController();
  const opener = document.activeElement;
  const content = h("div", { class: "content" }, loading());
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = h(
    "dialog",
    { "aria-label": title },
    h("h2", {}, title),
    content,
    h("div", { class: "buttons" }, close),
  );
  dialog.addEventListener("close", () => {
    leave.abort();
    dialog.remove();
    focusAgain(opener);
  });
  document.body.append(dialog);
  dialog.showModal();
  try {
    replace(content, render(await get(path, leave.signal)));
  } catch (error) {
    if (!leave.signal.aborted) replace(content, failure(error));
  }
}
