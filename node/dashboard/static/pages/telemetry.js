/** Telemetry: replication over an hour or a day, of the cluster, a bucket type, or a node. */

import { get } from "../js/api.js";
import { chart } from "../js/chart.js";
import { h, replace } from "../js/dom.js";
import { live } from "../js/live.js";
import { failure, loading, partial } from "../js/states.js";
import { bytes, count, milliseconds, number, rate } from "../js/units.js";

/** @typedef {{title: string, unit: (value: number | null | undefined) => string, lines: [string, string][], stepped?: boolean}} Plot */
/** @typedef {import("../js/types.d.ts").History} History */

const CLUSTER = "cluster";
const ALL_TYPES = "";
/** How often charts are loaded again: an hour of all series costs the asked nodes some 0.1 s together. */
const EVERY_MS = 60_000;
/** The same of an hour while there is no stream, which otherwise adds a place each 2 s. */
const WITHOUT_STREAM_MS = 15_000;

/** What a reader chooses -> the range of the request, and how many of its places are shown. */
const RANGES = {
  minutes: { range: "hour", places: 300, title: "10 minutes" },
  hour: { range: "hour", places: 1800, title: "an hour" },
  day: { range: "day", places: 1440, title: "a day" },
};

const KINDS = ["write", "barrier", "config", "cursor", "reap", "leaving"];
const PARTS = { leader: "leaders", isr: "followers in sync", osr: "out of sync" };

/** Lines of a chart with a line for each label; the others are not shown, and the title says so. */
const LABELS_MAX = 16;
/** Most series of a request (node/admin_api/history.py). */
const SERIES_MAX = 64;

/**
 * The charts that come first: lag, and the requests of clients.
 * @param {Record<string, string[]>} labels by scope
 * @returns {Plot[]}
 */
function firstPlots({ request = [], queue = [], link = [] }) {
  /** @param {string} title @param {string} name @param {string[]} labels @param {Plot["unit"]} unit @returns {Plot[]} */
  const labelled = (title, name, labels, unit) => {
    if (!labels.length) return [];
    const left = labels.length - LABELS_MAX;
    const lines = labels.slice(0, LABELS_MAX).map((label) => pair(`${name}:${escaped(label)}`, label));
    return [{ title: left > 0 ? `${title} (${left} more are not shown)` : title, unit, lines }];
  };
  return [
    ...labelled(
      "Lag of other clusters: age of the oldest change they have not acknowledged, by queue",
      "queue.oldest_age_ms",
      queue,
      milliseconds,
    ),
    ...labelled(
      "Lag of this cluster: 99th percentile of what was fetched in the last minute, by link",
      "sink.lag_p99_ms",
      link,
      milliseconds,
    ),
    ...labelled("Requests, by kind", "requests.per_s", request, rate),
    {
      title: "Duration of requests of one object, median",
      unit: milliseconds,
      lines: [["http.get.p50_ms", "GET"], ["http.put.p50_ms", "PUT"]],
    },
    {
      title: "Duration of requests of one object, 99th percentile",
      unit: milliseconds,
      lines: [["http.get.p99_ms", "GET"], ["http.put.p99_ms", "PUT"]],
    },
  ];
}

/** A label as names of series have it (docs/metrics.md). @param {string} label */
function escaped(label) {
  return label.replaceAll("%", "%25").replaceAll(",", "%2C");
}

/** @type {Plot[]} */
const PLOTS = [
  { title: "Replicated entries", unit: rate, lines: byKind("per_s") },
  { title: "Replicate duration, mean", unit: milliseconds, lines: byKind("average_ms") },
  { title: "Replicate duration, longest of the last 30 to 60 s", unit: milliseconds, lines: byKind("max_ms") },
  { title: "Replicate failures", unit: rate, lines: byKind("failures_per_s") },
  { title: "Apply duration, mean", unit: milliseconds, lines: byKind("average_ms", "apply") },
  { title: "Apply duration, longest of the last 30 to 60 s", unit: milliseconds, lines: byKind("max_ms", "apply") },
  {
    title: "Worst partition: members in sync and min-ISR",
    unit: count,
    lines: [["isr.members", "in sync"], ["isr.min_isr", "min-ISR"]],
    stepped: true,
  },
  { title: "Log entries of a replica, mean", unit: number, lines: byPart("entries_average") },
  { title: "Log entries of a replica, most", unit: number, lines: byPart("entries_max") },
  { title: "Unapplied entries of a replica, mean", unit: number, lines: byPart("unapplied_average") },
  { title: "Unapplied entries of a replica, most", unit: number, lines: byPart("unapplied_max") },
  {
    title: "Size on disk, of all bucket types",
    unit: bytes,
    lines: [["log.size_bytes", "log"], ["store.size_bytes", "store"]],
  },
];

