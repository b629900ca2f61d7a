/** Rates of queues and sinks, as text: what limits, and what was measured. */

import { bytes, number, quantity } from "./units.js";

/** Limits each second; null: none. @param {import("./types.d.ts").Rates<number | null>} limits */
export function limitText({ bytes_per_second: size, objects_per_second: objects }) {
  const found = [size && `${bytes(size)}/s`, objects && `${quantity(objects, "change")}/s`].filter(Boolean);
  return found.join(", ") || "no limit";
}

/** What was achieved each second; null: unknown. @param {import("./types.d.ts").Rates<number | null>} rates */
export function achievedText({ bytes_per_second: size, objects_per_second: objects }) {
  return size === null ? "unknown" : `${bytes(size)}/s, ${number(objects)} changes/s`;
}
