/** Full-sync: exchanges, schedules and proofs, suspensions, results. */

import { get } from "../js/api.js";
import { badge } from "../js/badge.js";
import { actButton, command } from "../js/confirm.js";
import { h, replace } from "../js/dom.js";
import { choiceField, formButton, formField, momentField, nameField, numberField, textField } from "../js/form.js";
import { nameText, shownName, visible } from "../js/names.js";
import { author, authored } from "../js/setting_facts.js";
import { empty, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { age, moment, time } from "../js/time.js";
import { count, milliseconds, quantity, seconds } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").FullSyncNodes} FullSyncNodes */
/** @typedef {import("../js/types.d.ts").FullSyncPeerRow} FullSyncPeerRow */
/** @typedef {import("../js/types.d.ts").CheckResultRow} CheckResultRow */
/** @typedef {import("../js/types.d.ts").FullSyncResults} FullSyncResults */
/** @typedef {import("../js/types.d.ts").RunningCheckRow} RunningCheckRow */
/** @typedef {import("../js/types.d.ts").DaysOfNodes} DaysOfNodes */
/** @typedef {import("../js/badge.js").Tone} Tone */
/** @typedef {import("../js/dom.js").Child} Child */
/** @typedef {{node: string, peer: FullSyncPeerRow}} Row a compared cluster as one node has it */
/** @typedef {{at_ms: number, node: string, peer: string, kind: string, word: string, tone: Tone, reason: string}} Due */

const EVERY_MS = 4_000; // an exchange takes seconds as a rule
const SLOW_MS = 15_000;
const RESULTS = 100;
const DUE_SHOWN = 8; // of a day's checks; more are behind a click, and the rest is counted
const DUE_MAX = 200;
const LATE_SHOWN = 50;
const DAY_S = 86_400;
const CHECKS_MAX = 240; // of a kind, a day; the node refuses more

/** @type {Record<string, string>} */
const KINDS = {
  all: "everything",
  day: "keys changed in the last 24 hours",
  hour: "keys changed in the last hour",
  range: "keys of the range that was set or learned, else those changed since the last check in sync",
  auto: "what the last checks call for",
  none: "nothing: an empty slot",
};

/** @type {Record<string, string>} */
const STAGES = {
  "root-compare": "compares the hashes of all branches",
  "root-confirm": "compares them again, since changes are on their way",
  "branch-compare": "compares the leaves of differing branches",
  "branch-confirm": "compares them again, since changes are on their way",
  "clock-compare": "compares the keys of differing segments",
  "clock-confirm": "compares differing keys again",
  repair: "queues what differs for repair",
};

/** @type {Record<string, Tone>} */
const VERDICTS = {
  "in-sync": "good",
  "up-to-date": "good",
  repaired: "busy",
  differing: "warn",
  incomplete: "warn",
  "timed-out": "bad",
  error: "bad",
};

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "fullsync",
  title: "Full-sync",
  mount(root, context) {
    const { signal } = context;
    const states = h("div");
    const plan = h("section", { class: "card", "aria-label": "Schedule" });
    const results = h("section", { class: "card", "aria-label": "Results" });
    root.append(states, plan, results);
    const reload = () => void Promise.all([watched.reload(), planned.reload(), listed.reload()]);
    const watched = watch(
      states,
      "/admin/fullsync/nodes",
      (/** @type {FullSyncNodes} */ answer) => {
        listed.offer(answer);
        return [shownRunning(answer), shownSuspensions(answer, reload), shownPeers(answer, reload)];
      },
      { everyMs: EVERY_MS, signal },
    );
    const planned = watch(plan, "/admin/fullsync/schedule/nodes", shownSchedule, { everyMs: SLOW_MS, signal });
    const listed = resultsList(results, context);
  },
};

/**
 * Nodes whose part is missing, with the reason of each.
 * @param {Record<string, string>} unknown
 * @param {string} what
 * @param {Record<string, number>} [gone]
 */
function unknownNodes(unknown, what, gone = {}) {
  const nodes = Object.keys(unknown);
  if (!nodes.length) return null;
  return h(
    "div",
    { class: "notice warn", role: "status" },
    h("span", { "aria-hidden": "true" }, "▲ "),
    `Not known, for want of an answer: ${what} of`,
    h(
      "ul",
      {},
      nodes.map((node) =>
        h("li", {}, `${node}: ${unknown[node]}`, node in gone && [", down since ", time(gone[node]), " at the latest"])
      ),
    ),
  );
}

// -- exchanges --------------------------------------------------------------------------------------------------------

/** @param {FullSyncNodes} answer */
function shownRunning({ nodes, unknown, gone }) {
  const running = Object.entries(nodes).flatMap(([node, each]) => each?.running ? [{ node, run: each.running }] : []);
  return h(
    "section",
    { class: "card", "aria-label": "Exchanges now" },
    h("h2", {}, "Exchanges now"),
    unknownNodes(unknown, "what is compared, and when,", gone),
    running.length
      ? h("div", { class: "cards" }, running.map(({ node, run }) => shownExchange(node, run)))
      : empty(Object.keys(unknown).length ? "No exchange runs on the nodes that answer." : "No exchange runs."),
  );
}

