/** Queues: what waits for other clusters, who fetches it, and acts on them. */

import { get } from "../js/api.js";
import { badge } from "../js/badge.js";
import { actButton, command, openDetails } from "../js/confirm.js";
import { h } from "../js/dom.js";
import { choiceField, formButton, formField, linesField, nameField, textField } from "../js/form.js";
import { live } from "../js/live.js";
import { encoded, nameText, shownName, visible } from "../js/names.js";
import { achievedText, limitText, rateFields, ratesOf } from "../js/rates.js";
import { author, authored } from "../js/setting_facts.js";
import { failure, partial, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { age, moment, time } from "../js/time.js";
import { atLeast, bytes, count, milliseconds, quantity, seconds } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").QueueRow} QueueRow */
/** @typedef {import("../js/types.d.ts").Queues} Queues */
/** @typedef {import("../js/types.d.ts").Gap} Gap */
/** @typedef {import("../js/types.d.ts").Gaps} Gaps */
/** @typedef {import("../js/types.d.ts").LedgerRow} LedgerRow */
/** @typedef {import("../js/types.d.ts").Priority} Priority */
/** @typedef {import("../js/dom.js").Child} Child */
/** @typedef {{queues: Queues & {at_ms: number}, gaps: Gaps | Error, ledger: LedgerRow[] | Error}} Loaded */

const EVERY_MS = 5_000;
const SLOW_EVERY_MS = 15_000; // gaps and ledgers, for which nodes read their change index
const GAPS_SHOWN = 50;
const PEEKED = 20;
const KEYS_MAX = 10_000; // limit of the admin API

/** @type {[Priority, string][]} */
const PRIORITIES = [["real_time", "real time"], ["full_sync", "full-sync"], ["fold", "folds"]];

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "queues",
  title: "Queues",
  mount(root, { signal, query, setQuery }) {
    let chosen = query.get("name");
    const box = h("div");
    root.append(box, typed());
    const load = loader();
    const watched = watch(box, (s) => load(s), (loaded) => shown(loaded, chosen, choose, done), {
      everyMs: EVERY_MS,
      signal,
    });
    /** @param {string} name */
    function choose(name) {
      chosen = name;
      setQuery({ name });
      watched.redraw();
    }
    function done() {
      load.all = true;
      void watched.reload();
    }
  },
};

/** Loads the queues; gaps and ledgers less often, or, after `all` was set, with the next. */
function loader() {
  /** @type {{gaps: Gaps | Error, ledger: LedgerRow[] | Error, atMs: number} | null} */
  let slow = null;
  /** @param {AbortSignal} signal @returns {Promise<Loaded>} */
  async function load(signal) {
    const again = load.all || slow === null || Date.now() - slow.atMs >= SLOW_EVERY_MS;
    load.all = false;
    const [queues, gaps, ledger] = await Promise.all([
      get("/admin/queues/cluster", signal),
      again ? get("/admin/gaps", signal).catch(asError) : null,
      again ? get("/admin/ledger", signal).then((answer) => answer.ledger).catch(asError) : null,
    ]);
    if (again || slow === null) slow = { gaps, ledger, atMs: Date.now() };
    return { queues, gaps: slow.gaps, ledger: slow.ledger };
  }
  load.all = false;
  return load;
}

/** @param {unknown} error */
function asError(error) {
  return error instanceof Error ? error : new Error(String(error));
}

/**
 * @param {Loaded} loaded
 * @param {string | null} chosen
 * @param {(name: string) => void} choose
 * @param {() => void} done
 */
function shown(loaded, chosen, choose, done) {
  const { queues, unknown } = loaded.queues;
  const one = queues.find((queue) => queue.name === chosen) ?? queues[0];
  const missing = Object.keys(unknown).length > 0;
  return [
    h(
      "section",
      { class: "card", "aria-label": "Queues" },
      h("h2", {}, "Source queues"),
      partial(Object.keys(unknown), "what waits there is unknown, and no sum has it"),
      missing && h("ul", {}, Object.entries(unknown).map(([node, why]) => h("li", {}, `${node}: ${why}`))),
      chosen !== null && one?.name !== chosen &&
        h("p", { class: "notice warn", role: "status" }, `▲ There is no queue named ${chosen} here.`),
      queues.length ? listed(loaded, one, choose) : h(
        "p",
        { class: "state" },
        missing
          ? "No node that answers has a queue."
          : "This cluster has no source queues: it offers no changes to other clusters.",
      ),
    ),
    one && details(loaded, one, done),
  ];
}

