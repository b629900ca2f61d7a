/** Overview: clusters and the links between them as a picture, alarms with the next step, and the numbers behind. */

import { get } from "../js/api.js";
import { badge, SHAPES } from "../js/badge.js";
import { h, replace, svg } from "../js/dom.js";
import { loadFindings, severityOf, toneOfFinding } from "../js/findings.js";
import { live } from "../js/live.js";
import { empty, loading, partial, redraw, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { moment, time } from "../js/time.js";
import { bytes, count, milliseconds, quantity, rate, seconds, UNKNOWN } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").ClusterStatus} ClusterStatus */
/** @typedef {import("../js/types.d.ts").LagRow} LagRow */
/** @typedef {import("../js/types.d.ts").SinkLink} SinkLink */
/** @typedef {import("../js/types.d.ts").SinksOfNodes} SinksOfNodes */
/** @typedef {import("../js/badge.js").Tone} Tone */

/**
 * @typedef {object} Direction one way of a link: what it is called, and how it is
 * @property {Tone} tone
 * @property {string} state
 * @property {string} text the queue and the lag
 * @property {string} flow changes a second in the newest sample; empty: unknown
 * @property {string} proven only of what is sent
 * @property {string} reason
 * @property {string[]} lag names of the series of its lag, in ms; the worst counts
 * @property {string[]} changes names of the series of its changes a second, which are added up
 */

/** @typedef {{cluster: string, out: Direction | null, in: Direction | null}} Peer */
/** @typedef {import("../js/types.d.ts").Findings} Findings */
/** A row, and what stands for a proof that it lacks. @typedef {LagRow & {unproven: string}} JudgedRow */
/** @typedef {import("../js/findings.js").Finding} Finding */
/** @typedef {{lag: JudgedRow[], sink: SinksOfNodes, findings: Finding[] | null}} Links */
/** Name of a series -> its newest places, of the whole cluster. @typedef {Record<string, (number | null)[]>} Lines */

const LINKS_EVERY_MS = 5_000;
const NEVER = "never";
const AHEAD_MS = 1_000; // a proof so far ahead of the answering node's clock is unknown, as `isthmus lag` has it
const NARROW_PX = 640;
const LINES_EVERY_MS = 60_000; // the small lines beneath the arrows, of the last ten minutes
const LINE_PLACES = 300;
const SERIES_MAX = 64; // of a request of the history (node/admin_api/history.py)

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "overview",
  title: "Overview",
  mount(root, { signal }) {
    const map = h("section", { class: "card", "aria-label": "Clusters and links" });
    const alarms = h("section", { class: "card", "aria-label": "Alarms" });
    const state = h("section", { class: "card", "aria-label": "This cluster" }, h("h2", {}, "This cluster"), loading());
    root.append(map, h("div", { class: "cards" }, alarms, state));

    /** @type {Links | null} */
    let links = null;
    const found = h("div");
    const held = h("div");
    replace(alarms, h("h2", {}, "Alarms"), found, held);
    watch(found, "/admin/findings", shownFindings, { everyMs: LINKS_EVERY_MS, signal });
    live.follow(() => {
      if (live.cluster) replace(state, ...shownState(live.cluster));
      else if (live.why) replace(state, h("h2", {}, "This cluster ", badge(null)), h("p", {}, live.why));
    }, signal);

    const picture = h("div");
    let width = 0;
    const draw = () => {
      const own = live.cluster?.cluster ?? "this cluster";
      if (links && width) replace(picture, ...pictures(own, peersOf(links), width, lines));
    };
    /** @type {Lines} */
    let lines = {};
    const drawLines = async () => {
      try {
        if (links && !document.hidden) lines = await loadLines(peersOf(links), signal);
        draw();
      } catch {
        lines = {}; // the picture is whole without them
      }
    };
    const lined = setInterval(drawLines, LINES_EVERY_MS);
    signal.addEventListener("abort", () => clearInterval(lined));
    live.follow(draw, signal);
    const resized = new ResizeObserver(() => {
      if (width === picture.clientWidth) return;
      width = picture.clientWidth;
      draw();
    });
    signal.addEventListener("abort", () => resized.disconnect());
    watch(map, loadLinks, (loaded) => {
      const first = links === null;
      links = loaded;
      if (first) drawLines();
      resized.disconnect();
      resized.observe(picture);
      draw();
      redraw(held, shownHeld(loaded));
      return shownLinks(loaded, picture);
    }, { everyMs: LINKS_EVERY_MS, signal });
  },
};

