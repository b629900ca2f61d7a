/** Spark runs: comparisons, seeds and imports, and one of them in detail. */

import { get } from "../js/api.js";
import { badge } from "../js/badge.js";
import { command } from "../js/confirm.js";
import { h, replace } from "../js/dom.js";
import { empty, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { age, time } from "../js/time.js";
import { bytes, count, percent, quantity, seconds } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").Runs} Runs */
/** @typedef {import("../js/types.d.ts").RunRow} RunRow */
/** @typedef {import("../js/types.d.ts").RunDetails} RunDetails */
/** @typedef {import("../js/badge.js").Tone} Tone */
/** @typedef {import("../js/dom.js").Child} Child */
/** @typedef {{kind: string, run: string, node: string}} Chosen */

const EVERY_MS = 5_000; // a wave of a run takes some ten seconds

/** @type {Record<string, Tone>} */
const STATES = { ended: "good", running: "busy", quiet: "warn", interrupted: "warn", unreadable: "bad" };

/** @type {Record<string, Tone>} */
const OUTCOMES = { equal: "good", copied: "good", imported: "good", differ: "bad", incomplete: "warn", error: "bad" };

/** @type {Record<string, Tone>} */
const VERDICTS = { match: "good", transient: "busy", diverged: "bad", filtered: "unknown", unreachable: "warn" };

/** @type {Record<string, string>} */
const SIDES = { source: "source (left)", sink: "sink (right)" };

/** @type {Record<string, string>} */
const STAGES = {
  begun: "has begun",
  plan: "plans: compares trees",
  "first-look": "reads both sides",
  settle: "waits for changes on their way",
  "second-look": "reads again what differed",
  report: "writes its findings",
  hold: "holds the queue",
  copy: "copies",
  "hand-over": "hands over to the queue",
  "catch-up": "waits for the target to fetch",
  verify: "compares both clusters",
  push: "pushes",
};

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "runs",
  title: "Spark runs",
  mount(root, { signal, query, setQuery }) {
    /** @type {Chosen | null} */
    let chosen = null;
    const [kind, run] = [query.get("kind"), query.get("run")];
    if (kind && run) chosen = { kind, run, node: query.get("node") ?? "" };
    const list = h("section", { class: "card", "aria-label": "Runs" });
    const details = h("div");
    root.append(list, details);
    let leave = new AbortController();
    signal.addEventListener("abort", () => leave.abort());

    /** @param {Chosen | null} next */
    function choose(next) {
      const before = chosen;
      chosen = next;
      setQuery({ kind: next?.kind ?? null, run: next?.run ?? null, node: next?.node || null });
      watched.redraw();
      showDetails();
      const heading = details.querySelector("h2");
      const button = before &&
        [...list.querySelectorAll("button")].find((each) =>
          each.dataset.key?.startsWith(`run ${before.kind} ${before.run} `)
        );
      (heading ?? button)?.focus();
    }

    function showDetails() {
      leave.abort();
      leave = new AbortController();
      replace(details);
      if (!chosen) return;
      const { kind, run, node } = chosen;
      const close = h("button", { type: "button", class: "small", onclick: () => choose(null) }, "Close");
      const box = h("div");
      details.append(
        h(
          "section",
          { class: "card", "aria-label": `Run ${run}` },
          h("div", { class: "row between" }, h("h2", { tabindex: "-1" }, `${kind} ${run}`), close),
          box,
        ),
      );
      const path = `/admin/reconcile/runs/${encodeURIComponent(kind)}/${encodeURIComponent(run)}`;
      const search = node ? `?node=${encodeURIComponent(node)}` : "";
      watch(box, (s) => get(path + search, AbortSignal.any([s, leave.signal])), shownRun, {
        everyMs: EVERY_MS,
        signal: leave.signal,
      });
    }

    const watched = watch(
      list,
      "/admin/reconcile/runs",
      (/** @type {Runs} */ answer) => shownRuns(answer, chosen, choose),
      { everyMs: EVERY_MS, signal },
    );
    showDetails();
  },
};

// -- the list ---------------------------------------------------------------------------------------------------------

/**
 * @param {Runs} answer
 * @param {Chosen | null} chosen
 * @param {(next: Chosen | null) => void} choose
 */