/**
 * @param {Loaded} loaded
 * @param {QueueRow} chosen
 * @param {(name: string) => void} choose
 */
function listed(loaded, chosen, choose) {
  const { queues, at_ms: atMs } = loaded.queues;
  const reasons = queues.flatMap((queue) => [
    queue.reason ? `${queue.name}: ${queue.reason}` : "",
    queue.unknown ? `${queue.name}: numbers are unknown, since ${queue.unknown}` : "",
  ]).filter(Boolean);
  return [
    table(
      "Queues of all nodes together",
      [
        {
          title: "Queue",
          cell: (queue) =>
            h("button", {
              type: "button",
              class: "small",
              "data-key": `choose ${queue.name}`,
              "aria-pressed": String(queue === chosen),
              onclick: () => choose(queue.name),
            }, queue === chosen ? `▸ ${queue.name}` : queue.name),
        },
        { title: "To cluster", cell: ownerOf },
        { title: "Waiting", number: true, hint: "changes in real time", cell: (queue) => depth(queue, "real_time") },
        {
          title: "Full-sync",
          number: true,
          hint: "references of full-sync that wait",
          cell: (queue) => depth(queue, "full_sync"),
        },
        { title: "Folds", number: true, hint: "references of folds that wait", cell: (queue) => depth(queue, "fold") },
        { title: "Oldest", number: true, hint: "not acknowledged, in real time", cell: oldest },
        { title: "Last fetch", cell: (queue) => lastFetch(queue, atMs) },
        { title: "Publishing", cell: (queue) => running(queue.publishing) },
        { title: "Serving", cell: (queue) => running(queue.serving) },
        { title: "Gaps", number: true, cell: (queue) => gapCount(loaded.gaps, queue.name) },
        { title: "Ledger", cell: (queue) => ledgerBadge(loaded.ledger, queue.name) },
      ],
      queues,
      { stacks: true },
    ),
    reasons.length > 0 && h("ul", {}, reasons.map((reason) => h("li", {}, visible(reason)))),
  ];
}

/** @param {QueueRow} queue */
function ownerOf(queue) {
  return queue.owner?.cluster ?? h("span", { class: "unknown" }, "none yet");
}

/** @param {QueueRow} queue @param {Priority} priority */
function depth(queue, priority) {
  const { waiting, at_least: least } = queue.priorities[priority];
  if (waiting !== null) return count(waiting);
  return h("span", { class: "unknown" }, atLeast(least, false));
}

/** @param {QueueRow} queue */
function oldest(queue) {
  const { waiting, in_flight: flight } = queue.priorities.real_time;
  return waiting === 0 && flight === 0 ? "nothing waits" : milliseconds(queue.oldest_age_ms);
}

/** @param {QueueRow} queue @param {number} atMs */
function lastFetch(queue, atMs) {
  const [newest] = queue.consumers;
  if (newest) return [newest.waits_at.length ? "waits now" : ago(newest.last_fetch_ms, atMs), ` (${newest.node})`];
  if (Object.values(queue.nodes).includes(null)) return h("span", { class: "unknown" }, "unknown");
  return queue.owner ? "none since the nodes started" : "never";
}

/** How long ago, by the clock of the node that answered; the moment is its title. @param {number} ms @param {number} atMs */
function ago(ms, atMs) {
  return h("time", { datetime: new Date(ms).toISOString(), title: moment(ms) }, age(Math.min(ms, atMs), atMs));
}

/** @param {string} state */
function running(state) {
  return badge(state, state === "mixed" || state === "off" ? "warn" : undefined);
}

