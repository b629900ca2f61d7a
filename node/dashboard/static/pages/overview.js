/** Overview: clusters and the links between them as a picture, alarms with the next step, and the numbers behind. */

import { get } from "../js/api.js";
import { badge, SHAPES } from "../js/badge.js";
import { h, replace, svg } from "../js/dom.js";
import { live } from "../js/live.js";
import { empty, failure, loading, partial, redraw, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { moment, time } from "../js/time.js";
import { bytes, count, milliseconds, quantity, rate, seconds } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").ClusterStatus} ClusterStatus */
/** @typedef {import("../js/types.d.ts").LagRow} LagRow */
/** @typedef {import("../js/types.d.ts").SinkLink} SinkLink */
/** @typedef {import("../js/types.d.ts").SinkNodes} SinkNodes */
/** @typedef {import("../js/types.d.ts").FullsyncNodes} FullsyncNodes */
/** @typedef {import("../js/badge.js").Tone} Tone */

/**
 * @typedef {object} Direction one way of a link: what it is called, and how it is
 * @property {Tone} tone
 * @property {string} state
 * @property {string} text the queue and the lag
 * @property {string} flow changes a second in the newest sample; empty: unknown
 * @property {string} proven only of what is sent
 * @property {string} reason
 */

/** @typedef {{cluster: string, out: Direction | null, in: Direction | null}} Peer */
/** @typedef {{tone: Tone, sentence: string, next: string, command?: string, href?: string}} Alarm */
/** @typedef {{lag: LagRow[], sink: SinkNodes, fullsync: FullsyncNodes}} Links */

const LINKS_EVERY_MS = 5_000;
const LAG_WARNING_S = 60; // beyond it a link is drawn as late, as `isthmus check lag` warns by default
const NARROW_PX = 640;

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "overview",
  title: "Overview",
  mount(root, { signal }) {
    const map = h("section", { class: "card", "aria-label": "Clusters and links" });
    const alarms = h("section", { class: "card", "aria-label": "Alarms" }, h("h2", {}, "Alarms"), loading());
    const state = h("section", { class: "card", "aria-label": "This cluster" }, h("h2", {}, "This cluster"), loading());
    root.append(map, h("div", { class: "cards" }, alarms, state));

    /** @type {Links | null} */
    let links = null;
    const showAlarms = () => {
      if (live.cluster) redraw(alarms, h("h2", {}, "Alarms"), shownAlarms(alarmsOf(live.cluster, links)));
      else if (live.why) replace(alarms, h("h2", {}, "Alarms"), failure(new Error(live.why)));
    };
    live.follow(() => {
      if (live.cluster) replace(state, ...shownState(live.cluster));
      else if (live.why) replace(state, h("h2", {}, "This cluster ", badge(null)), h("p", {}, live.why));
      showAlarms();
    }, signal);

    const picture = h("div");
    let width = 0;
    const draw = () => {
      if (links && width) replace(picture, ...pictures(live.cluster?.cluster ?? "this cluster", peersOf(links), width));
    };
    live.follow(draw, signal);
    const resized = new ResizeObserver(() => {
      if (width === picture.clientWidth) return;
      width = picture.clientWidth;
      draw();
    });
    signal.addEventListener("abort", () => resized.disconnect());
    watch(map, loadLinks, (loaded) => {
      links = loaded;
      resized.disconnect();
      resized.observe(picture);
      draw();
      showAlarms();
      return shownLinks(loaded, picture);
    }, { everyMs: LINKS_EVERY_MS, signal });
  },
};

/**
 * @param {AbortSignal} signal
 * @returns {Promise<Links>}
 */
async function loadLinks(signal) {
  const [lag, sink, fullsync] = await Promise.all([
    get("/admin/lag", signal),
    get("/admin/sink/nodes", signal),
    get("/admin/fullsync/nodes", signal),
  ]);
  return { lag: lag.lag, sink, fullsync };
}

// -- links ------------------------------------------------------------------------------------------------------------

