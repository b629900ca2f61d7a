/** Sinks: fetches from other clusters, limits, and changes that were refused. */

import { ApiError, get, post } from "../js/api.js";
import { badge } from "../js/badge.js";
import { actButton, command } from "../js/confirm.js";
import { h } from "../js/dom.js";
import { choiceField, formButton, numberField } from "../js/form.js";
import { nameText, shownName, visible } from "../js/names.js";
import { achievedText, limitText, rateFields, ratesOf } from "../js/rates.js";
import { author, authored } from "../js/setting_facts.js";
import { empty, failure, partial, watch } from "../js/states.js";
import { table } from "../js/table.js";
import { time } from "../js/time.js";
import { atLeast, bytes, count, milliseconds, quantity, seconds } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").SinkLink} SinkLink */
/** @typedef {import("../js/types.d.ts").SinksOfNodes} SinksOfNodes */
/** @typedef {import("../js/types.d.ts").SinkOverview} SinkOverview */
/** @typedef {import("../js/types.d.ts").SinkSuspensionRow} SinkSuspensionRow */
/** @typedef {import("../js/types.d.ts").DeadLetterRow} DeadLetterRow */
/** @typedef {import("../js/types.d.ts").DeadLetterNodes} DeadLetterNodes */
/** @typedef {import("../js/dom.js").Child} Child */
/** @typedef {SinkLink & {node: string}} Link */
/** @typedef {{queue: string | null, peer: string | null, node: string | null}} Scope null: all */
/** @typedef {{nodes: SinksOfNodes, letters: DeadLetterNodes | Error}} Loaded */
/** @typedef {{node: string, id: number}} LetterName */

const EVERY_MS = 5_000;
const LETTERS_FIRST = 20; // dead letters of a node that are shown at first
const LETTERS_MOST = 1_000; // limits of the admin API
const REASONS_SHOWN = 5; // why letters stay, after a retry of all
const WORKERS_MAX = 256;
const OUTCOMES = /** @type {const} */ (["applied", "merged", "superseded", "rejected", "failed"]);

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "sinks",
  title: "Sinks",
  mount(root, { signal, query, setQuery }) {
    let amiss = query.get("only") === "amiss";
    let letterLimit = LETTERS_FIRST;
    const box = h("div");
    root.append(box, typed());
    const watched = watch(
      box,
      async (s) => {
        const [nodes, letters] = await Promise.all([
          get("/admin/sink/nodes", s),
          get(`/admin/sink/dead-letters/nodes?limit=${letterLimit}`, s).catch((error) => error),
        ]);
        return { nodes, letters };
      },
      (/** @type {Loaded} */ loaded) => {
        const done = () => void watched.reload();
        const onlyAmiss = (/** @type {boolean} */ on) => {
          amiss = on;
          setQuery({ only: on ? "amiss" : null });
          watched.redraw();
        };
        const showMore = () => {
          letterLimit = LETTERS_MOST;
          done();
        };
        return shown(loaded, amiss, onlyAmiss, showMore, done);
      },
      { everyMs: EVERY_MS, signal },
    );
  },
};

/**
 * @param {Loaded} loaded
 * @param {boolean} amiss
 * @param {(on: boolean) => void} onlyAmiss
 * @param {() => void} showMore
 * @param {() => void} done
 */
function shown({ nodes, letters }, amiss, onlyAmiss, showMore, done) {
  const answers = nodes.nodes.flatMap((each) => each.sink === null ? [] : [each.sink]);
  const silent = nodes.nodes.filter((each) => each.sink === null).map((each) => each.node);
  const links = nodes.nodes.flatMap(({ node, sink }) => (sink?.sinks ?? []).map((link) => ({ ...link, node })));
  return [
    h(
      "section",
      { class: "card", "aria-label": "What is fetched" },
      h(
        "div",
        { class: "row between" },
        h("h2", {}, "What is fetched"),
        links.length > 0 && suspendForm(links, nodes, done),
      ),
      partial(silent, "what they fetch is unknown, and no sum has it"),
      silent.length > 0 &&
        h("ul", {}, silent.map((node) => h("li", {}, `${node}: ${nodes.unknown[node] ?? "unknown"}`))),
      answers.flatMap((sink) =>
        sink.peers_unusable.map((peer) =>
          h(
            "p",
            { class: "notice bad" },
            `■ ${sink.node} cannot fetch from queue ${peer.queue} at ${peer.url}: ${peer.reason}`,
          )
        )
      ),
      suspensions(answers, links, done),
      links.length
        ? sources(answers, links, silent, done)
        : empty(silent.length ? "No node that answers has a link." : "This cluster fetches from no other cluster."),
    ),
    links.length > 0 && linkCard(links, amiss, onlyAmiss, done),
    answers.length > 0 && nodeCard(nodes, links, done),
    letterCard(letters, showMore, done),
  ];
}