function shownRuns(answer, chosen, choose) {
  const { runs, directories, left_out, cut, unknown } = answer;
  const having = Object.entries(directories).filter(([, directory]) => directory !== null);
  return [
    h("h2", {}, "Runs"),
    Object.keys(unknown).length > 0 && h(
      "div",
      { class: "notice warn", role: "status" },
      h("span", { "aria-hidden": "true" }, "▲ "),
      "Not known, for want of an answer: the runs that are seen by",
      h("ul", {}, Object.entries(unknown).map(([node, why]) => h("li", {}, `${node}: ${why}`))),
    ),
    !having.length && noDirectory(Object.keys(unknown).length > 0),
    having.length > 0 &&
    h(
      "p",
      { class: "state" },
      "Read in ",
      [...new Set(having.map(([, directory]) => directory))].map((directory, index) => [
        index > 0 && "; ",
        h("code", {}, directory),
        ` by ${having.filter(([, each]) => each === directory).map(([node]) => node).join(", ")}`,
      ]),
      ".",
    ),
    having.length > 0 && !runs.length && empty("There is no run yet. A comparison of two clusters is started by:"),
    having.length > 0 && !runs.length &&
    command(`isthmus reconcile run --left URL,... --right URL,... --dir ${having[0][1]}`),
    runs.length > 0 && table(
      "Runs on Spark, the newest first",
      [
        {
          title: "Run",
          cell: (row) => {
            const shown = chosen?.run === row.run && chosen.kind === row.kind;
            return h("button", {
              type: "button",
              class: "small",
              "data-key": `run ${row.kind} ${row.run} ${row.started_ms}`,
              "aria-pressed": String(shown),
              "aria-label": `Show ${row.kind} ${row.run}`,
              onclick: () => choose({ kind: row.kind, run: row.run, node: row.nodes[0] }),
            }, row.run);
          },
        },
        { title: "Kind", cell: (row) => row.kind },
        { title: "State", cell: (row) => shownState(row) },
        { title: "Progress", cell: shownProgress },
        { title: "Counts", cell: (row) => shownCounts(row) },
        { title: "Reason", cell: (row) => row.reason || row.error },
        { title: "Clusters", cell: (row) => row.clusters.join(" → ") || unknownText() },
        { title: "Started", cell: (row) => time(row.started_ms) },
        { title: "Finished", cell: (row) => row.ended_ms === null ? "" : time(row.ended_ms) },
        { title: "Seen by", cell: (row) => row.nodes.join(", ") },
      ],
      runs,
      { stacks: true },
    ),
    Object.entries(left_out).map(([node, number]) =>
      h("p", { class: "state" }, `${node} sees ${quantity(number, "older run")} that are not listed.`)
    ),
    cut.map((node) =>
      h(
        "p",
        { class: "notice warn" },
        `▲ The directory of ${node} has more entries than are looked at, so that runs may be missing. Is it the right one?`,
      )
    ),
  ];
}

function unknownText() {
  return h("span", { class: "unknown" }, "unknown");
}

/** @param {boolean} partly whether some nodes did not answer */
function noDirectory(partly) {
  return [
    empty(
      partly
        ? "No node that answers is told where runs are kept."
        : "No node is told where runs are kept, so that none are known here. One that reaches the directory is enough; in its file:",
    ),
    !partly && h("pre", {}, h("code", {}, '[reconcile]\nruns_dir = "/shared/runs"')),
  ];
}

/** @param {RunRow} row */
function shownState(row) {
  return [
    row.state !== "ended" && badge(row.state, STATES[row.state], row.reason),
    row.outcome !== null && row.state === "ended" && badge(row.outcome, OUTCOMES[row.outcome]),
    row.outcome !== null && row.state !== "ended" && h("div", { class: "state" }, `before: ${row.outcome}`),
    row.outcome === null && row.state === "ended" && badge("ended", "unknown"),
  ];
}

/** @param {RunRow} row @returns {Child} */
function shownProgress(row) {
  const { progress } = row;
  if (!progress) return row.state === "ended" ? "" : unknownText();
  const { stage, done, of, left_s } = progress;
  return [
    h("div", { class: "nowrap" }, STAGES[stage] ?? stage),
    of > 0 &&
    h(
      "div",
      { class: "nowrap" },
      h("progress", { max: of, value: done, "aria-label": `parts of ${row.run} done` }),
      ` ${count(done)} of ${count(of)}`,
    ),
    row.state === "running" &&
    h("div", { class: "nowrap" }, left_s === null ? "time left unknown" : `about ${seconds(left_s)} left`),
    h("div", { class: "state nowrap" }, `noted ${age(progress.at_ms)}`),
  ];
}

