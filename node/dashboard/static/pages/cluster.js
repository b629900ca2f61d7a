/** Cluster: nodes with their disks, balance and moves, and where every replica of every partition is. */

import { get } from "../js/api.js";
import { badge, SHAPES } from "../js/badge.js";
import { actButton, command } from "../js/confirm.js";
import { h, replace } from "../js/dom.js";
import { loadFindings, toneOfFinding } from "../js/findings.js";
import { live } from "../js/live.js";
import { empty, partial, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { time } from "../js/time.js";
import { bytes, count, milliseconds, number, percent, quantity } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").NodeRow} NodeRow */
/** @typedef {import("../js/types.d.ts").PartitionRow} PartitionRow */
/** @typedef {import("../js/findings.js").Finding} Finding */
/** @typedef {import("../js/types.d.ts").Leaders} Leaders */
/** @typedef {import("../js/types.d.ts").Moves} Moves */
/** @typedef {import("../js/types.d.ts").MovePlan} MovePlan */
/** @typedef {import("../js/router.js").PageContext} PageContext */

const EVERY_MS = 5_000;
const MOVES_SHOWN = 12; // rows of a plan or an order; the rest is counted

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "cluster",
  title: "Cluster",
  mount(root, context) {
    const { signal } = context;
    const nodes = h("section", { class: "card", "aria-label": "Nodes" });
    const leaders = h("section", { class: "card", "aria-label": "Leaders" });
    const moves = h("section", { class: "card", "aria-label": "Moves" });
    const grid = h("section", { class: "card", "aria-label": "Partitions" });
    root.append(nodes, h("div", { class: "cards" }, leaders, moves), grid, dangerous());

    const reload = () => void Promise.all([watched.reload(), balance.reload(), orders.reload()]);
    const watched = watch(nodes, loadNodes, ([answer, findings]) => shownNodes(answer.nodes, findings, reload), {
      everyMs: EVERY_MS,
      signal,
    });
    const balance = watch(leaders, "/admin/leaders", (answer) => shownLeaders(answer, reload), {
      everyMs: EVERY_MS,
      signal,
    });
    const orders = watch(moves, "/admin/moves", (answer) => shownMoves(answer, reload), { everyMs: EVERY_MS, signal });
    partitionGrid(grid, context);
  },
};

// -- nodes ------------------------------------------------------------------------------------------------------------

/**
 * @param {AbortSignal} signal
 * @returns {Promise<[{nodes: NodeRow[]}, Finding[] | null]>}
 */
function loadNodes(signal) {
  return Promise.all([get("/admin/nodes", signal), loadFindings(signal)]);
}

/**
 * @param {NodeRow[]} rows
 * @param {Finding[] | null} findings null: not answered
 * @param {() => void} done
 */
function shownNodes(rows, findings, done) {
  const racks = new Set(rows.map((row) => row.rack).filter(Boolean));
  /** @param {NodeRow} row @param {string} series */
  const measured = (row, series) => live.sample?.nodes[row.name]?.[series];
  return [
    h("h2", {}, "Nodes"),
    partial(live.cluster?.silent ?? [], "what their replicas do is unknown"),
    table("Nodes of this cluster", [
      { title: "Node", cell: (row) => row.name },
      {
        title: "State",
        cell: (row) => [badge(row.state, undefined, row.reason), row.drained ? badge("drained") : null],
      },
      { title: "Rack", cell: (row) => row.rack || (racks.size ? "none" : "–") },
      { title: "Leads", number: true, cell: (row) => count(row.leaders) },
      {
        title: "Replicas in sync",
        number: true,
        cell: (row) => {
          const text = `${count(row.in_sync)} of ${count(row.replicas)}`;
          return row.in_sync < row.replicas ? h("b", { class: "warn" }, `▲ ${text}`) : text;
        },
      },
      {
        title: "Disk free",
        number: true,
        cell: (row) => {
          const tone = toneOfFinding(findings, "disk-free", `node ${row.name}`);
          return disk(measured(row, "disk.free_bytes"), measured(row, "disk.total_bytes"), tone);
        },
      },
      { title: "CPU", number: true, hint: "of one core", cell: (row) => cpu(measured(row, "process.cpu_percent")) },
      { title: "Memory", number: true, cell: (row) => bytes(measured(row, "process.rss_bytes")) },
      { title: "Clients", cell: (row) => row.http ?? "" },
      { title: "Actions", cell: (row) => h("div", { class: "row" }, ...nodeActs(row, done)) },
    ], rows),
    rows.some((row) => row.reason) &&
    h("ul", {}, rows.filter((row) => row.reason).map((row) => h("li", {}, `${row.name}: ${row.reason}`))),
  ];
}