// -- sources and suspensions ------------------------------------------------------------------------------------------

/**
 * By queue and cluster, over all nodes.
 * @param {SinkOverview[]} answers
 * @param {Link[]} links
 * @param {string[]} silent
 * @param {() => void} done
 */
function sources(answers, links, silent, done) {
  /** @type {Map<string, {queue: string, cluster: string | null, uuid: string | null}>} */
  const found = new Map();
  const counters = answers.flatMap((sink) => sink.sources);
  for (const { queue, source_cluster: cluster, source_uuid: uuid } of counters) {
    found.set(`${queue}/${uuid}`, { queue, cluster, uuid });
  }
  for (const { queue, source_cluster: cluster, source_uuid: uuid } of links) {
    if (uuid !== null) found.set(`${queue}/${uuid}`, { queue, cluster, uuid });
  }
  for (const { queue } of links) {
    if (![...found.values()].some((each) => each.queue === queue)) {
      found.set(`${queue}/`, { queue, cluster: null, uuid: null });
    }
  }
  const rows = [...found.values()].map((row) => {
    const own = counters.filter((each) => each.queue === row.queue && each.source_uuid === row.uuid);
    const linked = links.filter(({ queue, source_uuid: uuid }) =>
      queue === row.queue && (uuid === row.uuid || uuid === null) // null: the link has had no answer yet
    );
    /** @param {"fetched" | "fetched_bytes" | "under_way" | typeof OUTCOMES[number]} word */
    const sum = (word) => own.reduce((total, each) => total + each[word], 0);
    const batches = own.flatMap((each) => each.last_batch_ms ?? []);
    return { ...row, linked, sum, last: batches.length ? Math.max(...batches) : null };
  });
  /** @param {number} value @param {(value: number) => string} [text] */
  const known = (value, text) => atLeast(value, !silent.length, text);
  return table(
    "What is fetched, by queue and cluster",
    [
      { title: "Queue", cell: (row) => row.queue },
      {
        title: "From cluster",
        cell: (row) => row.cluster ?? h("span", { class: "unknown" }, "none has answered yet"),
      },
      {
        title: "Links running",
        cell: (row) => {
          const running = row.linked.filter((each) => each.state === "running").length;
          const all = running === row.linked.length; // links that fail are a warning among the findings
          return badge(`${count(running)} of ${count(row.linked.length)}`, all ? "good" : "warn");
        },
      },
      {
        title: "Actions",
        cell: (row) => suspendButton("Suspend", { queue: row.queue, peer: null, node: null }, links, done),
      },
      { title: "Fetched", number: true, hint: "since the nodes started", cell: (row) => known(row.sum("fetched")) },
      { title: "Bytes", number: true, cell: (row) => known(row.sum("fetched_bytes"), bytes) },
      ...OUTCOMES.map((word) => ({
        title: word[0].toUpperCase() + word.slice(1),
        number: true,
        cell: (/** @type {typeof rows[number]} */ row) => outcome(word, row.sum(word), known),
      })),
      { title: "Under way", number: true, cell: (row) => known(row.sum("under_way")) },
      { title: "Last batch", cell: (row) => time(row.last, silent.length ? "unknown" : "none yet") },
    ],
    rows,
    { stacks: true },
  );
}

/**
 * @param {typeof OUTCOMES[number]} word
 * @param {number} value
 * @param {(value: number) => string} [text]
 */
function outcome(word, value, text = count) {
  const bad = value > 0 && (word === "rejected" || word === "failed");
  return bad ? h("b", { class: "warn" }, `▲ ${text(value)}`) : text(value);
}

/**
 * Suspensions in force, as the metastore has them.
 * @param {SinkOverview[]} answers
 * @param {Link[]} links
 * @param {() => void} done
 */
function suspensions(answers, links, done) {
  /** @type {Map<string, SinkSuspensionRow>} */
  const found = new Map();
  for (const one of answers.flatMap((sink) => sink.suspensions)) found.set(scopeKey(one), one);
  if (!found.size) return null;
  return table(
    "Suspensions",
    [
      { title: "Suspended", cell: (one) => badge(scopeText(one), "warn") },
      { title: "By", cell: (one) => h("div", { class: "wrap" }, author(one)) },
      { title: "Actions", cell: (one) => resumeButton(one, links, done) },
    ],
    [...found.values()],
    { stacks: true },
  );
}

/** @param {Scope} scope */
function scopeKey({ queue, peer, node }) {
  return JSON.stringify([queue, peer, node]);
}