/**
 * @param {AbortSignal} signal
 * @returns {Promise<Links>}
 */
async function loadLinks(signal) {
  const [lag, sink, findings] = await Promise.all([
    get("/admin/lag", signal),
    get("/admin/sink/nodes", signal),
    loadFindings(signal),
  ]);
  return { lag: lag.lag.map((/** @type {LagRow} */ row) => judged(row, lag.at_ms)), sink, findings };
}

/**
 * Without a proof it is "never" only where all nodes told theirs.
 * @param {LagRow} row
 * @param {number} atMs by the clock of the node that answers
 * @returns {JudgedRow}
 */
function judged(row, atMs) {
  const silent = row.proofs_unknown_at ?? [];
  const ahead = [row.proven_ms, row.equal_ms].some((ms) => (ms ?? 0) > atMs + AHEAD_MS);
  /** @param {number | null | undefined} ms */
  const known = (ms) => typeof ms === "number" && ms <= atMs + AHEAD_MS ? ms : null;
  const unproven = ahead
    ? `${UNKNOWN}: its time is ahead of this node’s clock`
    : silent.length
    ? `${UNKNOWN}: no answer from ${silent.join(", ")}`
    : NEVER;
  return { ...row, proven_ms: known(row.proven_ms), equal_ms: known(row.equal_ms), unproven };
}

/**
 * The last ten minutes of every link's lag and changes. Of more series than a request may name the rest has no line.
 * @param {Peer[]} peers
 * @param {AbortSignal} signal
 * @returns {Promise<Lines>}
 */
async function loadLines(peers, signal) {
  const ways = peers.flatMap(({ out, in: back }) => [out, back]).filter((way) => way !== null);
  const names = [...new Set(ways.flatMap((way) => [...way.lag, ...way.changes]))].slice(0, SERIES_MAX);
  if (!names.length) return {};
  const search = new URLSearchParams({ range: "hour", node: "cluster", series: names.join(",") });
  const { cluster } = await get(`/admin/history?${search}`, signal);
  return cluster?.series ?? {};
}

// -- links ------------------------------------------------------------------------------------------------------------

/**
 * The other clusters, with what is sent to each and fetched from each.
 * @param {Links} links
 * @returns {Peer[]}
 */
function peersOf({ lag, sink, findings }) {
  /** @type {Map<string, Peer>} */
  const peers = new Map();
  /** @param {string | null} cluster @param {string} queue */
  const peer = (cluster, queue) => {
    const name = cluster ?? `not known yet (queue ${queue})`;
    const found = peers.get(name) ?? { cluster: name, out: null, in: null };
    peers.set(name, found);
    return found;
  };
  for (const [queue, rows] of grouped(lag, (row) => row.queue)) {
    peer(rows[0].cluster, queue).out = sent(queue, rows, toneOfFinding(findings, "lag", `queue ${queue}`));
  }
  const fetched = sink.nodes.flatMap((each) => (each.sink?.sinks ?? []).map((link) => ({ ...link, node: each.node })));
  const silent = sink.nodes.filter((each) => each.sink === null).map((each) => each.node);
  // A node that has just started does not know yet which cluster a peer belongs to; others may.
  const clusters = new Map(fetched.filter((row) => row.source_cluster).map((row) => [row.peer, row.source_cluster]));
  const clusterOf = (/** @type {SinkLink} */ row) => row.source_cluster ?? clusters.get(row.peer) ?? null;
  for (const [, rows] of grouped(fetched, (row) => `${clusterOf(row)}/${row.queue}`)) {
    const failing = toneOfFinding(findings, "links-fail", `cluster ${clusterOf(rows[0]) ?? rows[0].peer}`);
    peer(clusterOf(rows[0]), rows[0].queue).in = received(rows, silent, failing);
  }
  return [...peers.values()].sort((a, b) => a.cluster.localeCompare(b.cluster));
}

