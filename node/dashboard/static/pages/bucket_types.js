/** Bucket types, made and changed, and the properties of types and buckets. */

import { get } from "../js/api.js";
import { badge } from "../js/badge.js";
import { actButton } from "../js/confirm.js";
import { h, replace } from "../js/dom.js";
import { choiceField, formButton, numberField, textField } from "../js/form.js";
import { live } from "../js/live.js";
import { encoded, FORMS, readable } from "../js/names.js";
import { author, otherNodes, prose, sentence, warning } from "../js/setting_facts.js";
import { empty, failure, watch } from "../js/states.js";
import { facts, table } from "../js/table.js";
import { bytes, count, milliseconds } from "../js/units.js";
import { describedPlan } from "./cluster.js";

/** @typedef {import("../js/types.d.ts").BucketTypeRow} BucketType */
/** @typedef {import("../js/types.d.ts").BucketProperties} BucketProperties */
/** @typedef {import("../js/types.d.ts").PropertyRow} PropertyRow */
/** @typedef {import("../js/types.d.ts").PropertyValue} PropertyValue */
/** @typedef {import("../js/confirm.js").Act} Act */
/** @typedef {{bucket_type: string, bucket: string | null}} Scope `bucket`: percent-encoded; null: the bucket type */
/** @typedef {{bucket_type: string, bucket: string, props: Record<string, PropertyValue>}} OwnBucket */
/** @typedef {{types: BucketType[], buckets: OwnBucket[]}} Loaded */

const EVERY_MS = 10_000;
const BUCKETS_SHOWN = 100; // a cluster has 1,000 at most; the field below finds any
const PARTITIONS_MAX = 1_024;
const REPLICAS_MAX = 16;
const PLACED_SHOWN = 12;

/** @type {import("../js/router.js").Page} */
export const page = {
  id: "bucket-types",
  title: "Bucket types",
  mount(root, { signal, query, setQuery }) {
    /** @type {Scope} */
    let scope = { bucket_type: query.get("type") ?? "default", bucket: query.get("bucket") };
    const types = h("section", { class: "card", "aria-label": "Bucket types" });
    const properties = h("section", { class: "card", "aria-label": "Properties", tabindex: "-1" });
    const look = lookForm((found) => choose(found));
    const buckets = h("div");
    root.append(
      types,
      properties,
      h("section", { class: "card" }, h("h2", {}, "Buckets with properties of their own"), look.element, buckets),
    );

    /** @param {Scope} chosen */
    function choose(chosen) {
      scope = chosen;
      setQuery({ type: chosen.bucket_type, bucket: chosen.bucket });
      shown.restart();
      properties.focus();
      properties.scrollIntoView({ block: "nearest" });
    }

    const listed = watch(types, load, (/** @type {Loaded} */ loaded) => {
      replace(buckets, shownBuckets(loaded.buckets, choose));
      look.offer(loaded.types.map((each) => each.bucket_type));
      return shownTypes(loaded.types, choose, reload);
    }, { everyMs: EVERY_MS, signal });
    const shown = following(properties, () => scope, reload, signal);

    function reload() {
      listed.reload();
      shown.reload();
    }
  },
};

/**
 * @param {AbortSignal} signal
 * @returns {Promise<Loaded>}
 */
async function load(signal) {
  const [types, buckets] = await Promise.all([get("/admin/bucket-types", signal), get("/admin/buckets", signal)]);
  return { types: types.bucket_types, buckets: buckets.buckets };
}

// -- bucket types -----------------------------------------------------------------------------------------------------

/**
 * @param {BucketType[]} rows
 * @param {(scope: Scope) => void} choose
 * @param {() => void} done
 */
