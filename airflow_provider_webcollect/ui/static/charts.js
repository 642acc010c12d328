/** Bars for runs and days, as SVG; the style sheet has the colours. */
import { el, now, svg } from "./dom.js";
import { cappedAxis, counted, number, rounded, share, UNKNOWN } from "./logic.js";

const STRIP = { height: 30, step: 6, width: 4.5, runs: 30 };
const SHARES = { height: 22, step: STRIP.step, width: STRIP.width, top: 6 };
const CHART = { width: 320, height: 96, foot: 4 };

/** Return a bar for each run, the newest at the right; failed, empty, quarantined, odd and cut bars differ in shape. */
export function runStrip(label, runs, titleOf) {
  const { height, step, width } = STRIP;
  const { top, capped } = cappedAxis(runs.map((run) => run.rows));
  const start = (STRIP.runs - runs.length) * step;
  const marks = runs.map((run, index) => {
    const x = start + index * step;
    const name = run.is_odd ? "odd" : run.state;
    const high = Math.max(2, (height - 7) * Math.min(1, (run.rows ?? 0) / (top || 1)));
    const y = height - 1 - high;
    const shapes = {
      failed: [svg("path", { d: `M${x} ${height - 7}l5 5m0 -5l-5 5` })],
      empty: [svg("rect", { x: x + 0.5, y: height - 5.5, width: width - 0.5, height: 4 })],
      quarantined: [svg("path", { d: `M${x + 2.25} ${height - 7}l2.5 3l-2.5 3l-2.5 -3z` })],
      odd: [svg("rect", { x, y, width, height: high }), svg("path", { d: `M${x - 0.5} ${y - 1.5}l2.75 -4l2.75 4z` })],
      landed: [svg("rect", { x, y, width, height: high })],
    };
    // a cut bar has a gap below its end
    const gap = capped[index] ? svg("path", { class: "gap", d: `M${x - 0.5} ${y + 6}l5.5 -2.5v2l-5.5 2.5z` }) : null;
    const area = svg("rect", { class: "area", x, y: 0, width: step, height });
    const names = { class: `run ${name}`, "data-run-state": name, "data-capped": capped[index] };
    return svg("g", names, area, shapes[name], gap, svg("title", {}, titleOf(run, capped[index])));
  });
  const size = { width: STRIP.runs * step, height, viewBox: `0 0 ${STRIP.runs * step} ${height}` };
  const base = svg("path", { class: "base", d: `M${start} ${height - 0.5}H${STRIP.runs * step}` });
  return svg("svg", { class: "strip", role: "img", "aria-label": label, ...size }, base, marks);
}

/**
 * Return a bar for each run, the newest at the right. Its height is a share of 1; a triangle above it means that checks
 * did not pass. `line` shows the text of the bar that the user points at or chooses by arrow keys.
 */
export function shareStrip({ name, shares, checks }, texts, line) {
  const { height, step, width, top } = SHARES;
  const start = (STRIP.runs - shares.length) * step;
  const bars = shares.map((share, index) => {
    const x = start + index * step;
    const high = Math.max(1, (height - 1 - top) * (share ?? 0));
    const mark = checks[index] && svg("path", { d: `M${x - 0.5} ${top - 1.5}l2.75 -4l2.75 4z` });
    const bar = share != null && svg("rect", { x, y: height - 1 - high, width, height: high });
    const area = svg("rect", { class: "area", x, y: 0, width: step, height });
    const names = { class: mark ? "run odd" : "run landed", "data-share": share, "data-failed": Boolean(mark) };
    return svg("g", names, area, bar, mark, svg("title", {}, texts[index]));
  });
  const size = { width: STRIP.runs * step, height, viewBox: `0 0 ${STRIP.runs * step} ${height}` };
  const base = svg("path", { class: "base", d: `M${start} ${height - 0.5}H${STRIP.runs * step}` });
  const drawing = svg("svg", { class: "strip shares", "aria-label": `Filled rows of ${name}`, ...size }, base, bars);
  return choosable(drawing, bars, line, (index) => texts[index]);
}

/** How values of a metric are shown; costs are in units of the account's balance, without a currency. */
const FORMATS = {
  rows: (value) => (value == null ? UNKNOWN : counted(value, "row")),
  succeeded: share,
  cost: (value) => (value == null ? UNKNOWN : `${number(value)} units of the balance`),
};
/** The number of bars that a key moves. */
const KEYS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

