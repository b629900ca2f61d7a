/**
 * Pages by the address's fragment: `#/cluster?type=default`. A page is mounted into an empty box, and its signal is
 * aborted when it is left.
 */

import { h, replace } from "./dom.js";
import { failure } from "./states.js";

/**
 * @typedef {object} PageContext
 * @property {AbortSignal} signal aborted when the page is left: pass it to get, watch, live.follow and chart
 * @property {URLSearchParams} query of the fragment
 * @property {(change: Record<string, string | null>) => void} setQuery changes the fragment without leaving the page
 */

/**
 * @typedef {object} Page
 * @property {string} id in the fragment, and of its link: lower case, with dashes
 * @property {string} title in the navigation, the heading and the window's title
 * @property {(root: HTMLElement, context: PageContext) => void} mount fills `root`, whose heading is there already
 */

/** @typedef {{title: string, pages: readonly Page[]}} Group pages that belong together in the navigation */

export class Router {
  /** @type {AbortController | null} */
  #leave = null;
  #shown = "";

  /**
   * @param {readonly Group[]} groups the first page of the first one is the start page
   * @param {HTMLElement} nav
   * @param {HTMLElement} main
   */
  constructor(groups, nav, main) {
    this.groups = groups;
    this.pages = groups.flatMap((group) => group.pages);
    this.nav = nav;
    this.main = main;
  }

  /** Draw the navigation, show the page of the address, and follow the address from now on. */
  start() {
    /** @param {Page} page */
    const link = (page) => h("li", {}, h("a", { href: `#/${page.id}`, "data-page": page.id }, page.title));
    const groups = this.groups.map(({ title, pages }) =>
      h("li", { class: "group" }, h("span", { class: "title" }, title), h("ul", {}, pages.map(link)))
    );
    replace(this.nav, h("ul", { class: "groups" }, groups));
    addEventListener("hashchange", this.#changed);
    this.#show(false);
  }

  /** Leave the page, and follow the address no more. */
  stop() {
    removeEventListener("hashchange", this.#changed);
    this.#leave?.abort();
    this.#leave = null;
    replace(this.nav);
    replace(this.main);
    this.#shown = "";
  }

  #changed = () => this.#show(true);

  /** @param {boolean} focus whether the reader went there, so that the focus follows */
  #show(focus) {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
    if (location.hash === this.#shown && this.#leave) return;
    this.#shown = location.hash;
    const page = this.pages.find((each) => each.id === path) ?? (path ? null : this.pages[0]);
    this.#leave?.abort();
    const leave = this.#leave = new AbortController();
    for (const link of this.nav.querySelectorAll("a")) {
      if (link.dataset.page === page?.id) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "nearest" }); // a narrow screen has room for some of the links
      } else link.removeAttribute("aria-current");
    }
    const heading = h("h1", { tabindex: "-1" }, page?.title ?? "No such page");
    const root = h("div", { class: "page", id: page ? `page-${page.id}` : null });
    replace(this.main, heading, root);
    document.title = `${page?.title ?? "No such page"} · Isthmus`;
    if (focus) {
      heading.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    if (!page) return replace(root, h("p", {}, "There is no page ", h("code", {}, path), "; the navigation has all."));
    try {
      page.mount(root, {
        signal: leave.signal,
        query: new URLSearchParams(query),
        setQuery: (change) => this.#setQuery(change),
      });
    } catch (error) {
      replace(root, failure(error));
      throw error;
    }
  }

  /** @param {Record<string, string | null>} change */
  #setQuery(change) {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
    const params = new URLSearchParams(query);
    for (const [name, value] of Object.entries(change)) {
      if (value === null) params.delete(name);
      else params.set(name, value);
    }
    const text = params.toString();
    history.replaceState(null, "", `#/${path || this.pages[0].id}${text ? `?${text}` : ""}`);
    this.#shown = location.hash;
  }
}