/**
 * @param {string} node
 * @param {RunningCheckRow} run
 */
function shownExchange(node, run) {
  const order = Object.keys(STAGES);
  const stage = order.indexOf(run.state);
  const differing = run.branches_differing;
  return h(
    "article",
    { class: "card inner" },
    h("h3", {}, `${node} with ${run.peer} `, badge("running", "busy")),
    h(
      "p",
      {},
      stage < 0 ? `Stage: ${run.state}` : `Stage ${stage + 1} of ${order.length}, ${run.state}: ${STAGES[run.state]}`,
    ),
    differing > 0 &&
      h(
        "p",
        {},
        h("progress", { max: differing, value: run.branches_done, "aria-label": "differing branches done" }),
        ` ${count(run.branches_done)} of ${quantity(differing, "differing branch", "differing branches")}; `,
        run.estimate_s === null ? "the time left is unknown" : `about ${seconds(run.estimate_s)} left`,
      ),
    facts([
      ["Bucket type", run.bucket_type],
      ["Kind", run.kind],
      ["Began", time(run.began_ms)],
      ["By", visible(run.by) || "the schedule"],
      ["Keys compared", count(run.keys_compared)],
      ["Differences", count(run.differences)],
    ]),
  );
}

// -- suspensions ------------------------------------------------------------------------------------------------------

/**
 * @param {FullSyncNodes} answer
 * @param {() => void} done
 */
function shownSuspensions({ suspensions, suspensions_error }, done) {
  if (!suspensions_error && suspensions !== null && !suspensions.length) return null;
  return h(
    "section",
    { class: "card", "aria-label": "Suspended by people" },
    h("h2", {}, "Suspended by people"),
    suspensions_error &&
      h(
        "p",
        { class: "notice bad", role: "alert" },
        `■ What is suspended cannot be read, and every node that never read it suspends all: ${suspensions_error}`,
      ),
    suspensions_error && actButton("Resume all", {
      title: "Resume all full-sync?",
      path: "/admin/fullsync/resume",
      sentence:
        "The record of suspensions, which cannot be read, is replaced by an empty one: checks of all nodes are " +
        "due again.",
      verb: "Resume all",
      done,
    }),
    suspensions === null
      ? h("p", { class: "unknown" }, "unknown: this node has not read it from the metastore yet")
      : table("What is suspended", [
        { title: "Full-sync", cell: (row) => row.peer ?? "all" },
        { title: "Node", cell: (row) => nowrap(row.node ?? "all") },
        { title: "By", cell: author },
        {
          title: "Actions",
          cell: (row) =>
            actButton("Resume", {
              title: `Resume ${row.peer ?? "all full-sync"} on ${row.node ?? "all nodes"}?`,
              path: "/admin/fullsync/resume",
              body: { peer: row.peer, node: row.node },
              sentence: `Checks are due again, by the schedule: ${row.peer ?? "those of every cluster"} on ${
                row.node ?? "every node"
              }. Nodes that are down follow when they are back. Slots that have passed are not caught up.`,
              verb: "Resume",
              result: followed,
              done,
            }, { key: `resume ${row.peer} ${row.node}` }),
        },
      ], suspensions),
  );
}

/**
 * What nodes answered to a change that all follow.
 * @param {{acted: Record<string, string[] | null>, later?: string[]}} answer
 */
function followed({ acted, later = [] }) {
  const nodes = Object.entries(acted);
  const [did, silent] = [nodes.filter(([, names]) => names?.length), nodes.filter(([, names]) => names === null)];
  return [
    did.length > 0 && h("p", {}, `It holds on ${did.map(([node]) => node).join(", ")}.`),
    silent.length > 0 &&
    h(
      "p",
      { class: "notice warn" },
      `▲ ${silent.map(([node]) => node).join(", ")} did not answer, and may be as before for some seconds.`,
    ),
    later.length > 0 && h("p", {}, `Down, and to follow later: ${later.join(", ")}.`),
  ];
}

// -- compared clusters ------------------------------------------------------------------------------------------------

/**
 * @param {FullSyncNodes} answer
 * @param {() => void} done
 */
