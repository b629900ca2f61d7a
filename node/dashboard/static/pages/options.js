/** Options that may change while the cluster runs: value, origin, author. */

import { get } from "../js/api.js";
import { badge } from "../js/badge.js";
import { actButton } from "../js/confirm.js";
import { h } from "../js/dom.js";
import { choiceField, formButton, textField } from "../js/form.js";
import { author, otherNodes, prose, sentence, warning } from "../js/setting_facts.js";
import { empty, watch } from "../js/states.js";
import { table } from "../js/table.js";
import { bytes, count, milliseconds } from "../js/units.js";

/** @typedef {import("../js/types.d.ts").OptionRow} OptionRow */
/** @typedef {import("../js/types.d.ts").OptionList} Options */
/** @typedef {import("../js/types.d.ts").OptionChange} OptionChange */
/** @typedef {import("../js/confirm.js").Act} Act */
/** @typedef {{options: Options, types: string[]}} Loaded */

const EVERY_MS = 10_000;
const CLUSTER = "";
const PARTITIONS_NAMED = 20;

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "options",
  title: "Options",
  mount(root, { signal, query, setQuery }) {
    let text = query.get("find") ?? "";
    let onlySet = query.get("only") === "set";
    const find = h("input", { type: "search", value: text, placeholder: "part of a name or meaning" });
    const only = h("input", { type: "checkbox", checked: onlySet });
    const choices = h(
      "form",
      { class: "row", "aria-label": "What is shown" },
      h("label", {}, "Find", find),
      h("label", { class: "check" }, only, " only what somebody has set"),
    );
    const box = h("section", { class: "card", "aria-label": "Dynamic options" });
    root.append(choices, box);

    const reload = () => void watched.reload();
    /** @type {ReturnType<typeof watch>} */
    const watched = watch(
      box,
      load,
      (/** @type {Loaded} */ loaded) => {
        const names = new Set(
          loaded.options.options.filter((row) => row.set !== null || !onlySet).map((row) => row.option),
        );
        const wanted = text.toLowerCase();
        const rows = loaded.options.options.filter((row) =>
          names.has(row.option) && (!onlySet || row.set !== null) &&
          `${row.option} ${row.meaning}`.toLowerCase().includes(wanted)
        );
        return [
          otherNodes(loaded.options),
          rows.length
            ? shownOptions(rows, loaded, reload)
            : empty(text || onlySet ? "No option fits." : "There are no options."),
        ];
      },
      { everyMs: EVERY_MS, signal },
    );
    choices.addEventListener("submit", (event) => event.preventDefault());
    choices.addEventListener("input", () => {
      [text, onlySet] = [find.value, only.checked];
      setQuery({ find: text || null, only: onlySet ? "set" : null });
      watched.redraw();
    });
  },
};

/**
 * @param {AbortSignal} signal
 * @returns {Promise<Loaded>}
 */
async function load(signal) {
  const [options, types] = await Promise.all([get("/admin/options", signal), get("/admin/bucket-types", signal)]);
  return {
    options,
    types: types.bucket_types.map((/** @type {{bucket_type: string}} */ each) => each.bucket_type),
  };
}

/**
 * @param {OptionRow[]} rows
 * @param {Loaded} loaded
 * @param {() => void} done
 */
function shownOptions(rows, loaded, done) {
  return table(
    "Dynamic options, of the cluster and of bucket types",
    [
      {
        title: "Option",
        cell: (row) =>
          h(
            "div",
            { class: "wrap" },
            h("code", {}, row.option),
            h("div", {}, `for ${scopeOf(row.bucket_type)}`),
            row.bucket_type === null && h("div", { class: "state" }, prose(row.meaning)),
          ),
      },
      {
        title: "In force",
        cell: (
          row,
        ) => [h("b", {}, shownValue(row.effective, row.unit)), h("div", {}, sourceOf(row.origin)), notices(row)],
      },
      { title: "Default", cell: (row) => shownValue(row.default, row.unit) },
      { title: "Range", cell: (row) => h("div", { class: "short" }, rangeOf(row)) },
      { title: "Set by", cell: (row) => h("div", { class: "short" }, author(row)) },
      { title: "Actions", cell: (row) => h("div", { class: "row" }, acts(row, loaded, done)) },
    ],
    rows,
    { stacks: true },
  );
}

