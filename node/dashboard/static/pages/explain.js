/** Explain a key: where it was accepted, what queues and both sides have of it. */

import { get } from "../js/api.js";
import { badge } from "../js/badge.js";
import { command } from "../js/confirm.js";
import { h, replace } from "../js/dom.js";
import { valuesOf } from "../js/form.js";
import { encoded, FORMS, shownName } from "../js/names.js";
import { warning } from "../js/setting_facts.js";
import { empty, failure, loading, partial } from "../js/states.js";
import { onChange } from "../js/settings.js";
import { facts, table } from "../js/table.js";
import { time } from "../js/time.js";
import { bytes, count } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").Explanation} Explanation */
/** @typedef {import("../js/types.d.ts").Dot} Dot */
/** @typedef {import("../js/badge.js").Tone} Tone */
/** @typedef {{type: string, bucket: string, key: string}} Named names in percent-encoding, as the command line has them */

const TIMEOUT_MS = 30_000; // up to three nodes of each other cluster are asked in turn, 6 s each

/** @type {Record<string, Tone>} States of a key in a queue, and at another cluster. */
const TONES = {
  acknowledged: "good",
  "from-owner": "good",
  origin: "good",
  waiting: "busy",
  "in-flight": "busy",
  "not-read": "busy",
  filtered: "warn",
  before: "warn",
  gap: "bad",
  "not-offered": "bad",
  equal: "good",
  ahead: "busy",
  behind: "warn",
  absent: "warn",
  concurrent: "warn",
  match: "good",
  diverged: "bad",
};

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "explain",
  title: "Explain a key",
  mount(root, { signal, query, setQuery }) {
    const asked = {
      type: query.get("type") ?? "default",
      bucket: query.get("bucket") ?? "",
      key: query.get("key") ?? "",
      as: query.get("as") ?? FORMS[0][0],
    };
    const type = h("input", { name: "type", list: "types", required: true, value: asked.type, autocomplete: "off" });
    const types = h("datalist", { id: "types" });
    const bucket = h("input", { name: "bucket", required: true, value: asked.bucket, autocomplete: "off" });
    const key = h("input", { name: "key", required: true, value: asked.key, autocomplete: "off" });
    const as = h(
      "select",
      { name: "as" },
      FORMS.map(([value, text]) => h("option", { value, selected: value === asked.as }, text)),
    );
    const form = h(
      "form",
      { class: "card search", "aria-label": "The key" },
      h("label", {}, "Bucket type", type, types),
      h("label", {}, "Bucket", bucket),
      h("label", {}, "Key", key),
      h("label", {}, "Typed as", as),
      h("button", { type: "submit", class: "primary" }, "Explain"),
    );
    const result = h("div", { "aria-live": "polite" });
    root.append(form, result);

    /** @param {string} label @param {HTMLInputElement} input */
    const field = (label, input) => ({ label, input, read: () => encoded(input.value, as.value) });
    let number = 0;
    /** @type {{named: Named, answer: Explanation} | null} */
    let last = null;
    const show = () => last && replace(result, shownExplanation(last.named, last.answer));

    async function ask() {
      const own = ++number;
      last = null;
      /** @type {Named} */
      let named;
      try {
        named = { type: type.value, ...valuesOf({ bucket: field("Bucket", bucket), key: field("Key", key) }) };
      } catch (error) {
        replace(result, failure(error));
        return;
      }
      replace(
        result,
        h("section", { class: "card" }, loading(), "This cluster’s nodes and the other clusters are asked."),
      );
      try {
        const search = new URLSearchParams(named);
        const answer = await get(`/admin/explain?${search}`, signal, TIMEOUT_MS);
        if (signal.aborted || own !== number) return;
        last = { named, answer };
        show();
      } catch (error) {
        if (signal.aborted || own !== number) return;
        replace(result, failure(error), commandOf(named));
      }
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      setQuery({
        type: type.value,
        bucket: bucket.value,
        key: key.value,
        as: as.value === FORMS[0][0] ? null : as.value,
      });
      ask();
    });
    onChange(() => show(), signal);
    get("/admin/bucket-types", signal).then(
      (answer) =>
        replace(
          types,
          answer.bucket_types.map((/** @type {{bucket_type: string}} */ each) =>
            h("option", { value: each.bucket_type })
          ),
        ),
      () => {}, // the field takes any name without the list
    );
    if (asked.bucket && asked.key) ask();
    else replace(result, empty("Name a bucket and a key. The address keeps them, so that it can be sent to others."));
  },
};

/**
 * @param {Named} named
 * @param {Explanation} answer
 */