function shownTypes(rows, choose, done) {
  const create = formButton("Create …", {
    title: "Create a bucket type",
    note: h(
      "p",
      {},
      "The number of partitions stays as it is for ever. Replicas are placed on the nodes that live now; they can be moved later.",
    ),
    fields: () => ({
      name: textField("Name: letters, digits, - and _"),
      partitions: numberField("Partitions", { least: 1, most: PARTITIONS_MAX }),
      factor: numberField("Replicas of each partition", { value: 3, least: 1, most: REPLICAS_MAX }),
      placement: choiceField("Placement", [
        ["auto", "by racks, if the nodes have them"],
        ["rack-aware", "by racks"],
        ["computed", "without regard to racks"],
      ]),
      min_isr: numberField("Its own min-ISR (empty: that of the cluster)", { least: 1, most: REPLICAS_MAX }),
    }),
    act: (values) => created(values, done),
  }, { role: "admin", key: "create a bucket type" });
  return [
    h("div", { class: "row between" }, h("h2", {}, "Bucket types"), create),
    rows.length
      ? table(
        "Bucket types",
        [
          { title: "Bucket type", cell: (row) => row.bucket_type },
          {
            title: "Partitions",
            number: true,
            cell: (row) => count(row.partition_count),
          },
          { title: "Replicas", number: true, cell: replicasOf },
          {
            title: "min-ISR",
            number: true,
            cell: (row) =>
              row.min_isr_set === null ? String(row.min_isr) : `${row.min_isr} (set to ${row.min_isr_set})`,
          },
          { title: "Online", cell: (row) => outOf(row.online, row.partition_count, "bad") },
          { title: "In sync", cell: (row) => outOf(row.in_sync, row.partition_count, "warn") },
          {
            title: "Actions",
            cell: (row) =>
              h(
                "div",
                { class: "row" },
                h("button", {
                  type: "button",
                  "data-key": `properties of ${row.bucket_type}`,
                  onclick: () => choose({ bucket_type: row.bucket_type, bucket: null }),
                }, "Properties"),
                factorButton(row, done),
              ),
          },
        ],
        rows,
        { stacks: true },
      )
      : empty("This node does not know any bucket type yet."),
  ];
}

/** @param {BucketType} row */
function replicasOf(row) {
  const now = row.replication_factor === null ? "differ" : count(row.replication_factor);
  if (!row.orders.length) return now;
  const then = row.replication_factor_then === null ? "differ" : count(row.replication_factor_then);
  return [
    `${now}, then ${then} `,
    h("a", { href: "#/cluster", "data-key": `moves of ${row.bucket_type}` }, `(${count(row.changing)} change)`),
  ];
}

/**
 * @param {number} part
 * @param {number} all
 * @param {import("../js/badge.js").Tone} tone when some are missing
 */
function outOf(part, all, tone) {
  return badge(`${count(part)} of ${count(all)}`, part === all ? "good" : tone);
}

/**
 * @param {Record<"name" | "partitions" | "factor" | "placement" | "min_isr", any>} values
 * @param {() => void} done
 * @returns {Act}
 */
function created({ name, partitions, factor, placement, min_isr }, done) {
  if (partitions === null || factor === null) throw new Error("Partitions and replicas are needed.");
  return {
    title: `Create bucket type ${name}?`,
    path: `/admin/bucket-types/${encodeURIComponent(name)}`,
    body: { partition_count: partitions, replication_factor: factor, placement, min_isr },
    dryRun: true,
    nothing: (plan) => plan.outcome === "exists",
    describe: (plan) =>
      plan.outcome === "exists" ? h("p", {}, "It exists so already: there is nothing to do.") : [
        facts([["Partitions", count(plan.partitions.length)], ["Replicas of each", count(factor)], [
          "min-ISR",
          min_isr === null ? "that of the cluster" : count(min_isr),
        ]]),
        h("h3", {}, "Where the replicas will be"),
        table("Placement", [
          { title: "Partition", cell: (row) => String(row.id) },
          { title: "Nodes", cell: (row) => row.replicas.map(nameOfId).join(", ") },
        ], plan.partitions.slice(0, PLACED_SHOWN)),
        plan.partitions.length > PLACED_SHOWN &&
        h("p", { class: "state" }, `and ${count(plan.partitions.length - PLACED_SHOWN)} more`),
      ],
    verb: "Create it",
    result: (answer) => {
      const all = answer.partitions.length;
      return answer.online === all
        ? h("p", {}, badge(`all ${count(all)} partitions are online`, "good"))
        : warning(`${count(answer.online)} of ${count(all)} partitions are online; the others are not yet.`);
    },
    done,
  };
}

