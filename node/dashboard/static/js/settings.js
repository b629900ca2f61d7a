/** What this browser remembers: theme, times in UTC, and the name under which changes are recorded. */

/** @typedef {{theme: "auto" | "light" | "dark", utc: boolean, by: string}} Settings */

const KEY = "isthmus";
/** @type {Settings} */
const settings = { theme: "auto", utc: false, by: "", ...stored() };
/** @type {Set<() => void>} */
const listeners = new Set();

/** @returns {Partial<Settings>} */
function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return {
      theme: ["light", "dark"].includes(found.theme) ? found.theme : "auto",
      utc: found.utc === true,
      by: typeof found.by === "string" ? found.by : "",
    };
  } catch {
    return {}; // a browser may forbid storage
  }
}

/** @returns {Readonly<Settings>} */
export function current() {
  return settings;
}

/**
 * Change some, remember them, and tell the listeners.
 * @param {Partial<Settings>} change
 */
export function change(change) {
  Object.assign(settings, change);
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch { /* they hold until the page is closed */ }
  applyTheme();
  for (const listener of listeners) listener();
}

/**
 * Call `listener` after each change, until `signal` is aborted.
 * @param {() => void} listener
 * @param {AbortSignal} signal
 */
export function onChange(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

/** Set the theme on the page. */
export function applyTheme() {
  if (settings.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
}