/**
 * @param {number | null | undefined} free
 * @param {number | null | undefined} total
 * @param {import("../js/badge.js").Tone | undefined} tone how the finding about it is shown
 */
function disk(free, total, tone) {
  const share = typeof free === "number" && typeof total === "number" && total ? ` (${percent(free / total)})` : "";
  return tone ? h("b", { class: tone }, `${SHAPES[tone]} ${bytes(free)}${share}`) : `${bytes(free)}${share}`;
}

/** @param {number | null | undefined} value */
function cpu(value) {
  return typeof value === "number" ? `${number(value)} %` : "unknown";
}

/**
 * @param {NodeRow} row
 * @param {() => void} done
 */
function nodeActs(row, done) {
  const name = row.name;
  const found = [];
  if (row.drained) {
    found.push(actButton("Undo drain", {
      title: `Let node ${name} have replicas again?`,
      path: "/admin/nodes/drain",
      body: { nodes: [name], undo: true },
      dryRun: true,
      describe: () =>
        `Node ${name} may be given replicas again. Moves off it that are still under way are cancelled; what has moved stays where it is.`,
      verb: "Undo the drain",
      done,
    }, { key: `undrain ${name}` }));
  } else if (row.replicas) {
    found.push(actButton("Drain", {
      title: `Drain node ${name}?`,
      path: "/admin/nodes/drain",
      body: { nodes: [name] },
      dryRun: true,
      describe: (plan) => [
        h("p", {}, `All replicas of ${name} move to other nodes, and it is given no others until the drain is undone.`),
        describedPlan(plan),
      ],
      bind: (plan) => ({ plan: plan.plan }),
      result: (answer) =>
        answer.order === null ? "There was nothing to move." : `Order ${answer.order} is under way; see Moves.`,
      verb: "Drain",
      done,
    }, { key: `drain ${name}` }));
  }
  if (row.state === "gone" && !row.replicas) {
    found.push(actButton("Remove", {
      title: `Remove node ${name}?`,
      path: `/admin/nodes/${encodeURIComponent(name)}/remove`,
      dryRun: true,
      describe: () =>
        `The cluster forgets node ${name}, which is gone and holds no replicas. Should it start again, it comes as a new node.`,
      verb: "Remove",
      danger: true,
      done,
    }, { role: "admin", key: `remove ${name}` }));
  }
  return found;
}

// -- leaders ----------------------------------------------------------------------------------------------------------

/**
 * On how many nodes leaders are to stand, and why; nothing where a controller of an earlier version answers.
 * @param {import("../js/types.d.ts").Leaders} answer
 * @returns {[string, string][]}
 */
function shownGoal(answer) {
  const { goal } = answer;
  if (!goal) return [];
  const why = goal.by_load ? goal.reason || "the load is not known yet" : "leaders stand on all nodes";
  return [
    ["Leads from", `${quantity(goal.nodes, "node")} of ${count(Object.keys(answer.leaders).length)}`],
    ["Why so many", why],
  ];
}

/**
 * @param {Leaders} answer
 * @param {() => void} done
 */
