/**
 * The page "Web collection" in Airflow's web interface: the custom element <webcollect-page>.
 *
 * All addresses are relative to this module's, since Airflow may be served below a path. Texts of the server
 * become text nodes, never HTML.
 */
import uPlot from "./uPlot.esm.js";

const ROUTES = new URL("../", import.meta.url);
const AIRFLOW = new URL("../../", import.meta.url);
const REFRESH_MS = 30_000;
const AGES_MS = 5_000;
/** How soon the service's data is asked for again while it is being read for the first time. */
const SOON_MS = 2_000;
const PATIENCE_MS = 60_000;
/** How many failures have their messages read at once; the others have a button for it. */
const MESSAGES = 10;
const LONGEST_MESSAGE = 300;

const UNKNOWN = "—";

const METRICS = { rows: "Rows", bytes: "Bytes", total_rows: "Rows in all" };
const COUNTS = {
  extracting_count: "Tasks extracting",
  waiting_count: "Tasks waiting",
  finished_count: "Tasks finished",
  executing_sub_task_count: "Sub-tasks extracting",
  waiting_sub_task_count: "Sub-tasks waiting",
};
const DAY_CHARTS = [
  { metric: "rows", title: "Rows per day", low: "rows_low", high: "rows_high" },
  { metric: "succeeded", title: "Share of successful runs", low: "succeeded_low" },
  { metric: "cost", title: "Cost per day", high: "cost_high" },
];
/** The columns whose heads are above numbers. */
const NUMERIC = ["Rows", "Rows in all", "Bytes", "Duration", "Try", "Sub-tasks", "Runs"];

/** How far the server's clock is ahead of the browser's, in milliseconds. */
let clockOffset = 0;

/** Make an element; attributes that are null or false are left out, `on…` adds a listener. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child != null));
  return node;
}

function focusables(node) {
  return [...node.querySelectorAll("a, button, select")];
}

/**
 * Give `parent` one child for each of `wanted`, which are `{ key, facts, draw }`.
 *
 * A child whose facts are the same as before stays, so that nothing flickers and selected text stays selected.
 */
function place(parent, wanted) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const before = new Map([...parent.children].map((child) => [child.placed.key, child]));
  const holder = focused && [...before.values()].find((child) => child.contains(focused));
  const position = holder ? focusables(holder).indexOf(focused) : -1;
  const children = wanted.map(({ key, facts, draw }) => {
    const text = JSON.stringify([facts]);
    const child = before.get(key);
    return child?.placed.text === text ? child : Object.assign(draw(), { placed: { key, text } });
  });
  for (const child of before.values()) if (!children.includes(child)) child.remove();
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  if (position >= 0 && document.activeElement !== focused) {
    const same = children.find((child) => child.placed.key === holder.placed.key);
    const found = same ? focusables(same) : [];
    (found[position] ?? found.at(-1))?.focus({ preventScroll: true });
  }
}

function number(value, digits = 2) {
  return value == null ? UNKNOWN : new Intl.NumberFormat("en", { maximumFractionDigits: digits }).format(value);
}

