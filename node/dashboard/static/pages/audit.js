/** Audit: who did what, when and why, on all nodes, the newest first. */

import { get } from "../js/api.js";
import { badge } from "../js/badge.js";
import { h } from "../js/dom.js";
import { visible } from "../js/names.js";
import { warning } from "../js/setting_facts.js";
import { current, onChange } from "../js/settings.js";
import { empty, partial, watch } from "../js/states.js";
import { facts } from "../js/table.js";
import { moment, time } from "../js/time.js";
import { count, quantity } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").AuditAct} AuditAct */
/** @typedef {import("../js/types.d.ts").AuditPage} AuditPage */
/** @typedef {AuditPage & {asked: number}} Found */

const EVERY_MS = { newest: 10_000, other: 60_000 }; // filters and older pages make nodes read more of their logs
const ACTS_OF_PAGE = 50; // a page is all that is kept: the newer and older ones are loaded again
const REQUESTS_MAX = 10; // requests for one page where few acts fit; each reads up to 2 MB of every node's log
const PAGES_BACK = 200; // cursors that are kept for the way back

/** @type {[string, string][]} */
const OUTCOMES = [["", "any"], ["done", "done"], ["refused", "refused"], ["unknown", "unknown"]];

/** @type {Record<string, import("../js/badge.js").Tone>} */
const TONES = { done: "good", refused: "warn", unknown: "unknown" };

