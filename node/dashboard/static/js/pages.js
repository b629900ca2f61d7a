/** Every page, in the order of the navigation. A page is registered by its import and its place here. */

import { page as cluster } from "../pages/cluster.js";
import { page as fullsync } from "../pages/fullsync.js";
import { page as overview } from "../pages/overview.js";
import { page as telemetry } from "../pages/telemetry.js";

/** @type {import("./router.js").Page[]} */
export const PAGES = [overview, cluster, fullsync, telemetry];
