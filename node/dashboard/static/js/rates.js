/** Rates of queues and sinks: what limits and what was measured, as text; the fields of new limits. */

import { numberField, sizeField } from "./form.js";
import { bytes, number, quantity } from "./units.js";

const RATE_MAX = 2 ** 40; // of the admin API

/** Limits each second; null: none. @param {import("./types.d.ts").RateLimits} limits */
export function limitText({ bytes_per_second: size, objects_per_second: objects }) {
  const found = [size && `${bytes(size)}/s`, objects && `${quantity(objects, "change")}/s`].filter(Boolean);
  return found.join(", ") || "no limit";
}

/** What was achieved each second; null: unknown. @param {import("./types.d.ts").AchievedRates} rates */
export function achievedText({ bytes_per_second: size, objects_per_second: objects }) {
  return size === null ? "unknown" : `${bytes(size)}/s, ${number(objects)} changes/s`;
}

/** Fields of new limits; an empty one stays as it is. @param {string} example of bytes */
export function rateFields(example) {
  return {
    size: sizeField(`Bytes a second, such as ${example}`, { most: RATE_MAX }),
    objects: numberField("Changes a second", { most: RATE_MAX }),
  };
}

/**
 * The limits of a request. Throws an Error when no field is filled in.
 * @param {{size: number | null, objects: number | null}} values
 */
export function ratesOf({ size, objects }) {
  if (size === null && objects === null) throw new Error("Bytes, changes, or both are needed.");
  return { bytes_per_second: size, objects_per_second: objects };
}