/** @param {RunRow} row @returns {Child} */
function shownCounts({ kind, counts, state }) {
  if (!counts) return unknownText();
  const found = Object.entries(counts).filter(([name, number]) => number || name === "diverged" || name === "objects")
    .filter(([name]) => name !== "objects_about");
  return [
    state !== "ended" && h("div", { class: "state" }, "so far"),
    found.map(([name, number]) =>
      h(
        "div",
        {},
        kind === "comparison" && number && VERDICTS[name]
          ? badge(`${count(number)} ${name}`, VERDICTS[name])
          : `${count(number)}${
            name === "objects" && counts.objects_about ? ` of about ${count(counts.objects_about)}` : ""
          } ${name.replaceAll("_", " ")}`,
      )
    ),
  ];
}

// -- one run ----------------------------------------------------------------------------------------------------------

/** @param {RunDetails} run */
function shownRun(run) {
  const { summary, options } = run;
  return [
    run.problems.map((problem) => h("p", { class: "notice bad", role: "alert" }, `■ ${problem}`)),
    run.state !== "unreadable" && run.reason && h("p", { class: "notice warn" }, `▲ ${run.reason}`),
    run.error && h("p", { class: "notice bad" }, `■ ${run.error}`),
    facts([
      ["State", shownState(run)],
      ["Progress", run.progress ? shownProgress(run) : run.state === "ended" ? "ended" : unknownText()],
      ["Clusters", run.clusters.join(" → ") || unknownText()],
      ["Bucket type", run.bucket_type ?? unknownText()],
      ["Started", time(run.started_ms)],
      ["Finished", time(run.ended_ms, run.state === "unreadable" ? "unknown" : "not yet")],
      ["Last attempt took", summary ? seconds(run.seconds) : "unknown"],
      ["Seen by", run.node],
    ]),
    h(
      "p",
      { class: "state" },
      "URLs: ",
      run.urls.join(" → ") || "unknown",
      "; directory ",
      h("code", {}, run.directory),
    ),
    options && h("p", {}, optionsText(run.kind, options)),
    h("h3", {}, run.kind === "comparison" ? "Keys by verdict" : "Objects"),
    run.counts ? countsFacts(run.counts, run.state !== "ended") : h("p", { class: "unknown" }, "unknown"),
    summary && run.kind === "comparison" && shownComparison(summary),
    summary && run.kind === "seed" && shownSeed(run, summary),
    run.repairs.length > 0 && shownRepairs(run),
    run.commands.length > 0 && h("h3", {}, "To go on"),
    run.commands.length > 0 &&
    h("p", {}, "These are typed where the directory is reached. QUEUE and URL stand for names of yours."),
    run.commands.map((one) => [h("p", {}, `${one.about}:`), command(one.command)]),
  ];
}

/**
 * @param {string} kind
 * @param {NonNullable<RunDetails["options"]>} options
 */
function optionsText(kind, options) {
  const parts = kind === "comparison"
    ? [
      options.full || options.bodies ? "everything is read" : "trees first",
      options.bodies && "with objects",
      options.sample < 1 && `a sample of ${percent(options.sample)}`,
      options.bucket && `only bucket 0x${options.bucket} (bytes)`,
      options.filter && `filter ${options.filter}`,
    ]
    : kind === "seed"
    ? [options.queue ? `queue ${options.queue}` : "no queue"]
    : [`from ${options.path}`];
  return [
    `Asked for: ${parts.filter(Boolean).join(", ")}`,
    options.modified_since_ms > 0 && [", changed since ", time(options.modified_since_ms)],
    options.modified_before_ms > 0 && [", changed before ", time(options.modified_before_ms)],
    ".",
  ];
}

/** @param {Record<string, number>} counts @param {boolean} soFar */
function countsFacts(counts, soFar) {
  return [
    soFar && h("p", { class: "state" }, "So far:"),
    facts(Object.entries(counts).map(([name, number]) => [name.replaceAll("_", " "), count(number)])),
  ];
}

