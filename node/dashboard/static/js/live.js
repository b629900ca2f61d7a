/**
 * The cluster's state as it changes: one stream of server-sent events (`GET /admin/live`), or where it is missing or
 * refused, a request of `GET /admin/cluster` every few seconds while the tab is seen. The stream goes on while it is
 * hidden.
 */

import { get } from "./api.js";
import { onChange } from "./settings.js";

const POLL_MS = 5_000;
const FIRST_MS = 3_000; // the stream begins with the cluster's state; without it for so long, pages need another way
const STREAM_AGAIN_MS = 60_000; // a node that had too many streams, or was of an older version, may have one later
const SILENT_MS = 10_000; // samples come every 2 s

/** @typedef {"connecting" | "live" | "polling" | "lost"} LiveState */
/**
 * @typedef {object} LiveSample
 * @property {number} at_ms
 * @property {Record<string, Record<string, number | null> | null>} nodes
 * @property {Record<string, string>} unknown
 * @property {Record<string, number | null>} cluster all nodes that answered, merged
 * @property {number} counted how many they are
 */

class Live {
  /** @type {LiveState} */
  state = "connecting";
  /** The error behind "lost", or why the state of the cluster is not known. */
  why = "";
  /** @type {number | null} when the newest of the two came */
  atMs = null;
  /** What GET /admin/cluster answers. @type {import("./types.d.ts").ClusterStatus | null} */
  cluster = null;
  /** The newest sample of every node; null: a node that does not answer, or no stream. @type {LiveSample | null} */
  sample = null;
  /** The bucket type that samples are of; empty: all. */
  bucketType = "";
  /** @type {EventSource | null} */
  #stream = null;
  #streaming = false;
  #running = false;
  #pollTimer = 0;
  #openTimer = 0;
  /** @type {Set<() => void>} */
  #listeners = new Set();

  /**
   * Call `listener` now and after each change, of settings too, until `signal` is aborted.
   * @param {() => void} listener
   * @param {AbortSignal} signal
   */
  follow(listener, signal) {
    this.#listeners.add(listener);
    signal.addEventListener("abort", () => this.#listeners.delete(listener));
    onChange(listener, signal);
    listener();
  }

  /** Open the stream. */
  start() {
    if (this.#running) return;
    this.#running = true;
    this.#open();
    document.addEventListener("visibilitychange", this.#seen);
  }

  /** Close the stream, and forget what came. */
  stop() {
    this.#running = this.#streaming = false;
    this.#stream?.close();
    document.removeEventListener("visibilitychange", this.#seen);
    clearTimeout(this.#pollTimer);
    clearTimeout(this.#openTimer);
    this.cluster = this.sample = this.atMs = null;
    this.state = "connecting";
  }

  /**
   * Samples are of this bucket type from now on; without one, of all.
   * @param {string} bucketType
   */
  follows(bucketType) {
    if (bucketType === this.bucketType) return;
    this.bucketType = bucketType;
    this.sample = null;
    if (!this.#running) return;
    this.#stream?.close();
    clearTimeout(this.#openTimer);
    this.#open();
  }

  #open() {
    const query = this.bucketType && `?bucket_type=${encodeURIComponent(this.bucketType)}`;
    const stream = this.#stream = new EventSource(`/admin/live${query}`);
    this.#pollLater(FIRST_MS);
    /** @param {(value: any) => void} keep */
    const taking = (keep) => (/** @type {MessageEvent} */ event) => {
      this.#streaming = true;
      this.#pollLater(SILENT_MS);
      this.#take(() => keep(JSON.parse(event.data)), "live");
    };
    stream.addEventListener("cluster", taking((value) => [this.cluster, this.why] = [value, ""]));
    stream.addEventListener("sample", taking((value) => this.sample = value));
    stream.addEventListener("trouble", taking(({ error }) => [this.cluster, this.why] = [null, error]));
    stream.addEventListener("error", () => {
      if (!this.#running || stream !== this.#stream) return;
      const broke = this.#streaming;
      this.#streaming = false;
      const refused = stream.readyState === EventSource.CLOSED; // otherwise the browser opens it again, each 2 s
      if (refused) this.#pollLater(0);
      else if (broke) this.#pollLater(FIRST_MS); // later errors must not put it off
      if (refused) this.#openTimer = setTimeout(() => this.#open(), STREAM_AGAIN_MS);
    });
  }

  /** @param {number} ms */
  #pollLater(ms) {
    clearTimeout(this.#pollTimer);
    this.#pollTimer = setTimeout(() => this.#poll(), ms);
  }

  /** A tab that is seen again asks at once, unless the stream has told. */
  #seen = () => {
    if (!document.hidden && !this.#streaming) this.#pollLater(0);
  };

  async #poll() {
    this.#streaming = false;
    if (document.hidden) return; // asked when it is seen again
    try {
      const cluster = await get("/admin/cluster");
      if (!this.#running || this.#streaming) return;
      this.sample = null;
      this.#take(() => [this.cluster, this.why] = [cluster, ""], "polling");
    } catch (error) {
      if (!this.#running || this.#streaming) return;
      this.why = error instanceof Error ? error.message : String(error);
      this.#set("lost");
    }
    this.#pollLater(POLL_MS);
  }

  /**
   * @param {() => void} read
   * @param {LiveState} state
   */
  #take(read, state) {
    read();
    this.atMs = Date.now();
    this.#set(state);
  }

  /** @param {LiveState} state */
  #set(state) {
    this.state = state;
    for (const listener of this.#listeners) listener();
  }
}

/** The one stream of this browser tab. */
export const live = new Live();
