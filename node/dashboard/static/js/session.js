/** The browser's login: who this node is, whether it needs a login, and the roles of the session. */

import { get, post } from "./api.js";

/** @typedef {{cluster: string, node: string, login: boolean, roles: string[] | null}} Session */

/** @type {Session} */
let current = { cluster: "", node: "", login: false, roles: null };

/** The session as last read. */
export function session() {
  return current;
}

/**
 * Whether the session has a role: "read", "write", "operate", "replicate" or "admin".
 * @param {string} role
 */
export function can(role) {
  return current.roles?.includes(role) ?? false;
}

/** Read the session. */
export async function loadSession() {
  current = await get("/dashboard/session");
  return current;
}

/**
 * Log in by a token, or by the code of a one-time link. Throws ApiError.
 * @param {{token: string} | {code: string}} by
 */
export async function logIn(by) {
  current = await post("/dashboard/session", by);
  return current;
}

/** End the session at the node. */
export async function logOut() {
  current = await post("/dashboard/session/end", {});
  return current;
}