function shownExplanation(named, answer) {
  const unknown = Object.entries(answer.unknown).map(([node, why]) => `${node} (${why})`);
  return [
    partial(unknown, "what full-sync found there and what was refused there of the key is missing here"),
    h(
      "section",
      { class: "card", "aria-label": "Verdict" },
      h("h2", {}, "What happens next"),
      h("p", { class: "row" }, verdicts(answer)),
      h("p", { class: "notice verdict" }, capital(answer.next)),
      h("p", { class: "state" }, "As of ", time(answer.at_ms), ". ", "The same on the command line:"),
      commandOf(named),
    ),
    h(
      "div",
      { class: "cards" },
      h("section", { class: "card", "aria-label": "This side" }, shownHere(named, answer)),
      h("section", { class: "card", "aria-label": "Other sides" }, shownOthers(answer)),
    ),
    h("section", { class: "card", "aria-label": "Queues" }, shownQueues(answer)),
    h("section", { class: "card", "aria-label": "Full-sync" }, shownChecks(answer)),
    h("section", { class: "card", "aria-label": "Refused here" }, shownLetters(answer)),
  ];
}

/** The states at a glance. @param {Explanation} answer */
function verdicts(answer) {
  const here = !answer.known
    ? badge("unknown here", "unknown", answer.reason)
    : badge(stateHere(answer), answer.object ? "good" : "warn");
  return [
    here,
    answer.queues?.map((each) => badge(`queue ${each.queue}: ${each.state}`, TONES[each.state], each.reason)),
    answer.other_sides.map((each) =>
      badge(`${each.fullsync ?? each.url}: ${each.state}`, TONES[each.state], each.reason)
    ),
    answer.dead_letters.length > 0 && badge(`refused here: ${count(answer.dead_letters.length)}`, "bad"),
  ];
}

/** @param {Explanation} answer */
function stateHere({ object }) {
  return object === null ? "not here" : object.tombstone ? "a tombstone here" : "an object here";
}

/**
 * @param {Named} named
 * @param {Explanation} answer
 */
function shownHere(named, answer) {
  const { object } = answer;
  return [
    h("h2", {}, "This side"),
    facts([
      ["Bucket type", named.type],
      ["Bucket", shownName(named.bucket)],
      ["Key", shownName(named.key)],
      [
        "Partition",
        h("a", { href: `#/cluster?partition=${answer.partition}` }, `${answer.partition}, segment ${answer.segment}`),
      ],
      ["Leader", answer.leader ?? (answer.known ? "none" : badge(null))],
    ]),
    !answer.known && warning(`The key’s state is unknown: ${answer.reason}.`),
    answer.known && object === null && h("p", {}, "Not here: never written, or deleted and reaped."),
    object && facts([
      ["What", object.tombstone ? "a tombstone: deleted" : `an object of ${bytes(object.bytes)}, with its clock`],
      ["Last modified", time(object.last_modified_ms)],
      ["Changed here", time(object.applied_ms, "unknown: its change row is not readable")],
      ["Origin", object.origin_cluster ?? object.origin ?? "unknown: its change row is not readable"],
      ["Offset here", count(object.offset)],
      ["Epoch", object.epoch === null ? "none: the newest change came from elsewhere" : count(object.epoch)],
      ["Siblings", count(object.siblings.length)],
    ]),
    object && [
      h("h3", {}, "Where it was accepted"),
      dots("Where each version was accepted", object.siblings, true),
      h("h3", {}, "What it has seen"),
      dots("What its clock has seen", object.seen, false),
    ],
    answer.reap && h("p", {}, h("b", {}, "Reap: "), answer.reap.waits || "nothing keeps the tombstone."),
  ];
}

/**
 * @param {string} caption
 * @param {(Dot & {tombstone?: boolean, last_modified_ms?: number})[]} rows
 * @param {boolean} versions whether they are versions, with a time
 */
function dots(caption, rows, versions) {
  if (!rows.length) return empty("None.");
  return table(caption, [
    {
      title: "Cluster",
      cell: (row) =>
        row.uuid === null ? `actor ${row.actor} of a Riak, or of another program` : row.cluster ?? row.uuid,
    },
    { title: "Partition", number: true, cell: (row) => row.uuid === null ? "none" : String(row.partition) },
    { title: "Epoch", number: true, cell: (row) => row.uuid === null ? "none" : count(row.epoch) },
    { title: "Offset", number: true, cell: (row) => row.uuid === null ? "none" : count(row.offset) },
    ...versions
      ? [
        { title: "What", cell: (/** @type {typeof rows[0]} */ row) => row.tombstone ? "tombstone" : "value" },
        { title: "Last modified", cell: (/** @type {typeof rows[0]} */ row) => time(row.last_modified_ms) },
      ]
      : [],
  ], rows);
}

/** @param {Explanation} answer */
function shownOthers(answer) {
  return [
    h("h2", {}, "Other sides now"),
    answer.other_sides.length
      ? answer.other_sides.map((side) =>
        h(
          "article",
          {},
          h("h3", {}, `${side.fullsync ?? "cluster"} `, badge(side.state, TONES[side.state])),
          h("p", {}, wordsOf(side.state)),
          side.reason && h("p", {}, capital(side.reason)),
          h("p", { class: "state" }, `asked at ${side.url}`),
        )
      )
      : empty("No full-sync is set up here, so no other cluster was asked. The command line asks one by --other URL."),
  ];
}

