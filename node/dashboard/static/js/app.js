/** The start: login, the bar at the top, navigation and pages. */

import { onLoggedOut } from "./api.js";
import { badge } from "./badge.js";
import { h, replace } from "./dom.js";
import { live } from "./live.js";
import { GROUPS } from "./pages.js";
import { Router } from "./router.js";
import { loadSession, logIn, logOut, session } from "./session.js";
import { applyTheme, change, current } from "./settings.js";
import { failure } from "./states.js";
import { moment } from "./time.js";

/** @param {string} id */
function part(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html lacks #${id}`);
  return found;
}

const [skip, top, main] = [part("skip"), part("top"), part("main")];
const router = new Router(GROUPS, part("nav"), main);

/** @type {{theme: "auto" | "light" | "dark", label: string}[]} */
const THEMES = [{ theme: "auto", label: "system theme" }, { theme: "light", label: "light theme" }, {
  theme: "dark",
  label: "dark theme",
}];

/** What belongs to the time between login and logout. @type {AbortController | null} */
let logged = null;

async function begin() {
  applyTheme();
  const code = /^#login=(.+)$/.exec(location.hash)?.[1];
  if (code) history.replaceState(null, "", location.pathname); // used up by now: not to be kept, shared or loaded again
  /** @type {unknown} */
  let problem = null;
  try {
    if (code) await logIn({ code: decodeURIComponent(code) });
  } catch (error) {
    problem = error;
  }
  try {
    await loadSession();
  } catch (error) {
    replace(main, failure(error), h("button", { type: "button", onclick: begin }, "Try again"));
    return;
  }
  if (session().roles) enter();
  else showLogin(problem);
}

function enter() {
  logged?.abort();
  logged = new AbortController();
  drawTop(logged.signal);
  live.start();
  router.start();
}

function leave() {
  logged?.abort();
  logged = null;
  live.stop();
  router.stop();
}

onLoggedOut(() => {
  if (!logged) return;
  leave();
  showLogin(new Error("This session is over."));
});

/** @param {unknown} problem why the reader is here, if it was not to begin */
function showLogin(problem) {
  const { cluster, node } = session();
  document.title = "Log in · Isthmus";
  const token = h("input", { type: "password", name: "token", required: true, autocomplete: "current-password" });
  const messages = h("div", {}, problem ? failure(problem) : null);
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h(
    "form",
    { class: "login" },
    h("h1", {}, "Log in"),
    h(
      "p",
      {},
      "Node ",
      h("b", {}, node),
      " of cluster ",
      h("b", {}, cluster),
      " needs a token of the role read or more.",
    ),
    messages,
    h("label", {}, "Token", token),
    h("div", { class: "buttons" }, button),
    h(
      "p",
      { class: "state" },
      "Without a token at hand: ",
      h("code", {}, "isthmus dashboard"),
      " prints a link for one login.",
    ),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await logIn({ token: token.value });
      enter();
    } catch (error) {
      replace(messages, failure(error));
      token.value = "";
      token.focus();
    }
    button.disabled = false;
  });
  replace(top, h("span", { class: "brand" }, "Isthmus"));
  replace(main, form);
  token.focus();
}

/** @param {AbortSignal} signal */
function drawTop(signal) {
  const { cluster, node, login } = session();
  const state = h("span", { class: "now" });
  const theme = h(
    "select",
    { "aria-label": "Theme", onchange: () => change({ theme: THEMES[theme.selectedIndex].theme }) },
    THEMES.map((each) => h("option", { value: each.theme, selected: each.theme === current().theme }, each.label)),
  );
  const utc = h("input", { type: "checkbox", checked: current().utc, onchange: () => change({ utc: utc.checked }) });
  const out = login && h("button", {
    type: "button",
    class: "small",
    onclick: async () => {
      try {
        await logOut();
        leave();
        showLogin(null);
      } catch (error) {
        notice(failure(error));
      }
    },
  }, "Log out");
  replace(
    top,
    h("span", { class: "brand" }, "Isthmus"),
    h("span", { class: "place" }, h("b", {}, cluster), " by way of ", h("b", {}, node)),
    state,
    h("span", { class: "switches" }, theme, h("label", {}, utc, "UTC"), out),
  );
  live.follow(() => {
    const at = live.atMs === null ? "" : `as of ${moment(live.atMs)}`;
    const tones = /** @type {const} */ ({ live: "good", polling: "busy", connecting: "unknown", lost: "bad" });
    const words = { live: "live", polling: "every 5 s", connecting: "connecting", lost: "no answer" };
    replace(
      state,
      live.cluster && badge(live.cluster.state, undefined, live.cluster.state_reason),
      badge(words[live.state], tones[live.state], [live.why, at].filter(Boolean).join("; ")),
    );
  }, signal);
}

/** A message that goes away by itself after a while. @param {HTMLElement} element */
function notice(element) {
  part("notices").append(element);
  setTimeout(() => element.remove(), 10_000);
}

skip.addEventListener("click", (event) => {
  event.preventDefault(); // the address is the page's: it must stay for a reload
  main.focus();
});
begin();