/**
 * @param {string} queue
 * @param {JudgedRow[]} rows by bucket type
 * @param {Tone | undefined} late how the finding about its lag is shown
 * @returns {Direction}
 */
function sent(queue, rows, late) {
  const behind = worst(rows.map((row) => row.seconds));
  const least = Math.max(...rows.map((row) => row.seconds ?? row.at_least_s ?? 0));
  const objects = sum(rows.map((row) => row.objects));
  const reason = [...new Set(rows.map((row) => row.reason).filter(Boolean))].join("; ");
  const unproven = rows.filter((row) => row.proven_ms === null);
  const proven = unproven.length ? null : Math.min(...rows.map((row) => row.proven_ms ?? 0));
  return {
    flow: flowOf((name) => name === `queue.acknowledged_per_s:${labelOf(queue)}`),
    tone: late ?? (behind === null ? "unknown" : reason ? "warn" : "good"),
    state: late && late !== "unknown" ? "late" : behind === null ? "unknown" : reason ? "look" : "in time",
    text: `${queue}: ${atLeast(behind, least)} behind, ${objects === null ? "unknown" : quantity(objects, "object")}`,
    lag: [`queue.oldest_age_ms:${labelOf(queue)}`],
    changes: [`queue.acknowledged_per_s:${labelOf(queue)}`],
    proven: proven === null
      ? unproven.some((row) => row.unproven === NEVER) ? "never proven up to date" : "last proof unknown"
      : `proven ${rows.every((row) => row.equal_ms === row.proven_ms) ? "equal" : "up to date"} as of ${
        moment(proven)
      }`,
    reason,
  };
}

/**
 * How far it is behind, or at least.
 * @param {number | null} behind
 * @param {number | null | undefined} least of what is known
 */
function atLeast(behind, least) {
  return behind === null && least ? `at least ${seconds(least)}` : seconds(behind);
}

/**
 * @param {(import("../js/types.d.ts").SinkLink & {node: string})[]} rows of every node and peer
 * @param {string[]} silent nodes that did not answer
 * @param {Tone | undefined} failing how the finding about its links is shown
 * @returns {Direction}
 */
function received(rows, silent, failing) {
  const running = rows.filter((row) => row.state === "running").length;
  const lag = worst(rows.map((row) => row.recent_lag_ms_p99).filter((each) => each !== null));
  const reasons = new Set(
    rows.filter((row) => row.state !== "running").map((row) => `${row.node}: ${row.reason || row.state}`),
  );
  const tone = failing ?? (running < rows.length ? "warn" : silent.length ? "unknown" : "good");
  const suspended = rows.every((row) => row.state === "suspended");
  const labels = new Set(rows.map((row) => labelOf(`${row.queue}@${row.peer}`)));
  return {
    flow: flowOf((name) => name.startsWith(`sink.changes_per_s:${labelOf(`${rows[0].queue}@`)}`)),
    tone: suspended ? "warn" : tone,
    state: suspended ? "suspended" : running === rows.length ? "running" : running ? "partly running" : "not running",
    text: `${rows[0].queue}: ${count(running)} of ${quantity(rows.length, "link")} running` +
      (rows.some((row) => row.recent_lag_ms_p99 !== null) ? `, p99 ${milliseconds(lag)} late` : ", nothing lately"),
    lag: [...labels].map((label) => `sink.lag_p99_ms:${label}`),
    changes: [...labels].map((label) => `sink.changes_per_s:${label}`),
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
      { title: "Behind by", number: true, cell: (row) => atLeast(row.seconds, row.at_least_s) },
      { title: "Objects", number: true, cell: (row) => count(row.objects) },
      { title: "Bytes", number: true, cell: (row) => bytes(row.bytes) },
      { title: "In flight", number: true, hint: "fetched and not acknowledged", cell: (row) => count(row.in_flight) },
      { title: "Proven as of", hint: "all of ours was there", cell: (row) => time(row.proven_ms, row.unproven) },
      {
        title: "Equal as of",
        hint: "where both clusters send to each other",
        cell: (row) => row.both_ways ? time(row.equal_ms, row.unproven) : "",
      },
      { title: "Reason", cell: (row) => row.reason },
    ], links.lag),
  ];
}