/** @type {Record<string, string>} */
const WAYS = { cli: "the command line", dashboard: "a dashboard", http: "HTTP", signal: "a signal" };

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "audit",
  title: "Audit",
  mount(root, { signal, query, setQuery }) {
    /** @type {Record<string, HTMLInputElement | HTMLSelectElement>} the parameters of the address, and of the request */
    const inputs = {
      act: text("act", "set option, drain, …"),
      who: text("who", "name, role, token"),
      object: text("object", "option, bucket, …"),
      outcome: h(
        "select",
        { name: "outcome" },
        OUTCOMES.map(([value, word]) => h("option", { value, selected: value === (query.get("outcome") ?? "") }, word)),
      ),
      node: text("node", "any"),
    };
    const times = { since: momentInput("since"), until: momentInput("until") };
    /** @param {string} name @param {string} placeholder */
    function text(name, placeholder) {
      return h("input", { name, value: query.get(name) ?? "", placeholder, maxlength: "200", autocomplete: "off" });
    }
    /** In local time or UTC, as times are shown. @param {string} name */
    function momentInput(name) {
      const input = h("input", { name, type: "datetime-local", step: "1" });
      const given = Date.parse(query.get(name) ?? "");
      if (Number.isFinite(given)) input.value = moment(given).replace(" ", "T").replace("Z", "");
      return input;
    }

    const zones = { since: h("span"), until: h("span") };
    let utc = current().utc;
    function nameZone() {
      zones.since.textContent = `From (${utc ? "UTC" : "local time"})`;
      zones.until.textContent = `To (${utc ? "UTC" : "local time"})`;
    }
    nameZone();
    onChange(() => {
      if (utc === current().utc) return;
      const known = Object.values(times).map((input) => msOf(input, utc));
      utc = current().utc;
      Object.values(times).forEach((input, index) => {
        const ms = known[index];
        input.value = ms === null ? "" : moment(ms).replace(" ", "T").replace("Z", "");
      });
      nameZone();
    }, signal);

    let before = query.get("before");
    /** Cursors of newer pages. @type {(string | null)[]} */
    const newer = [];
    const reset = h("button", { type: "button" }, "Clear");
    const form = h(
      "form",
      { class: "card search", "aria-label": "Which acts" },
      h("label", {}, "Act", inputs.act),
      h("label", {}, "Person", inputs.who),
      h("label", {}, "Object", inputs.object),
      h("label", {}, "Outcome", inputs.outcome),
      h("label", {}, "Asked node", inputs.node),
      h("label", {}, zones.since, times.since),
      h("label", {}, zones.until, times.until),
      h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Find"), reset),
    );
    const box = h("section", { class: "card", "aria-label": "Acts", tabindex: "-1" });
    root.append(form, box);

    let leave = new AbortController();
    function restart() {
      leave.abort();
      leave = new AbortController();
      setQuery({ ...filters(), before });
      watch(box, load, (/** @type {Found} */ found) => shownPage(found), {
        everyMs: before === null && !Object.values(filters()).some(Boolean) ? EVERY_MS.newest : EVERY_MS.other,
        signal: AbortSignal.any([signal, leave.signal]),
      });
    }

    /** What the address has: null where a filter is empty; times in UTC. @returns {Record<string, string | null>} */
    function filters() {
      const texts = Object.entries(inputs).map(([name, input]) => [name, input.value.trim() || null]);
      const bounds = Object.entries(times).map(([name, input]) => {
        const ms = msOf(input, utc);
        return [name, ms === null ? null : new Date(ms).toISOString().replace(".000", "")];
      });
      return Object.fromEntries([...texts, ...bounds]);
    }

    /**
     * One page. Where few acts fit, requests go on until it is full or there have been many.
     * @param {AbortSignal} s
     * @returns {Promise<Found>}
     */
    async function load(s) {
      const search = new URLSearchParams();
      for (const [name, value] of Object.entries(filters())) {
        if (value !== null) search.set(name, name in times ? String(Date.parse(value)) : value);
      }
      /** @type {Found | null} */
      let found = null;
      let cursor = before;
      for (let asked = 1; asked <= REQUESTS_MAX; asked++) {
        search.set("limit", String(ACTS_OF_PAGE - (found?.acts.length ?? 0)));
        if (cursor !== null) search.set("before", cursor);
        /** @type {AuditPage} */
        const answer = await get(`/admin/audit?${search}`, s);
        found = joined(found, answer, asked);
        cursor = answer.next;
        if (cursor === null || found.acts.length >= ACTS_OF_PAGE) break;
      }
      return /** @type {Found} */ (found);
    }

    /** @param {string | null} cursor @param {boolean} older */
    function turn(cursor, older) {
      if (older) newer.push(before);
      if (newer.length > PAGES_BACK) newer.shift();
      before = cursor;
      restart();
      box.focus();
    }

    /** @param {Found} found */
    function shownPage(found) {
      const silent = Object.entries(found.unknown).map(([node, why]) => `${node} (${why})`);
      const filtered = Object.values(filters()).some(Boolean);
      return [
        h(
          "div",
          { class: "row between" },
          h("h2", {}, "Acts ", h("span", { class: "state" }, before === null ? "the newest" : "older ones")),
          turns(found),
        ),
        partial(silent, "the acts that were asked of them are missing here"),
        lostLines(found),
        found.acts.length
          ? h("ol", { class: "acts" }, found.acts.map(shownAct))
          : empty(nothing(found, filtered || before !== null)),
        found.next !== null && found.acts.length < ACTS_OF_PAGE &&
        h("p", { class: "state" }, `Searched back to ${shownMoment(found.searched_to_ms)}; “Older” goes on.`),
        found.acts.length > 10 && turns(found, " below"),
      ];
    }

    /** @param {Found} found @param {string} [where] */
    function turns(found, where = "") {
      return h(
        "div",
        { class: "row" },
        h("button", {
          type: "button",
          "data-key": `newest${where}`,
          disabled: before === null,
          onclick: () => {
            newer.length = 0;
            turn(null, false);
          },
        }, "Newest"),
        h("button", {
          type: "button",
          "data-key": `newer${where}`,
          disabled: !newer.length,
          onclick: () => turn(newer.pop() ?? null, false),
        }, "Newer"),
        h("button", {
          type: "button",
          "data-key": `older${where}`,
          disabled: found.next === null,
          onclick: () => turn(found.next, true),
        }, "Older"),
      );
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      [before, newer.length] = [null, 0];
      restart();
    });
    reset.addEventListener("click", () => {
      for (const input of [...Object.values(inputs), ...Object.values(times)]) input.value = "";
      [before, newer.length] = [null, 0];
      restart();
      inputs.act.focus();
    });
    restart();
  },
};

/**
 * The moment of an input, in ms; null where it is empty or not complete.
 * @param {HTMLInputElement} input
 * @param {boolean} utc
 */
function msOf(input, utc) {
  const found = input.value ? Date.parse(utc ? `${input.value}Z` : input.value) : NaN;
  return Number.isFinite(found) && found >= 0 ? found : null;
}

/**
 * @param {Found | null} before
 * @param {AuditPage} next
 * @param {number} asked
 * @returns {Found}
 */
function joined(before, next, asked) {
  if (before === null) return { ...next, asked };
  const unknown = { ...before.unknown, ...next.unknown };
  return { ...next, acts: [...before.acts, ...next.acts], unknown, nodes: { ...next.nodes, ...before.nodes }, asked };
}