function bytes(value) {
  if (value == null) return UNKNOWN;
  const power = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${number(value / 1000 ** power, 1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function share(value) {
  return value == null ? UNKNOWN : `${number(value * 100, 0)} %`;
}

const FORMATS = { bytes, succeeded: share };

function format(metric, value) {
  return (FORMATS[metric] ?? number)(value);
}

/** Return a number of seconds in the largest fitting unit. */
function duration(seconds, digits = 0) {
  if (seconds == null) return UNKNOWN;
  const units = [["d", 86_400], ["h", 3_600], ["min", 60]];
  const [unit, size] = units.find(([, length]) => seconds >= 1.5 * length) ?? ["s", 1];
  return `${number(seconds / size, digits)} ${unit}`;
}

function relative(moment) {
  const seconds = (Date.parse(moment) - Date.now() - clockOffset) / 1000;
  return seconds > 1 ? `in ${duration(seconds)}` : `${duration(Math.max(0, -seconds))} ago`;
}

/** Return a moment that is kept relative to now, its title is the exact time; one without a zone as it is. */
function time(moment, attributes = {}) {
  if (!moment) return UNKNOWN;
  const hasZone = /(Z|[+-]\d\d:?\d\d)$/i.test(moment) && !Number.isNaN(Date.parse(moment));
  if (!hasZone) return String(moment).replace("T", " ").slice(0, 19);
  const exact = new Date(moment).toISOString().replace("T", " ").slice(0, 19);
  return el("time", { datetime: moment, title: `${exact} UTC`, ...attributes }, relative(moment));
}

function updateAges(root) {
  for (const each of root.querySelectorAll("time")) {
    const text = relative(each.dateTime);
    if (each.textContent !== text) each.textContent = text;
  }
}

/** Return what identifies an Airflow task, or its landings of an asset. */
function identity(...parts) {
  return parts.map((part) => part ?? "").join("/");
}

function isMapped(each) {
  return each.map_index != null && each.map_index >= 0;
}

/** Return a link inside of Airflow; `parts` are the steps of its path. */
function airflowLink(text, ...parts) {
  return el("a", { href: new URL(parts.map(encodeURIComponent).join("/"), AIRFLOW).href }, text);
}

/** Return a link if the address is that of a web page, else the text alone. */
function outerLink(text, address) {
  if (!/^https?:\/\//i.test(address)) return text;
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text);
}

function taskName(each) {
  return `${each.dag_id} / ${each.task_id}${isMapped(each) ? `[${each.map_index}]` : ""}`;
}

function runLink(each, text) {
  return airflowLink(text, "dags", each.dag_id, "runs", each.run_id);
}

function taskLink(each) {
  const mapped = isMapped(each) ? ["mapped", each.map_index] : [];
  return airflowLink(taskName(each), "dags", each.dag_id, "runs", each.run_id, "tasks", each.task_id, ...mapped);
}

/** Return the address of a task instance in Airflow's own API. */
function taskApi(each, ...rest) {
  const parts = ["dags", each.dag_id, "dagRuns", each.run_id, "taskInstances", each.task_id, ...rest];
  const url = new URL(`api/v2/${parts.map(encodeURIComponent).join("/")}`, AIRFLOW);
  url.searchParams.set("map_index", each.map_index ?? -1);
  return url;
}

/** Read JSON with the person's own rights; the error of another answer has its `status`. */
async function read(url, signal) {
  const answer = await fetch(url, {
    credentials: "same-origin",
    headers: { Accept: "application/json" },
    signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]),
  });
  if (answer.ok) {
    const data = await answer.json();
    if (data.read_at) clockOffset = Date.parse(data.read_at) - Date.now() || 0;
    return data;
  }
  const { detail } = await answer.json().catch(() => ({}));
  const text = typeof detail === "string" ? `${detail} (${answer.status})` : `status ${answer.status}`;
  throw Object.assign(new Error(text), { status: answer.status });
}

/** Return what to tell a person about data that could not be read. */
function complaint(error) {
  if (error.status === 401) return "Please sign in again";
  if (error.status === 403) return `You may not read this: ${error.message}`;
  return `Airflow does not answer: ${error.message}`;
}

function badge(text, title) {
  return el("span", { class: "badge", title }, text);
}

/** Return a row of a table; what is no cell yet becomes one. */
function row(attributes, ...contents) {
  const isCell = (content) => content instanceof HTMLTableCellElement;
  return el("tr", attributes, contents.map((content) => (isCell(content) ? content : el("td", {}, content))));
}

function numeric(text, attributes = {}) {
  return el("td", { class: "number", ...attributes }, text);
}

/** A table whose rows are replaced one by one; without rows, a line says why. */
class Table {
  constructor(label, heads, empty) {
    const columns = heads.map((text) => {
      return el("th", { scope: "col", class: NUMERIC.includes(text) && "number" }, text);
    });
    this.rows = el("tbody");
    const table = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, columns)), this.rows);
    this.scroll = el("div", { class: "scroll" }, table);
    this.empty = el("p", {}, empty);
    this.more = el("p", {});
    this.element = el("div", {}, this.empty, this.scroll, this.more);
  }

  show(wanted, more = "") {
    place(this.rows, wanted);
    this.empty.hidden = wanted.length > 0;
    this.scroll.hidden = !wanted.length;
    this.more.textContent = more;
  }
}