function shownPeers(answer, done) {
  /** @type {Map<string, Row[]>} */
  const peers = new Map();
  const removed = [];
  const faults = [];
  for (const [node, each] of Object.entries(answer.nodes)) {
    for (const peer of each?.peers ?? []) peers.set(peer.name, [...(peers.get(peer.name) ?? []), { node, peer }]);
    for (const one of each?.removed ?? []) removed.push({ node, ...one });
    for (const one of each?.left_out ?? []) faults.push({ node, ...one });
  }
  const nodes = Object.keys(answer.nodes);
  const silent = Object.keys(answer.unknown);
  return [
    peers.size ? [...peers].map(([name, rows]) => shownPeer(name, rows, nodes, silent, done)) : h(
      "section",
      { class: "card", "aria-label": "Compared clusters" },
      h("h2", {}, "Compared clusters"),
      empty(
        silent.length
          ? "The nodes that answer compare with no cluster."
          : "This cluster is compared with no other one. A [[fullsync]] in a node’s file does that, or:",
      ),
      command("isthmus fullsync peer add NAME --urls URL,... --queue QUEUE"),
    ),
    (removed.length > 0 || faults.length > 0) && h(
      "section",
      { class: "card", "aria-label": "Not in force" },
      h("h2", {}, "Not in force"),
      h(
        "ul",
        {},
        removed.map((one) =>
          h(
            "li",
            {},
            `${one.name} on ${one.node}: removed by `,
            authored(one),
          )
        ),
        faults.map((one) =>
          h("li", { class: "notice warn" }, `▲ ${one.name} on ${one.node}: what was set does not count: ${one.reason}`)
        ),
      ),
    ),
  ];
}

/**
 * @param {string} name
 * @param {Row[]} rows
 * @param {string[]} nodes all of the cluster
 * @param {string[]} silent those that did not answer
 * @param {() => void} done
 */
function shownPeer(name, rows, nodes, silent, done) {
  const [first] = rows;
  const at = rows.map((row) => row.node);
  const type = stateOf(rows);
  const alone = rows.length === 1 && nodes.length > 1 && !silent.length;
  const queues = [...new Set(rows.map(({ peer }) => queueOf(peer)))];
  const gaps = rows.some(({ peer }) => peer.gaps_open === null)
    ? null
    : rows.reduce((sum, { peer }) => Math.max(sum, peer.gaps_open ?? 0), 0);
  const owners = new Set(rows.flatMap(({ peer }) => peer.gaps_queues));
  const set = [...new Map(rows.flatMap(({ peer }) => peer.set).map((one) => [JSON.stringify(one), one])).values()];
  const named = new Map(rows.flatMap(({ peer }) => peer.named).map((one) => [JSON.stringify(one), one]));
  return h(
    "section",
    { class: "card", "aria-label": `Full-sync ${name}` },
    h(
      "div",
      { class: "row between" },
      h("h2", {}, `${name} `, badge(type.word, type.tone)),
      h("div", { class: "row" }, acts(name, rows, nodes, done)),
    ),
    alone &&
      h("p", { class: "notice warn" }, `▲ Only ${at[0]} compares with it, and no node does when that one is gone.`),
    [...new Set(rows.filter(({ peer }) => troubled(peer)).map(({ peer }) => peer.reason))].map((reason) =>
      h("p", { class: "notice bad" }, `■ ${visible(reason)}`)
    ),
    facts([
      ["Cluster", first.peer.cluster ?? "the one that answers at its URLs"],
      ["Proven as of", shownProofs(rows, silent)],
      ["Equal as of", shownProofs(rows, silent, true)],
      ["Next check", shownNext(rows)],
      ["Checks a day", agreed(rows, ({ peer }) => wantsText(peer.wants))],
      ["Slots of the day", agreed(rows, ({ peer }) => slotsText(peer.wants))],
      [
        "Everything within auto",
        agreed(rows, ({ peer }) => `${peer.all_window}${/\d/.test(peer.all_window) ? " h UTC" : ""}`),
      ],
      ["Repairs go to", queues.join("; ")],
      ["Repairs both ways", agreed(rows, ({ peer }) => peer.bidirectional ? "yes" : "no")],
      ["Gaps not proven yet", gaps ? `${count(gaps)} (${[...owners].join(", ")})` : count(gaps)],
      ["Compared by", at.join(", ") + (silent.length ? `; unknown of ${silent.join(", ")}` : "")],
    ]),
    h("p", { class: "state" }, "URLs: ", first.peer.urls.join(", ")),
    set.map((one) =>
      h(
        "p",
        {},
        "Set by ",
        authored(one),
        ". ",
        h("code", {}, Object.entries(one.values).map(([key, value]) => `${key} = ${value}`).join(", ") || "added"),
      )
    ),
    h("h3", {}, "By node"),
    nodesTable(name, rows, done),
    h("h3", {}, "Newest check of each bucket type"),
    newestTable(rows),
    named.size > 0 && h(
      "details",
      { "data-key": `named ${name}` },
      h("summary", {}, `Keys that differed in the newest checks (the first ${count(named.size)})`),
      table(`Keys of ${name} that differed`, [
        { title: "Difference", cell: (row) => row.difference },
        { title: "Bucket type", cell: (row) => row.bucket_type },
        { title: "Bucket", cell: (row) => shownName(row.bucket) },
        { title: "Key", cell: (row) => shownName(row.key) },
      ], [...named.values()]),
    ),
  );
}