/** @param {Scope} scope */
function scopeText({ queue, peer, node }) {
  const what = queue === null ? "all queues" : `queue ${queue}`;
  return `${what}${peer === null ? "" : ` at ${peer}`}, ${node === null ? "on all nodes" : `on node ${node}`}`;
}

/** @param {Scope} scope @param {Link} link */
function includes(scope, link) {
  return [scope.queue ?? link.queue, scope.peer ?? link.peer, scope.node ?? link.node].join("\n") ===
    [link.queue, link.peer, link.node].join("\n");
}

/**
 * @param {Scope} scope
 * @param {Link[]} links
 * @param {() => void} done
 * @returns {import("../js/confirm.js").Act}
 */
function suspendAct({ queue, peer, node }, links, done) {
  const scope = { queue, peer, node };
  const concerned = links.filter((link) => includes(scope, link));
  const running = concerned.filter((link) => link.state !== "suspended" && link.state !== "passed-over").length;
  const left = links.filter((link) =>
    !includes(scope, link) && link.state === "running" && concerned.some((one) => one.queue === link.queue)
  );
  return {
    title: `Suspend fetching: ${scopeText(scope)}?`,
    path: "/admin/sink/suspend",
    body: scope,
    sentence: `${quantity(running, "link")} of ${
      quantity(new Set(concerned.map((link) => link.node)).size, "node")
    } start no new fetch, until resumed and over restarts; running fetches finish. ${
      left.length
        ? `${
          quantity(left.length, "other link")
        } of the same queue go on: what they may take in place of these they fetch.`
        : "Changes wait at the source, and nothing is lost."
    }`,
    verb: "Suspend",
    done,
  };
}

/**
 * @param {string} label
 * @param {Scope} scope
 * @param {Link[]} links
 * @param {() => void} done
 */
function suspendButton(label, scope, links, done) {
  return actButton(label, suspendAct(scope, links, done), { key: `suspend ${scopeKey(scope)}` });
}

/**
 * @param {Scope} one
 * @param {Link[]} links
 * @param {() => void} done
 */
function resumeButton({ queue, peer, node }, links, done) {
  const scope = { queue, peer, node };
  const waiting = links.filter((link) => link.state === "suspended" && includes(scope, link)).length;
  return actButton("Resume", {
    title: `Resume fetching: ${scopeText(scope)}?`,
    path: "/admin/sink/resume",
    body: scope,
    sentence: `${
      quantity(waiting, "suspended link")
    } may fetch again, unless another suspension names it, too. What waited at the source arrives now.`,
    verb: "Resume",
    done,
  }, { key: `resume ${scopeKey(scope)}` });
}

/**
 * @param {Link[]} links
 * @param {SinksOfNodes} nodes
 * @param {() => void} done
 */
function suspendForm(links, nodes, done) {
  /** @param {string[]} values @param {string} all @param {string} one @returns {[string, string][]} */
  const choices = (values, all, one) => [
    ["", all],
    .../** @type {[string, string][]} */ (sorted(values).map((value) => [value, `${one} ${value}`])),
  ];
  return formButton("Suspend …", {
    title: "Suspend fetching",
    fields: () => ({
      queue: choiceField("Queue", choices(links.map((link) => link.queue), "all queues", "queue")),
      peer: choiceField("Peer", choices(links.map((link) => link.peer), "all peers", "peer")),
      node: choiceField("Where", choices(nodes.nodes.map((each) => each.node), "on all nodes", "on node")),
    }),
    act: ({ queue, peer, node }) =>
      suspendAct({ queue: queue || null, peer: peer || null, node: node || null }, links, done),
  }, { key: "suspend sinks" });
}

/** @param {string[]} values */
function sorted(values) {
  return [...new Set(values)].sort();
}

// -- links ------------------------------------------------------------------------------------------------------------

/** @type {Record<string, import("../js/badge.js").Tone>} */
const LINK_TONES = { waiting: "busy", holding: "warn", starting: "busy", ending: "busy" };

/**
 * @param {Link[]} links
 * @param {boolean} amiss
 * @param {(on: boolean) => void} onlyAmiss
 * @param {() => void} done
 */