/** A chart that lives as long as it is on the page; moving it elsewhere draws it again. */
class Bars extends HTMLElement {
  connectedCallback() {
    this.draw();
  }

  disconnectedCallback() {
    this.plot?.destroy();
    this.plot = null;
  }

  /** Draw bars, those that are marked in another colour, and dashed lines for limits. */
  draw() {
    this.disconnectedCallback();
    const { values, marked, limits = [], axis = null, width = 180, height = 48 } = this.drawing;
    const { positions = values.map((_, index) => index) } = this.drawing;
    const style = getComputedStyle(this);
    const color = (name) => style.getPropertyValue(name).trim() || "gray";
    const known = limits.filter((limit) => limit != null);
    const highest = Math.max(0, ...values.map((value) => value ?? 0), ...known);
    const colors = { unit: 3, values: () => marked.map((is) => color(is ? "--marked" : "--bar")) };
    const bars = uPlot.paths.bars({
      // without places and a size, uPlot makes a single bar as wide as the chart
      disp: {
        x0: { unit: 1, values: () => positions.map((position) => position - 0.4) },
        size: { unit: 1, values: () => [0.8] },
        fill: colors,
        stroke: colors,
      },
    });
    const scale = {
      show: axis != null,
      values: (_, splits) => splits.map((value) => axis(value)),
      stroke: color("--faint"),
      grid: { stroke: color("--line"), width: 1 },
      ticks: { show: false },
      size: 64,
      space: 28,
    };
    const options = {
      width,
      height,
      padding: [axis ? 8 : 2, 2, axis ? 8 : 1, 0],
      cursor: { show: false },
      legend: { show: false },
      axes: [{ show: false }, scale],
      scales: {
        // few bars are not wider than many
        x: { time: false, range: [-0.6, Math.max(positions.at(-1) + 1, 12) - 0.4] },
        y: { range: [0, highest * 1.05 || 1] },
      },
      // the stroke lets a count of 0 be seen
      series: [{}, { paths: bars, fill: "gray", stroke: "gray", width: 1, points: { show: false } }],
      hooks: { draw: [(plot) => drawLimits(plot, known, color("--marked"))] },
    };
    this.plot = new uPlot(options, [positions, values], this);
  }
}

/** Draw lines over the whole width, which a series of uPlot would not do for a single bar. */
function drawLimits({ ctx, bbox, valToPos }, limits, color) {
  ctx.save();
  ctx.strokeStyle = color;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const limit of limits) {
    const y = Math.round(valToPos(limit, "y", true));
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}

function chart(label, drawing) {
  return Object.assign(el("webcollect-bars", { role: "img", "aria-label": label, title: label }), { drawing });
}

/** A part of the page with its own heading, which says how old it is and what is wrong with it. */
class Part {
  constructor(kind, name, heading, title, content = []) {
    this.age = el("span", { class: "age" }, "reading …");
    this.note = el("p", { class: "note", role: "status" });
    this.body = el("div", { hidden: true }, content);
    const head = el(heading, {}, title, " ", this.age);
    this.element = el("section", { [`data-${kind}`]: name, "aria-label": title }, head, this.note, this.body);
  }

  /** Say when the data that is shown was read, and why it is no newer. */
  tell(readAt, problem) {
    if (readAt === this.readAt && problem === this.problem) return;
    Object.assign(this, { readAt, problem });
    this.age.replaceChildren(...(readAt ? ["as of ", time(readAt)] : [problem ? "" : "reading …"]));
    this.body.hidden = !readAt;
    // only the problem itself is worth an announcement, not each second that passes
    const since = readAt ? ["; this is from ", time(readAt, { "aria-live": "off" })] : [];
    this.note.replaceChildren(...(problem ? [problem.replace(/\.$/, ""), ...since, "."] : []));
  }

  fail(error) {
    this.tell(this.readAt, complaint(error));
  }
}

class WebCollectPage extends HTMLElement {
  // what the person has chosen, and what does not change, outlives a visit of another page
  metric = "rows";
  open = new Set();
  links = new Map();
  messages = new Map();