/** @param {NonNullable<RunDetails["summary"]>} summary */
function shownComparison(summary) {
  const { coverage, findings } = summary;
  return [
    facts([
      ["Compared", count(summary.keys)],
      ["By", summary.mode ?? "unknown"],
      ["Why so", summary.why ?? "unknown"],
      ["Covered segments", coverage ? `${count(coverage.segments)} of ${count(coverage.of)}` : "unknown"],
      ["Chunks done", coverage ? `${count(coverage.chunks_done)} of ${count(coverage.chunks)}` : "unknown"],
      ["Rows read", `${count(summary.left_rows)} left, ${count(summary.right_rows)} right`],
      ["Read", bytes(summary.bytes)],
      ["Version", summary.version || "unknown"],
    ]),
    summary.segments_open_count > 0 &&
    h(
      "p",
      { class: "notice warn" },
      `▲ Not compared: ${quantity(summary.segments_open_count, "range")} of segments, such as ${
        summary.segments_open.slice(0, 5).map(([first, end]) => `${first}–${end - 1}`).join(", ")
      }.`,
    ),
    summary.reasons.length > 0 && h("ul", {}, summary.reasons.map((reason) => h("li", {}, reason))),
    h("h3", {}, "Findings by bucket"),
    findings === null
      ? h("p", { class: "unknown" }, "unknown: the summary is of an earlier version, which does not list them")
      : findings.groups.length
      ? table("Findings by verdict, difference, side and bucket", [
        { title: "Verdict", cell: (row) => badge(row.verdict, VERDICTS[row.verdict]) },
        { title: "Difference", cell: (row) => row.difference ?? "" },
        { title: "Lacking side", cell: (row) => row.side === null ? "" : SIDES[row.side] ?? row.side },
        { title: "Bucket", cell: (row) => h("code", {}, row.bucket) },
        { title: "Keys", number: true, cell: (row) => count(row.count) },
      ], findings.groups)
      : empty("Nothing differed."),
    findings !== null && findings.groups_left > 0 &&
    h(
      "p",
      { class: "state" },
      `and ${quantity(findings.findings_left, "key")} in ${count(findings.groups_left)} smaller groups`,
    ),
    summary.findings_cut &&
    h(
      "p",
      { class: "notice warn" },
      "▲ Not all findings were kept (--max-differences); the keys by verdict are exact.",
    ),
  ];
}

/** @param {RunDetails} run @param {NonNullable<RunDetails["summary"]>} summary */
function shownSeed(run, summary) {
  return [
    facts([
      ["Ranges copied", `${count(summary.chunks.done)} of ${count(summary.chunks.of)}`],
      ["Copied", bytes(summary.bytes)],
      ["Queue", run.hand_over ? `${run.hand_over.queue || "none"}: ${run.hand_over.state}` : "none"],
      [
        "Verified",
        summary.verified ? `${summary.verified.outcome}, by comparison ${summary.verified.run_id}` : "no",
      ],
    ]),
    summary.named_count > 0 && h("p", {}, `Objects that could not be copied (${count(summary.named_count)}):`),
    summary.named_count > 0 && h("ul", {}, summary.named.map((name) => h("li", {}, h("code", {}, name)))),
    summary.reasons.length > 0 && h("ul", {}, summary.reasons.map((reason) => h("li", {}, reason))),
  ];
}

/** @param {RunDetails} run */
function shownRepairs({ repairs, repairs_left }) {
  return [
    h("h3", {}, "Repair plans"),
    table("Repair plans", [
      { title: "Plan", cell: (row) => row.plan },
      { title: "Direction", cell: (row) => row.direction },
      { title: "Queue", cell: (row) => row.queue },
      { title: "State", cell: (row) => row.state === null ? unknownText() : badge(row.state, repairTone(row.state)) },
      {
        title: "Queued",
        cell: (row) => [
          h("progress", {
            max: row.objects || 1,
            value: row.queued ?? 0,
            "aria-label": `objects of ${row.plan} queued`,
          }),
          ` ${count(row.queued)} of ${count(row.objects)}`,
        ],
      },
      { title: "Bytes, about", number: true, cell: (row) => bytes(row.bytes) },
      { title: "Siblings expected", number: true, cell: (row) => count(row.expected_siblings) },
      { title: "Takes about", number: true, cell: (row) => seconds(row.seconds) },
      { title: "Noted", cell: (row) => time(row.at_ms) },
    ], repairs),
    repairs_left > 0 && h("p", { class: "state" }, `and ${count(repairs_left)} more`),
  ];
}

/** @param {string} state @returns {Tone} */
function repairTone(state) {
  if (state === "references-lost") return "bad";
  return state === "done" ? "good" : state === "running" ? "busy" : "unknown";
}