function linkCard(links, amiss, onlyAmiss, done) {
  const rows = links.filter((link) => !amiss || link.state !== "running" || link.reason);
  const only = h("input", {
    type: "checkbox",
    checked: amiss,
    "data-key": "only amiss",
    onchange: () => onlyAmiss(only.checked),
  });
  return h(
    "section",
    { class: "card", "aria-label": "Links" },
    h(
      "div",
      { class: "row between" },
      h("h2", {}, `Links (${count(links.length)})`),
      h("label", {}, only, " only what does not run, or has a reason"),
    ),
    rows.length
      ? table(
        "Links: each node with each peer and queue",
        [
          { title: "Peer", cell: (link) => h("code", { class: "nowrap" }, link.peer) },
          {
            title: "Queue",
            cell: (link) => link.queue,
          },
          { title: "Fetched by", cell: (link) => link.node },
          { title: "State", cell: (link) => badge(link.state, LINK_TONES[link.state], visible(link.reason)) },
          {
            title: "Actions",
            cell: (link) =>
              h(
                "div",
                { class: "row" },
                link.suspended ? resumeLink(link, links, done) : link.state !== "passed-over" && actButton(
                  "Suspend peer",
                  suspendAct({ queue: null, peer: link.peer, node: null }, links, done),
                  { key: `suspend peer ${link.node} ${link.queue} ${link.peer}` },
                ),
              ),
          },
          { title: "Reason", cell: (link) => link.reason ? h("div", { class: "wrap" }, visible(link.reason)) : "–" },
          {
            title: "Delay",
            number: true,
            hint: "before the next fetch",
            cell: (link) => link.state === "passed-over" ? "–" : milliseconds(link.delay_ms),
          },
          { title: "Workers", number: true, hint: "busy with this link now", cell: (link) => count(link.running) },
          ...OUTCOMES.map((word) => ({
            title: word[0].toUpperCase() + word.slice(1),
            number: true,
            cell: (/** @type {Link} */ link) => outcome(word, link[word]),
          })),
          { title: "Lag p50", number: true, hint: "of the last minute", cell: (link) => lag(link.recent_lag_ms_p50) },
          { title: "Lag p99", number: true, hint: "of the last minute", cell: (link) => lag(link.recent_lag_ms_p99) },
          {
            title: "From",
            hint: "where the link comes from",
            cell: (link) => link.kind === "riak" ? `${link.from}, a Riak` : link.from,
          },
          { title: "Last answer", cell: (link) => time(link.last_answer_ms, "none yet") },
          {
            title: "Last error",
            cell: (link) =>
              link.last_error
                ? h("div", { class: "wrap" }, time(link.last_error_ms), ` ${visible(link.last_error)}`)
                : "none",
          },
        ],
        rows,
        { stacks: true },
      )
      : empty("Every link runs."),
  );
}

/** @param {number | null} value */
function lag(value) {
  return value === null ? "nothing lately" : milliseconds(value);
}

/**
 * @param {Link} link
 * @param {Link[]} links
 * @param {() => void} done
 */
function resumeLink(link, links, done) {
  // Suspensions that stand for documents that cannot be read have no end here.
  return link.suspended && link.suspended.by !== "?" ? resumeButton(link.suspended, links, done) : null;
}

// -- nodes ------------------------------------------------------------------------------------------------------------

/**
 * @param {SinksOfNodes} nodes
 * @param {Link[]} links
 * @param {() => void} done
 */
function nodeCard(nodes, links, done) {
  const answers = nodes.nodes.flatMap((each) => each.sink === null ? [] : [each.sink]);
  const own = answers.flatMap((sink) => sink.queue_workers_set);
  const set = new Map(own.map((one) => [`${one.queue} ${one.node}`, one]));
  return h(
    "section",
    { class: "card", "aria-label": "Workers and limits" },
    h(
      "div",
      { class: "row between" },
      h("h2", {}, "Workers and limits"),
      h("div", { class: "row" }, limitForms(nodes, links, done)),
    ),
    table(
      "Sinks by node",
      [
        { title: "Node", cell: (row) => row.node },
        { title: "State", cell: ({ sink }) => badge(sink?.state, sink?.state === "idle" ? "unknown" : undefined) },
        {
          title: "Workers busy",
          number: true,
          cell: ({ sink }) => sink ? `${count(sink.workers.busy)} of ${count(sink.workers.count)}` : "unknown",
        },
        {
          title: "Each peer",
          number: true,
          hint: "most workers at one peer",
          cell: ({ sink }) => count(sink?.workers.peer_limit),
        },
        { title: "Each queue", cell: ({ sink }) => sink ? queueLimits(sink) : "unknown" },
        { title: "Limit in force", cell: ({ sink }) => sink ? limitText(sink.throttle.configured) : "unknown" },
        {
          title: "Achieved",
          hint: "of the last 10 s",
          cell: ({ sink }) => sink ? achievedText(sink.throttle.achieved) : "unknown",
        },
        { title: "Limit reached now", cell: ({ sink }) => sink ? sink.throttle.binding ?? "nothing" : "unknown" },
        {
          title: "Held back",
          number: true,
          hint: "since it started",
          cell: ({ sink }) => seconds(sink?.throttle.throttled_seconds),
        },
        {
          title: "Set by",
          cell: ({ sink }) => h("div", { class: "wrap" }, sink ? madeBy(sink.limits_set) : "unknown"),
        },
        { title: "Reason", cell: ({ sink }) => sink?.reason ? h("div", { class: "wrap" }, visible(sink.reason)) : "–" },
      ],
      nodes.nodes,
      { stacks: true },
    ),
    set.size > 0 &&
      h(
        "ul",
        {},
        [...set.values()].map((one) =>
          h(
            "li",
            {},
            `Queue ${one.queue}, ${one.node === null ? "all nodes" : `node ${one.node}`}: at most ${
              quantity(one.workers, "worker")
            }, `,
            madeBy(one),
          )
        ),
      ),
  );
}