function shownLeaders(answer, done) {
  const most = Math.max(1, ...Object.values(answer.leaders));
  const { run } = answer;
  return [
    h(
      "div",
      { class: "row between" },
      h("h2", {}, "Leaders ", badge(answer.state)),
      actButton("Balance now", {
        title: "Balance leaders?",
        path: "/admin/leaders/balance",
        dryRun: true,
        nothing: (plan) => !plan.plan.length,
        describe: (plan) =>
          plan.plan.length
            ? [
              h(
                "p",
                {},
                `${
                  quantity(plan.plan.length, "leadership")
                } move. Each partition answers no write for some tenths of a second meanwhile.`,
              ),
              table("Planned moves", [
                { title: "Partition", cell: (row) => String(row.partition) },
                { title: "From", cell: (row) => row.from },
                { title: "To", cell: (row) => row.to },
              ], plan.plan.slice(0, MOVES_SHOWN)),
              more(plan.plan.length),
            ]
            : h(
              "p",
              {},
              plan.reason ? `Nothing is moved now: ${plan.reason}` : "Leaders are balanced: there is nothing to move.",
            ),
        result: () => "The moves have begun; this page follows them.",
        verb: "Balance",
        done,
      }),
    ),
    answer.reason && h("p", {}, answer.reason),
    table("Leaders by node", [
      { title: "Node", cell: (row) => row[0] },
      { title: "Leads", number: true, cell: (row) => count(row[1]) },
      {
        title: "",
        cell: (row) => h("meter", { min: 0, max: most, value: row[1], "aria-label": `${row[0]} leads ${row[1]}` }),
      },
    ], Object.entries(answer.leaders)),
    facts([
      ...shownGoal(answer),
      ["Imbalance", count(answer.imbalance)],
      ["Balances by itself", answer.automatic ? "yes" : "no"],
      ["Planned now", quantity(answer.plan.length, "move")],
      ["Controller", answer.controller],
    ]),
    run &&
    h(
      "p",
      { class: "state" },
      `Newest run, by ${run.by}: ${run.outcome || "under way"}, ${count(run.done)} moved, ${count(run.failed)} failed.`,
    ),
    run && run.moves.some((each) => each.state === "failed") &&
    h(
      "ul",
      {},
      run.moves.filter((each) => each.state === "failed").slice(0, MOVES_SHOWN).map((each) =>
        h("li", {}, `partition ${each.partition}: ${each.reason}`)
      ),
    ),
  ];
}

// -- moves ------------------------------------------------------------------------------------------------------------

/** @param {MovePlan} plan */
export function describedPlan(plan) {
  if (!plan.partitions.length) return h("p", {}, "No replica has to move.");
  return [
    h(
      "p",
      {},
      `${quantity(plan.partitions.length, "partition")} change, ${quantity(plan.copies, "replica")} are copied.`,
    ),
    plan.notes.map((note) => h("p", { class: "notice warn" }, `▲ ${note}`)),
    table("Replicas by node", [
      { title: "Node", cell: (row) => row.node },
      { title: "Replicas now", number: true, cell: (row) => count(row.replicas) },
      { title: "Then", number: true, cell: (row) => count(row.then) },
    ], plan.nodes),
    h(
      "details",
      {},
      h("summary", {}, "Partitions"),
      table("Partitions that change", [
        { title: "Partition", cell: (row) => String(row.partition) },
        { title: "From", cell: (row) => row.from.join(", ") },
        { title: "To", cell: (row) => row.to.join(", ") },
      ], plan.partitions.slice(0, MOVES_SHOWN)),
      more(plan.partitions.length),
    ),
  ];
}

/** @param {number} all */
function more(all) {
  return all > MOVES_SHOWN && h("p", { class: "state" }, `and ${count(all - MOVES_SHOWN)} more`);
}

/**
 * @param {Moves} answer
 * @param {() => void} done
 */