/**
 * Several series as one: in each place the largest, or the sum, of those that are known.
 * @param {Lines} lines
 * @param {string[]} names
 * @param {(values: number[]) => number} merge
 */
function merged(lines, names, merge) {
  const found = names.flatMap((name) => lines[name] ? [lines[name].slice(-LINE_PLACES)] : []);
  if (!found.length) return [];
  return found[0].map((_, place) => {
    const known = found.flatMap((list) => list[place] ?? []);
    return known.length ? merge(known) : null;
  });
}

/**
 * A small line of the last ten minutes with the largest value; nothing where no value is known.
 * @param {string} what
 * @param {(number | null)[]} values
 * @param {(value: number) => string} unit
 * @param {number} x
 * @param {number} y
 */
function spark(what, values, unit, x, y) {
  const most = Math.max(0, ...values.map((value) => value ?? 0));
  if (!values.some((value) => value !== null)) return null;
  const [width, height] = [70, 16];
  let path = "";
  values.forEach((value, place) => {
    if (value === null) return;
    const at = `${(x + width * place / LINE_PLACES).toFixed(1)} ${
      (y + height - height * value / (most || 1)).toFixed(1)
    }`;
    path += `${(values[place - 1] ?? null) === null ? "M" : "L"}${at}h0.3`;
  });
  return svg(
    "g",
    { class: "spark" },
    svg("title", {}, `${what} of the last 10 minutes`),
    svg("path", { d: path }),
    svg("text", { class: "soft", x: x + width + 6, y: y + height - 3 }, `${what} at most ${unit(most)}`),
  );
}

/** The two lines beneath an arrow. @param {Direction | null} way @param {Lines} lines @param {number} middle @param {number} y */
function sparks(way, lines, middle, y) {
  if (!way) return [];
  return [
    spark("lag", merged(lines, way.lag, (values) => Math.max(...values)), milliseconds, middle - 225, y),
    spark("changes", merged(lines, way.changes, (values) => values.reduce((a, b) => a + b, 0)), rate, middle - 5, y),
  ];
}

/**
 * One picture, where there is room for this cluster and the others side by side; else one below the other.
 * @param {string} own
 * @param {Peer[]} peers
 * @param {number} width
 * @param {Lines} lines
 */
function pictures(own, peers, width, lines) {
  return [width < NARROW_PX ? tall(own, peers, width) : broad(own, peers, width, lines)];
}