  connectedCallback() {
    this.abort = new AbortController();
    this.busy = new Set();
    this.landingsData = null;
    const refresh = () => this.refresh();
    const style = (name, listeners) => {
      return el("link", { rel: "stylesheet", href: new URL(name, import.meta.url).href, ...listeners });
    };
    this.makeParts();
    this.replaceChildren(
      style("uPlot.min.css"),
      // the charts take their colours from it
      style("page.css", { onload: refresh, onerror: refresh }),
      el("h1", {}, "Web collection"),
      ...[this.landings, this.running, this.failures, this.service].map((part) => part.element),
    );
    document.addEventListener("visibilitychange", refresh, { signal: this.abort.signal });
    this.timers = [setInterval(refresh, REFRESH_MS), setInterval(() => updateAges(this), AGES_MS)];
    this.theme = new MutationObserver(() => {
      for (const each of this.querySelectorAll("webcollect-bars")) each.draw();
    });
    this.theme.observe(document.documentElement, { attributeFilter: ["class"] });
  }

  disconnectedCallback() {
    this.abort.abort();
    this.timers.forEach(clearInterval);
    clearTimeout(this.soon);
    this.theme.disconnect();
    // ends the charts, too
    this.replaceChildren();
  }

  makeParts() {
    const none =
      "No landing has been reported yet. A landing appears here once its task declares an outlet asset.";
    const landed = ["Collection task", "DAG and task", "Latest runs", "Rows", "Bytes", "Last landing"];
    this.landingTable = new Table("Landings", landed, none);
    const options = Object.entries(METRICS).map(([name, text]) => {
      return el("option", { value: name, selected: name === this.metric }, text);
    });
    const chooseMetric = (event) => {
      this.metric = event.target.value;
      this.drawLandings();
    };
    this.landings = new Part("section", "landings", "h2", "Landings", [
      el("p", {}, "Rows that landed, by Airflow's asset events"),
      el("label", {}, "Bars show ", el("select", { onchange: chooseMetric }, options)),
      this.landingTable.element,
    ]);
    const atWork = ["Airflow task", "Collection task", "Where", "Since", "Timeout", "Try"];
    this.runningTable = new Table("Running now", atWork, "No Airflow task of this provider is at work.");
    this.running = new Part("section", "running", "h2", "Running now", [this.runningTable.element]);
    const failed = ["Airflow task", "Collection task", "When", "Try", "State", "Message"];
    this.failureTable = new Table("Failures of the last day", failed, "No Airflow task of this provider has failed.");
    this.failures = new Part("section", "failures", "h2", "Failures of the last day", [this.failureTable.element]);
    const chooseConnection = (event) => {
      this.connection = event.target.value;
      this.makeBlocks();
      this.readService();
    };
    this.connectionSelect = el("select", { onchange: chooseConnection });
    this.connectionLabel = el("label", {}, "Connection ", this.connectionSelect);
    this.noService = el("p");
    this.blockHolder = el("div");
    const content = [this.noService, this.connectionLabel, this.blockHolder];
    this.service = new Part("section", "service", "h2", "Service", content);
    // of the service, each block says how old it is
    this.service.age.hidden = true;
    this.makeBlocks();
  }

  /** Start with empty blocks, so that those of one connection are never taken for those of another. */
  makeBlocks() {
    this.blocks = Object.entries(BLOCKS).map(([name, { title, draw }]) => {
      return { name, draw, part: new Part("block", name, "h3", title) };
    });
    this.blockHolder.replaceChildren(...this.blocks.map(({ part }) => part.element));
  }

  /** Read everything, if somebody looks. */
  refresh() {
    if (document.visibilityState !== "visible") return;
    this.readInto("landings", [this.landings], async (signal) => {
      this.landingsData = await read(new URL("landings", ROUTES), signal);
      this.drawLandings();
      return this.landingsData.read_at;
    });
    this.readInto("activity", [this.running, this.failures], async (signal) => {
      this.activityData = await read(new URL("activity", ROUTES), signal);
      this.drawRunning();
      this.drawFailures();
      return this.activityData.read_at;
    });
    this.readService();
  }

  /** Call `readAndDraw`, unless it is at work, and tell the parts when its data was read, or why it was not. */
  async readInto(name, parts, readAndDraw) {
    const { busy, abort } = this;
    if (busy.has(name)) return;
    busy.add(name);
    try {
      const readAt = await readAndDraw(abort.signal);
      for (const part of parts) part.tell(readAt);
    } catch (error) {
      if (!abort.signal.aborted) for (const part of parts) part.fail(error);
    } finally {
      busy.delete(name);
    }
  }

