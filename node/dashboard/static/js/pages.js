/** Every page, in the groups and the order of the navigation. A page is registered by its import and its place here. */

import { page as audit } from "../pages/audit.js";
import { page as bucketTypes } from "../pages/bucket_types.js";
import { page as cluster } from "../pages/cluster.js";
import { page as explain } from "../pages/explain.js";
import { page as options } from "../pages/options.js";
import { page as fullsync } from "../pages/fullsync.js";
import { page as overview } from "../pages/overview.js";
import { page as queues } from "../pages/queues.js";
import { page as runs } from "../pages/runs.js";
import { page as sinks } from "../pages/sinks.js";
import { page as telemetry } from "../pages/telemetry.js";

/** @type {import("./router.js").Group[]} */
export const GROUPS = [
  { title: "Now", pages: [overview, cluster, telemetry] },
  { title: "Replication", pages: [queues, sinks, fullsync, runs, explain] },
  { title: "Settings", pages: [options, bucketTypes] },
  { title: "Record", pages: [audit] },
];