/**
 * The other clusters, with what is sent to each and fetched from each.
 * @param {Links} links
 * @returns {Peer[]}
 */
function peersOf({ lag, sink }) {
  /** @type {Map<string, Peer>} */
  const peers = new Map();
  /** @param {string | null} cluster @param {string} queue */
  const peer = (cluster, queue) => {
    const name = cluster ?? `not known yet (queue ${queue})`;
    const found = peers.get(name) ?? { cluster: name, out: null, in: null };
    peers.set(name, found);
    return found;
  };
  for (const [queue, rows] of grouped(lag, (row) => row.queue)) peer(rows[0].cluster, queue).out = sent(queue, rows);
  const fetched = sink.nodes.flatMap((each) => (each.sink?.sinks ?? []).map((link) => ({ ...link, node: each.node })));
  const silent = sink.nodes.filter((each) => each.sink === null).map((each) => each.node);
  // A node that has just started does not know yet which cluster a peer belongs to; others may.
  const clusters = new Map(fetched.filter((row) => row.source_cluster).map((row) => [row.peer, row.source_cluster]));
  const clusterOf = (/** @type {SinkLink} */ row) => row.source_cluster ?? clusters.get(row.peer) ?? null;
  for (const [, rows] of grouped(fetched, (row) => `${clusterOf(row)}/${row.queue}`)) {
    peer(clusterOf(rows[0]), rows[0].queue).in = received(rows, silent);
  }
  return [...peers.values()].sort((a, b) => a.cluster.localeCompare(b.cluster));
}

/**
 * @param {string} queue
 * @param {LagRow[]} rows by bucket type
 * @returns {Direction}
 */
function sent(queue, rows) {
  const behind = worst(rows.map((row) => row.seconds));
  const objects = sum(rows.map((row) => row.objects));
  const reason = [...new Set(rows.map((row) => row.reason).filter(Boolean))].join("; ");
  const proven = rows.some((row) => row.proven_ms === null) ? null : Math.min(...rows.map((row) => row.proven_ms ?? 0));
  const late = behind !== null && behind > LAG_WARNING_S;
  return {
    flow: flowOf((name) => name === `queue.acknowledged_per_s:${labelOf(queue)}`),
    tone: behind === null ? "unknown" : late || reason ? "warn" : "good",
    state: behind === null ? "unknown" : late ? "late" : reason ? "look" : "in time",
    text: `${queue}: ${seconds(behind)} behind, ${objects === null ? "unknown" : quantity(objects, "object")}`,
    proven: proven === null
      ? "never proven up to date"
      : `proven ${rows.every((row) => row.equal_ms === row.proven_ms) ? "equal" : "up to date"} as of ${moment(proven)}`,
    reason,
  };
}

/**
 * @param {(import("../js/types.d.ts").SinkLink & {node: string})[]} rows of every node and peer
 * @param {string[]} silent nodes that did not answer
 * @returns {Direction}
 */
function received(rows, silent) {
  const running = rows.filter((row) => row.state === "running").length;
  const lag = worst(rows.map((row) => row.recent_lag_ms_p99).filter((each) => each !== null));
  const reasons = new Set(
    rows.filter((row) => row.state !== "running").map((row) => `${row.node}: ${row.reason || row.state}`),
  );
  const tone = running === rows.length ? (silent.length ? "unknown" : "good") : running ? "warn" : "bad";
  const suspended = rows.every((row) => row.state === "suspended");
  return {
    flow: flowOf((name) => name.startsWith(`sink.changes_per_s:${labelOf(`${rows[0].queue}@`)}`)),
    tone: suspended ? "warn" : tone,
    state: suspended ? "suspended" : running === rows.length ? "running" : running ? "partly running" : "not running",
    text: `${rows[0].queue}: ${count(running)} of ${quantity(rows.length, "link")} running` +
      (rows.some((row) => row.recent_lag_ms_p99 !== null) ? `, p99 ${milliseconds(lag)} late` : ", nothing lately"),
    proven: "",
    reason: [...reasons].slice(0, 3).join("; "),
  };
}

