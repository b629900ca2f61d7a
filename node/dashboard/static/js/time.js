/** Moments: in local time or UTC, as the reader has chosen, with the other and the age as a title. */

import { h } from "./dom.js";
import { current } from "./settings.js";
import { seconds, UNKNOWN } from "./units.js";

/** @param {number} part */
const two = (part) => String(part).padStart(2, "0");

/**
 * "2026-11-23 23:59:01" in local time, or with a "Z" in UTC.
 * @param {number} ms
 * @param {boolean} utc
 */
export function moment(ms, utc = current().utc) {
  const at = new Date(ms);
  if (utc) return `${at.toISOString().slice(0, 19).replace("T", " ")}Z`;
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/**
 * "3 s ago", "in 2 h 4 min".
 * @param {number} ms
 * @param {number} nowMs
 */
export function age(ms, nowMs = Date.now()) {
  const away = (nowMs - ms) / 1000;
  if (Math.abs(away) < 1) return "now";
  return away > 0 ? `${seconds(Math.round(away))} ago` : `in ${seconds(Math.round(-away))}`;
}

/**
 * A moment as an element; `missing` is shown for null.
 * @param {number | null | undefined} ms
 * @param {string} [missing]
 */
export function time(ms, missing = UNKNOWN) {
  if (ms === null || ms === undefined) return h("span", { class: "unknown" }, missing);
  const title = `${moment(ms, !current().utc)} ${current().utc ? "local" : ""}, ${age(ms)}`.replace(" ,", ",");
  return h("time", { datetime: new Date(ms).toISOString(), title }, moment(ms));
}
