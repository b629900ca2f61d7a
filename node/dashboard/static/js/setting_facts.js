/** Facts about options and properties: who set a value, which nodes differ. */

import { h } from "./dom.js";
import { live } from "./live.js";
import { visible } from "./names.js";
import { partial } from "./states.js";
import { time } from "./time.js";

/**
 * Who set a value, when, and why; nothing where nobody did.
 * @param {{by: string | null, at_ms: number | null, reason: string | null}} row
 */
export function author({ by, at_ms, reason }) {
  if (at_ms === null) return h("span", { class: "state" }, "nobody");
  return [
    h("div", {}, visible(by || "unknown")),
    h("div", {}, time(at_ms)),
    h("div", { class: "state" }, reason ? `“${visible(reason)}”` : "no reason given"),
  ];
}

/** The same within a sentence. @param {import("./types.d.ts").SignedAct} row */
export function authored({ by, at_ms, reason }) {
  return [`${visible(by)}, `, time(at_ms), reason && `: ${visible(reason)}`];
}

/**
 * That nodes have not read the newest settings, or do not answer, and that this node may not know the newest itself.
 * @param {{behind: string[], unknown: Record<string, string>}} answer
 */
export function otherNodes({ behind, unknown }) {
  const metastore = live.cluster?.metastore ?? "connected";
  const reasons = Object.entries(unknown).map(([node, why]) => `${node} (${why})`);
  return [
    metastore !== "connected" &&
    warning(`This node’s session with the metastore is ${metastore}: what is shown may be old, and cannot be changed.`),
    behind.length > 0 &&
    warning(`${behind.join(", ")}: not the newest settings are in force there; they could not be read yet.`),
    partial(reasons, "which settings are in force there is unknown"),
  ];
}

/** @param {string} sentence */
export function warning(sentence) {
  return h("p", { class: "notice warn" }, h("span", { "aria-hidden": "true" }, "▲ "), sentence);
}

/**
 * The words of the references, whose `names` become code.
 * @param {string} text
 */
export function prose(text) {
  return text.split("`").map((part, index) => index % 2 ? h("code", {}, part) : part);
}

/** With a capital and a full stop. @param {string} text */
export function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}
