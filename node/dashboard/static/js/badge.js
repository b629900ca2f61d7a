/** States as badges: a colour, a shape and a word, so that none of the three is needed alone. */

import { h } from "./dom.js";

/** @typedef {"good" | "busy" | "warn" | "bad" | "unknown"} Tone */

/** @type {Record<Tone, string>} */
export const SHAPES = { good: "●", busy: "◆", warn: "▲", bad: "■", unknown: "○" };

/** @type {Record<string, Tone>} */
const TONES = {
  online: "good",
  live: "good",
  running: "good",
  serving: "good",
  scheduled: "good",
  balanced: "good",
  ready: "good",
  connected: "good",
  succeeded: "good",
  done: "good",
  equal: "good",
  "leadership-balancing": "busy",
  "placement-changing": "busy",
  election: "busy",
  candidate_found: "busy",
  "candidate-found": "busy",
  leaving: "busy",
  uneven: "busy",
  starting: "busy",
  waiting: "busy",
  drained: "busy",
  degraded: "warn",
  suspended: "warn",
  delayed: "warn",
  "passed-over": "warn",
  retrying: "warn",
  paused: "warn",
  gone: "warn", // as the findings `node-down` and `links-fail`
  failing: "warn",
  offline: "bad",
  failed: "bad",
  lost: "bad",
};

/** The tone of a state's word. @param {string} state */
export function toneOf(state) {
  return TONES[state] ?? "unknown";
}

/**
 * @param {string | null | undefined} word the state; null: unknown
 * @param {Tone} [tone] without it, that of the word
 * @param {string} [title]
 */
export function badge(word, tone, title) {
  const shown = word || "unknown";
  const kind = tone ?? toneOf(shown);
  const shape = h("span", { class: "shape", "aria-hidden": "true" }, SHAPES[kind]);
  return h("span", { class: `badge ${kind}`, title }, shape, shown);
}