/** @param {SinkOverview} sink */
function queueLimits(sink) {
  return Object.entries(sink.workers.queue_limits).map(([queue, most]) => `${queue} ${count(most)}`).join(", ") ||
    "none";
}

/** @param {import("../js/types.d.ts").SignedAct | null} made @returns {Child} */
function madeBy(made) {
  return made === null ? "the files" : authored(made);
}

/**
 * @param {SinksOfNodes} nodes
 * @param {Link[]} links
 * @param {() => void} done
 */
function limitForms(nodes, links, done) {
  const names = nodes.nodes.map((each) => each.node);
  const queues = sorted(links.map((link) => link.queue));
  const path = "/admin/sink/limits";
  const nodeField = () =>
    choiceField("Where", [
      ["", "on all nodes"],
      .../** @type {[string, string][]} */ (names.map((name) => [name, `on node ${name}`])),
    ]);
  /** @param {string} all */
  const queueField = (all) =>
    choiceField("Of", [
      ["", all],
      .../** @type {[string, string][]} */ (queues.map((name) => [name, `queue ${name}`])),
    ]);
  /** @param {string} node */
  const where = (node) => node ? `on node ${node}` : "on each node";
  /** @param {string} node @param {(sink: SinkOverview) => string} text */
  const now = (node, text) => {
    const found = nodes.nodes.filter((each) => !node || each.node === node);
    return `Now: ${found.map((each) => `${each.node} ${each.sink ? text(each.sink) : "unknown"}`).join("; ")}.`;
  };
  /** @param {SinkOverview} sink */
  const workersNow = (sink) =>
    `${quantity(sink.workers.count, "worker")}, ${count(sink.workers.peer_limit)} at one peer`;
  return [
    formButton("Set workers …", {
      title: "Set workers",
      note: "How many fetches run at once on a node. What is left empty stays as it is.",
      fields: () => ({
        queue: queueField("the whole node"),
        node: nodeField(),
        workers: numberField("Workers", { least: 1, most: WORKERS_MAX }),
        per_peer: numberField("Most at one peer; 0: an equal share for each", { most: WORKERS_MAX }),
      }),
      act: ({ queue, node, workers, per_peer: perPeer }) => {
        if (queue && perPeer !== null) {
          throw new Error("Most at one peer is of the whole node: leave it empty for a queue.");
        }
        if (workers === null && (queue || perPeer === null)) throw new Error("Workers: a number is needed.");
        if (workers !== null && perPeer !== null && perPeer > workers) {
          throw new Error(`Most at one peer: at most ${workers}, the workers of the node, is right.`);
        }
        const parts = [
          workers !== null && `at most ${quantity(workers, "worker")}`,
          perPeer !== null &&
          (perPeer ? `at most ${quantity(perPeer, "worker")} at one peer` : "an equal share for each peer"),
        ].filter(Boolean);
        return {
          title: `Set workers ${where(node)}${queue ? `, queue ${queue}` : ""}?`,
          path,
          body: { queue: queue || null, node: node || null, workers, per_peer: perPeer },
          sentence: `From now on and over restarts ${where(node)}${queue ? ` for queue ${queue}` : ""}: ${
            parts.join(", ")
          }. Running fetches finish. ${
            now(
              node,
              queue ? (sink) => `at most ${sink.workers.queue_limits[queue] ?? sink.workers.count}` : workersNow,
            )
          }`,
          verb: "Set",
          done,
        };
      },
    }, { key: "set workers" }),
    formButton("Set rates …", {
      title: "Limit what is fetched",
      note: "A second and node. What is left empty stays as it is; 0 is no limit.",
      fields: () => ({
        node: nodeField(),
        ...rateFields("20MB"),
      }),
      act: ({ node, size, objects }) => {
        const limits = ratesOf({ size, objects });
        const parts = [
          size !== null && (size ? `at most ${bytes(size)} a second` : "no limit of bytes"),
          objects !== null && (objects ? `at most ${quantity(objects, "change")} a second` : "no limit of changes"),
        ].filter(Boolean);
        return {
          title: `Limit what is fetched ${where(node)}?`,
          path,
          body: { node: node || null, ...limits },
          sentence: `From now on and over restarts ${where(node)}: ${
            parts.join(", ")
          }. What exceeds it waits at the source. ${now(node, (sink) => limitText(sink.throttle.configured))}`,
          verb: "Set",
          done,
        };
      },
    }, { key: "set rates" }),
    formButton("Use the files’ …", {
      title: "Use limits of the files again",
      fields: () => ({
        what: choiceField("What", [
          ["workers", "workers, and most at one peer"],
          ["rates", "rates"],
          .../** @type {[string, string][]} */ (queues.map((
            name,
          ) => [`queue ${name}`, `workers of queue ${name}: no limit of its own`])),
        ]),
        node: nodeField(),
      }),
      act: ({ what, node }) => {
        const queue = what.startsWith("queue ") ? what.slice("queue ".length) : null;
        const named = queue !== null
          ? {}
          : what === "rates"
          ? { bytes_per_second: 0, objects_per_second: 0 }
          : { workers: 1, per_peer: 0 };
        return {
          title: `Use what the files say ${where(node)}?`,
          path,
          body: { queue, node: node || null, ...named, forget: true },
          sentence: `What operators have set ${node ? `for node ${node} alone` : "for all nodes"} of ${
            queue === null ? what : `queue ${queue}`
          } counts no more${
            node ? "; what is set for all nodes does" : "; what is set for one node alone still does"
          }. ${now(node, what === "rates" ? (sink) => limitText(sink.throttle.configured) : workersNow)}`,
          verb: "Use the files’",
          done,
        };
      },
    }, { key: "forget limits" }),
  ];
}