/**
 * The sum of series of the newest sample.
 * @param {(name: string) => boolean} wanted
 */
function flowOf(wanted) {
  const found = Object.entries(live.sample?.cluster ?? {}).filter(([name]) => wanted(name)).map(([, value]) => value);
  return found.length ? rate(sum(found)) : "";
}

/** A label as names of series have it (docs/metrics.md). @param {string} text */
function labelOf(text) {
  return text.replaceAll("%", "%25").replaceAll(",", "%2C");
}

/** What an arrow says. @param {Direction} direction */
function wordsOf({ text, flow }) {
  return flow ? `${text}, ${flow}` : text;
}

/**
 * @param {Links} links
 * @param {HTMLElement} picture
 */
function shownLinks(links, picture) {
  const peers = peersOf(links);
  const silent = links.sink.nodes.filter((each) => each.sink === null).map((each) => each.node);
  const heading = h("h2", {}, "Clusters and links");
  if (!peers.length) {
    return [
      heading,
      partial(silent),
      empty("This cluster neither has queues for other clusters nor fetches from any."),
    ];
  }
  return [
    heading,
    partial(silent),
    picture,
    table("What is sent to other clusters, by queue and bucket type", [
      { title: "Queue", cell: (row) => row.queue },
      { title: "To cluster", cell: (row) => row.cluster ?? "none has fetched yet" },
      { title: "Bucket type", cell: (row) => row.bucket_type },
      { title: "Behind by", number: true, cell: (row) => seconds(row.seconds) },
      { title: "Objects", number: true, cell: (row) => count(row.objects) },
      { title: "Bytes", number: true, cell: (row) => bytes(row.bytes) },
      { title: "In flight", number: true, hint: "fetched and not acknowledged", cell: (row) => count(row.in_flight) },
      { title: "Proven as of", hint: "all of ours was there", cell: (row) => time(row.proven_ms, "never") },
      {
        title: "Equal as of",
        hint: "where both clusters send to each other",
        cell: (row) => row.both_ways ? time(row.equal_ms ?? null, "never") : "",
      },
      { title: "Reason", cell: (row) => row.reason },
    ], links.lag),
  ];
}

/**
 * One picture, where there is room for this cluster and the others side by side; else one below the other.
 * @param {string} own
 * @param {Peer[]} peers
 * @param {number} width
 */
function pictures(own, peers, width) {
  return [width < NARROW_PX ? tall(own, peers, width) : broad(own, peers, width)];
}

/** @param {string} own @param {Peer[]} peers @param {number} width */
function broad(own, peers, width) {
  const [box, row, top] = [Math.min(200, width / 4), 110, 8];
  const height = peers.length * row + top;
  const [from, to] = [box + 4, width - box - 4];
  return drawn(own, peers, width, height, [
    boxed(1, top, box - 2, peers.length * row - 2 * top, own, "this cluster", true),
    ...peers.flatMap((peer, index) => {
      const y = top + index * row;
      const middle = (from + to) / 2;
      return [
        boxed(width - box, y, box - 2, row - 2 * top, peer.cluster, "", false),
        arrow(peer.out, [from, y + 34], [to, y + 34], [
          [middle, y + 22, peer.out ? wordsOf(peer.out) : "nothing is sent"],
          [middle, y + 50, peer.out?.proven ?? ""],
        ], "middle"),
        arrow(
          peer.in,
          [to, y + 72],
          [from, y + 72],
          [[middle, y + 89, peer.in ? wordsOf(peer.in) : "nothing is fetched"]],
          "middle",
        ),
      ];
    }),
  ]);
}