/** @param {Gaps | Error} gaps @param {string} name */
function gapCount(gaps, name) {
  if (gaps instanceof Error) return h("span", { class: "unknown", title: gaps.message }, "unknown");
  const found = gaps.gaps.filter((gap) => gap.queue === name).length;
  const unsure = gaps.unknown.length > 0 || name in gaps.unknown_partitions;
  if (!unsure) return found ? h("b", { class: "warn" }, `▲ ${count(found)}`) : "0";
  return h("span", { class: "unknown" }, atLeast(found, false));
}

/** @param {LedgerRow[] | Error} ledger @param {string} name */
function ledgerBadge(ledger, name) {
  if (ledger instanceof Error) return badge(null, undefined, ledger.message);
  const row = ledger.find((each) => each.direction === "sent" && each.queue === name);
  if (!row) return badge(null);
  if (row.state === "closed") return badge("closes", "good", row.reason);
  if (row.state === "no-sink") return badge("nothing sent", "unknown", row.reason);
  return row.state === "alarm" ? badge("does not close", "bad", row.reason) : badge("unknown", "unknown", row.reason);
}

// -- one queue --------------------------------------------------------------------------------------------------------

/**
 * @param {Loaded} loaded
 * @param {QueueRow} queue
 * @param {() => void} done
 */
function details(loaded, queue, done) {
  const { name } = queue;
  const path = `/admin/queues/${encodeURIComponent(name)}`;
  return h(
    "section",
    { class: "card", "aria-label": `Queue ${name}` },
    h(
      "div",
      { class: "row between" },
      h("h2", {}, `Queue ${name}`),
      h("div", { class: "row" }, acts(queue, path, done)),
    ),
    queue.reason && h("p", {}, visible(queue.reason)),
    queue.differs.length > 0 &&
      h(
        "p",
        { class: "notice warn", role: "status" },
        `▲ Nodes differ in ${
          queue.differs.join(", ")
        }: they have not all read the newest change, or their files differ. One node’s is shown.`,
      ),
    queue.lacking.length > 0 &&
      h(
        "p",
        { class: "notice warn", role: "status" },
        `▲ ${queue.lacking.join(", ")} ${
          queue.lacking.length === 1 ? "does" : "do"
        } not have this queue: its changes of the partitions that they lead are not offered.`,
      ),
    suspensions(queue, path, done),
    facts([
      ["Owner", queue.owner?.cluster ?? "none"],
      ["Owner since", queue.owner ? time(queue.owner.since_ms) : "–"],
      ["Filter", h("code", {}, queue.filter)],
      ["Changes of other clusters", queue.cascade ? "offered, too (cascade)" : "not offered"],
      ["At its limit", queue.overflow === "discard" ? "changes become a gap" : "changes wait in the store"],
      ["Most in memory", `${quantity(queue.limits.queue, "reference")}, ${quantity(queue.limits.objects, "object")}`],
      ["Largest whole object", bytes(queue.limits.object_bytes)],
      ...(queue.riak_fetch ? [fact("For", "Riak alone (riak_fetch)")] : []),
      ...Object.entries(queue.held_types).map(([type, ms]) =>
        fact(`Held back: bucket type ${type}`, ["the other cluster lacks it, since ", time(ms)])
      ),
    ]),
    h("h3", {}, "What waits"),
    table(
      `What waits in queue ${name}`,
      [
        { title: "Priority", cell: ([, word]) => word },
        { title: "Waiting", number: true, cell: ([priority]) => depth(queue, priority) },
        { title: "In flight", number: true, cell: ([priority]) => count(queue.priorities[priority].in_flight) },
        {
          title: "Oldest",
          number: true,
          cell: ([priority]) => priority === "real_time" ? oldest(queue) : "not measured",
        },
      ],
      PRIORITIES,
      { stacks: true },
    ),
    queue.unknown && h("p", { class: "state" }, `Unknown, since ${queue.unknown}.`),
    consumers(queue, loaded.queues.at_ms),
    rates(queue, path, done),
    parts(queue),
    gaps(loaded.gaps, queue, path, done),
    ledger(loaded.ledger, name),
  );
}

/**
 * @param {string} name
 * @param {Child} value
 * @returns {[string, Child]}
 */
function fact(name, value) {
  return [name, value];
}