/** Whether the reason of a peer's state calls for somebody. @param {FullSyncPeerRow} peer */
function troubled(peer) {
  return peer.queue_delisted || peer.queue_of_other !== null;
}

/**
 * @param {Row[]} rows
 * @returns {{word: string, tone: Tone | undefined}}
 */
function stateOf(rows) {
  const words = new Set(rows.map(({ peer }) => peer.state));
  if (words.size === 1) return { word: rows[0].peer.state, tone: toneOf(rows[0].peer) };
  return words.has("suspended")
    ? { word: "partly suspended", tone: "warn" }
    : { word: [...words].sort().join(", "), tone: "busy" };
}

/** @param {FullSyncPeerRow} peer @returns {Tone | undefined} */
function toneOf(peer) {
  if (troubled(peer)) return "bad";
  return peer.state === "scheduled" && peer.retry ? "warn" : undefined;
}

/** @param {FullSyncPeerRow} peer */
function queueOf(peer) {
  if (peer.queue_delisted) return `${peer.queue} (there is none)`;
  return peer.queue_of_other ? `${peer.queue} (of ${peer.queue_of_other})` : peer.queue;
}

/**
 * What all nodes have alike, or that they differ.
 * @param {Row[]} rows
 * @param {(row: Row) => string} text
 */
function agreed(rows, text) {
  /** @type {Map<string, string[]>} */
  const found = new Map();
  for (const row of rows) found.set(text(row), [...(found.get(text(row)) ?? []), row.node]);
  if (found.size === 1) return text(rows[0]);
  return [...found].map(([value, nodes]) => `${nodes.join(", ")}: ${value}`).join("; ");
}

/** @param {Record<string, number>} wants */
function wantsText(wants) {
  const found = Object.entries(wants).filter(([, number]) => number);
  return found.map(([kind, number]) => `${count(number)} ${kind}`).join(", ") || "none";
}

/** @param {Record<string, number>} wants */
function slotsText(wants) {
  const slots = Object.values(wants).reduce((a, b) => a + b, 0);
  return slots ? `${count(slots)} of ${seconds(Math.floor(DAY_S / slots))}` : "none";
}

/**
 * By bucket type the newest moment as of which a node has proven that all of ours is there, or that both are equal.
 * @param {Row[]} rows
 * @param {string[]} silent
 * @param {boolean} equal
 */
function shownProofs(rows, silent, equal = false) {
  const types = [...new Set(rows.flatMap(({ peer }) => peer.bucket_types))].sort();
  if (!types.length) return "there is no bucket type to compare";
  return [
    types.map((type) => {
      const known = rows.map(({ peer }) => (equal ? peer.equal_ms ?? peer.proven_ms : peer.proven_ms)[type] ?? null)
        .filter((ms) => ms !== null);
      const newest = known.length ? Math.max(...known) : null;
      const never = silent.length ? "not by the nodes that answer" : "never";
      return h("div", {}, types.length > 1 && `${type}: `, time(newest, never), newest !== null && ` (${age(newest)})`);
    }),
  ];
}

/** @param {Row[]} rows */
function shownNext(rows) {
  const due = rows.filter(({ peer }) => peer.next_ms !== null && peer.state !== "suspended");
  if (!due.length) return rows.every(({ peer }) => peer.state === "suspended") ? "none: suspended" : "none today";
  const next = due.reduce((one, other) => (other.peer.next_ms ?? 0) < (one.peer.next_ms ?? 0) ? other : one);
  return [`${next.peer.next_kind} on ${next.node}, `, time(next.peer.next_ms), ` (${age(next.peer.next_ms ?? 0)})`];
}

/**
 * @param {string} name
 * @param {Row[]} rows
 * @param {() => void} done
 */
function nodesTable(name, rows, done) {
  return table(`Full-sync ${name} by node`, [
    { title: "Node", cell: (row) => row.node },
    { title: "State", cell: ({ peer }) => badge(peer.state, toneOf(peer)) },
    {
      title: "Next",
      cell: ({ peer }) => peer.state === "suspended" ? "none" : time(peer.next_ms, "none today"),
    },
    { title: "Kind", cell: ({ peer }) => peer.state === "suspended" ? "" : peer.next_kind ?? "" },
    { title: "Checks a day", cell: ({ peer }) => wantsText(peer.wants) },
    {
      title: "Range",
      hint: "what the next check of kind range compares",
      cell: ({ peer }) => peer.range ? rangeText(peer.range) : "none",
    },
    { title: "Auto left out", number: true, cell: ({ peer }) => count(peer.auto_left_out) },
    {
      title: "Reason",
      cell: ({ peer }) => [visible(peer.reason), peer.suspended && [", since ", time(peer.suspended.at_ms)]],
    },
    {
      title: "Actions",
      cell: ({ node, peer }) =>
        peer.range && actButton("Clear range", {
          title: `Clear the range of ${name} on ${node}?`,
          path: "/admin/fullsync/clear-range",
          body: { peer: name, node },
          sentence: `The next check of kind range on ${node} compares what changed since the last check in sync, not ` +
            `${rangeText(peer.range)}. Other nodes keep theirs.`,
          verb: "Clear the range",
          done,
        }, { key: `clear range ${name} ${node}` }),
    },
  ], rows);
}