/** @param {string} own @param {Peer[]} peers @param {number} width */
function tall(own, peers, width) {
  const [box, gap, line] = [52, 176, 18];
  const height = box + peers.length * (box + gap) + 8;
  const most = Math.floor((width - 60) / 6.5); // characters of a line
  /** @param {string[]} texts @param {number} y @returns {[number, number, string][]} */
  const lines = (texts, y) =>
    texts.flatMap((text) => text.split(", ")).map((text, index) => [30, y + index * line, clipped(text, most * 9)]);
  return drawn(own, peers, width, height, [
    boxed(1, 2, width - 2, box, own, "this cluster", true),
    ...peers.flatMap((peer, index) => {
      const y = box + 4 + index * (box + gap);
      const [out, back] = [peer.out, peer.in];
      return [
        arrow(
          out,
          [14, y + 2],
          [14, y + gap - 2],
          lines(out ? [wordsOf(out), out.proven] : ["nothing is sent"], y + 22),
          "start",
        ),
        arrow(
          back,
          [width - 14, y + gap - 2],
          [width - 14, y + 2],
          lines(back ? [wordsOf(back)] : ["nothing is fetched"], y + gap - 58),
          "start",
        ),
        boxed(1, y + gap, width - 2, box, peer.cluster, "", false),
      ];
    }),
  ]);
}

/**
 * @param {string} own
 * @param {Peer[]} peers
 * @param {number} width
 * @param {number} height
 * @param {SVGElement[]} parts
 */
function drawn(own, peers, width, height, parts) {
  const words = peers.map((peer) => {
    const out = peer.out
      ? `to it, ${peer.out.state}, ${wordsOf(peer.out)}, ${peer.out.proven}`
      : "nothing is sent to it";
    return `${peer.cluster}: ${out}; ${
      peer.in ? `from it, ${peer.in.state}, ${wordsOf(peer.in)}` : "nothing is fetched from it"
    }`;
  });
  const label = `Cluster ${own} and ${quantity(peers.length, "other cluster")}. ${words.join(". ")}`;
  return svg(
    "svg",
    { class: "map", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label },
    ...parts,
  );
}

/**
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {string} name
 * @param {string} note
 * @param {boolean} own
 */
function boxed(x, y, width, height, name, note, own) {
  const middle = y + height / 2;
  return svg(
    "g",
    {},
    svg("rect", { class: own ? "box own" : "box", x, y, width, height, rx: 8 }),
    svg(
      "text",
      { class: "name", x: x + width / 2, y: note ? middle - 2 : middle + 5, "text-anchor": "middle" },
      clipped(name, width),
    ),
    note && svg("text", { class: "soft", x: x + width / 2, y: middle + 16, "text-anchor": "middle" }, note),
  );
}

/**
 * @param {Direction | null} direction null: there is no link this way
 * @param {[number, number]} from
 * @param {[number, number]} to
 * @param {[number, number, string][]} texts
 * @param {"start" | "middle" | "end"} anchor
 */
function arrow(direction, [x1, y1], [x2, y2], texts, anchor) {
  const tone = direction?.tone ?? "unknown";
  const [dx, dy] = [Math.sign(x2 - x1), Math.sign(y2 - y1)];
  const [bx, by] = [x2 - dx * 12, y2 - dy * 12];
  const tip = `${x2},${y2} ${bx + dy * 6},${by + dx * 6} ${bx - dy * 6},${by - dx * 6}`;
  return svg(
    "g",
    { class: tone },
    direction?.reason && svg("title", {}, direction.reason),
    svg("path", { class: "link", d: `M${x1} ${y1}L${bx} ${by}` }),
    svg("polygon", { class: "tip", points: tip }),
    texts.map(([x, y, text], index) =>
      svg(
        "text",
        { x, y, "text-anchor": anchor, class: index || !direction ? "soft" : "" },
        index || !direction ? text : `${SHAPES[tone]} ${text}`,
      )
    ),
  );
}

/** A name that fits into a box of so many pixels. @param {string} name @param {number} width */
function clipped(name, width) {
  const most = Math.max(6, Math.floor(width / 10));
  return name.length <= most ? name : `${name.slice(0, most - 1)}…`;
}

// -- alarms -----------------------------------------------------------------------------------------------------------