/** @param {Found} found @param {boolean} narrowed */
function nothing(found, narrowed) {
  if (found.next !== null) return "No act fits so far.";
  if (Object.keys(found.unknown).length) return "The nodes that answered have no act that fits.";
  return narrowed ? "No act fits." : "Nobody has changed anything yet.";
}

/** Lines that nodes have lost, or cannot read. @param {Found} found */
function lostLines(found) {
  return Object.entries(found.nodes).map(([node, known]) =>
    known && (known.lost > 0 || known.unreadable > 0) &&
    warning(
      `${node} has lost ${quantity(known.lost, "line")} of its log since it started, and ${
        quantity(known.unreadable, "piece")
      } of lines cannot be read: those acts are missing here.`,
    )
  );
}

/** @param {AuditAct} act */
function shownAct(act) {
  const key = `${act.node}:${act.id}`;
  return h(
    "li",
    {},
    act.lost_before && warning(`${quantity(act.lost_before, "act")} before the next one of ${act.node} were lost.`),
    h(
      "details",
      { "data-key": key },
      h(
        "summary",
        { "data-key": `${key} summary` },
        h(
          "span",
          { class: "line" },
          h("span", {}, time(act.at_ms)),
          h("span", {}, whoOf(act)),
          h("span", { class: "what" }, visible(act.what.act)),
          h("span", {}, badge(act.outcome, TONES[act.outcome])),
        ),
      ),
      details(act),
    ),
  );
}

/** @param {AuditAct} act */
function details(act) {
  const { who, what } = act;
  return h(
    "div",
    { class: "card inner" },
    act.error && warning(visible(act.error)),
    act.cut && warning("The line was too long: the request and the values before and after were left out."),
    facts([
      ["Local time", moment(act.at_ms, false)],
      ["UTC", moment(act.at_ms, true)],
      ["Person (as they said)", who.by === null ? "not said" : visible(who.by)],
      ["Proven by token", who.role ? `role ${who.role}, ${who.token}` : "none"],
      ["Proven by certificate", who.certificate?.join(", ") ?? "none"],
      ["From", act.from ?? "unknown"],
      ["By way of", WAYS[act.via] ?? act.via],
      ["Asked node", act.node],
      ["Line", String(act.id)],
      ["HTTP status", act.status === null ? "none" : String(act.status)],
      ["Reason", act.reason === null ? "not given" : visible(act.reason)],
    ]),
    what.path && h("p", {}, "Request: ", h("code", {}, `${(what.route ?? "").split(" ")[0]} ${what.path}`)),
    what.request !== null && json("Its values", what.request),
    h(
      "div",
      { class: "cards" },
      json("Before", act.before, "nothing, or not known"),
      json(
        "After",
        act.after,
        act.outcome === "done" ? "nothing, or not known" : "nothing was changed, as far as is known",
      ),
    ),
  );
}

/**
 * A value as it was recorded; of a long one its beginning.
 * @param {string} title
 * @param {unknown} value
 * @param {string} [missing]
 */
function json(title, value, missing = "none") {
  const cut = startOf(value);
  const shown = cut ? `${cut.start} …` : JSON.stringify(value, null, 2) ?? "";
  return h(
    "div",
    { class: "value" },
    h("h3", {}, title),
    value === null || value === undefined
      ? h("p", { class: "unknown" }, missing)
      : h("pre", { tabindex: "0", "aria-label": title }, visible(shown)),
    cut && h("p", { class: "state" }, `The beginning of ${count(cut.bytes)} bytes; the rest was not recorded.`),
  );
}

/**
 * The beginning of a value that was too long to be recorded.
 * @param {unknown} value
 * @returns {{start: string, bytes: number} | null}
 */
function startOf(value) {
  if (typeof value !== "object" || value === null || Object.keys(value).length !== 2) return null;
  const { start, bytes } = /** @type {{start?: unknown, bytes?: unknown}} */ (value);
  return typeof start === "string" && typeof bytes === "number" ? { start, bytes } : null;
}

/** The name, else the certificate's, the role, or the address. @param {AuditAct} act */
function whoOf({ who, from, via }) {
  const name = who.by ?? who.certificate?.join(", ") ?? who.role ?? from?.replace(/:\d+$/, "") ?? "unknown";
  return `${visible(name)} (${via})`;
}

/** @param {number | null} ms */
function shownMoment(ms) {
  return ms === null ? "the end" : moment(ms);
}