/**
 * @param {QueueRow} queue
 * @param {string} path
 * @param {() => void} done
 */
function acts(queue, path, done) {
  const { name } = queue;
  return [
    formButton("Suspend …", {
      title: `Suspend queue ${name}`,
      note: h(
        "ul",
        {},
        h("li", {}, "Serving: nothing is given out; changes wait, and nothing is lost."),
        h("li", {}, "Publishing: new changes are left out, which is a gap until a full-sync closes it."),
      ),
      fields: () => ({
        what: choiceField("What", [["serving", "serving"], ["publishing", "publishing"], ["both", "both"]]),
        node: nodeField(queue),
      }),
      act: ({ what, node }) => ({
        title: `Suspend ${what === "both" ? "serving and publishing" : what} of queue ${name}?`,
        path: `${path}/suspend`,
        body: { what: what === "both" ? ["serving", "publishing"] : what, node: node || null },
        dryRun: true,
        describe: (plan) => described(plan, `Queue ${name} `),
        verb: "Suspend",
        danger: what !== "serving",
        done,
      }),
    }, { key: `suspend ${name}` }),
    actButton("Clear", {
      title: `Clear queue ${name}?`,
      path: `${path}/clear`,
      dryRun: true,
      describe: (plan) => described(plan, "This "),
      verb: "Clear the queue",
      danger: true,
      done,
    }, { role: "admin", key: `clear ${name}` }),
    queue.owner && formButton("Release …", {
      title: `Release queue ${name} from ${queue.owner.cluster}`,
      note:
        "The next cluster that fetches owns the queue; for a minute not the same one. Where does that one begin? A time is as 2026-02-03T04:05, in UTC unless it names a zone.",
      fields: () => ({
        start: choiceField("The next cluster begins with", [
          ["0", "the first change: everything is sent once more"],
          ["now", "new changes: what waits becomes a gap"],
          ["time", "changes since a time"],
        ]),
        at: textField("The time, if so", { optional: true }),
      }),
      act: ({ start, at }) => ({
        title: `Release queue ${name} from ${queue.owner?.cluster}?`,
        path: `${path}/release`,
        body: { from: start === "time" ? timeOf(at) : start },
        dryRun: true,
        describe: (plan) => described(plan, "This "),
        verb: "Release",
        danger: true,
        done,
      }),
    }, { role: "admin", key: `release ${name}`, danger: true }),
    pushButton(name, path, done),
    formButton("Test the filter …", {
      title: `Would queue ${name} offer a change?`,
      fields: () => {
        const form = formField();
        return {
          type: textField("Bucket type", { value: "default" }),
          bucket: nameField("Name of the bucket", form),
          form,
        };
      },
      answer: async ({ type, bucket }, signal) => {
        const asked = new URLSearchParams({ type, bucket, encoding: "percent" });
        const found = await get(`${path}/filter?${asked}`, signal);
        return [
          h("p", { role: "status" }, badge(found.offered ? "offered" : "not offered", found.offered ? "good" : "warn")),
          h("p", {}, found.reason),
          found.note && h("p", { class: "notice warn" }, `▲ ${found.note}`),
        ];
      },
    }, { role: "read", key: `test ${name}` }),
    h("button", {
      type: "button",
      "data-key": `peek ${name}`,
      onclick: () => openDetails(`The next changes of queue ${name}`, `${path}/peek?count=${PEEKED}`, peeked),
    }, "Show the next changes"),
  ];
}

/** @param {QueueRow} queue */
function nodeField(queue) {
  /** @type {[string, string][]} */
  const nodes = Object.keys(queue.nodes).map((node) => [node, `node ${node} alone`]);
  return choiceField("Where", [["", "on all nodes"], ...nodes]);
}

/** A time in ms. @param {string | null} text */
function timeOf(text) {
  const found = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:?\d\d)?$/.exec(text ?? "");
  const ms = found ? Date.parse(`${found[0].replace(" ", "T")}${found[2] ? "" : "Z"}`) : NaN;
  if (Number.isNaN(ms)) throw new Error("The time: one such as 2026-02-03T04:05 is right");
  return ms;
}