function shownMoves(answer, done) {
  return [
    h(
      "div",
      { class: "row between" },
      h("h2", {}, "Moves of replicas"),
      actButton("Spread evenly", {
        title: "Spread replicas evenly over the nodes?",
        path: "/admin/moves",
        body: { kind: "spread" },
        dryRun: true,
        nothing: (plan) => !plan.partitions.length,
        describe: describedPlan,
        bind: (plan) => ({ plan: plan.plan }),
        result: (order) => order.order === null ? "There was nothing to move." : `Order ${order.order} is under way.`,
        verb: "Spread",
        done,
      }),
    ),
    answer.paused && h("p", { class: "notice warn" }, `▲ Nothing new is begun: ${answer.paused}`),
    answer.orders.length ? answer.orders.map((order) => shownOrder(order, done)) : empty("No order is under way."),
    answer.ended.length > 0 && h(
      "details",
      { "data-key": "ended moves" },
      h("summary", {}, `Ended orders (${count(answer.ended.length)})`),
      table("Ended orders", [
        { title: "Order", cell: (row) => `${row.order}` },
        { title: "What", cell: (row) => row.title },
        { title: "Outcome", cell: (row) => row.outcome },
        { title: "Moved", number: true, cell: (row) => `${count(row.done)} of ${count(row.total)}` },
        { title: "By", cell: (row) => row.by },
        { title: "Ended", cell: (row) => time(row.ended_ms) },
      ], answer.ended),
    ),
  ];
}

/**
 * @param {Moves["orders"][number]} order
 * @param {() => void} done
 */
function shownOrder(order, done) {
  const moving = order.partitions.filter((each) => each.reason || each.copies.length);
  return h(
    "article",
    {},
    h(
      "div",
      { class: "row between" },
      h("h3", {}, `${order.order}: ${order.title}`),
      order.cancelled_by ? badge("cancelled", "warn", `by ${order.cancelled_by}`) : actButton("Cancel", {
        title: `Cancel order ${order.order}?`,
        path: "/admin/moves/cancel",
        body: { order: order.order },
        sentence: `${order.title}: moves under way are reverted; the ${quantity(order.done, "partition")} done so far ${
          order.done === 1 ? "stays" : "stay"
        } where ${order.done === 1 ? "it is" : "they are"}.`,
        verb: "Cancel the order",
        danger: true,
        done,
      }, { key: `cancel ${order.order}` }),
    ),
    h(
      "p",
      {},
      h("progress", { max: order.total, value: order.done, "aria-label": "partitions done" }),
      ` ${count(order.done)} of ${count(order.total)} partitions; `,
      order.estimate_ms === null ? "the time left is unknown" : `about ${milliseconds(order.estimate_ms)} left`,
    ),
    h("p", { class: "state" }, `by ${order.by}, `, time(order.at_ms)),
    moving.length > 0 && table("Partitions under way", [
      { title: "Partition", cell: (row) => String(row.partition) },
      { title: "Stage", cell: (row) => row.stage },
      {
        title: "Copies",
        cell: (row) =>
          row.copies.map((copy) => `${copy.node}: ${copy.in_sync ? "in sync" : `${count(copy.lag)} entries behind`}`)
            .join("; "),
      },
      { title: "Reason", cell: (row) => row.reason },
    ], moving.slice(0, MOVES_SHOWN)),
    more(moving.length),
  );
}

// -- partitions -------------------------------------------------------------------------------------------------------

/**
 * @param {HTMLElement} box
 * @param {PageContext} context
 */
function partitionGrid(box, { signal, query, setQuery }) {
  let wanted = query.get("type") ?? "";
  let amiss = query.get("only") === "amiss";
  let chosen = query.get("partition");
  const content = h("div");
  const details = h("div", { "aria-live": "polite" });
  const types = h("select", { "aria-label": "Bucket type", onchange: () => choose({ type: types.value || null }) });
  const only = h("input", {
    type: "checkbox",
    checked: amiss,
    onchange: () => choose({ only: only.checked ? "amiss" : null }),
  });
  box.append(
    h(
      "div",
      { class: "row between" },
      h("h2", {}, "Partitions"),
      h("div", { class: "row" }, types, h("label", {}, only, " only what is not in sync")),
    ),
    content,
    details,
  );
  /** @type {PartitionRow[]} */
  let all = [];

  /** @param {Record<string, string | null>} change */
  function choose(change) {
    setQuery(change);
    if ("type" in change) wanted = change.type ?? "";
    if ("only" in change) amiss = change.only !== null;
    if ("partition" in change) chosen = change.partition;
    watched.redraw();
  }

  const watched = watch(
    content,
    async (s) => (await get("/admin/partitions", s)).partitions,
    (/** @type {PartitionRow[]} */ rows) => {
      all = rows;
      const names = [...new Set(rows.map((row) => row.bucket_type))].sort();
      if (types.options.length !== names.length + 1) {
        replace(
          types,
          h("option", { value: "" }, "all bucket types"),
          names.map((name) => h("option", { value: name, selected: name === wanted }, name)),
        );
      }
      const known = live.cluster?.nodes.map((each) => each.name) ?? []; // drained ones keep their numbers
      const nodes = [...new Set([...known, ...rows.flatMap((row) => [...row.replicas, ...row.adding])])].sort();
      const shown = rows.filter((row) =>
        (!wanted || row.bucket_type === wanted) && (!amiss || stateOf(row).tone !== "good")
      );
      const row = all.find((each) => String(each.partition) === chosen);
      replace(details, row ? shownPartition(row, () => choose({ partition: null })) : null);
      return [summary(rows), legend(nodes), tiles(shown, nodes, chosen, (id) => choose({ partition: id }))];
    },
    { everyMs: EVERY_MS, signal },
  );
}

