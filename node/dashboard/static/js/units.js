/** Numbers with units. A value that is not known is the word "unknown", never 0. */

export const UNKNOWN = "unknown";

/** @typedef {number | null | undefined} Value */

/**
 * @param {Value} value
 * @param {(value: number) => string} text
 */
function known(value, text) {
  return typeof value === "number" && Number.isFinite(value) ? text(value) : UNKNOWN;
}

/** A number with three digits or so; a small one is never shown as 0. @param {number} value */
function digits(value) {
  const size = Math.abs(value);
  if (size && size < 0.005) return value.toLocaleString("en", { maximumSignificantDigits: 1 });
  return value.toLocaleString("en", {
    maximumFractionDigits: size >= 99.95 || Number.isInteger(value) ? 0 : size >= 9.995 ? 1 : 2,
  });
}

/** A count: 1,234. @param {Value} value */
export function count(value) {
  return known(value, (v) => Math.round(v).toLocaleString("en"));
}

/** A number with up to two decimals. @param {Value} value */
export function number(value) {
  return known(value, digits);
}

/** Bytes, in powers of 1000 as config files have them: 1.5 MB. @param {Value} value */
export function bytes(value) {
  return known(value, (v) => {
    const names = ["B", "kB", "MB", "GB", "TB", "PB"];
    let power = 0;
    while (Math.abs(v) >= 999.5 && power < names.length - 1) [v, power] = [v / 1000, power + 1];
    return `${digits(v)} ${names[power]}`;
  });
}

/** Something each second: 12 /s. @param {Value} value */
export function rate(value) {
  return known(value, (v) => `${digits(v)} /s`);
}

/** A share of 1: 42 %; 100 % is the whole alone. @param {Value} value */
export function percent(value) {
  return known(value, (v) => {
    const nearly = v < 1 && v >= 0.9995;
    return `${nearly ? "99.9" : digits(v * 100)} %`;
  });
}

/**
 * A length of time, given in seconds: 4.2 ms, 3 s, 2 min 5 s, 4 h 10 min.
 * @param {Value} value
 * @returns {string}
 */
export function seconds(value) {
  return known(value, (v) => {
    if (v < 0) return `-${seconds(-v)}`;
    if (v === 0) return "0 s";
    // Bounds are where the rounded text would be 1,000, or 60, of the smaller unit.
    if (v < 0.0009995) return `${digits(v * 1e6)} µs`;
    if (v < 0.9995) return `${digits(v * 1000)} ms`;
    if (v < 59.95) return `${digits(v)} s`;
    const whole = Math.round(v);
    const [days, hours, minutes] = [
      Math.floor(whole / 86400),
      Math.floor(whole / 3600) % 24,
      Math.floor(whole / 60) % 60,
    ];
    if (days) return `${days} d ${hours} h`;
    return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
  });
}

/** The same, given in ms. @param {Value} value */
export function milliseconds(value) {
  return known(value, (v) => seconds(v / 1000));
}

/**
 * "1 node", "2 nodes".
 * @param {number} value
 * @param {string} noun
 * @param {string} [plural]
 */
export function quantity(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/**
 * A sum that lacks parts unless it is `whole`: 12, or "unknown, at least 12".
 * @param {number} value
 * @param {boolean} whole
 * @param {(value: number) => string} [text]
 */
export function atLeast(value, whole, text = count) {
  if (whole) return text(value);
  return value ? `${UNKNOWN}, at least ${text(value)}` : UNKNOWN;
}