  drawLandings() {
    if (!this.landingsData) return;
    const { series, left_out } = this.landingsData;
    const wanted = series.flatMap((each) => {
      const key = identity(each.dag_id, each.task_id, each.map_index ?? -1, each.asset?.uri);
      const newest = { ...each, ...each.runs.at(-1) };
      const row = { key, facts: [each, this.metric], draw: () => this.drawSeries(key, each, newest) };
      if (!this.open.has(key)) return [row];
      const links = this.linksOf(newest);
      return [row, { key: `runs of ${key}`, facts: [each, links], draw: () => drawRuns(each, links) }];
    });
    const more = left_out ? `${number(left_out)} more, which have not landed for longer, are left out.` : "";
    this.landingTable.show(wanted, more);
  }

  drawSeries(key, series, newest) {
    const values = series.runs.map((run) => run[this.metric]);
    const last = format(this.metric, values.at(-1));
    const label = `${METRICS[this.metric].toLowerCase()} per run, ${values.length} runs, the last ${last}`;
    const bars = chart(label, { values, marked: series.runs.map((run) => run.is_odd) });
    const toggle = ({ currentTarget }) => {
      if (!this.open.delete(key)) this.open.add(key);
      currentTarget.setAttribute("aria-expanded", this.open.has(key));
      this.drawLandings();
    };
    const batch = series.lotno ? `, batch ${series.lotno}` : "";
    const name = series.collection_task_id ? `${series.collection_task_id}${batch}` : series.asset?.name;
    const button = el("button", { type: "button", "aria-expanded": String(this.open.has(key)), onclick: toggle }, name);
    const usually = series.usual_seconds && `usually every ${duration(series.usual_seconds)}`;
    const marks = [
      newest.is_odd ? badge("odd count", `usually ${number(newest.usual_rows)}`) : null,
      series.is_stale ? badge("stale", usually) : null,
    ];
    return row(
      { "data-series": key },
      button,
      runLink(newest, taskName(newest)),
      bars,
      numeric(number(newest.rows), { "data-rows": newest.rows }),
      numeric(bytes(newest.bytes), { "data-bytes": newest.bytes }),
      [time(newest.landed_at), " ", ...marks],
    );
  }

  /** Return the links that the newest run's task has stored, to the service's page and to the rows. */
  linksOf(run) {
    const url = taskApi(run, "links");
    const found = this.links.get(url.href);
    if (found) return found;
    this.links.set(url.href, []);
    read(url, this.abort.signal)
      .then(({ extra_links }) => this.links.set(url.href, Object.entries(extra_links)))
      .then(() => this.drawLandings())
      // who may not read the task has no links; they are asked for again when the page is
      .catch(() => this.links.delete(url.href));
    return [];
  }

  drawRunning() {
    const { running, left_out } = this.activityData;
    const wanted = running.map((each) => {
      const key = identity(each.dag_id, each.run_id, each.task_id, each.map_index ?? -1);
      return { key, facts: each, draw: () => drawAtWork(key, each) };
    });
    this.runningTable.show(wanted, left_out ? `${number(left_out)} more, at work or failed, are left out.` : "");
  }

  drawFailures() {
    const wanted = this.activityData.failures.map((each, index) => {
      const key = identity(each.dag_id, each.run_id, each.task_id, each.map_index ?? -1);
      const url = taskApi(each, "logs", each.try_number);
      url.searchParams.set("full_content", "true");
      if (index < MESSAGES && !this.messages.has(url.href)) this.readMessage(url);
      const message = this.messages.get(url.href);
      return { key, facts: [each, message], draw: () => this.drawFailure(key, each, url, message) };
    });
    this.failureTable.show(wanted);
  }

  drawFailure(key, failure, url, message) {
    const show = () => {
      this.readMessage(url);
      this.drawFailures();
    };
    const button = el("button", { type: "button", onclick: show }, "Show message");
    return row(
      { "data-failure": key },
      taskLink(failure),
      failure.collection_task_ids?.join(", "),
      time(failure.ended_at),
      numeric(number(failure.try_number)),
      failure.state?.replaceAll("_", " "),
      el("td", { class: "message" }, message && shortened(message.text), !message || message.canRetry ? button : null),
    );
  }