// -- dead letters -----------------------------------------------------------------------------------------------------

/**
 * @param {DeadLetterNodes | Error} letters
 * @param {() => void} showMore
 * @param {() => void} done
 */
function letterCard(letters, showMore, done) {
  const card = (/** @type {Child[]} */ ...children) =>
    h("section", { class: "card", "aria-label": "Dead letters" }, ...children);
  if (letters instanceof Error) return card(h("h2", {}, "Dead letters"), failure(letters));
  const silent = letters.nodes.filter((each) => each.dead_letters === null).map((each) => each.node);
  const having = letters.nodes.filter((each) => each.kept);
  const total = letters.nodes.reduce((sum, each) => sum + (each.kept ?? 0), 0);
  const givenUp = letters.nodes.reduce((sum, each) => sum + (each.given_up ?? 0), 0);
  return card(
    h(
      "div",
      { class: "row between" },
      h("h2", {}, `Dead letters (${atLeast(total, !silent.length)})`),
      total > 0 &&
        h("div", { class: "row" }, retryAll(having, silent, total, done), dropAll(having, silent, total, done)),
    ),
    h(
      "p",
      { class: "state" },
      "Changes of other clusters that were refused here for good. They lie on the node that fetched them.",
    ),
    partial(silent, "their dead letters are unknown, and stay"),
    silent.length > 0 &&
      h("ul", {}, silent.map((node) => h("li", {}, `${node}: ${letters.unknown[node] ?? "unknown"}`))),
    givenUp > 0 &&
      h(
        "p",
        { class: "notice warn" },
        `▲ ${quantity(givenUp, "more change")} ${givenUp === 1 ? "was" : "were"} refused while the list was full, and ${
          givenUp === 1 ? "is" : "are"
        } gaps at the source.`,
      ),
    total === 0 && empty(silent.length ? "The nodes that answer have none." : "There are none."),
    having.map((each) => [
      h("h3", {}, `${each.node}: ${count(each.kept)}`),
      letterTable(each.node, each.dead_letters ?? [], done),
      each.more &&
      h(
        "p",
        { class: "row" },
        `The oldest ${count(each.dead_letters?.length)} of ${count(each.kept)} are shown.`,
        (each.dead_letters?.length ?? 0) < LETTERS_MOST &&
          h(
            "button",
            { type: "button", class: "small", "data-key": `more letters ${each.node}`, onclick: showMore },
            "Show more",
          ),
      ),
    ]),
  );
}

/**
 * @param {string} node
 * @param {DeadLetterRow[]} letters
 * @param {() => void} done
 */