/**
 * @param {ClusterStatus} cluster
 * @param {Links | null} links
 * @returns {Alarm[]}
 */
function alarmsOf(cluster, links) {
  const gone = cluster.nodes.some((each) => each.state === "gone");
  /** @type {Alarm[]} */
  const found = cluster.problems.map((sentence) => ({ tone: "bad", sentence, ...nextStep(sentence) }));
  for (const sentence of cluster.warnings) found.push({ tone: "warn", sentence, ...nextStep(sentence) });
  if (links) {
    for (const peer of peersOf(links)) {
      if (peer.out && peer.out.tone !== "good" && !(gone && peer.out.tone === "unknown")) {
        const why = peer.out.reason ? `: ${peer.out.reason}` : "";
        const next = "Look at the cluster that fetches, and at its sinks there (runbook “Lag grows”).";
        found.push({
          tone: peer.out.tone,
          sentence: `To ${peer.cluster}, ${peer.out.text}${why}`,
          next,
          href: "#/queues",
          command: "isthmus lag",
        });
      }
      if (peer.in && ["warn", "bad"].includes(peer.in.tone)) {
        const why = peer.in.reason ? `: ${peer.in.reason}` : "";
        const next = peer.in.state === "suspended"
          ? "Resume the sink once the reason is over."
          : "See the errors of each link (runbook “A sink shows errors”).";
        found.push({
          tone: peer.in.tone,
          sentence: `From ${peer.cluster}, ${peer.in.text}${why}`,
          next,
          href: "#/sinks",
          command: "isthmus sink list",
        });
      }
    }
    const dead = sum(links.sink.nodes.map((each) => each.sink?.dead_letters.kept ?? 0)) ?? 0;
    if (dead) {
      const sentence = `${quantity(dead, "change")} of other clusters ${
        dead === 1 ? "was" : "were"
      } refused here for good.`;
      found.push({
        tone: "warn",
        sentence,
        next: "Read why, then retry or drop them.",
        href: "#/sinks",
        command: "isthmus sink dead-letters list",
      });
    }
    for (const [node, answer] of Object.entries(links.fullsync.nodes)) {
      for (const peer of answer?.peers ?? []) {
        if (["failing", "failed"].includes(peer.state)) {
          const sentence = `Full-sync of ${node} with ${peer.name}: ${peer.reason}`;
          found.push({ tone: "warn", sentence, next: "See its last results.", command: "isthmus fullsync status" });
        }
      }
    }
  }
  return found;
}

/**
 * What an operator does next about a problem that the cluster reports. The sentences are those of
 * node/services/cluster_status.py.
 * @param {string} sentence
 * @returns {{next: string, command?: string, href?: string}}
 */
function nextStep(sentence) {
  const node = /^node (\S+) is gone/.exec(sentence)?.[1];
  if (node) {
    return {
      next: `Start ${node} again; if it is lost for good, drain and remove it.`,
      href: "#/cluster",
      command: `isthmus node drain ${node}`,
    };
  }
  const offline = /^partition (\d+) is offline/.exec(sentence)?.[1];
  if (offline) {
    return {
      next: "Start the replicas that it waits for. Only if they are lost: runbook “A partition is offline”.",
      href: `#/cluster?partition=${offline}`,
    };
  }
  if (/disk|space|storage/i.test(sentence)) {
    return { next: "Make room on that disk (runbook “A disk is full”).", href: "#/cluster" };
  }
  if (/out of sync|in sync/.test(sentence)) {
    return { next: "The grid of partitions shows which replicas, and why.", href: "#/cluster" };
  }
  if (/not registered|metastore/.test(sentence)) {
    return { next: "Look at ZooKeeper and at this node’s log.", command: "isthmus cluster status" };
  }
  if (/certificate/.test(sentence)) return { next: "Replace the certificate; nodes read it without a restart." };
  if (/cannot be read/.test(sentence)) return { next: "Runbook “A document of the metastore cannot be read”." };
  if (/sinks?\b|other clusters/.test(sentence)) {
    return { next: "See the errors of each link.", href: "#/sinks", command: "isthmus sink list" };
  }
  return { next: "The status of the cluster has the details.", command: "isthmus cluster status" };
}