/** @param {number} id */
function nameOfId(id) {
  return live.cluster?.nodes.find((node) => node.id === id)?.name ?? `node id ${id}`;
}

/**
 * @param {BucketType} row
 * @param {() => void} done
 */
function factorButton(row, done) {
  const path = `/admin/bucket-types/${encodeURIComponent(row.bucket_type)}/replication-factor`;
  return formButton("Replicas …", {
    title: `Change the number of replicas of bucket type ${row.bucket_type}`,
    note: h("p", {}, "New replicas are copied while clients are served; the page Cluster follows the moves."),
    fields: () => ({
      factor: numberField("Replicas of each partition", {
        value: row.replication_factor,
        least: 1,
        most: REPLICAS_MAX,
      }),
      racks: choiceField("Racks", [["", "are respected"], ["ignore", "are ignored, where there are too few"]]),
    }),
    act: ({ factor, racks }) => {
      if (factor === null) throw new Error("A number of replicas is needed.");
      return {
        title: `${count(factor)} replicas of each partition of bucket type ${row.bucket_type}?`,
        path,
        body: { replication_factor: factor, ignore_racks: racks !== "" },
        dryRun: true,
        nothing: (plan) => !plan.partitions.length,
        describe: describedPlan,
        bind: (plan) => ({ plan: plan.plan }),
        verb: "Order it",
        result: (answer) =>
          answer.order === null ? "There was nothing to move." : `Order ${answer.order} is under way; see Cluster.`,
        done,
      };
    },
  }, { role: "admin", key: `replicas of ${row.bucket_type}` });
}

// -- buckets ----------------------------------------------------------------------------------------------------------

/**
 * @param {OwnBucket[]} rows
 * @param {(scope: Scope) => void} choose
 */
function shownBuckets(rows, choose) {
  if (!rows.length) return empty("No bucket has properties of its own: those of the bucket types are in force.");
  return [
    table("Buckets with properties of their own", [
      {
        title: "Bucket",
        cell: (row) =>
          h("button", {
            type: "button",
            class: "link",
            "data-key": `bucket ${row.bucket_type}/${row.bucket}`,
            onclick: () => choose(row),
          }, nameOf(row)),
      },
      {
        title: "Properties",
        cell: (row) =>
          Object.entries(row.props).map(([name, value]) => h("div", {}, h("code", {}, `${name}=${value}`))),
      },
    ], rows.slice(0, BUCKETS_SHOWN)),
    rows.length > BUCKETS_SHOWN &&
    h("p", { class: "state" }, `and ${count(rows.length - BUCKETS_SHOWN)} more; the form above shows any.`),
  ];
}

/**
 * The form that shows any bucket, whether it has properties of its own or not.
 * @param {(scope: Scope) => void} choose
 */
function lookForm(choose) {
  const type = h("select", { name: "type" });
  const bucket = h("input", { name: "bucket", autocomplete: "off", required: true });
  const form = h("select", { name: "form" }, FORMS.map(([value, text]) => h("option", { value }, text)));
  const messages = h("div");
  const element = h(
    "form",
    { class: "search", "aria-label": "Look at a bucket" },
    h("label", {}, "Bucket type", type),
    h("label", {}, "Bucket", bucket),
    h("label", {}, "Typed as", form),
    h("button", { type: "submit" }, "Show"),
    messages,
  );
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      const name = encoded(bucket.value, form.value);
      replace(messages);
      choose({ bucket_type: type.value, bucket: name });
    } catch (error) {
      replace(messages, failure(error));
      bucket.focus();
    }
  });
  /** @param {string[]} names */
  function offer(names) {
    if ([...type.options].map((each) => each.value).join() === names.join()) return;
    const chosen = type.value;
    replace(type, names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
  }
  return { element, offer };
}

