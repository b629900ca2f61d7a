/**
 * Names of buckets and keys, which are any bytes: typed as text, percent-encoded as the command line takes them, or in
 * hexadecimal; shown as text where they are text that can be read, otherwise percent-encoded.
 */

import { h } from "./dom.js";

/** How a name is typed; the first is the usual one. @type {[string, string][]} */
export const FORMS = [["text", "text"], ["percent", "with % escapes"], ["hex", "hexadecimal"]];

const PLAIN = /^[A-Za-z0-9._~-]$/; // not encoded, as in RFC 3986
const UNREADABLE = /[\p{C}\p{Zl}\p{Zp}]/u; // controls, unassigned, halves of pairs, ends of lines

/**
 * A name that was typed, percent-encoded. Throws an Error that says what would be right.
 * @param {string} typed
 * @param {string} form of FORMS
 */
export function encoded(typed, form) {
  if (!typed) throw new Error("it may not be empty");
  if (form === "hex") {
    const digits = typed.replace(/^0x/i, "").replace(/[\s:]/g, "");
    if (!/^([0-9a-f]{2})+$/i.test(digits)) throw new Error('two hexadecimal digits for each byte are right: "00 ff"');
    return ofBytes(Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16)));
  }
  if (form === "percent") {
    if (/%(?![0-9a-f]{2})/i.test(typed)) {
      throw new Error('two hexadecimal digits follow each %: "%FF"; % itself is %25');
    }
    return ofBytes(bytesOf(typed));
  }
  return ofBytes(new TextEncoder().encode(typed));
}

/**
 * A percent-encoded name for people, and whether it is the text itself.
 * @param {string} name
 * @returns {{text: string, plain: boolean}}
 */
export function readable(name) {
  try {
    const text = decodeURIComponent(name);
    return text && !UNREADABLE.test(text) ? { text, plain: true } : { text: name, plain: false };
  } catch {
    return { text: name, plain: false };
  }
}

/** A percent-encoded name within a sentence. @param {string} name */
export function nameText(name) {
  const { text, plain } = readable(name);
  return plain ? text : `${text} (percent-encoded)`;
}

/** A name, and where it is not readable text or could be taken for another, its encoded form. @param {string} name */
export function shownName(name) {
  const { text, plain } = readable(name);
  return [
    h("code", {}, text),
    !plain && h("div", { class: "state" }, "bytes, percent-encoded"),
    plain && text !== name && h("div", { class: "state" }, name),
  ];
}

/**
 * A text for people whose signs that cannot be seen, or turn the direction of others, are escapes. Line ends stay.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(
    /[\p{C}\p{Zl}\p{Zp}]/gu,
    (sign) => sign === "\n" ? sign : `\\u{${sign.codePointAt(0)?.toString(16)}}`,
  );
}

/** The bytes of a percent-encoded name. @param {string} name */
export function bytesOf(name) {
  /** @type {number[]} */
  const found = [];
  for (const [, pair, other] of name.matchAll(/%([0-9a-f]{2})|([^%]+|%)/gi)) {
    if (pair) found.push(parseInt(pair, 16));
    else found.push(...new TextEncoder().encode(other));
  }
  return Uint8Array.from(found);
}

/** @param {Uint8Array} bytes */
function ofBytes(bytes) {
  return Array.from(bytes, (byte) => {
    const sign = String.fromCharCode(byte);
    return byte < 128 && PLAIN.test(sign) ? sign : `%${byte.toString(16).padStart(2, "0").toUpperCase()}`;
  }).join("");
}