/** The title of the page of an address within the dashboard: "Sinks" of "#/sinks". @param {string} href */
function pageOf(href) {
  const [, initial, rest] = /^#\/(.)([a-z]*)/.exec(href) ?? [];
  return initial.toUpperCase() + rest;
}

/** @param {Alarm[]} alarms */
function shownAlarms(alarms) {
  if (!alarms.length) return h("p", {}, badge("nothing is amiss", "good"));
  const words = { good: "", busy: "Now: ", warn: "Warning: ", bad: "Problem: ", unknown: "Unknown: " };
  return h(
    "ul",
    { class: "alarms" },
    alarms.map((alarm, number) =>
      h(
        "li",
        { class: `notice ${alarm.tone === "bad" ? "bad" : "warn"}` },
        h("span", { "aria-hidden": "true" }, `${SHAPES[alarm.tone]} `),
        h("b", {}, words[alarm.tone]),
        alarm.sentence,
        h(
          "div",
          { class: "next" },
          "Next: ",
          alarm.next,
          " ",
          alarm.href && h("a", { href: alarm.href, "data-key": `alarm ${number}` }, pageOf(alarm.href)),
          " ",
          alarm.command && h("code", {}, alarm.command),
        ),
      )
    ),
  );
}

// -- this cluster -----------------------------------------------------------------------------------------------------

/** @param {ClusterStatus} cluster */
function shownState(cluster) {
  const { partitions, replicas } = cluster;
  const alive = cluster.nodes.filter((each) => each.state === "live").length;
  return [
    h("h2", {}, `This cluster: ${cluster.cluster} `, badge(cluster.state)),
    cluster.state_reason && h("p", {}, cluster.state_reason),
    partial(cluster.silent, "why their replicas are out of sync is unknown"),
    facts([
      ["Nodes live", `${count(alive)} of ${count(cluster.nodes.length)}`],
      ["Partitions online", `${count(partitions.online)} of ${count(partitions.total)}`],
      ["Replicas in sync", `${count(replicas.in_sync)} of ${count(replicas.total)}`],
      ["Below min-ISR", count(cluster.below_min_isr.length)],
      [
        "Leaders",
        cluster.balancing ? badge(cluster.balancing.state, undefined, cluster.balancing.reason) : badge(null),
      ],
      [
        "Moves",
        cluster.moving.orders ? `${count(cluster.moving.done)} of ${count(cluster.moving.total)} done` : "none",
      ],
      ["Controller", cluster.controller ?? "none"],
      ["Metastore", badge(cluster.metastore)],
      ["Version", cluster.version],
      ["This node since", time(cluster.started_ms)],
      ["Metastore read", time(cluster.read_at_ms)],
    ]),
    h("h3", {}, `What node ${cluster.node} does`),
    h(
      "ul",
      { class: "plain" },
      cluster.actors.map((each) => h("li", {}, badge(each.state), ` ${each.actor}`, each.reason && `: ${each.reason}`)),
    ),
  ];
}

// -- numbers ----------------------------------------------------------------------------------------------------------

/** The largest; null as soon as one is unknown. @param {(number | null)[]} values */
function worst(values) {
  return values.some((each) => each === null) ? null : Math.max(0, ...values.map((each) => each ?? 0));
}

/** The sum; null as soon as one is unknown. @param {(number | null)[]} values */
function sum(values) {
  return values.some((each) => each === null) ? null : values.reduce((a, b) => (a ?? 0) + (b ?? 0), 0);
}

/**
 * @template T
 * @param {T[]} rows
 * @param {(row: T) => string} key
 */
function grouped(rows, key) {
  /** @type {Map<string, T[]>} */
  const found = new Map();
  for (const row of rows) found.set(key(row), [...(found.get(key(row)) ?? []), row]);
  return found;
}