  /** Read why a task has failed, which only its log says; Airflow gives it to those who may read it. */
  readMessage(url) {
    this.messages.set(url.href, { text: "Reading the log …" });
    const { signal } = this.abort;
    read(url, signal)
      .then(({ content }) => ({ text: errorIn(content) }))
      .catch((error) => {
        if (error.status === 403) return { text: "You may not read this log" };
        return { text: `The log cannot be read: ${error.message} `, canRetry: true };
      })
      .then((message) => {
        if (signal.aborted) return this.messages.delete(url.href);
        this.messages.set(url.href, message);
        return this.drawFailures();
      });
  }

  async readService() {
    if (document.visibilityState !== "visible") return;
    let isComplete = true;
    await this.readInto("service", [this.service], async (signal) => {
      const { connections, reason } = await readConnections(signal);
      if (!connections.includes(this.connection)) {
        this.connection = connections[0] ?? null;
        this.makeBlocks();
      }
      this.noService.textContent = connections.length ? "" : reason;
      this.connectionLabel.hidden = !connections.length;
      this.blockHolder.hidden = !connections.length;
      place(
        this.connectionSelect,
        connections.map((name) => ({ key: name, facts: name, draw: () => el("option", { value: name }, name) })),
      );
      this.connectionSelect.value = this.connection ?? "";
      this.service.body.hidden = false;
      for (let shown = null; shown !== this.connection; ) {
        // the person may choose another one meanwhile
        shown = this.connection;
        const data = await read(new URL(`connections/${encodeURIComponent(shown)}`, ROUTES), signal);
        if (shown === this.connection) isComplete = this.drawBlocks(data);
      }
      return new Date(Date.now() + clockOffset).toISOString();
    });
    clearTimeout(this.soon);
    if (!isComplete && this.isConnected) this.soon = setTimeout(() => this.readService(), SOON_MS);
  }

  /** Return whether each block has been read, or could not be. */
  drawBlocks(data) {
    for (const { name, draw, part } of this.blocks) {
      const { value, read_at, problem } = data[name] ?? {};
      // another process of the API server may not know yet what this page already shows
      if (read_at) place(part.body, [{ key: name, facts: value, draw: () => draw(value) }]);
      part.tell(read_at ?? part.readAt, problem);
    }
    return this.blocks.every(({ part }) => part.readAt || part.problem);
  }
}

/** Return the connections that the person may read; without any, the reason. */
async function readConnections(signal) {
  try {
    const { connections } = await read(new URL("connections", ROUTES), signal);
    return { connections, reason: "You may not read connections, or none of the type webcollect is known." };
  } catch (error) {
    if (error.status !== 403) throw error;
    return { connections: [], reason: "You may not read connections, so data of the service is not shown." };
  }
}

/** Return the row below that of a series, with a table of its runs. */
function drawRuns(series, links) {
  const heads = ["DAG run", "Landed at", "Rows", "Rows in all", "Bytes", "Duration", "Manifest"];
  const table = new Table("Runs, the newest first", heads, "");
  const draw = (run) => {
    const mark = run.is_odd ? badge(`usually ${number(run.usual_rows)}`, "odd count") : null;
    return row(
      { "data-run": run.run_id, "data-rows": run.rows },
      runLink({ ...series, ...run }, run.run_id),
      time(run.landed_at),
      numeric([mark, number(run.rows)]),
      numeric(number(run.total_rows)),
      numeric(bytes(run.bytes)),
      numeric(duration(run.duration, 1)),
      (run.manifests ?? []).map((path) => el("div", {}, outerLink(path, path))),
    );
  };
  table.show(series.runs.map((run) => ({ key: run.run_id, facts: run, draw: () => draw(run) })).reverse());
  const stored = links.map(([name, address]) => outerLink(name, address ?? "")).filter((link) => link.href);
  const line = stored.length ? el("p", { class: "links" }, stored) : null;
  const target = series.destination && el("p", {}, "Destination: ", outerLink(series.destination, series.destination));
  return el("tr", { class: "runs" }, el("td", { colspan: 6 }, line, target, table.element));
}