/**
 * A dry run in words and numbers.
 * @param {any} plan
 * @param {string} subject
 */
function described(plan, subject) {
  return [
    h("p", {}, `${subject}${plan.effect}.`),
    partial(plan.silent, "what waits there is unknown, and the change holds there, too"),
    facts([
      ["Owner", plan.owner ?? "none"],
      ...PRIORITIES.map(([priority, word]) => fact(`Waiting or in flight, ${word}`, count(plan.waiting[priority]))),
      ["Open gaps", count(plan.gaps)],
    ]),
  ];
}

/**
 * @param {string} name
 * @param {string} path
 * @param {() => void} done
 */
function pushButton(name, path, done) {
  return formButton("Push keys …", {
    title: `Send keys once more by queue ${name}`,
    note: "Objects of these keys are sent as they are now, whatever the filter says, behind changes in real time.",
    fields: () => {
      const form = formField();
      return {
        bucket_type: textField("Bucket type", { value: "default" }),
        bucket: nameField("Name of the bucket", form),
        keys: linesField("Keys, one in a line", KEYS_MAX),
        form,
        priority: choiceField("Priority", [["", "full-sync"], ["fold", "folds, below full-sync"]]),
      };
    },
    act: ({ bucket_type, bucket, keys, form, priority }) => ({
      title: `Push ${quantity(keys.length, "key")} into queue ${name}?`,
      path: `${path}/push`,
      body: {
        bucket_type,
        bucket,
        keys: keys.map((/** @type {string} */ key) => encoded(key, form)),
        encoding: "percent",
        fold: priority === "fold",
      },
      sentence: `${quantity(keys.length, "reference")} to bucket ${
        nameText(bucket)
      } of type ${bucket_type} are queued. Keys that do not exist are left out when their turn comes.`,
      verb: "Push",
      result: (answer) =>
        answer.refused
          ? h(
            "p",
            { class: "notice warn" },
            `▲ ${count(answer.queued)} queued, ${count(answer.refused)} refused: ${answer.reason}`,
          )
          : `${quantity(answer.queued, "reference")} queued.`,
      done,
    }),
  }, { key: `push ${name}` });
}

/** @param {{references: any[]}} answer */
function peeked(answer) {
  const node = live.cluster?.node ?? "this node";
  return [
    h("p", { class: "state" }, `Of the partitions that ${node} leads; other nodes have their own. Nothing is taken.`),
    answer.references.length
      ? table("References", [
        { title: "Key", cell: (row) => h("div", { class: "wrap" }, shownName(row.key_encoded)) },
        { title: "Bucket", cell: (row) => h("div", { class: "wrap" }, shownName(row.bucket_encoded)) },
        { title: "Type", cell: (row) => row.bucket_type },
        { title: "Kind", cell: (row) => row.kind },
        { title: "Partition", number: true, cell: (row) => String(row.partition) },
        { title: "Offset", number: true, cell: (row) => count(row.offset) },
        { title: "Since", cell: (row) => time(row.time_ms) },
      ], answer.references)
      : h("p", {}, "Nothing waits there."),
  ];
}

/**
 * @param {QueueRow} queue
 * @param {string} path
 * @param {() => void} done
 */
function suspensions(queue, path, done) {
  if (!queue.suspensions.length) return null;
  const { waiting } = queue.priorities.real_time;
  return table(
    `Suspensions of queue ${queue.name}`,
    [
      { title: "Suspended", cell: (one) => badge(one.what, "warn") },
      { title: "Where", cell: (one) => one.node ?? "all nodes" },
      { title: "By", cell: (one) => h("div", { class: "wrap" }, author(one)) },
      {
        title: "Actions",
        cell: (one) =>
          actButton("Resume", {
            title: `Resume ${one.what} of queue ${queue.name} ${
              one.node === null ? "on all nodes" : `on ${one.node}`
            }?`,
            path: `${path}/resume`,
            body: { what: one.what, node: one.node },
            sentence: one.what === "serving"
              ? `Changes are given out again, from the cursor on: ${
                waiting === null
                  ? "an unknown number waits"
                  : `${quantity(waiting, "change")} ${waiting === 1 ? "waits" : "wait"} on all nodes together`
              }.`
              : `New changes are queued again. What was left out since ${
                moment(one.at_ms)
              } stays a gap until a full-sync closes it.`,
            verb: "Resume",
            done,
          }, { key: `resume ${queue.name} ${one.what} ${one.node}` }),
      },
    ],
    queue.suspensions,
    { stacks: true },
  );
}