/** @param {Pick<import("../js/types.d.ts").CheckRange, "since_ms" | "before_ms" | "bucket_encoded">} range */
function rangeText({ since_ms, before_ms, bucket_encoded: bucket }) {
  return `${moment(since_ms)} to ${moment(before_ms)}${bucket === null ? "" : `, bucket ${nameText(bucket)}`}`;
}

/** @param {Row[]} rows */
function newestTable(rows) {
  const found = rows.flatMap(({ node, peer }) =>
    Object.entries(peer.newest).map(([bucket_type, newest]) => ({ node, bucket_type, newest }))
  );
  return table("Newest checks", [
    { title: "Node", cell: (row) => row.node },
    { title: "Bucket type", cell: (row) => row.bucket_type },
    {
      title: "Result",
      cell: ({ newest }) =>
        newest ? badge(newest.verdict, VERDICTS[newest.verdict]) : h("span", { class: "unknown" }, "not checked yet"),
    },
    { title: "Began", cell: ({ newest }) => newest && time(newest.began_ms) },
    { title: "Kind", cell: ({ newest }) => newest?.kind },
    .../** @type {import("../js/table.js").Column<{newest: CheckResultRow | null}>[]} */ (
      countColumns((row) => row.newest)
    ),
    { title: "Reason", cell: ({ newest }) => newest?.reason },
  ], found);
}

/**
 * The counts of a result; nothing without one.
 * @template Shown
 * @param {(row: Shown) => CheckResultRow | null} of
 * @returns {import("../js/table.js").Column<Shown>[]}
 */
function countColumns(of) {
  /** @param {string} title @param {string} hint @param {(result: CheckResultRow) => Child} cell */
  const column = (title, hint, cell) => ({
    title,
    hint,
    number: true,
    cell: (/** @type {Shown} */ row) => {
      const result = of(row);
      return result && cell(result);
    },
  });
  return [
    column("Keys compared", "those of segments that differed", (result) => count(result.keys)),
    column("Differences", "keys that differed twice, by kind and the side that lacks", differences),
    column("Transient", "differed at first, and had arrived at the second look", (result) => count(result.transient)),
    column("Filtered", "the queue’s filter leaves them out", (result) => count(result.filtered)),
    column("Queued", "for repair", (result) => count(result.queued)),
    column("Left", "differ and were not queued", (result) => count(result.left)),
  ];
}

/** @param {CheckResultRow} result */
function differences({ differences }) {
  const found = Object.entries(differences).filter(([, number]) => number);
  return found.length ? found.map(([kind, number]) => h("div", {}, `${count(number)} ${kind}`)) : "0";
}

// -- acts -------------------------------------------------------------------------------------------------------------

/**
 * @param {string} name
 * @param {Row[]} rows
 * @param {string[]} nodes
 * @param {() => void} done
 */
