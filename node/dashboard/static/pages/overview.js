/** Overview: the cluster's state and alarms, and how far other clusters are behind. */

import { badge } from "../js/badge.js";
import { h, replace } from "../js/dom.js";
import { live } from "../js/live.js";
import { empty, failure, loading, partial, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { time } from "../js/time.js";
import { bytes, count, seconds } from "../js/units.js";

const LAG_EVERY_MS = 5_000;

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "overview",
  title: "Overview",
  mount(root, { signal }) {
    const state = h("section", { class: "card", "aria-label": "State" }, loading());
    const lag = h("section", { class: "card", "aria-label": "Other clusters" });
    root.append(state, lag);
    live.follow(() => {
      if (live.cluster) replace(state, ...shownState(live.cluster));
      else if (live.state === "lost") replace(state, failure(new Error(live.why)));
    }, signal);
    watch(lag, "/admin/lag", (answer) => shownLag(answer.lag), { everyMs: LAG_EVERY_MS, signal });
  },
};

/** @param {import("../js/types.d.ts").ClusterStatus} cluster */
function shownState(cluster) {
  const { partitions, replicas } = cluster;
  return [
    h("h2", {}, "Cluster ", cluster.cluster, " ", badge(cluster.state)),
    partial(cluster.silent),
    [...cluster.problems, ...cluster.warnings].map((sentence) => h("p", { class: "notice warn" }, "▲ ", sentence)),
    facts([
      ["Nodes live", `${cluster.nodes.filter((each) => each.state === "live").length} of ${cluster.nodes.length}`],
      ["Partitions online", `${count(partitions.online)} of ${count(partitions.total)}`],
      ["Replicas in sync", `${count(replicas.in_sync)} of ${count(replicas.total)}`],
      ["Controller", cluster.controller ?? "none"],
      ["Metastore", badge(cluster.metastore)],
      ["As of", time(cluster.read_at_ms)],
    ]),
  ];
}

/** @param {import("../js/types.d.ts").LagRow[]} rows */
function shownLag(rows) {
  return [
    h("h2", {}, "Other clusters"),
    rows.length
      ? table("Lag of other clusters, by queue", [
        { title: "Queue", cell: (row) => row.queue },
        { title: "Cluster", cell: (row) => row.cluster ?? "none yet" },
        { title: "Bucket type", cell: (row) => row.bucket_type },
        { title: "Behind by", number: true, cell: (row) => seconds(row.seconds) },
        { title: "Objects", number: true, cell: (row) => count(row.objects) },
        { title: "Bytes", number: true, cell: (row) => bytes(row.bytes) },
        { title: "Proven equal as of", cell: (row) => time(row.proven_ms, "never") },
        { title: "Why", cell: (row) => row.reason },
      ], rows)
      : empty("This cluster has no queue for another cluster."),
  ];
}
