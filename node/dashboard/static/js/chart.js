/**
 * Time series by uPlot. A null is a gap in the line: nothing is drawn where nothing was measured.
 *
 * Lines differ by colour and by dashes. The colours are those of Okabe and Ito, which colour-blind people tell apart;
 * css/base.css has them for both themes.
 */

// @ts-types="../vendor/uPlot.d.cts"
import uPlot from "../vendor/uPlot.esm.js";
import { h } from "./dom.js";
import { current, onChange } from "./settings.js";
import { moment } from "./time.js";
import { number } from "./units.js";

const HEIGHT_PX = 200;
const COLOURS = 7;
const DASHES = [[], [8, 4], [2, 3]];

/**
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {string[]} series names for the legend
 * @property {(value: number | null | undefined) => string} [unit] text of a value (units.js); a plain number without it
 * @property {AbortSignal} signal aborted when the page is left
 * @property {string} [sync] charts of the same word share their cursor
 * @property {boolean[]} [stepped] series that are drawn as steps: counts and limits
 */

/**
 * @typedef {object} Chart
 * @property {HTMLElement} element
 * @property {(atMs: number[], values: (number | null)[][]) => void} show replaces all data; one list for each series
 */

/**
 * The places of numbers without a neighbour. A line needs two, so that these would not be seen.
 * @param {ArrayLike<number | null | undefined>} values
 * @returns {number[]}
 */
function lonePoints(values) {
  const found = [];
  for (let index = 0; index < values.length; index++) {
    const alone = (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null;
    if ((values[index] ?? null) !== null && alone) found.push(index);
  }
  return found;
}

/**
 * The newest value. The last place may be one that not all nodes have told yet, and the one before it is whole then.
 * @param {ArrayLike<number | null | undefined>} values
 */
function newest(values) {
  return values[values.length - 1] ?? values[values.length - 2];
}

/** Whether a series says something: a value that is neither unknown nor 0. @param {(number | null)[]} values */
function speaks(values) {
  return values.some((value) => value);
}

/**
 * Texts below the time axis: the time of day, and the day where another one begins.
 * @param {number[]} splits in seconds
 */
function timesOf(splits) {
  const seconds = splits.some((at) => at % 60);
  let day = "";
  return splits.map((at) => {
    const [date, clock] = moment(at * 1000).split(" ");
    const text = clock.slice(0, seconds ? 8 : 5);
    if (date === day) return text;
    day = date;
    return `${text}\n${date}`;
  });
}

/**
 * A chart with the given series; it has its box's width.
 * @param {ChartOptions} options
 * @returns {Chart}
 */
export function chart({ title, series, unit = number, signal, sync, stepped = [] }) {
  const box = h("div", { class: "plot" });
  const summary = h("p", { class: "hidden" });
  const note = h("div", { class: "hint" });
  const element = h("figure", { class: "chart", "aria-label": title }, h("figcaption", {}, title), box, note, summary);
  /** @type {uPlot | null} */
  let plot = null;
  /** @type {uPlot.AlignedData} */
  let data = /** @type {any} */ ([[], ...series.map(() => [])]);
  /** Which series are drawn and in the legend: one of them at least. @type {boolean[]} */
  let seen = series.map(() => true);

  /** @param {string} name a colour of css/base.css */
  function colour(name) {
    const probe = h("span", { class: `colour-${name}` });
    element.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  /**
   * The text of the legend: of the value at the cursor, or where there is none the newest.
   * @param {uPlot} plot
   * @param {number | null} value
   * @param {number} own
   * @param {number | null} place
   */
  function legend(plot, value, own, place) {
    return unit(place === null ? newest(plot.data[own] ?? []) : value);
  }

  function draw() {
    plot?.destroy();
    plot = null;
    const width = box.clientWidth;
    if (!width) return;
    const [text, grid] = [colour("text"), colour("grid")];
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const times = (/** @type {uPlot} */ _, /** @type {number[]} */ splits) => timesOf(splits);
    plot = new uPlot(
      {
        width,
        height: HEIGHT_PX,
        tzDate: (s) => current().utc ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000),
        // No zoom by dragging: new data would end it each 2 s.
        cursor: { drag: { x: false, y: false }, ...(sync ? { sync: { key: sync } } : {}) },
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, values: times }, {
          ...axis,
          size: 70,
          values: (_, splits) => splits.map((value) => unit(value)),
        }],
        series: [
          { value: (_, s) => s === null ? "newest" : moment(s * 1000) },
          ...series.map((label, index) => ({
            label,
            show: seen[index],
            stroke: colour(String(index % COLOURS + 1)),
            width: 2,
            dash: DASHES[Math.floor(index / COLOURS) % DASHES.length],
            spanGaps: false,
            paths: stepped[index] ? uPlot.paths.stepped?.({ align: 1 }) : undefined,
            points: {
              show: false,
              filter: (/** @type {uPlot} */ plot, /** @type {number} */ own) => lonePoints(plot.data[own]),
            },
            value: legend,
          })),
        ],
      },
      data,
      box,
    );
  }

  const resized = new ResizeObserver(() => {
    if (plot && box.clientWidth) plot.setSize({ width: box.clientWidth, height: HEIGHT_PX });
    else draw();
  });
  resized.observe(box);
  onChange(draw, signal);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal });
  signal.addEventListener("abort", () => {
    resized.disconnect();
    plot?.destroy();
    plot = null;
  });

  return {
    element,
    show(atMs, values) {
      data = /** @type {any} */ ([atMs.map((ms) => ms / 1000), ...values]);
      const some = values.map(speaks);
      const known = values.map((each) => each.some((value) => value !== null));
      // Series that are 0 or unknown all the time are left out where others say something.
      const now = some.includes(true) ? some : known.includes(true) ? known : known.map((_, index) => index === 0);
      const changed = now.some((each, index) => each !== seen[index]);
      seen = now;
      if (plot && !changed) plot.setData(data);
      else draw();
      const last = values.flatMap((each, index) => seen[index] ? [`${series[index]}: ${unit(newest(each))}`] : []);
      const left = seen.filter((each) => !each).length;
      summary.textContent = `Newest values: ${last.join(", ")}`;
      note.textContent = left && some.includes(true) ? `${left} of ${series.length} are 0 or unknown all the time` : "";
    },
  };
}