function acts(name, rows, nodes, done) {
  /** @type {[string, string][]} */
  const having = rows.map(({ node }) => [node, node]);
  /** @type {[string, string][]} */
  const everywhere = [["", "all nodes"], ...nodes.map((node) => /** @type {[string, string]} */ ([node, node]))];
  /** @param {Record<string, any>} values */
  const where = (values) => values.node || "all nodes";
  /** @param {string} node */
  const of = (node) => rows.find((row) => row.node === node)?.peer ?? rows[0].peer;
  const suspended = rows.some(({ peer }) => peer.suspended);
  const changed = rows.some(({ peer }) => peer.origin === "set");
  const follow = "Nodes that are down follow when they are back.";
  return [
    formButton("Run now", {
      title: `Run a check of ${name} now`,
      fields: () => ({
        node: choiceField("On node", having),
        kind: choiceField("What is compared", kindOptions(["all", "day", "hour", "range", "auto"])),
      }),
      act: ({ node, kind }) => ({
        title: `Run a check of kind ${kind} of ${name} on ${node} now?`,
        path: "/admin/fullsync/run",
        body: { peer: name, node, kind },
        sentence:
          `${node} compares with ${name}: ${KINDS[kind]}. What differs and is newer here is queued for repair ` +
          `in ${of(node).queue}. A node runs one check at a time: while another one runs, this is refused.` +
          (of(node).suspended ? " Its schedule stays suspended." : ""),
        verb: "Run now",
        result: () => "The check has begun; this page follows it.",
        done,
      }),
    }, { key: `run ${name}` }),
    formButton("Suspend", {
      title: `Suspend full-sync ${name}`,
      fields: () => ({ node: choiceField("On", everywhere) }),
      act: (values) => ({
        title: `Suspend ${name} on ${where(values)}?`,
        path: "/admin/fullsync/suspend",
        body: { peer: name, node: values.node || null },
        sentence:
          `No check of ${name} is due on ${where(values)} until it is resumed, over restarts, too. A check that ` +
          `runs goes on, and one by hand still runs. Meanwhile nothing is proven, and nothing is repaired. ${follow}`,
        verb: "Suspend",
        result: followed,
        done,
      }),
    }, { key: `suspend ${name}` }),
    suspended && formButton("Resume", {
      title: `Resume full-sync ${name}`,
      fields: () => ({ node: choiceField("On", everywhere) }),
      act: (values) => ({
        title: `Resume ${name} on ${where(values)}?`,
        path: "/admin/fullsync/resume",
        body: { peer: name, node: values.node || null },
        sentence: `Checks of ${name} are due again on ${where(values)}, by the schedule; slots that have passed are ` +
          `not caught up. ${follow} It is refused while a wider suspension holds, which is resumed above.`,
        verb: "Resume",
        result: followed,
        done,
      }),
    }, { key: `resume ${name}` }),
    formButton("Schedule", {
      title: `Change the schedule of ${name}`,
      note: h(
        "p",
        {},
        "What is left empty stays as it is. Other settings are changed on the command line:",
        command(`isthmus fullsync set ${name} --help`),
      ),
      fields: () => ({
        node: choiceField("On", everywhere),
        ...Object.fromEntries(
          Object.entries(KINDS).map(([kind, text]) => [
            kind,
            numberField(`Checks a day of kind ${kind}`, {
              most: CHECKS_MAX,
              hint: `${text}; now ${agreed(rows, ({ peer }) => count(peer.wants[kind] ?? 0))}`,
            }),
          ]),
        ),
        all_window: textField("When auto may check everything", {
          optional: true,
          hint: `hours UTC such as 22-6, always, or never; now ${agreed(rows, ({ peer }) => peer.all_window)}`,
        }),
        cluster_slice: choiceField(
          "Part of each slot in which checks begin",
          [
            ["", "as it is"],
            ["0", "anywhere"],
            ...["1", "2", "3", "4"].map((part) => /** @type {[string, string]} */ ([part, `quarter ${part}`])),
          ],
          "",
          `clusters that compare with each other take different quarters; now ${
            agreed(rows, ({ peer }) => peer.cluster_slice ? `quarter ${peer.cluster_slice}` : "anywhere")
          }`,
        ),
      }),
      act: (values) => scheduleAct(name, rows, values, done),
    }, { key: `schedule ${name}` }),
    changed && formButton("As in the files", {
      title: `Settings of ${name} as in the files`,
      fields: () => ({ node: choiceField("On", everywhere) }),
      act: (values) => ({
        title: `Use the files’ settings of ${name} on ${where(values)} again?`,
        path: "/admin/fullsync/set",
        body: { peer: name, node: values.node || null, default: true },
        sentence:
          `What people have set for ${name} on ${where(values)} is forgotten, and the nodes’ files count again. ` +
          `The day is planned again from now on. ${follow}`,
        verb: "Use the files",
        result: followed,
        done,
      }),
    }, { key: `default ${name}` }),
    formButton("Set range", {
      title: `Set the range of ${name}`,
      note: h("p", {}, "The next check of kind range, or auto, compares keys that changed in this time."),
      fields: () => {
        const form = formField();
        return {
          node: choiceField("On node", having),
          since: momentField("Since"),
          before: momentField("Before"),
          bucket: nameField("Only this bucket (empty: all)", form, { optional: true }),
          form,
        };
      },
      act: ({ node, since, before, bucket }) => {
        if (!(since < before)) {
          throw new Error("The range ends before it begins: “since” must be the earlier time.");
        }
        const range = { since_ms: since, before_ms: before };
        const text = rangeText({ ...range, bucket_encoded: bucket });
        return {
          title: `Set the range of ${name} on ${node}?`,
          path: "/admin/fullsync/set-range",
          body: { peer: name, node, ...range, bucket, encoding: "percent" },
          sentence: `The next check of kind range on ${node} reads the keys that changed ${text}. Nothing runs now; ` +
            "“Run now” with kind range does not wait for the schedule. Other nodes keep theirs.",
          verb: "Set the range",
          done,
        };
      },
    }, { key: `range ${name}` }),
    formButton("Leave out auto", {
      title: `Leave out checks of kind auto of ${name}`,
      fields: () => ({
        node: choiceField("On node", having),
        number: numberField("How many of the next ones", {
          most: CHECKS_MAX,
          required: true,
          hint: `0: none; now ${rows.map(({ node, peer }) => `${node}: ${count(peer.auto_left_out)}`).join(", ")}`,
        }),
      }),
      act: ({ node, number }) => ({
        title: `Leave out ${quantity(number, "check")} of kind auto of ${name} on ${node}?`,
        path: "/admin/fullsync/suppress-auto",
        body: { peer: name, node, count: number },
        sentence: number
          ? `The next ${quantity(number, "check")} of kind auto on ${node} compare nothing, whatever the last ` +
            "ones found. Other kinds are due as planned."
          : `Checks of kind auto on ${node} are due as planned.`,
        verb: "Leave out",
        done,
      }),
    }, { key: `auto ${name}` }),
  ];
}

