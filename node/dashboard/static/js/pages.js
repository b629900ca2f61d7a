/** Every page, in the order of the navigation. A page is registered by its import and its place here. */

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

/** @type {import("./router.js").Page[]} */
export const PAGES = [
  overview,
  cluster,
  queues,
  sinks,
  fullsync,
  runs,
  telemetry,
  options,
  bucketTypes,
  explain,
  audit,
];