/** Partitions and nodes where the value is not in force. @param {OptionRow} row */
function notices(row) {
  return [
    row.waiting.length > 0 && h("div", { class: "warn" }, `▲ not yet in partitions ${someOf(row.waiting)}`),
    Object.entries(row.differs).map(([node, other]) =>
      h("div", { class: "warn" }, `▲ at ${node} ${shownValue(other.effective, row.unit)} (${sourceOf(other.origin)})`)
    ),
  ];
}

/**
 * @param {OptionRow} row
 * @param {Loaded} loaded
 * @param {() => void} done
 */
function acts(row, loaded, done) {
  const typed = row.bucket_type !== null;
  const key = `${row.option} ${row.bucket_type ?? ""}`;
  const found = [
    formButton("Set …", {
      title: `Set ${row.option}${typed ? ` for bucket type ${row.bucket_type}` : ""}`,
      note: [
        h("p", {}, prose(row.meaning)),
        h("p", { class: "state" }, `Range: ${rangeOf(row)}. Default: ${shownValue(row.default, row.unit)}.`),
      ],
      fields: () => ({ value: valueField(row), scope: scopeField(row, loaded.types) }),
      act: ({ value, scope }) => change(row, loaded, "set", scope || null, value, done),
    }, { role: "admin", key: `set ${key}` }),
  ];
  if (row.set !== null) {
    found.push(actButton("Unset …", change(row, loaded, "unset", row.bucket_type, null, done), {
      role: "admin",
      key: `unset ${key}`,
    }));
  }
  return found;
}

/** @param {OptionRow} row */
function valueField(row) {
  const units = /** @type {Record<string, string>} */ ({ ms: " or as 3s", "bytes/s": " or as 50MB" })[row.unit] ?? "";
  const label = row.unit ? `Value, in ${row.unit}${units}` : "Value";
  if (row.choices.length) {
    return choiceField("Value", row.choices.map((each) => [each, each]), String(row.set ?? row.effective));
  }
  return textField(label, { value: row.set === null ? "" : String(row.set) });
}

/** @param {OptionRow} row @param {string[]} types */
function scopeField(row, types) {
  if (row.bucket_type !== null) return choiceField("For", [[row.bucket_type, `bucket type ${row.bucket_type}`]]);
  const others = row.scope.includes("bucket type") ? types : [];
  return choiceField("For", [
    [CLUSTER, "the cluster"],
    ...others.map((each) => /** @type {[string, string]} */ ([each, `bucket type ${each}`])),
  ]);
}

/**
 * The change of an option, which is refused where another value is set by now than the page showed.
 * @param {OptionRow} row
 * @param {Loaded} loaded
 * @param {"set" | "unset"} what
 * @param {string | null} type
 * @param {string | null} value
 * @param {() => void} done
 * @returns {Act}
 */
function change(row, loaded, what, type, value, done) {
  const shown = loaded.options.options;
  const known = shown.find((each) => each.option === row.option && each.bucket_type === type);
  const body = { bucket_type: type, expected: known?.set ?? null };
  const where = type === null ? "for the cluster" : `for bucket type ${type}`;
  return {
    title: `${what === "set" ? "Set" : "Unset"} ${row.option} ${where}?`,
    path: `/admin/options/${encodeURIComponent(row.option)}/${what}`,
    body: what === "set" ? { ...body, value } : body,
    dryRun: true,
    nothing: (plan) => plan.outcome === "was not set",
    describe: (plan) => describedPlan(plan, shown, what),
    verb: what === "set" ? "Set it" : "Unset it",
    result: describedResult,
    done,
  };
}

/**
 * @param {OptionChange} plan
 * @param {OptionRow[]} shown
 * @param {"set" | "unset"} what
 */