/** @param {string[]} kinds @returns {[string, string][]} */
function kindOptions(kinds) {
  return kinds.map((kind) => [kind, `${kind}: ${KINDS[kind]}`]);
}

/**
 * @param {string} name
 * @param {Row[]} rows
 * @param {Record<string, any>} values
 * @param {() => void} done
 * @returns {import("../js/confirm.js").Act}
 */
function scheduleAct(name, rows, values, done) {
  /** @type {Record<string, number | string>} */
  const changes = {};
  for (const kind of Object.keys(KINDS)) if (values[kind] !== null) changes[kind] = values[kind];
  if (values.all_window !== null) changes.all_window = values.all_window;
  if (values.cluster_slice) changes.cluster_slice = Number(values.cluster_slice);
  if (!Object.keys(changes).length) throw new Error("Nothing is changed: fill in what is to be different.");
  const meant = rows.filter(({ node }) => !values.node || node === values.node);
  return {
    title: `Change the schedule of ${name} on ${values.node || "all nodes"}?`,
    path: "/admin/fullsync/set",
    body: { peer: name, node: values.node || null, values: changes },
    sentence: `${Object.entries(changes).map(([key, value]) => `${key} = ${value}`).join(", ")}. ` +
      meant.map(({ node, peer }) => {
        const wants = Object.fromEntries(
          Object.keys(KINDS).map((kind) => [kind, Number(changes[kind] ?? peer.wants[kind] ?? 0)]),
        );
        return `${node} then has ${wantsText(wants)} a day, slots: ${slotsText(wants)}. `;
      }).join("") +
      "The day is planned again from now on; a check that runs goes on as it began. It holds over restarts, until it " +
      "is changed again" + (values.node ? "." : ", and ends what was set for single nodes."),
    verb: "Change the schedule",
    result: followed,
    done,
  };
}

// -- schedule ---------------------------------------------------------------------------------------------------------

/** @param {DaysOfNodes} answer */
function shownSchedule({ nodes, unknown }) {
  /** @type {Due[]} */
  const due = [];
  /** @type {Due[]} */
  const late = [];
  for (const [node, answer] of Object.entries(nodes)) {
    for (const { name: peer, suspended, retry, checks, skipped } of answer?.peers ?? []) {
      /** @param {{at_ms: number, kind: string}} check @param {string} word @param {Tone} tone @param {string} reason */
      const row = (check, word, tone, reason) => ({
        at_ms: check.at_ms,
        kind: check.kind,
        node,
        peer,
        word,
        tone,
        reason,
      });
      for (const one of skipped) late.push(row(one, "left out", "warn", one.reason));
      if (retry) due.push(row(retry, "retry", "warn", `could not compare; try ${retry.tries}`));
      for (const one of checks) {
        due.push(
          row(one, suspended ? "suspended" : "due", suspended ? "warn" : "good", suspended ? "is left out" : ""),
        );
      }
    }
  }
  due.sort((one, other) => one.at_ms - other.at_ms);
  late.sort((one, other) => other.at_ms - one.at_ms);
  return [
    h("h2", {}, "Schedule of today (UTC)"),
    unknownNodes(unknown, "the schedule"),
    due.length ? dueTable("Checks that are due", due.slice(0, DUE_SHOWN)) : empty("Nothing more is due today."),
    due.length > DUE_SHOWN && h(
      "details",
      { "data-key": "more due" },
      h("summary", {}, `${count(due.length - DUE_SHOWN)} more today`),
      dueTable("More checks that are due today", due.slice(DUE_SHOWN, DUE_MAX)),
      due.length > DUE_MAX && h("p", { class: "state" }, `and ${count(due.length - DUE_MAX)} more`),
    ),
    late.length > 0 && h(
      "details",
      { "data-key": "late" },
      h("summary", {}, `Left out (${count(late.length)})`),
      dueTable("Checks that were left out", late.slice(0, LATE_SHOWN)),
      late.length > LATE_SHOWN && h("p", { class: "state" }, `and ${count(late.length - LATE_SHOWN)} before`),
    ),
  ];
}

/** @param {string} text */
function nowrap(text) {
  return h("span", { class: "nowrap" }, text);
}

/** @param {string} caption @param {Due[]} rows */
function dueTable(caption, rows) {
  return table(caption, [
    { title: "When", cell: (row) => time(row.at_ms) },
    { title: "From now", cell: (row) => nowrap(age(row.at_ms)) },
    { title: "Node", cell: (row) => nowrap(row.node) },
    { title: "Full-sync", cell: (row) => row.peer },
    { title: "Kind", cell: (row) => row.kind },
    { title: "State", cell: (row) => badge(row.word, row.tone) },
    { title: "Reason", cell: (row) => row.reason },
  ], rows);
}