/** A bucket type, or a bucket within it. @param {Scope} scope */
function nameOf({ bucket_type, bucket }) {
  return bucket === null ? bucket_type : `${bucket_type} / ${readable(bucket).text}`;
}

// -- properties -------------------------------------------------------------------------------------------------------

/**
 * The properties of the chosen scope, loaded anew when another one is chosen.
 * @param {HTMLElement} box
 * @param {() => Scope} scopeNow
 * @param {() => void} done
 * @param {AbortSignal} signal
 */
function following(box, scopeNow, done, signal) {
  /** @type {{reload: () => Promise<void>}} */
  let watched;
  let leave = new AbortController();
  function restart() {
    leave.abort();
    leave = new AbortController();
    const scope = scopeNow();
    watched = watch(
      box,
      pathOf(scope),
      (/** @type {BucketProperties} */ answer) => shownProperties(scope, answer, done),
      { everyMs: EVERY_MS, signal: AbortSignal.any([signal, leave.signal]) },
    );
  }
  restart();
  return { restart, reload: () => watched.reload() };
}

/** @param {Scope} scope */
function pathOf({ bucket_type, bucket }) {
  const type = encodeURIComponent(bucket_type);
  return bucket === null ? `/admin/bucket-types/${type}/properties` : `/admin/buckets/${type}/${bucket}/properties`;
}

/**
 * @param {Scope} scope
 * @param {BucketProperties} answer
 * @param {() => void} done
 */
function shownProperties(scope, answer, done) {
  const level = scope.bucket === null ? "bucket type" : "bucket";
  const own = ownOf(answer.properties, level);
  const [acting, idle] = [answer.properties.filter((row) => row.acts), answer.properties.filter((row) => !row.acts)];
  const idleOwn = idle.filter((row) => row.property in own).length;
  /** @param {string} caption @param {PropertyRow[]} rows */
  const shown = (caption, rows) =>
    table(
      caption,
      [
        {
          title: "Property",
          cell: (row) =>
            h("div", { class: "wrap" }, h("code", {}, row.property), h("div", { class: "state" }, prose(row.meaning))),
        },
        {
          title: "In force",
          cell: (row) => [h("b", {}, valueOf(row)), h("div", {}, sourceOf(row, level))],
        },
        { title: "Default", cell: (row) => valueOf({ ...row, value: row.default }) },
        {
          title: "Values",
          cell: (row) => h("div", { class: "short" }, row.right),
        },
        { title: "Set by", cell: (row) => h("div", { class: "short" }, author(row)) },
        {
          title: "Actions",
          cell: (row) =>
            h(
              "div",
              { class: "row" },
              setButton(scope, row, own, done),
              row.property in own &&
                actButton("Unset …", unsetAct(scope, [row.property], own, answer.properties, done), {
                  key: `unset ${row.property}`,
                }),
            ),
        },
      ],
      rows,
      { stacks: true },
    );
  return [
    h(
      "div",
      { class: "row between" },
      h("h2", {}, `Properties of ${level} ${nameOf(scope)}`),
      Object.keys(own).length > 1 &&
        actButton("Unset all …", unsetAct(scope, [], own, answer.properties, done), { key: "unset all properties" }),
    ),
    scope.bucket !== null && !readable(scope.bucket).plain &&
    h("p", { class: "state" }, "The bucket’s name is not readable text; it is shown percent-encoded."),
    otherNodes(answer),
    shown("Properties with an effect", acting),
    h(
      "details",
      { "data-key": "properties without effect" },
      h(
        "summary",
        {},
        `Properties that are stored for Riak’s clients and have no effect (${count(idle.length)}, ${
          count(idleOwn)
        } set here)`,
      ),
      shown("Properties without effect", idle),
    ),
  ];
}