/** Show the text of a bar in `line`: at first the last bar, then the one that the user points at or chooses by keys. */
function choosable(drawing, bars, line, textOf) {
  let chosen = bars.length - 1;
  const tell = (index) => {
    chosen = Math.min(bars.length - 1, Math.max(0, index));
    line.textContent = textOf(chosen);
    drawing.setAttribute("aria-valuenow", chosen);
    drawing.setAttribute("aria-valuetext", line.textContent);
    bars.forEach((bar, each) => bar.classList.toggle("chosen", each === chosen));
  };
  const names = { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": bars.length - 1 };
  for (const [name, value] of Object.entries(names)) drawing.setAttribute(name, value);
  drawing.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    tell(chosen + KEYS[event.key]);
  });
  bars.forEach((bar, index) => bar.addEventListener("pointerenter", () => tell(index)));
  tell(chosen);
  return drawing;
}

/** Return a chart of a value per day; the line below it shows the day that the user points at or chooses by keys. */
export function dayChart({ metric, title, low, high }, days, thresholds) {
  const format = FORMATS[metric];
  const limits = [
    ["low", thresholds[low]],
    ["high", thresholds[high]],
  ].filter(([, limit]) => limit != null);
  const today = new Date(now()).toISOString().slice(0, 10);
  // the day is not over, so more rows may come
  const isOpen = (index) => metric === "rows" && days[index].day >= today;
  const isBeyond = (index) =>
    values[index] != null &&
    limits.some(([name, limit]) => (name === "low" ? values[index] < limit && !isOpen(index) : values[index] > limit));
  const { width, height, foot } = CHART;
  const values = days.map((day) => day[metric]);
  const known = values.filter((value) => value != null);
  if (!known.length) return el("p", { "data-chart": metric }, `${title}: not known for these days.`);
  const { top: most, capped } = cappedAxis(values);
  const top = Math.max(most, ...limits.map(([, limit]) => limit)) * 1.04 || 1;
  const first = Date.parse(days[0].day);
  // a day without a run leaves a gap
  const places = days.map(({ day }, index) => Math.round((Date.parse(day) - first) / 86_400_000) || index);
  const step = width / Math.max(12, places.at(-1) + 1);
  const level = (value) => height - foot - (height - foot - 6) * Math.min(1, value / top);
  const bars = days.map((day, index) => {
    const [x, y] = [places[index] * step, level(values[index] ?? 0)];
    const bar = { x: x + step * 0.1, y, width: step * 0.8, height: Math.max(1, height - foot - y) };
    const area = svg("rect", { class: "area", x, y: 0, width: step, height });
    const odd = isBeyond(index);
    const dot = odd && svg("circle", { cx: x + step / 2, cy: height - 1.5, r: 1.5 });
    const gap = capped[index] && svg("path", { class: "gap", d: `M${x} ${y + 6}l${step} -3v2l${-step} 3z` });
    const names = { class: odd ? "run odd" : "run landed", "data-day": day.day, "data-capped": capped[index] };
    return svg("g", names, area, values[index] == null ? null : [svg("rect", bar), dot, gap]);
  });
  const lines = limits.map(([, limit]) => svg("path", { class: "limit", d: `M0 ${level(limit).toFixed(1)}H${width}` }));
  const told = limits.map(([name, limit]) => `at ${name === "low" ? "least" : "most"} ${format(rounded(limit))}`);
  const line = el("p", { class: "told" });
  const names = { class: "days", viewBox: `0 0 ${width} ${height}`, "aria-label": title };
  const drawing = choosable(svg("svg", names, bars, lines), bars, line, (index) => {
    const beyond = isBeyond(index) ? ", beyond the limit" : "";
    return `${days[index].day}: ${format(values[index])}${beyond}`;
  });
  return el(
    "figure",
    { "data-chart": metric },
    // outside the chart, where the text would cover bars
    el("figcaption", {}, title, told.length ? el("span", { class: "limits" }, ` ${told.join(", ")}`) : null),
    drawing,
    el("div", { class: "range" }, el("span", {}, days[0].day), el("span", {}, days.at(-1).day)),
    line,
  );
}