function drawAtWork(key, each) {
  return row(
    { "data-task": key },
    taskLink(each),
    each.collection_task_ids?.join(", "),
    each.way,
    time(each.since),
    time(each.timeout_at),
    numeric(number(each.try_number)),
  );
}

function drawCapacity(counts) {
  const entries = Object.entries(COUNTS).map(([name, text]) =>
    el("div", {}, el("dt", {}, text), el("dd", { "data-count": name }, number(counts?.[name]))),
  );
  return el("dl", {}, entries);
}

function drawToken(token) {
  if (!token) return el("p", {}, "None is stored: no process has needed a new one.");
  const by = token.stored_by ? ` by ${token.stored_by}` : "";
  const end = token.expires_at ? [", ends ", time(token.expires_at)] : [];
  return el("p", {}, "Stored ", time(token.stored_at), by, ...end);
}

function drawTasks(tasks) {
  const heads = ["Collection task", "State", "Rows", "Sub-tasks", "Runs", "Started", "Ended", "Next run"];
  const none = "No asset and no landing of this connection names a collection task.";
  const table = new Table("Collection tasks", heads, none);
  const draw = (task) =>
    row(
      { "data-collection-task": task.task },
      el("td", { title: task.name }, task.task),
      task.status ?? UNKNOWN,
      numeric(number(task.rows)),
      numeric(number(task.sub_tasks)),
      numeric(number(task.runs)),
      time(task.started),
      time(task.ended),
      time(task.next_run),
    );
  table.show((tasks ?? []).map((task) => ({ key: task.task, facts: task, draw: () => draw(task) })));
  return table.element;
}

function drawDays(value) {
  const { days, thresholds } = { days: [], thresholds: {}, ...value };
  if (!days.length) return el("p", {}, "No run in these days.");
  const [first, last] = [days[0], days.at(-1)];
  const charts = DAY_CHARTS.map(({ metric, title, low, high }) => {
    const [least, most] = [thresholds[low] ?? null, thresholds[high] ?? null];
    const isBeyond = (count) => count != null && (count < (least ?? -Infinity) || count > (most ?? Infinity));
    const values = days.map((day) => day[metric]);
    const drawing = {
      values,
      marked: values.map(isBeyond),
      limits: [least, most],
      // a day without a run leaves a gap
      positions: days.map(({ day }, index) => (Date.parse(day) - Date.parse(first.day)) / 86_400_000 || index),
      axis: (count) => format(metric, count),
      width: 320,
      height: 110,
    };
    const newest = format(metric, last[metric]);
    return el(
      "figure",
      { "data-chart": metric },
      el("figcaption", {}, `${title}: ${newest} on ${last.day}`),
      chart(`${title}, ${days.length} days, the last ${newest}`, drawing),
      el("div", { class: "range" }, el("span", {}, first.day), el("span", {}, last.day)),
    );
  });
  return el("div", { class: "charts" }, charts);
}

const BLOCKS = {
  capacity: { title: "Capacity", draw: drawCapacity },
  token: { title: "Access token", draw: drawToken },
  tasks: { title: "Collection tasks", draw: drawTasks },
  days: { title: "The last days", draw: drawDays },
};

function shortened(text) {
  const isLong = text.length > LONGEST_MESSAGE;
  return el("span", { title: isLong && text }, isLong ? `${text.slice(0, LONGEST_MESSAGE)} …` : text);
}

/** Return the last error in the entries of a task's log; what was raised, not its cause, ended the task. */
function errorIn(content) {
  const entries = (Array.isArray(content) ? content : []).filter((entry) => entry && typeof entry === "object");
  const raised = entries.findLast((entry) => entry.error_detail?.length)?.error_detail[0];
  if (raised) return `${raised.exc_type}: ${raised.exc_value}`;
  const logged = entries.findLast((entry) => /^(error|critical)$/i.test(entry.level));
  return logged?.event ?? "The log has no error";
}

if (!customElements.get("webcollect-page")) {
  customElements.define("webcollect-bars", Bars);
  customElements.define("webcollect-page", WebCollectPage);
}
globalThis["Web collection"] = () => globalThis.React.createElement("webcollect-page");