/** @param {string} own @param {Peer[]} peers @param {number} width @param {Lines} lines */
function broad(own, peers, width, lines) {
  const [box, row, top] = [Math.min(200, width / 4), 150, 8];
  const roomy = width - 2 * box > 430; // for the lines beneath the arrows
  const height = peers.length * row + top;
  const [from, to] = [box + 4, width - box - 4];
  return drawn(own, peers, width, height, [
    boxed(1, top, box - 2, peers.length * row - 2 * top, own, "this cluster", true),
    ...peers.flatMap((peer, index) => {
      const y = top + index * row;
      const middle = (from + to) / 2;
      return [
        boxed(width - box, y, box - 2, row - 2 * top, peer.cluster, "", false),
        arrow(peer.out, [from, y + 28], [to, y + 28], [
          [middle, y + 16, peer.out ? wordsOf(peer.out) : "nothing is sent"],
          [middle, y + 44, peer.out?.proven ?? ""],
        ], "middle"),
        roomy ? sparks(peer.out, lines, middle, y + 50) : [],
        arrow(
          peer.in,
          [to, y + 90],
          [from, y + 90],
          [[middle, y + 107, peer.in ? wordsOf(peer.in) : "nothing is fetched"]],
          "middle",
        ),
        roomy ? sparks(peer.in, lines, middle, y + 114) : [],
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
          lines(out ? [wordsOf(out), out.proven.replace(" as of ", ", as of ")] : ["nothing is sent"], y + 22),
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
 * @param {import("../js/dom.js").Child[]} parts
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

/** Code of a finding -> the page that has more of it; the others are on Cluster. @type {Record<string, [string, string]>} */
const PAGES_OF = {
  "actor-renewed": ["fullsync", "Full-sync"],
  "bucket-type-lacking": ["bucket-types", "Bucket types"],
  "dead-letters": ["sinks", "Sinks"],
  "fullsync": ["fullsync", "Full-sync"],
  "fullsync-lacking": ["fullsync", "Full-sync"],
  "fullsync-unproven": ["fullsync", "Full-sync"],
  "gaps": ["queues", "Queues"],
  "lag": ["queues", "Queues"],
  "ledger": ["queues", "Queues"],
  "links-fail": ["sinks", "Sinks"],
};

/**
 * The list that `isthmus status` prints, too: judged by the node, the worst first.
 * @param {Findings} answer
 */
function shownFindings({ state, findings }) {
  if (state === "ok") return h("p", {}, badge("no problems", "good"));
  return h(
    "ul",
    { class: "alarms" },
    findings.map((finding, number) => {
      const { code, sentence, remedy } = finding;
      const [tone, word] = severityOf(finding);
      const [id, title] = PAGES_OF[code] ?? ["cluster", "Cluster"];
      return h(
        "li",
        { class: `notice ${tone}` },
        h("span", { "aria-hidden": "true" }, `${SHAPES[tone]} `),
        h("b", {}, word),
        sentence,
        h(
          "div",
          { class: "next" },
          "Next: ",
          withCommand(remedy),
          " ",
          h("a", { href: `#/${id}`, "data-key": `alarm ${number}` }, title),
        ),
      );
    }),
  );
}

/** A remedy, whose command is the rest from "isthmus" on. @param {string} remedy */
function withCommand(remedy) {
  const at = remedy.search(/\bisthmus [a-z]/);
  if (at < 0) return remedy;
  const [command, ...rest] = remedy.slice(at).split(/(?=[,;)])/);
  return [remedy.slice(0, at), h("code", {}, command), rest.join("")];
}

/** What operators hold back is no alarm, and is named beneath them. @param {Links} links */
function shownHeld(links) {
  const held = peersOf(links).filter((peer) => peer.in?.state === "suspended");
  return held.map((peer) =>
    h(
      "p",
      { class: "notice busy" },
      h("span", { "aria-hidden": "true" }, `${SHAPES.busy} `),
      h("b", {}, "Set by operators: "),
      `from ${peer.cluster}, ${peer.in?.text}${peer.in?.reason ? `: ${peer.in.reason}` : ""} `,
      h(
        "div",
        { class: "next" },
        "Next: ",
        h("code", {}, "isthmus sink resume"),
        " ",
        h("a", { href: "#/sinks" }, "Sinks"),
      ),
    )
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
      ["Controller", cluster.controller ?? badge(null)],
      ["Metastore", badge(cluster.metastore)],
      ["Version", cluster.version],
      ["This node since", time(cluster.started_ms)],
      ["Metastore read", time(cluster.read_at_ms)],
    ]),
    h("h3", {}, `What node ${cluster.node} does`),
    h(
      "ul",
      { class: "plain" },
      cluster.actors.map((each) => {
        const tone = each.state === "running" && each.reason ? "warn" : undefined; // it runs, and not all of it is well
        return h("li", {}, badge(each.state, tone), ` ${each.actor}`, each.reason && `: ${each.reason}`);
      }),
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