/** @param {QueueRow} queue @param {number} atMs */
function consumers(queue, atMs) {
  const heading = h("h3", {}, "Who fetches");
  if (!queue.consumers.length) {
    const sentence = Object.values(queue.nodes).includes(null)
      ? "No node has fetched from those that answer since they started."
      : queue.owner
      ? `No node of ${queue.owner.cluster} has fetched since the nodes here started.`
      : "No cluster has fetched yet: what is offered waits.";
    return [heading, h("p", { class: "state" }, sentence)];
  }
  return [
    heading,
    table(
      `Nodes that fetch from queue ${queue.name}`,
      [
        { title: "Node", cell: (one) => one.node },
        { title: "Last fetch", cell: (one) => [ago(one.last_fetch_ms, atMs), `, at ${one.at}`] },
        { title: "Waits now at", cell: (one) => one.waits_at.join(", ") || "none" },
        {
          title: "Last given changes",
          cell: (one) => one.last_given_ms === null ? "never" : ago(one.last_given_ms, atMs),
        },
        {
          title: "Given",
          number: true,
          hint: "since the nodes started, repeats included",
          cell: (one) => count(one.given),
        },
        { title: "In flight", number: true, hint: "not acknowledged", cell: (one) => count(one.in_flight) },
      ],
      queue.consumers,
      { stacks: true },
    ),
  ];
}

/**
 * @param {QueueRow} queue
 * @param {string} path
 * @param {() => void} done
 */
function rates(queue, path, done) {
  const { name } = queue;
  const known = Object.values(queue.nodes).filter((part) => part !== null);
  const inForce = common(known.map((part) => limitText(part.throttle.configured)));
  const { set } = queue.rates;
  return [
    h(
      "div",
      { class: "row between" },
      h("h3", {}, "Rates"),
      h(
        "div",
        { class: "row" },
        formButton("Set rates …", {
          title: `Limit what each node gives out of queue ${name}`,
          note: "Payload a second and node. What is left empty stays as it is; 0 is no limit.",
          fields: () => rateFields("5MB"),
          act: (values) => ({
            title: `Limit queue ${name}?`,
            path: `${path}/throttle`,
            body: ratesOf(values),
            sentence: limitSentence(queue, values.size, values.objects, inForce),
            verb: "Set the rates",
            done,
          }),
        }, { key: `throttle ${name}` }),
        set && actButton("Use the files’ rates", {
          title: `Use the rates of the files for queue ${name}?`,
          path: `${path}/throttle`,
          body: { default: true },
          sentence: `In the files: ${
            common(known.map((part) => part.throttle.file ? limitText(part.throttle.file) : "unknown"))
          }. In force now: ${inForce}.`,
          verb: "Use them",
          done,
        }, { key: `unthrottle ${name}` }),
      ),
    ),
    facts([
      ["In force, each node", inForce],
      ["Achieved, all nodes, last 10 s", achievedText(queue.rates.achieved)],
      ["Limit reached now", queue.rates.binding.join(", ") || "nothing"],
      ["Held back, since the start", seconds(queue.rates.throttled_seconds)],
      [
        "Set by",
        set ? authored(set) : "the files",
      ],
    ]),
  ];
}

/**
 * @param {QueueRow} queue
 * @param {number | null} size
 * @param {number | null} objects
 * @param {string} inForce
 */
