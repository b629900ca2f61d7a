/** Telemetry: replication over an hour or a day, of the cluster, a bucket type, or a node. */

import { get } from "../js/api.js";
import { chart } from "../js/chart.js";
import { h, replace } from "../js/dom.js";
import { failure, loading, partial } from "../js/states.js";
import { bytes, count, milliseconds, number, rate } from "../js/units.js";

/** @typedef {{title: string, unit: (value: number | null | undefined) => string, lines: [string, string][], stepped?: boolean}} Plot */
/** @typedef {import("../js/types.d.ts").History} History */

const CLUSTER = "cluster";
const ALL_TYPES = "";
/** How often charts are loaded again, by range. An hour of all series costs the asked nodes some 0.1 s together. */
const EVERY_MS = { hour: 15_000, day: 60_000 };

const KINDS = ["write", "barrier", "config", "cursor", "reap", "leaving"];
const PARTS = { leader: "leaders", isr: "followers in sync", osr: "out of sync" };

/** @type {Plot[]} */
const PLOTS = [
  { title: "Replicated entries", unit: rate, lines: byKind("per_s") },
  { title: "Replicate duration, mean", unit: milliseconds, lines: byKind("average_ms") },
  { title: "Replicate duration, longest of the last 30 to 60 s", unit: milliseconds, lines: byKind("max_ms") },
  { title: "Replicate failures", unit: rate, lines: byKind("failures_per_s") },
  {
    title: "Apply duration",
    unit: milliseconds,
    lines: [["apply.average_ms", "mean"], ["apply.max_ms", "longest of the last 30 to 60 s"]],
  },
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
const SERIES = PLOTS.flatMap((plot) => plot.lines.map(([name]) => name));

/**
 * @param {string} measure
 * @returns {[string, string][]} series and their names in the legend
 */
function byKind(measure) {
  return KINDS.map((kind) => [`replicate.${kind}.${measure}`, kind]);
}

/**
 * @param {string} measure
 * @returns {[string, string][]}
 */
function byPart(measure) {
  return Object.entries(PARTS).map(([part, name]) => [`replog.${part}.${measure}`, name]);
}

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "telemetry",
  title: "Telemetry",
  mount(root, { signal, query, setQuery }) {
    const wanted = {
      range: query.get("range") === "day" ? "day" : "hour",
      node: query.get("node") ?? CLUSTER,
      bucket_type: query.get("type") ?? ALL_TYPES,
    };
    const choices = h("form", { class: "row", "aria-label": "What is shown" });
    choices.addEventListener("submit", (event) => event.preventDefault());
    const trouble = h("div", {}, loading());
    const plots = PLOTS.map((plot) => ({
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
    const counted = chart({
      title: "Nodes that the sums have",
      series: ["nodes"],
      unit: count,
      stepped: [true],
      sync: "telemetry",
      signal,
    });
    const charts = h("div", { class: "charts" }, plots.map((each) => each.chart.element), counted.element);
    root.append(choices, trouble, charts);
    let timer = 0;
    let newest = 0;

    async function load() {
      clearTimeout(timer);
      const own = ++newest;
      if (!document.hidden) {
        try {
          const history = await get(`/admin/history?${searchOf(wanted)}`, signal);
          if (signal.aborted || own !== newest) return;
          show(history);
        } catch (error) {
          if (signal.aborted || own !== newest) return;
          replace(trouble, failure(error));
        }
      }
      timer = setTimeout(load, wanted.range === "day" ? EVERY_MS.day : EVERY_MS.hour);
    }

    /** @param {History} history */
    function show(history) {
      const places = Math.round((history.to_ms - history.from_ms) / history.step_ms);
      const atMs = Array.from({ length: places }, (_, index) => history.from_ms + index * history.step_ms);
      const all = history.cluster?.series ?? history.nodes[wanted.node] ?? {};
      for (const { plot, chart } of plots) {
        chart.show(atMs, plot.lines.map(([name]) => all[name] ?? atMs.map(() => null)));
      }
      counted.element.hidden = history.cluster === null;
      if (history.cluster !== null) counted.show(atMs, [history.cluster.counted]);
      replace(trouble, partial(Object.keys(history.unknown), "what they measured is missing here"));
    }

    /** @param {{labels: {bucket_type: string[]}}} known @param {{nodes: {name: string}[]}} nodes */
    function offer(known, { nodes }) {
      replace(
        choices,
        select("Of", "node", [[CLUSTER, "the cluster"], ...nodes.map(({ name }) => pair(name, `node ${name}`))]),
        select("Bucket type", "bucket_type", [[ALL_TYPES, "all"], ...known.labels.bucket_type.map((t) => pair(t, t))]),
        select("Over", "range", [["hour", "an hour"], ["day", "a day"]]),
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
        wanted[name] = box.value;
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

    signal.addEventListener("abort", () => clearTimeout(timer));
    document.addEventListener("visibilitychange", () => document.hidden || load(), { signal });
    load();
    Promise.all([get("/admin/history/series", signal), get("/admin/nodes", signal)]).then(
      ([known, nodes]) => offer(known, nodes),
      (error) => signal.aborted || replace(choices, failure(error)),
    );
  },
};

/** @param {{range: string, node: string, bucket_type: string}} wanted */
function searchOf({ range, node, bucket_type }) {
  const search = new URLSearchParams({ range, node, series: SERIES.join(",") });
  if (bucket_type) search.set("bucket_type", bucket_type);
  return search.toString();
}

/** @param {string} value @param {string} text @returns {[string, string]} */
function pair(value, text) {
  return [value, text];
}