/**
 * @param {PartitionRow} row
 * @returns {{tone: import("../js/badge.js").Tone, word: string}}
 */
function stateOf(row) {
  if (row.status !== "online") return { tone: row.status === "offline" ? "bad" : "busy", word: row.status };
  if (row.isr.length < row.min_isr) return { tone: "bad", word: "below min-ISR" };
  const lacking = row.replicas.some((node) =>
    !row.isr.includes(node) && !row.adding.includes(node) && !row.removing.includes(node)
  );
  if (lacking) return { tone: "warn", word: "replicas out of sync" };
  return row.adding.length || row.removing.length
    ? { tone: "busy", word: "moving" }
    : { tone: "good", word: "in sync" };
}

/** @param {PartitionRow[]} rows */
function summary(rows) {
  /** @type {Map<string, {tone: import("../js/badge.js").Tone, number: number}>} */
  const found = new Map();
  for (const { tone, word } of rows.map(stateOf)) found.set(word, { tone, number: (found.get(word)?.number ?? 0) + 1 });
  return h("p", { class: "row" }, [...found].map(([word, { tone, number: n }]) => badge(`${count(n)} ${word}`, tone)));
}

/** @param {string[]} nodes */
function legend(nodes) {
  /** @param {string} kind @param {string} sign @param {string} text */
  const entry = (kind, sign, text) =>
    h("li", {}, h("span", { class: `cell ${kind}`, "aria-hidden": "true" }, sign), text);
  return [
    h("ul", { class: "legend" }, nodes.map((node, index) => h("li", {}, h("b", {}, `${index + 1} `), node))),
    h(
      "ul",
      { class: "legend" },
      entry("leader", "1", "leads"),
      entry("", "1", "in sync"),
      entry("lagging", "1!", "not in sync"),
      entry("moving", "1+", "is added"),
      entry("moving", "1−", "is removed"),
    ),
  ];
}

/**
 * A tile for each partition, with its replicas by the number of their node. One stop of the Tab key; arrows move within.
 * @param {PartitionRow[]} rows
 * @param {string[]} nodes
 * @param {string | null} chosen
 * @param {(partition: string) => void} choose
 */