function limitSentence(queue, size, objects, inForce) {
  const nodes = Object.keys(queue.nodes).length;
  /** @param {number | null} value @param {(value: number) => string} text @param {string} what */
  const part = (value, text, what) =>
    value === null
      ? `the limit of ${what} stays`
      : value === 0
      ? `no limit of ${what}`
      : `at most ${text(value)} of ${what} a second, ${text(value * nodes)} on ${quantity(nodes, "node")} together`;
  const { waiting } = queue.priorities.real_time;
  return `From now on and over restarts, for each node: ${part(size, bytes, "payload")}; ${
    part(objects, count, "changes")
  }. In force now: ${inForce}. ${
    waiting === null
      ? "How many changes wait is unknown"
      : `${quantity(waiting, "change")} in real time ${waiting === 1 ? "waits" : "wait"}`
  }; what exceeds the limit waits, and nothing is lost.`;
}

/** The value of all, or that they differ. @param {string[]} values */
function common(values) {
  if (!values.length) return "unknown";
  return new Set(values).size === 1 ? values[0] : "differs by node";
}

/** @param {QueueRow} queue */
function parts(queue) {
  return [
    h("h3", {}, "By node"),
    table(
      `Queue ${queue.name} by node`,
      [
        { title: "Node", cell: ([node]) => node },
        { title: "Partitions", number: true, hint: "led there", cell: ([, part]) => count(part?.partitions) },
        { title: "Waiting", number: true, hint: "in real time", cell: ([, part]) => count(part?.waiting) },
        { title: "In flight", number: true, cell: ([, part]) => count(part?.in_flight) },
        {
          title: "Oldest",
          number: true,
          cell: ([, part]) =>
            part?.waiting === 0 && part.in_flight === 0 ? "nothing waits" : milliseconds(part?.oldest_age_ms),
        },
        { title: "Publishing", cell: ([, part]) => running(part?.publishing ?? "unknown") },
        { title: "Serving", cell: ([, part]) => running(part?.serving ?? "unknown") },
        {
          title: "Limit in its file",
          cell: ([, part]) => part?.throttle.file ? limitText(part.throttle.file) : "unknown",
        },
        { title: "In force", cell: ([, part]) => part ? limitText(part.throttle.configured) : "unknown" },
        { title: "Achieved", cell: ([, part]) => part ? achievedText(part.throttle.achieved) : "unknown" },
        { title: "Binds", cell: ([, part]) => part ? part.throttle.binding ?? "nothing" : "unknown" },
      ],
      Object.entries(queue.nodes),
      { stacks: true },
    ),
  ];
}

// -- gaps and ledger --------------------------------------------------------------------------------------------------

/**
 * @param {Gaps | Error} gaps
 * @param {QueueRow} queue
 * @param {string} path
 * @param {() => void} done
 */
function gaps(gaps, queue, path, done) {
  const heading = h("h3", {}, "Gaps");
  if (gaps instanceof Error) return [heading, failure(gaps)];
  const rows = gaps.gaps.filter((gap) => gap.queue === queue.name);
  const unknown = gaps.unknown_partitions[queue.name] ?? [];
  return [
    heading,
    partial(gaps.unknown, "gaps of the partitions that they lead are unknown"),
    unknown.length > 0 &&
    h(
      "p",
      { class: "notice warn", role: "status" },
      `▲ Gaps of ${quantity(unknown.length, "partition")} (${
        unknown.join(", ")
      }) are unknown: nobody knows their cursor.`,
    ),
    rows.length
      ? table(
        `Open gaps of queue ${queue.name}`,
        [
          { title: "Gap", cell: (gap) => gap.id },
          {
            title: "Partition",
            cell: (gap) =>
              gap.partition !== null
                ? String(gap.partition)
                : gap.bucket_types
                ? `any of ${gap.bucket_types.join(", ")}`
                : "any",
          },
          {
            title: "Offsets",
            cell: (gap) =>
              gap.partition === null
                ? "–"
                : `${count(gap.from_offset)} to ${gap.upto_offset === null ? "now (grows)" : count(gap.upto_offset)}`,
          },
          {
            title: "Changes left out",
            cell: (gap) =>
              `at least ${count(gap.count_at_least)}${
                gap.count_at_most === null ? "" : `, at most ${count(gap.count_at_most)}`
              }`,
          },
          { title: "Since", cell: (gap) => gap.from_ms === 0 ? "unknown" : time(gap.from_ms) },
          { title: "Until", cell: (gap) => time(gap.upto_ms, "still grows") },
          {
            title: "Why",
            cell: (gap) => h("div", { class: "wrap" }, visible(gapCause(gap))),
          },
          { title: "Actions", cell: (gap) => gap.upto_ms !== null && closeButton(gap, path, done) },
        ],
        rows.slice(0, GAPS_SHOWN),
        { stacks: true },
      )
      : h("p", { class: "state" }, gaps.unknown.length || unknown.length ? "None is known." : "None is open."),
    rows.length > GAPS_SHOWN && h("p", { class: "state" }, `and ${count(rows.length - GAPS_SHOWN)} more`),
  ];
}