function letterTable(node, letters, done) {
  return table(
    `Dead letters of ${node}`,
    [
      { title: "Key", cell: (letter) => h("div", { class: "wrap" }, shownName(letter.key_encoded[2])) },
      {
        title: "Bucket",
        cell: (letter) =>
          h("div", { class: "wrap" }, shownName(letter.key_encoded[1]), ` of type ${nameText(letter.key_encoded[0])}`),
      },
      {
        title: "Why",
        cell: (letter) => h("div", { class: "wrap" }, h("b", {}, letter.reason), ` ${visible(letter.error)}`),
      },
      {
        title: "Actions",
        cell: (letter) =>
          h(
            "div",
            { class: "row" },
            actButton("Retry", {
              title: "Push this change again?",
              path: "/admin/sink/dead-letters/retry",
              body: { ids: [letter.id], node },
              sentence: `${named(letter)} is pushed into this cluster again, ${
                letter.object_kept ? "as it was refused" : `as ${letter.source_cluster} has it now`
              }. If it is accepted, the letter is removed; if it is refused again, it stays with the new reason.`,
              verb: "Retry",
              result: (answer) => answer.retried.map(retried),
              done,
            }, { key: `retry ${node} ${letter.id}` }),
            actButton("Drop", {
              title: "Forget this change?",
              path: "/admin/sink/dead-letters/drop",
              body: { ids: [letter.id], node },
              sentence: `The letter of ${named(letter)} is removed with its ${
                bytes(letter.size_bytes)
              }. The key stays as it is at ${letter.source_cluster}: a full-sync may find that the clusters differ.`,
              verb: "Drop",
              danger: true,
              result: (answer) => answer.dropped ? "It is removed." : "It was not there any more.",
              done,
            }, { role: "admin", key: `drop ${node} ${letter.id}` }),
          ),
      },
      { title: "Queue", cell: (letter) => letter.queue },
      { title: "From cluster", cell: (letter) => letter.source_cluster },
      { title: "Refused", cell: (letter) => time(letter.at_ms) },
      { title: "Times", number: true, cell: (letter) => count(letter.tries) },
      {
        title: "Size",
        number: true,
        cell: (letter) => [bytes(letter.size_bytes), letter.object_kept ? null : ", not kept"],
      },
    ],
    letters,
    { stacks: true },
  );
}

/** @param {DeadLetterRow} letter */
function named({ key_encoded: [type, bucket, key] }) {
  return `Key ${nameText(key)} of bucket ${nameText(bucket)} (type ${nameText(type)})`;
}

/** @param {{outcome: string | null, reason: string | null, error: string | null}} one */
function accepted({ outcome: found }) {
  return found !== null && ["applied", "merged", "superseded"].includes(found);
}

/** @param {{id: number, outcome: string | null, reason: string | null, error: string | null}} one */
function retried(one) {
  if (accepted(one)) return h("p", {}, `Accepted: ${one.outcome}. The letter is removed.`);
  return h(
    "p",
    { class: "notice warn" },
    `▲ The letter stays: ${refusal(one)}`,
  );
}

/** Why it was not accepted. @param {{outcome: string | null, reason: string | null, error: string | null}} one */
function refusal({ outcome, reason, error }) {
  return visible(`${outcome ?? reason}${error ? `: ${error}` : ""}`);
}

/** @typedef {DeadLetterNodes["nodes"][number]} NodeLetters */
/** @typedef {{all: number, tried: number, accepted: number, left: number, why: string[], end: string}} Tally */

/**
 * @param {NodeLetters[]} having
 * @param {string[]} silent
 * @param {number} total
 * @param {() => void} done
 */
function retryAll(having, silent, total, done) {
  return actButton("Retry all", {
    title: `Push ${quantity(total, "dead letter")} again?`,
    path: "/admin/sink/dead-letters/retry",
    sentence: `${
      having.map((each) => `${each.node}: ${count(each.kept)}`).join(", ")
    }. They are pushed one after the other; each that is accepted is removed, each that is refused again stays with the new reason.${
      left(silent)
    }`,
    verb: "Retry all",
    run: (words, show, signal) => retryEach(having, words, show, signal),
    result: shownTally,
    ended: ({ end }) => end !== "",
    done,
  }, { key: "retry all letters" });
}

/**
 * Retry one letter after the other, until all were tried, somebody stops it, or the node does not answer.
 * @param {NodeLetters[]} having
 * @param {object} words
 * @param {(shown: Child) => void} show
 * @param {AbortSignal} signal
 * @returns {Promise<Tally>}
 */