function describedPlan(plan, shown, what) {
  if (plan.outcome === "was not set") return h("p", {}, "It is not set, so there is nothing to unset.");
  /** @param {OptionRow} row */
  const now = (row) =>
    shown.find((each) => each.option === row.option && each.bucket_type === row.bucket_type) ??
      shown.find((each) => each.option === row.option && each.bucket_type === null);
  const waiting = [...new Set(plan.options.flatMap((row) => row.waiting))].sort((a, b) => a - b);
  return [
    h(
      "p",
      {},
      what === "set"
        ? "On all nodes at once, until it is unset. Nothing is restarted."
        : "What is set for the cluster, what each node’s file says, or the default is in force again, on all nodes at once.",
    ),
    table("What will be in force", [
      { title: "For", cell: (row) => scopeOf(row.bucket_type) },
      {
        title: "In force now",
        cell: (row) => {
          const before = now(row);
          return before ? `${shownValue(before.effective, row.unit)} (${sourceOf(before.origin)})` : "unknown";
        },
      },
      { title: "Then", cell: (row) => h("b", {}, shownValue(row.effective, row.unit)) },
      { title: "From", cell: (row) => sourceOf(row.origin) },
    ], plan.options),
    plan.options.flatMap((row) =>
      Object.entries(row.differs).map(([node, other]) =>
        warning(`At ${node} it will be ${shownValue(other.effective, row.unit)} (${sourceOf(other.origin)}).`)
      )
    ),
    plan.warnings.map((each) => warning(sentence(each))),
    waiting.length > 0 &&
    h(
      "p",
      {},
      `The records of partitions ${someOf(waiting)} have another value: there it is in force once the controller has ` +
        "written them, usually within a second.",
    ),
    otherNodes(plan),
  ];
}

/** @param {OptionChange} answer */
function describedResult(answer) {
  const waiting = [...new Set(answer.options.flatMap((row) => row.waiting))].sort((a, b) => a - b);
  return [
    answer.options.map((row) =>
      h("p", {}, `For ${scopeOf(row.bucket_type)}: ${shownValue(row.effective, row.unit)} (${sourceOf(row.origin)}).`)
    ),
    waiting.length > 0
      ? warning(`Not yet in force in partitions ${someOf(waiting)}: their records wait for the controller.`)
      : h("p", {}, badge("in force in all partitions", "good")),
    answer.options.flatMap((row) =>
      Object.entries(row.differs).map(([node, other]) =>
        warning(`At ${node} ${shownValue(other.effective, row.unit)} is in force (${sourceOf(other.origin)}).`)
      )
    ),
    answer.warnings.map((each) => warning(sentence(each))),
    otherNodes(answer),
  ];
}

// -- words ------------------------------------------------------------------------------------------------------------

/** @param {string | null} type */
function scopeOf(type) {
  return type === null ? "the cluster" : `bucket type ${type}`;
}

/** @param {string} origin */
function sourceOf(origin) {
  /** @type {Record<string, string>} */
  const words = {
    "bucket type": "set for the bucket type",
    cluster: "set for the cluster",
    file: "the node’s file",
    default: "default",
  };
  return words[origin] ?? origin;
}

/**
 * A value with its unit, and where that is hard to read, in a larger one.
 * @param {number | string} value
 * @param {string} unit
 */
function shownValue(value, unit) {
  const number = typeof value === "number" ? value : /^[0-9]+$/.test(value) ? Number(value) : null;
  if (number === null) return value;
  const text = `${count(number)} ${unit}`.trim();
  if (unit === "ms" && number >= 1000) return `${text} (${milliseconds(number)})`;
  if (unit === "bytes/s" && number >= 1000) return `${text} (${bytes(number)}/s)`;
  return text;
}

/** @param {OptionRow} row */
function rangeOf({ range, unit }) {
  const words = String(range).replace(/[0-9]{5,}/g, (digits) => count(Number(digits)));
  return /[0-9]$/.test(words) ? `${words} ${unit}`.trim() : words;
}

/** @param {number[]} numbers */
function someOf(numbers) {
  const more = numbers.length - PARTITIONS_NAMED;
  return numbers.slice(0, PARTITIONS_NAMED).join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}