/** @param {Gap} gap */
function gapCause({ what, by, reason }) {
  return `${what}${by ? `, by ${by}` : ""}${reason ? `: ${reason}` : ""}`;
}

/**
 * @param {Gap} gap
 * @param {string} path
 * @param {() => void} done
 */
function closeButton(gap, path, done) {
  const where = gap.partition === null
    ? "references of any partition"
    : `partition ${gap.partition}, offsets ${count(gap.from_offset)} to ${count(gap.upto_offset)}`;
  return actButton("Close", {
    title: `Close gap ${gap.id} of queue ${gap.queue}?`,
    path: `${path}/gaps/close`,
    body: { ids: [gap.id] },
    sentence: `The record of this gap is removed: ${where}; at least ${
      quantity(gap.count_at_least, "change")
    } left out. Full-sync closes gaps by itself once it has compared their range. Close one by hand only if another comparison has proven it: what the other cluster lacks is named nowhere afterwards.`,
    verb: "Close the gap",
    danger: true,
    result: (answer) =>
      answer.closed ? `${quantity(answer.closed, "gap")} closed.` : h(
        "p",
        { class: "notice warn" },
        answer.unknown.length
          ? `▲ Not closed: ${answer.unknown.join(", ")} did not answer.`
          : "▲ Not closed: it grows again, or is closed already.",
      ),
    done,
  }, { role: "admin", key: `close ${gap.queue} ${gap.id}` });
}

/** @param {LedgerRow[] | Error} ledger @param {string} name */
function ledger(ledger, name) {
  const heading = h("h3", {}, "Ledger ", ledgerBadge(ledger, name));
  if (ledger instanceof Error) return [heading, failure(ledger)];
  const row = ledger.find((each) => each.direction === "sent" && each.queue === name);
  if (!row) return [heading, h("p", { class: "state" }, "No node accounts for this queue yet.")];
  return [
    heading,
    row.reason && h("p", {}, row.reason),
    h(
      "p",
      { class: "state" },
      "Changes in real time since the nodes became leaders: found and eligible are what all others add up to.",
    ),
    facts([
      ["Found", count(row.found)],
      ["Eligible", count(row.eligible)],
      ["Acknowledged", count(row.acknowledged)],
      ["Collapsed", count(row.collapsed)],
      ["Collapsed unseen", count(row.collapsed_unseen)],
      ["Vanished", count(row.vanished)],
      ["Given up", count(row.given_up)],
      ["Handed on", count(row.handed_on)],
      ["Waiting", count(row.waiting)],
      ["In flight", count(row.in_flight)],
    ]),
  ];
}

/** Rarer acts, as commands to type. */
function typed() {
  return h(
    "details",
    { class: "card" },
    h("summary", {}, "Register, change, move and delist queues"),
    h(
      "p",
      {},
      "These are typed, not clicked: they need a choice of settings, or lose data without a record. --dry-run shows what would happen where it matters; delist, set and place ask or refuse.",
    ),
    h("p", {}, "Make a queue, which begins with new changes:"),
    command("isthmus queue register NAME --filter any"),
    h("p", {}, "Change filter or limits; a wider filter may make everything below the cursors a gap:"),
    command("isthmus queue set NAME --filter RULES --dry-run"),
    h("p", {}, "Go on from the offsets that a seed has recorded:"),
    command("isthmus queue place NAME --positions handover.json"),
    h("p", {}, "Remove a queue; its gaps and references of full-sync and folds are lost with it:"),
    command("isthmus queue delist NAME --dry-run"),
  );
}