async function retryEach(having, words, show, signal) {
  /** @type {Tally} */
  const tally = { all: 0, tried: 0, accepted: 0, left: 0, why: [], end: "" };
  /** @param {LetterName} letter @param {string} reason */
  const stays = ({ node, id }, reason) => {
    tally.left += 1;
    if (tally.why.length < REASONS_SHOWN) tally.why.push(`${node}, ${id}: ${reason}`);
  };
  try {
    const found = await allLetters(having, signal);
    tally.all = found.length;
    for (const letter of found) {
      if (signal.aborted) break;
      show([
        h("progress", { max: tally.all, value: tally.tried, "aria-label": "letters tried" }),
        h("p", { role: "status" }, progressText(tally)),
      ]);
      tally.tried += 1;
      try {
        const { node, id } = letter;
        const [one] = (await post("/admin/sink/dead-letters/retry", { ids: [id], node, ...words })).retried;
        if (accepted(one)) tally.accepted += 1;
        else stays(letter, refusal(one));
      } catch (error) {
        const message = error instanceof Error ? error.message : String(error);
        if (error instanceof ApiError && error.status === 0) {
          tally.end = `It ended at letter ${letter.id} of ${letter.node}: ${message}`;
          break;
        }
        stays(letter, message);
      }
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
  if (signal.aborted && !tally.end) tally.end = "It was stopped";
  return tally;
}

/** @param {Tally} tally */
function progressText({ tried, all, accepted }) {
  return `${count(tried)} of ${count(all)} tried, ${count(accepted)} accepted.`;
}

/** @param {Tally} tally */
function shownTally(tally) {
  const { all, tried, left, why, end } = tally;
  return [
    end &&
    h("p", { class: "notice warn", role: "status" }, `▲ ${end}. ${quantity(all - tried, "letter")} not tried.`),
    h("p", {}, progressText(tally)),
    left > 0 && h("p", { class: "notice warn" }, `▲ ${quantity(left, "letter")} left, for instance:`),
    left > 0 && h("ul", {}, why.map((each) => h("li", {}, each))),
  ];
}

/**
 * @param {NodeLetters[]} having
 * @param {string[]} silent
 * @param {number} total
 * @param {() => void} done
 */
function dropAll(having, silent, total, done) {
  return actButton("Drop all", {
    title: `Forget ${quantity(total, "dead letter")}?`,
    path: "/admin/sink/dead-letters/drop",
    sentence: `${
      having.map((each) => `${each.node}: ${count(each.kept)}`).join(", ")
    }. They are removed with their objects; letters that come meanwhile stay. Their keys stay as they are at their sources: a full-sync may find that the clusters differ.${
      left(silent)
    }`,
    verb: "Drop all",
    danger: true,
    run: async (words, _show, signal) => {
      /** @type {LetterName[]} */
      let found = [];
      let dropped = 0;
      try {
        found = await allLetters(having, signal);
        for (const node of sorted(found.map((each) => each.node))) {
          const ids = found.filter((each) => each.node === node).map((each) => each.id);
          for (let start = 0; start < ids.length && !signal.aborted; start += LETTERS_MOST) {
            const some = ids.slice(start, start + LETTERS_MOST);
            dropped += (await post("/admin/sink/dead-letters/drop", { ids: some, node, ...words })).dropped;
          }
        }
      } catch (error) {
        if (!signal.aborted) throw error;
      }
      return { dropped, all: found.length, stopped: signal.aborted };
    },
    ended: ({ stopped }) => stopped,
    result: ({ dropped, all, stopped }) =>
      `${stopped ? "It was stopped. " : ""}${count(dropped)} of ${count(all)} removed.`,
    done,
  }, { role: "admin", key: "drop all letters" });
}

/** @param {string[]} silent */
function left(silent) {
  return silent.length ? ` Those of ${silent.join(", ")}, which did not answer, stay.` : "";
}

/**
 * The names of all letters that nodes keep now.
 * @param {NodeLetters[]} having
 * @param {AbortSignal} signal
 * @returns {Promise<LetterName[]>}
 */
async function allLetters(having, signal) {
  /** @type {LetterName[]} */
  const found = [];
  for (const { node } of having) {
    let after = 0;
    for (let more = true; more;) {
      const asked = new URLSearchParams({ node, after: String(after), limit: String(LETTERS_MOST) });
      const answer = await get(`/admin/sink/dead-letters/nodes?${asked}`, signal);
      const [page] = answer.nodes;
      if (page.dead_letters === null) throw new Error(`${node} did not answer: ${answer.unknown[node]}`);
      for (const { id } of page.dead_letters) found.push({ node, id });
      more = page.more && page.dead_letters.length > 0;
      after = found.at(-1)?.id ?? 0;
    }
  }
  return found;
}

/** Rarer acts, as commands to type. */
function typed() {
  return h(
    "details",
    { class: "card" },
    h("summary", {}, "Add, check and remove peers; conflicts"),
    h(
      "p",
      {},
      "These are typed, not clicked: a peer needs the path of its token on every node. Changes wait at the source of a peer that is removed.",
    ),
    h("p", {}, "Would a link work? Nothing is changed:"),
    command("isthmus sink check URL QUEUE"),
    h("p", {}, "Fetch from a peer, on all nodes and over restarts; and no more:"),
    command("isthmus sink add-peer URL QUEUE --reason WHY"),
    command("isthmus sink remove-peer URL QUEUE --reason WHY"),
    h("p", {}, "The newest changes that were concurrent with ours:"),
    command("isthmus sink conflicts"),
  );
}