/**
 * @param {string} measure
 * @param {string} [family]
 * @returns {[string, string][]} series and their names in the legend
 */
function byKind(measure, family = "replicate") {
  return KINDS.map((kind) => [`${family}.${kind}.${measure}`, kind]);
}

/**
 * @param {string} measure
 * @returns {[string, string][]}
 */
function byPart(measure) {
  return Object.entries(PARTS).map(([part, name]) => [`replog.${part}.${measure}`, name]);
}

/**
 * What the charts show: places of `step_ms` up to `to_ms`, a list of numbers for each series, and of the cluster, how
 * many nodes each place is made of.
 * @typedef {object} Shown
 * @property {number} step_ms
 * @property {number} to_ms
 * @property {Record<string, (number | null)[]>} series
 * @property {number[] | null} counted
 */

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "telemetry",
  title: "Telemetry",
  mount(root, { signal, query, setQuery }) {
    const wanted = {
      range: rangeOf(query.get("range")),
      node: query.get("node") ?? CLUSTER,
      bucket_type: query.get("type") ?? ALL_TYPES,
    };
    const choices = h("form", { class: "row", "aria-label": "What is shown" });
    choices.addEventListener("submit", (event) => event.preventDefault());
    const trouble = h("div", {}, loading());
    /** @type {{plot: Plot, chart: import("../js/chart.js").Chart}[]} */
    let plots = [];
    const counted = chart({
      title: "Nodes that answered, whose numbers are added up",
      series: ["nodes"],
      unit: count,
      stepped: [true],
      sync: "telemetry",
      signal,
    });
    const charts = h("div", { class: "charts" });
    root.append(choices, trouble, charts);

    /** @param {Plot[]} wantedPlots */
    function place(wantedPlots) {
      plots = wantedPlots.map((plot) => ({
        plot,
        chart: chart({
          title: plot.title,
          series: plot.lines.map(([, name]) => name),
          unit: plot.unit,
          stepped: plot.lines.map(() => plot.stepped ?? false),
          sync: "telemetry",
          signal,
        }),
      }));
      replace(charts, ...plots.map((each) => each.chart.element), counted.element);
    }

    let timer = 0;
    let newest = 0;
    /** @type {Shown | null} */
    let shown = null;

    async function load() {
      clearTimeout(timer);
      const own = ++newest;
      if (!document.hidden && plots.length) {
        try {
          const names = plots.flatMap(({ plot }) => plot.lines.map(([name]) => name));
          const parts = [];
          for (let at = 0; at < names.length; at += SERIES_MAX) parts.push(names.slice(at, at + SERIES_MAX));
          const found = await Promise.all(
            parts.map((part) => get(`/admin/history?${searchOf(wanted, part)}`, signal)),
          );
          if (signal.aborted || own !== newest) return;
          show(found);
        } catch (error) {
          if (signal.aborted || own !== newest) return;
          replace(trouble, failure(error));
        }
      }
      const streamed = wanted.range === "day" || live.state === "live";
      timer = setTimeout(load, streamed ? EVERY_MS : WITHOUT_STREAM_MS);
    }

    /** @param {History[]} parts answers to requests of one moment, each of some series */
    function show(parts) {
      const { step_ms } = parts[0];
      const to_ms = Math.min(...parts.map((part) => part.to_ms)); // a place may have ended between two of them
      /** @template T @param {T[]} list @param {History} part */
      const upTo = (list, part) => list.slice(0, list.length - (part.to_ms - to_ms) / step_ms);
      /** @type {Record<string, (number | null)[]>} */
      const series = {};
      for (const part of parts) {
        for (const [name, list] of Object.entries(part.cluster?.series ?? part.nodes[wanted.node] ?? {})) {
          series[name] = upTo(list, part);
        }
      }
      const nodes = parts[0].cluster ? upTo(parts[0].cluster.counted, parts[0]) : null;
      shown = { step_ms, to_ms, series, counted: nodes };
      live.follows(wanted.bucket_type);
      showMissing(Object.assign({}, ...parts.map((part) => part.unknown)));
      draw();
      add(); // a sample that came meanwhile
    }

    /** @param {Record<string, string>} unknown nodes that did not answer -> why */
    function showMissing(unknown) {
      replace(trouble, partial(Object.keys(unknown), "what they measured is missing here"));
    }

    function draw() {
      if (shown === null) return;
      const { step_ms, to_ms, series, counted: nodes } = shown;
      const { places } = RANGES[wanted.range];
      const atMs = Array.from({ length: places }, (_, index) => to_ms + (index - places) * step_ms);
      const unknown = atMs.map(() => null);
      // Some nodes may not have told the newest place yet: it is unknown then, and no drop.
      const whole = nodes === null || nodes.length < 2 || nodes[nodes.length - 1] >= nodes[nodes.length - 2];
      /** @param {(number | null)[]} list */
      const settled = (list) => whole ? list.slice(-places) : [...list.slice(-places, -1), null];
      for (const { plot, chart } of plots) {
        chart.show(atMs, plot.lines.map(([name]) => series[name] ? settled(series[name]) : unknown));
      }
      counted.element.hidden = nodes === null;
      if (nodes !== null) counted.show(atMs, [settled(nodes.map((each) => each || null))]);
    }

    /** Adds the newest sample of the stream, if it is of a later place. */
    function add() {
      const sample = live.sample;
      if (shown === null || sample === null || wanted.range === "day" || live.bucketType !== wanted.bucket_type) return;
      const { step_ms } = shown;
      const to_ms = (Math.floor(sample.at_ms / step_ms) + 1) * step_ms;
      const places = (to_ms - shown.to_ms) / step_ms;
      if (places < 1) return;
      if (places > RANGES.minutes.places) return void load(); // of a tab that slept
      const values = shown.counted === null ? sample.nodes[wanted.node] ?? {} : sample.cluster;
      for (const [name, list] of Object.entries(shown.series)) append(list, values[name] ?? null, places, null);
      if (shown.counted !== null) append(shown.counted, sample.counted, places, 0);
      shown.to_ms = to_ms;
      showMissing(sample.unknown);
      if (!document.hidden) draw();
    }

    /** @param {{labels: Record<string, string[]>}} known @param {{nodes: {name: string}[]}} nodes */
    function offer(known, { nodes }) {
      replace(
        choices,
        select("Of", "node", [[CLUSTER, "the cluster"], ...nodes.map(({ name }) => pair(name, `node ${name}`))]),
        select("Bucket type", "bucket_type", [[ALL_TYPES, "all"], ...known.labels.bucket_type.map((t) => pair(t, t))]),
        select("Over", "range", Object.entries(RANGES).map(([range, { title }]) => pair(range, title))),
      );
    }

    /**
     * @param {string} label
     * @param {"node" | "bucket_type" | "range"} name
     * @param {[string, string][]} options values and their texts
     */
    function select(label, name, options) {
      const known = options.some(([value]) => value === wanted[name]);
      if (!known) options = [...options, [wanted[name], `${wanted[name]} (unknown)`]];
      const box = h("select", {}, options.map(([value, text]) => h("option", { value }, text)));
      if (!(box instanceof HTMLSelectElement)) throw new TypeError("not a select");
      box.value = wanted[name];
      box.addEventListener("change", () => {
        if (name === "range") wanted.range = rangeOf(box.value);
        else wanted[name] = box.value;
        setQuery({
          range: wanted.range === "hour" ? null : wanted.range,
          node: wanted.node === CLUSTER ? null : wanted.node,
          type: wanted.bucket_type || null,
        });
        replace(trouble, loading());
        load();
      });
      return h("label", {}, `${label} `, box);
    }

    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      live.follows(ALL_TYPES);
    });
    live.follow(add, signal);
    document.addEventListener("visibilitychange", () => document.hidden || load(), { signal });
    Promise.all([get("/admin/history/series", signal), get("/admin/nodes", signal)]).then(([known, nodes]) => {
      offer(known, nodes);
      place([...firstPlots(known.labels), ...PLOTS]);
    }, (error) => {
      if (signal.aborted) return;
      replace(choices, failure(error));
      place(PLOTS);
    }).then(() => {
      if (!signal.aborted) load();
    });
  },
};

/** @param {string | null} text @returns {keyof typeof RANGES} */
function rangeOf(text) {
  return text === "minutes" || text === "day" ? text : "hour";
}

/**
 * Add a value as the newest one; the places before it that have none are unknown. The list keeps its length.
 * @template T
 * @param {T[]} list
 * @param {T} value
 * @param {number} places
 * @param {T} unknown
 */
function append(list, value, places, unknown) {
  list.splice(0, places);
  for (let index = 1; index < places; index++) list.push(unknown);
  list.push(value);
}

/**
 * @param {{range: keyof typeof RANGES, node: string, bucket_type: string}} wanted
 * @param {string[]} names of series
 */
function searchOf({ range, node, bucket_type }, names) {
  const search = new URLSearchParams({ range: RANGES[range].range, node, series: names.join(",") });
  if (bucket_type) search.set("bucket_type", bucket_type);
  return search.toString();
}

/** @param {string} value @param {string} text @returns {[string, string]} */
function pair(value, text) {
  return [value, text];
}