// -- results ----------------------------------------------------------------------------------------------------------

/**
 * @param {HTMLElement} box
 * @param {import("../js/router.js").PageContext} context
 */
function resultsList(box, { signal, query, setQuery }) {
  const wanted = { peer: query.get("peer") ?? "", node: query.get("node") ?? "", verdict: query.get("verdict") ?? "" };
  const content = h("div");
  const selects = {
    peer: select("peer", "Full-sync", "all"),
    node: select("node", "Node", "all"),
    verdict: select("verdict", "Result", "any"),
  };
  offer("verdict", Object.keys(VERDICTS));
  const labels = Object.values(selects).map(({ label }) => label);
  box.append(h("div", { class: "row between" }, h("h2", {}, "Results"), h("div", { class: "row" }, labels)), content);

  /** @param {"peer" | "node" | "verdict"} name @param {string} text @param {string} none */
  function select(name, text, none) {
    const input = h("select", { onchange: () => choose(name, input.value) });
    return { input, none, label: h("label", {}, `${text} `, input) };
  }

  /** @param {"peer" | "node" | "verdict"} name @param {string[]} values */
  function offer(name, values) {
    const { input, none } = selects[name];
    const all = ["", ...new Set([...values, wanted[name]].filter(Boolean))];
    if (all.join("\n") === [...input.options].map((each) => each.value).join("\n")) return;
    replace(
      input,
      all.map((value) => h("option", { value, selected: value === wanted[name] }, value || none)),
    );
  }

  /** @param {"peer" | "node" | "verdict"} name @param {string} value */
  function choose(name, value) {
    wanted[name] = value;
    setQuery({ [name]: value || null });
    if (name === "verdict") watched.redraw();
    else watched.reload();
  }

  const watched = watch(
    content,
    (s) => {
      const search = new URLSearchParams({ limit: String(RESULTS) });
      if (wanted.peer) search.set("peer", wanted.peer);
      if (wanted.node) search.set("node", wanted.node);
      return get(`/admin/fullsync/results?${search}`, s);
    },
    (/** @type {FullSyncResults} */ answer) => shownResults(answer, wanted.verdict),
    { everyMs: SLOW_MS, signal },
  );
  return {
    reload: watched.reload,
    /** @param {FullSyncNodes} answer */
    offer: ({ nodes }) => {
      offer("node", Object.keys(nodes));
      offer("peer", Object.values(nodes).flatMap((each) => (each?.peers ?? []).map((peer) => peer.name)).sort());
    },
  };
}

/**
 * @param {FullSyncResults} answer
 * @param {string} verdict
 */
function shownResults({ results, unknown }, verdict) {
  /** @type {Record<string, number>} */
  const verdicts = {};
  /** @type {Record<string, number>} */
  const kinds = {};
  for (const each of results) {
    verdicts[each.verdict] = (verdicts[each.verdict] ?? 0) + 1;
    for (const [kind, number] of Object.entries(each.differences)) kinds[kind] = (kinds[kind] ?? 0) + number;
    kinds.transient = (kinds.transient ?? 0) + each.transient;
    kinds.queued = (kinds.queued ?? 0) + each.queued;
  }
  const shown = results.filter((each) => !verdict || each.verdict === verdict);
  const missing = unknownNodes(unknown, "the results");
  if (!results.length) return [missing, empty("No check has ended yet.")];
  return [
    missing,
    h(
      "p",
      { class: "row" },
      `Of the newest ${quantity(results.length, "check")}:`,
      Object.entries(verdicts).map(([word, number]) => badge(`${count(number)} ${word}`, VERDICTS[word])),
    ),
    h(
      "p",
      {},
      "Keys in these: ",
      Object.entries(kinds).filter(([, number]) => number).map(([kind, number]) => `${count(number)} ${kind}`).join(
        ", ",
      ) || "none differed",
      ".",
    ),
    shown.length
      ? table("Results of checks, the newest first", [
        { title: "Began", cell: (row) => time(row.began_ms) },
        { title: "Node", cell: (row) => nowrap(row.node) },
        { title: "Full-sync", cell: (row) => nowrap(row.peer) },
        { title: "Result", cell: (row) => badge(row.verdict, VERDICTS[row.verdict]) },
        { title: "Kind", cell: (row) => row.kind },
        { title: "Bucket type", cell: (row) => row.bucket_type },
        { title: "Took", number: true, cell: (row) => milliseconds(row.seconds * 1000) },
        .../** @type {import("../js/table.js").Column<FullSyncResults["results"][number]>[]} */ (
          countColumns((row) => row)
        ),
        { title: "By", cell: (row) => nowrap(visible(row.by) || "the schedule") },
        { title: "Reason", cell: (row) => row.reason },
      ], shown)
      : empty(`No such check ended ${verdict}.`),
  ];
}