function tiles(rows, nodes, chosen, choose) {
  if (!rows.length) return empty("No partition is to be shown.");
  const first = rows.some((row) => String(row.partition) === chosen) ? chosen : String(rows[0].partition);
  const box = h(
    "div",
    { class: "tiles", role: "group", "aria-label": "Partitions; arrow keys move, Enter shows one" },
    rows.map((row) => {
      const id = String(row.partition);
      const { tone, word } = stateOf(row);
      const where = row.replicas.map((node) =>
        `${node} ${node === row.leader ? "leads" : row.isr.includes(node) ? "in sync" : "not in sync"}`
      );
      return h(
        "button",
        {
          type: "button",
          class: `tile ${tone}`,
          "data-key": `partition ${id}`,
          tabindex: id === first ? "0" : "-1",
          "aria-pressed": String(id === chosen),
          "aria-label": `partition ${id} of ${row.bucket_type}: ${word}; ${where.join(", ")}`,
          title: `${row.bucket_type}, partition ${id}: ${row.reason}`,
          onclick: () => choose(id),
        },
        h("span", { class: "id" }, id),
        [...row.replicas, ...row.adding.filter((node) => !row.replicas.includes(node))].map((node) =>
          cell(row, node, nodes.indexOf(node) + 1)
        ),
      );
    }),
  );
  box.addEventListener("keydown", (event) => {
    const buttons = [...box.querySelectorAll("button")];
    const at = buttons.findIndex((each) => each === document.activeElement);
    const wide = Math.max(1, buttons.filter((each) => each.offsetTop === buttons[0].offsetTop).length);
    /** @type {Record<string, number>} */
    const steps = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - wide,
      ArrowDown: at + wide,
      Home: 0,
      End: buttons.length - 1,
    };
    const next = buttons[steps[event.key]];
    if (at < 0 || !next) return;
    event.preventDefault();
    for (const each of buttons) each.tabIndex = each === next ? 0 : -1;
    next.focus();
  });
  return box;
}

/**
 * @param {PartitionRow} row
 * @param {string} node
 * @param {number} place
 */
function cell(row, node, place) {
  if (row.adding.includes(node) && !row.isr.includes(node)) return h("span", { class: "cell moving" }, `${place}+`);
  if (row.removing.includes(node)) return h("span", { class: "cell moving" }, `${place}−`);
  if (!row.isr.includes(node)) return h("span", { class: "cell lagging" }, `${place}!`);
  return h("span", { class: node === row.leader ? "cell leader" : "cell" }, String(place));
}

/**
 * @param {PartitionRow} row
 * @param {() => void} close
 */
function shownPartition(row, close) {
  const { tone, word } = stateOf(row);
  return h(
    "section",
    { class: "card inner", "aria-label": `Partition ${row.partition}` },
    h(
      "div",
      { class: "row between" },
      h("h3", {}, `Partition ${row.partition} `, badge(word, tone)),
      h("button", { type: "button", class: "small", onclick: close }, "Close"),
    ),
    h("p", {}, row.reason),
    facts([
      ["Bucket type", `${row.bucket_type}, index ${row.index}`],
      ["Leader", row.leader ?? "none"],
      ["In sync", `${count(row.isr.length)} of ${count(row.replicas.length)}, min-ISR ${count(row.min_isr)}`],
      ["Eligible (ELR)", row.elr.join(", ") || "none"],
      ["Epoch", count(row.epoch)],
      ["High watermark", count(row.hw)],
      ["Applied", count(row.applied)],
    ]),
    table(`Replicas of partition ${row.partition}`, [
      { title: "Node", cell: (each) => each.node },
      { title: "Role", cell: (each) => each.role ?? "unknown" },
      {
        title: "In sync",
        cell: (each) => badge(each.in_sync ? "in sync" : "not in sync", each.in_sync ? "good" : "warn"),
      },
      { title: "Log end", number: true, cell: (each) => count(each.leo) },
      { title: "Behind", number: true, cell: (each) => count(each.lag) },
      { title: "Reason", cell: (each) => each.reason },
    ], row.replica_states),
    row.status === "offline" && [
      h(
        "p",
        {},
        "If the replicas that it waits for are lost for good, a leader can be forced. Entries that only other replicas hold are lost. It is not done from here; read the runbook “A partition is offline”, then type:",
      ),
      row.replicas.map((node) => command(`isthmus partition force-leader ${row.partition} ${node} --dry-run`)),
    ],
  );
}

/** The acts that may lose data: as commands to type. */
function dangerous() {
  return h(
    "details",
    { class: "card" },
    h("summary", {}, "Acts that may lose data"),
    h(
      "p",
      {},
      "These are typed, not clicked. Each shows what would be lost with --dry-run, and asks before it does anything.",
    ),
    h("p", {}, "Force a leader of a partition whose in-sync replicas are lost:"),
    command("isthmus partition force-leader PARTITION NODE --dry-run"),
    h("p", {}, "Make records again that the metastore has forgotten (METASTORE_ROLLBACK):"),
    command("isthmus cluster reseed --dry-run"),
  );
}
