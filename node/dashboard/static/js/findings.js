/** Findings as pages show them: the node judges (node/services/findings.py), and a tone is its severity. */

import { get } from "./api.js";

/** @typedef {import("./types.d.ts").Findings["findings"][number]} Finding */
/** @typedef {import("./badge.js").Tone} Tone */

/** Severity -> how it is shown, and the word before the sentence. @type {Record<string, [Tone, string]>} */
const SEVERITIES = {
  critical: ["bad", "Problem: "],
  warning: ["warn", "Warning: "],
  unknown: ["unknown", "Unknown: "],
};

/** @param {Finding} finding @returns {[Tone, string]} */
export function severityOf({ severity }) {
  return SEVERITIES[severity] ?? SEVERITIES.unknown;
}

/**
 * The findings beside other answers; null where they are not answered: what is shown with them is shown all the same.
 * @param {AbortSignal} signal
 * @returns {Promise<Finding[] | null>}
 */
export async function loadFindings(signal) {
  try {
    return (await get("/admin/findings", signal)).findings;
  } catch {
    return null;
  }
}

/**
 * The tone of the worst finding with this code about a subject; undefined: there is none. Without findings it is unknown.
 * @param {readonly Finding[] | null} findings the worst first, as the node sends them
 * @param {string} code
 * @param {string} subject
 * @returns {Tone | undefined}
 */
export function toneOfFinding(findings, code, subject) {
  if (!findings) return "unknown";
  const found = findings.find((each) => each.code === code && each.subject === subject);
  return found && severityOf(found)[0];
}