/** @param {string} state */
function wordsOf(state) {
  /** @type {Record<string, string>} */
  const words = {
    equal: "It has the same as this side.",
    ahead: "It has seen all that this side has, and more.",
    behind: "It lacks changes that this side has.",
    concurrent: "Both sides have changes that the other lacks.",
    absent: "It has neither a value nor a tombstone.",
    unknown: "What it has is not known.",
  };
  return words[state] ?? "";
}

/** @param {Explanation} answer */
function shownQueues(answer) {
  return [
    h("h2", {}, "Queues"),
    answer.queues === null
      ? warning(`What the queues do with the key is unknown: ${answer.reason}.`)
      : answer.queues.length
      ? table(
        "The key in each queue",
        [
          { title: "Queue", cell: (row) => row.queue },
          {
            title: "To",
            cell: (row) => row.owner ?? "no cluster yet",
          },
          { title: "State", cell: (row) => badge(row.state, TONES[row.state]) },
          {
            title: "Why",
            cell: (row) => h("div", { class: "wrap" }, capital(row.reason)),
          },
          {
            title: "Filter",
            cell: (row) =>
              h("div", { class: "wrap" }, h("code", {}, row.filter), h("div", { class: "state" }, row.rule)),
          },
          {
            title: "Cursor",
            number: true,
            hint: "offset below which all is settled",
            cell: (row) => count(row.cursor),
          },
          { title: "Before it", number: true, cell: (row) => row.ahead === null ? "–" : count(row.ahead) },
          { title: "Next", cell: (row) => h("div", { class: "wrap" }, row.next) },
        ],
        answer.queues,
        { stacks: true },
      )
      : empty("This cluster has no queue."),
    answer.lower.length > 0 && [
      h("h3", {}, "References of full-sync and folds"),
      table(
        "References of full-sync and folds that name the key",
        [
          { title: "Queue", cell: (row) => row.queue },
          { title: "Node", cell: (row) => row.node },
          { title: "Priority", cell: (row) => row.priority.replace("_", "-") },
          { title: "State", cell: (row) => badge(row.state, TONES[row.state]) },
          { title: "Before it", number: true, cell: (row) => row.ahead === null ? "–" : count(row.ahead) },
          { title: "Why", cell: (row) => row.reason },
        ],
        answer.lower,
        { stacks: true },
      ),
    ],
  ];
}

/** @param {Explanation} answer */
function shownChecks(answer) {
  return [
    h("h2", {}, "Newest full-sync checks"),
    answer.compared.length
      ? table(
        "What the newest check of each node found",
        [
          { title: "Full-sync", cell: (row) => row.fullsync },
          {
            title: "Node",
            cell: (row) => row.node,
          },
          {
            title: "Verdict",
            cell: (row) => [
              badge(row.verdict, TONES[row.verdict]),
              row.difference && ` ${row.difference}`,
              row.reason && h("div", { class: "wrap" }, capital(row.reason)),
            ],
          },
          {
            title: "Compared",
            cell: (row) => [
              time(row.at_ms, "not by this node"),
              row.check && h("div", {}, `the check: ${row.check}`),
              row.at_ms !== null &&
              h("div", {}, row.changed_since ? "the key has changed here since" : "not changed since"),
            ],
          },
          { title: "Proven as of", cell: (row) => time(row.proven_ms, "not by this node") },
          { title: "Suspended", cell: (row) => row.suspended ? `by ${row.suspended}` : "no" },
        ],
        answer.compared,
        { stacks: true },
      )
      : empty("No full-sync compares this bucket type."),
  ];
}

/** @param {Explanation} answer */
function shownLetters(answer) {
  return [
    h("h2", {}, "Refused here (dead letters)"),
    answer.dead_letters_unknown_at.map((node) =>
      warning(`${node} cannot read its dead letters; its log says why. What it refused is unknown.`)
    ),
    answer.dead_letters.length
      ? table(
        "Dead letters of the key",
        [
          { title: "Id", cell: (row) => String(row.id) },
          {
            title: "Node",
            cell: (row) => row.node,
          },
          { title: "From", cell: (row) => `${row.source_cluster}, queue ${row.queue}` },
          { title: "Reason", cell: (row) => badge(row.reason, "bad") },
          { title: "Error", cell: (row) => h("div", { class: "wrap" }, row.error) },
          { title: "Attempts", number: true, cell: (row) => count(row.tries) },
          { title: "When", cell: (row) => time(row.at_ms) },
        ],
        answer.dead_letters,
        { stacks: true },
      )
      : empty("No node that answered has refused a change of this key."),
  ];
}

/** @param {Named} named */
function commandOf({ type, bucket, key }) {
  return command(`isthmus explain ${quoted(`${type}/${bucket}`)} ${quoted(key)}`);
}

/** For a shell. @param {string} word */
function quoted(word) {
  return /^[A-Za-z0-9_./%~-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** @param {string} text */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