/**
 * The properties that are set at this level itself.
 * @param {PropertyRow[]} rows
 * @param {string} level
 */
function ownOf(rows, level) {
  return Object.fromEntries(rows.filter((row) => row.origin === level).map((row) => [row.property, row.value]));
}

/** The value, with what its number means. @param {PropertyRow} row */
function valueOf({ property, value, right }) {
  if (typeof value !== "number") return String(value);
  if (property === "delete_mode") return `after ${milliseconds(value)}`;
  if (value === 0 && right.includes("0: the node's own limit")) return "0 (the node’s own limit)";
  return property.endsWith("_object_size") ? bytes(value) : count(value);
}

/** @param {PropertyRow} row @param {string} level */
function sourceOf(row, level) {
  if (row.origin === "default") return "default";
  return row.origin === level ? `set for this ${level}` : "set for the bucket type";
}

/**
 * @param {Scope} scope
 * @param {PropertyRow} row
 * @param {Record<string, PropertyValue>} own
 * @param {() => void} done
 */
function setButton(scope, row, own, done) {
  const flag = typeof row.default === "boolean";
  return formButton("Set …", {
    title: `Set ${row.property} of ${nameOf(scope)}`,
    note: [
      h("p", {}, prose(row.meaning)),
      h("p", { class: "state" }, `Values: ${row.right}. Default: ${row.default}.`),
    ],
    fields: () => ({
      value: flag
        ? choiceField("Value", [["true", "true"], ["false", "false"]], String(!row.value))
        : textField("Value", { value: String(row.value) }),
    }),
    act: ({ value }) => ({
      title: `Set ${row.property} of ${nameOf(scope)} to ${value}?`,
      path: `${pathOf(scope)}/set`,
      body: { props: { [row.property]: flag ? value === "true" : value }, expected: own },
      dryRun: true,
      describe: (plan) => [
        h("p", {}, "On all nodes at once. Objects that are stored stay as they are until they are written again."),
        changes([row.property], [row], plan),
      ],
      verb: "Set it",
      result: (answer) => changes([row.property], [row], answer),
      done,
    }),
  }, { key: `set ${row.property}` });
}

/**
 * @param {Scope} scope
 * @param {string[]} names none: all
 * @param {Record<string, PropertyValue>} own
 * @param {PropertyRow[]} rows as shown
 * @param {() => void} done
 * @returns {Act}
 */
function unsetAct(scope, names, own, rows, done) {
  const concerned = names.length ? names : Object.keys(own);
  const what = names.length ? names.join(", ") : `all ${count(concerned.length)} properties`;
  return {
    title: `Unset ${what} of ${nameOf(scope)}?`,
    path: `${pathOf(scope)}/unset`,
    body: { names, expected: own },
    dryRun: true,
    nothing: (plan) => plan.outcome === "was not set",
    describe: (plan) =>
      plan.outcome === "was not set"
        ? h("p", {}, "It is not set here, so there is nothing to unset.")
        : changes(concerned, rows, plan),
    verb: "Unset",
    result: (answer) => changes(concerned, rows, answer),
    done,
  };
}

/**
 * What was shown of some properties, and what is in force then.
 * @param {string[]} names
 * @param {PropertyRow[]} before
 * @param {BucketProperties} then
 */
function changes(names, before, then) {
  const level = then.bucket === null ? "bucket type" : "bucket";
  const shown = Object.fromEntries(before.map((row) => [row.property, row]));
  return [
    table("What changes", [
      { title: "Property", cell: (row) => h("code", {}, row.property) },
      { title: "Before", cell: (row) => `${valueOf(shown[row.property])} (${sourceOf(shown[row.property], level)})` },
      { title: "Then", cell: (row) => [h("b", {}, valueOf(row)), ` (${sourceOf(row, level)})`] },
    ], then.properties.filter((row) => names.includes(row.property))),
    then.warnings.map((each) => warning(sentence(each))),
    otherNodes(then),
  ];
}
