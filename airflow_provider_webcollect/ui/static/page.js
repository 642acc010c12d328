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
/** How many failures have their messages read at once; the others have a button for it. */
const MESSAGES = 10;
const LONGEST_MESSAGE = 300;

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

/** How far the server's clock is ahead of the browser's, in milliseconds. */
let clockOffset = 0;

/** Make an element; attributes that are null or false are left out, `on…` adds a listener. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

function number(value) {
  return value == null ? "–" : new Intl.NumberFormat("en", { maximumFractionDigits: 2 }).format(value);
}

function bytes(value) {
  if (value == null) return "–";
  const power = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  const digits = power ? 1 : 0;
  return `${(value / 1000 ** power).toFixed(digits)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function share(value) {
  return value == null ? "–" : `${(value * 100).toFixed(0)} %`;
}

const FORMATS = { bytes, succeeded: share };

function format(metric, value) {
  return (FORMATS[metric] ?? number)(value);
}

/** Return a number of seconds in the largest fitting unit. */
function duration(seconds) {
  const units = [["d", 86_400], ["h", 3_600], ["min", 60]];
  const [unit, size] = units.find(([, length]) => Math.abs(seconds) >= 1.5 * length) ?? ["s", 1];
  return `${Math.round(seconds / size)} ${unit}`;
}

function relative(moment) {
  const seconds = (Date.parse(moment) - Date.now() - clockOffset) / 1000;
  return seconds > 1 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

/** Return a moment that is kept relative to now; its title is the exact time. */
function time(moment) {
  if (!moment) return "–";
  const exact = new Date(moment).toISOString().replace("T", " ").slice(0, 19);
  return el("time", { datetime: moment, title: `${exact} UTC` }, relative(moment));
}

function updateAges(root) {
  for (const each of root.querySelectorAll("time[datetime]")) each.textContent = relative(each.dateTime);
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

function runLink(each, text = each.dag_id) {
  return airflowLink(text, "dags", each.dag_id, "runs", each.run_id);
}

function taskLink(each) {
  const mapped = each.map_index >= 0 ? ["mapped", String(each.map_index)] : [];
  const text = `${each.dag_id} / ${each.task_id}${mapped.length ? `[${each.map_index}]` : ""}`;
  return airflowLink(text, "dags", each.dag_id, "runs", each.run_id, "tasks", each.task_id, ...mapped);
}

/** Return the address of a task instance in Airflow's own API. */
function taskApi(each, ...rest) {
  const parts = ["dags", each.dag_id, "dagRuns", each.run_id, "taskInstances", each.task_id, ...rest];
  const url = new URL(`api/v2/${parts.map(encodeURIComponent).join("/")}`, AIRFLOW);
  url.searchParams.set("map_index", each.map_index);
  return url;
}

function badge(text, title) {
  return el("span", { class: "badge", title }, text);
}

function table(label, heads, rows) {
  const head = el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)));
  const body = el("tbody", {}, rows);
  return el("div", { class: "scroll" }, el("table", { "aria-label": label }, el("thead", {}, head), body));
}

function cells(...contents) {
  return contents.map((content) => el("td", {}, content));
}

function numeric(text, attributes = {}) {
  return el("td", { class: "number", ...attributes }, text);
}

/** Read JSON with the person's own rights; the error of another answer has its `status`. */
async function read(url, signal) {
  const headers = { Accept: "application/json" };
  const answer = await fetch(url, { credentials: "same-origin", headers, signal });
  if (answer.ok) return answer.json();
  const text = answer.status === 401 ? "please sign in again" : `it answers ${answer.status}`;
  throw Object.assign(new Error(text), { status: answer.status });
}

/**
 * Draw bars, those that are marked in another colour, and dashed lines for limits.
 *
 * @returns the chart, which has to be destroyed.
 */
function drawBars(host, { values, marked, limits = [], width = 220, height = 48 }) {
  const style = getComputedStyle(host);
  const color = (name) => style.getPropertyValue(name).trim();
  const bars = (name) => ({
    fill: color(name),
    stroke: color(name),
    paths: uPlot.paths.bars({ size: [0.8, 40] }),
    points: { show: false },
  });
  const line = { stroke: color("--marked"), dash: [4, 3], width: 1, points: { show: false } };
  const known = limits.filter((limit) => limit != null);
  const highest = Math.max(0, ...values.map((value) => value ?? 0), ...known);
  const options = {
    width,
    height,
    padding: [2, 0, 0, 0],
    cursor: { show: false },
    legend: { show: false },
    axes: [{ show: false }, { show: false }],
    scales: {
      x: { time: false, range: [-0.6, Math.max(values.length, 12) - 0.4] },
      y: { range: [0, highest * 1.05 || 1] },
    },
    series: [{}, bars("--bar"), bars("--marked"), ...known.map(() => line)],
  };
  const positions = values.map((_, index) => index);
  const data = [
    positions,
    values.map((value, index) => (marked[index] ? null : value)),
    values.map((value, index) => (marked[index] ? value : null)),
    ...known.map((limit) => positions.map(() => limit)),
  ];
  return new uPlot(options, data, host);
}

/** A part of the page that is read and drawn on its own, with how old it is and what is wrong with it. */
class Section {
  constructor(key, title, draw) {
    this.age = el("span", { class: "age" });
    this.note = el("p", { class: "note", role: "status" });
    this.body = el("div", {}, el("p", {}, "Reading …"));
    this.element = el("section", { "data-section": key }, el("h2", {}, title, this.age), this.note, this.body);
    this.draw = draw;
    this.charts = [];
  }

  /** Draw data unless it has been drawn already; `facts` is what it depends on beside. */
  show(data, facts = "") {
    this.note.textContent = "";
    if (data.read_at) {
      this.readAt = data.read_at;
      this.age.replaceChildren("as of ", time(data.read_at));
    }
    const seen = JSON.stringify([{ ...data, read_at: null }, facts]);
    if (seen === this.seen) return;
    this.seen = seen;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.clear();
    this.body.replaceChildren(...this.draw(data, this));
    for (const draw of this.whenShown) this.charts.push(draw());
    if (focused) this.body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  /** Return a place for a chart, which is drawn when the place is on the page and has its colours. */
  chart(label, options) {
    const host = el("div", { class: "chart", role: "img", "aria-label": label });
    this.whenShown.push(() => drawBars(host, options));
    return host;
  }

  fail(error) {
    const since = this.readAt ? `; this is from ${relative(this.readAt)}` : "";
    this.note.textContent = `Airflow cannot be read: ${error.message}${since}.`;
    if (!this.readAt) this.body.replaceChildren();
  }

  clear() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
    this.whenShown = [];
  }
}

class WebCollectPage extends HTMLElement {
  connectedCallback() {
    this.abort = new AbortController();
    this.metric = "rows";
    this.open = new Set();
    this.links = new Map();
    this.messages = new Map();
    this.landings = new Section("landings", "Landings", (data, section) => this.drawLandings(data, section));
    this.running = new Section("running", "Running now", (data) => this.drawRunning(data));
    this.failures = new Section("failures", "Failures of the last day", (data) => this.drawFailures(data));
    this.service = new Section("service", "Service", (data, section) => this.drawService(data, section));
    // the charts take their colours from it
    const refresh = () => this.refresh();
    const style = (name, listeners) =>
      el("link", { rel: "stylesheet", href: new URL(name, import.meta.url).href, ...listeners });
    this.replaceChildren(
      style("uPlot.min.css"),
      style("page.css", { onload: refresh, onerror: refresh }),
      el("h1", {}, "Web collection"),
    );
    this.append(...[this.landings, this.running, this.failures, this.service].map((each) => each.element));
    const { signal } = this.abort;
    document.addEventListener("visibilitychange", refresh, { signal });
    this.timers = [setInterval(refresh, REFRESH_MS), setInterval(() => updateAges(this), AGES_MS)];
    this.theme = new MutationObserver(() => this.redraw());
    this.theme.observe(document.documentElement, { attributeFilter: ["class"] });
  }

  disconnectedCallback() {
    this.abort.abort();
    this.timers.forEach(clearInterval);
    this.theme.disconnect();
    for (const section of [this.landings, this.service]) section.clear();
  }

  /** Read everything, if somebody looks. */
  refresh() {
    if (document.visibilityState !== "visible") return;
    this.readInto([this.landings], "landings", (data) => (this.landingsData = data));
    this.readInto([this.running, this.failures], "activity", (data) => (this.activityData = data));
    this.readService();
  }

  async readInto(sections, route, keep) {
    try {
      const data = await read(new URL(route, ROUTES), this.abort.signal);
      clockOffset = Date.parse(data.read_at) - Date.now();
      keep(data);
      this.redraw();
    } catch (error) {
      if (error.name !== "AbortError") for (const section of sections) section.fail(error);
    }
  }

  async readService() {
    const { signal } = this.abort;
    try {
      const { connections } = await read(new URL("connections", ROUTES), signal);
      if (!connections.includes(this.connection)) this.connection = connections[0];
      const route = new URL(`connections/${encodeURIComponent(this.connection)}`, ROUTES);
      this.serviceData = { connections, ...(this.connection && (await read(route, signal))) };
      this.redraw();
      // what was not there in time is there a moment later
      const parts = ["token", "capacity", "tasks", "days"].map((name) => this.serviceData[name]);
      if (parts.some((part) => part && !part.read_at && !part.problem)) setTimeout(() => this.readService(), 2_000);
    } catch (error) {
      if (error.name !== "AbortError") this.service.fail(error);
    }
  }

  redraw() {
    const theme = document.documentElement.className;
    const open = [...this.open];
    if (this.landingsData) {
      this.landings.show(this.landingsData, [theme, open, this.metric, [...this.links]]);
    }
    if (this.activityData) {
      const { running, failures, left_out, read_at } = this.activityData;
      this.running.show({ running, left_out, read_at });
      this.failures.show({ failures, left_out, read_at }, [...this.messages]);
    }
    if (this.serviceData) this.service.show(this.serviceData, theme);
  }

  drawLandings({ series, left_out }, section) {
    if (!series.length) {
      return [el("p", {}, "No landing is known. One is shown here once its Airflow task declares an outlet asset.")];
    }
    const options = Object.entries(METRICS).map(([name, text]) =>
      el("option", { value: name, selected: name === this.metric }, text),
    );
    const choose = (event) => {
      this.metric = event.target.value;
      this.redraw();
    };
    const select = el("select", { onchange: choose, "data-key": "metric" }, options);
    const heads = ["Collection task", "DAG and task", "Runs", "Rows", "Bytes", "Last landing", ""];
    const rows = series.flatMap((each) => this.drawSeries(each, section));
    return [
      el("label", {}, "Bars show ", select),
      table("Landings", heads, rows),
      left_out ? el("p", {}, `${number(left_out)} more, which have not landed for longer, are left out.`) : null,
    ].filter(Boolean);
  }

  drawSeries(series, section) {
    const key = [series.dag_id, series.task_id, series.map_index, series.asset.uri].join("/");
    const newest = { ...series, ...series.runs.at(-1) };
    const values = series.runs.map((run) => run[this.metric]);
    const last = format(this.metric, values.at(-1));
    const label = `${METRICS[this.metric]} of ${series.runs.length} runs, the last ${last}`;
    const chart = section.chart(label, { values, marked: series.runs.map((run) => run.is_odd) });
    const isOpen = this.open.has(key);
    const toggle = () => {
      if (!this.open.delete(key)) this.open.add(key);
      this.redraw();
    };
    const batch = series.lotno ? `, batch ${series.lotno}` : "";
    const name = series.collection_task_id ? `${series.collection_task_id}${batch}` : series.asset.name;
    const button = el("button", { "aria-expanded": String(isOpen), "data-key": key, onclick: toggle }, name);
    const usually = series.usual_seconds && `usually every ${duration(series.usual_seconds)}`;
    const marks = [
      newest.is_odd ? badge("odd count", `usually ${number(newest.usual_rows)} rows`) : null,
      series.is_stale ? badge("stale", usually) : null,
    ];
    const row = el(
      "tr",
      { "data-series": key },
      cells(button, taskLink(newest), chart),
      numeric(number(newest.rows), { "data-rows": newest.rows }),
      numeric(bytes(newest.bytes), { "data-bytes": newest.bytes }),
      cells(time(newest.landed_at), marks),
    );
    return isOpen ? [row, el("tr", {}, el("td", { colspan: 7 }, this.drawRuns(series, newest)))] : [row];
  }

  drawRuns(series, newest) {
    const rows = [...series.runs].reverse().map((run) =>
      el(
        "tr",
        { "data-run": run.run_id, "data-rows": run.rows },
        cells(runLink({ ...series, ...run }, run.run_id), time(run.landed_at)),
        numeric(number(run.rows)),
        numeric(number(run.total_rows)),
        numeric(bytes(run.bytes)),
        numeric(run.duration == null ? "–" : `${number(run.duration)} s`),
        cells(
          run.manifests.map((path) => el("div", {}, outerLink(path, path))),
          run.is_odd ? badge("odd count", `usually ${number(run.usual_rows)} rows`) : null,
        ),
      ),
    );
    const heads = ["DAG run", "Landed", "Rows", "Rows in all", "Bytes", "Duration", "Manifest", ""];
    return [this.drawLinks(newest), table("Runs", heads, rows)];
  }

  /** Show the links that the newest run's task has stored: to the service's page, and to the rows. */
  drawLinks(run) {
    const url = taskApi(run, "links");
    const found = this.links.get(url.href);
    if (!found) {
      this.links.set(url.href, []);
      read(url, this.abort.signal)
        .then(({ extra_links }) => this.links.set(url.href, Object.entries(extra_links)))
        .then(() => this.redraw())
        .catch(() => {}); // who may not read the task has no links
      return null;
    }
    const links = found.filter(([, address]) => address).map(([name, address]) => outerLink(name, address));
    return links.length ? el("p", { class: "links" }, links) : null;
  }

  drawRunning({ running, left_out }) {
    if (!running.length) return [el("p", {}, "No Airflow task of this provider is at work.")];
    const rows = running.map((each) =>
      el(
        "tr",
        { "data-task": [each.dag_id, each.run_id, each.task_id, each.map_index].join("/") },
        cells(taskLink(each), each.collection_task_ids.join(", "), each.way, time(each.since), time(each.timeout_at)),
        numeric(number(each.try_number)),
      ),
    );
    const heads = ["Airflow task", "Collection task", "Where", "Since", "Timeout", "Try"];
    const more = left_out ? el("p", {}, `${number(left_out)} more are left out.`) : null;
    return [table("Running now", heads, rows), more].filter(Boolean);
  }

  drawFailures({ failures }) {
    if (!failures.length) return [el("p", {}, "None.")];
    const rows = failures.map((each, index) =>
      el(
        "tr",
        { "data-failure": [each.dag_id, each.run_id, each.task_id, each.map_index].join("/") },
        cells(taskLink(each), each.collection_task_ids.join(", "), time(each.ended_at)),
        numeric(number(each.try_number)),
        cells(each.state.replaceAll("_", " "), this.drawMessage(each, index < MESSAGES)),
      ),
    );
    const heads = ["Airflow task", "Collection task", "Failed", "Try", "State", "Message"];
    return [table("Failures of the last day", heads, rows)];
  }

  /** Show why a task has failed, which only its log says; Airflow gives it to those who may read it. */
  drawMessage(failure, now) {
    const url = taskApi(failure, "logs", failure.try_number);
    url.searchParams.set("full_content", "true");
    const message = this.messages.get(url.href);
    if (message != null) {
      const text = message.length > LONGEST_MESSAGE ? `${message.slice(0, LONGEST_MESSAGE)} …` : message;
      return el("span", { title: message }, text);
    }
    const load = () => {
      this.messages.set(url.href, "Reading the log …");
      read(url, this.abort.signal)
        .then(({ content }) => errorIn(content))
        .catch((error) => (error.status === 403 ? "You may not read this log" : `The log: ${error.message}`))
        .then((text) => this.messages.set(url.href, text))
        .then(() => this.redraw());
    };
    if (!now) {
      const show = () => (load(), this.redraw());
      return el("button", { onclick: show, "data-key": url.href }, "Show message");
    }
    load();
    return "Reading the log …";
  }

  drawService(data, section) {
    if (!data.connections.length) {
      return [el("p", {}, "You may not read connections, or none of the type webcollect is known.")];
    }
    const choose = (event) => {
      this.connection = event.target.value;
      this.readService();
    };
    const options = data.connections.map((name) =>
      el("option", { value: name, selected: name === data.connection_id }, name),
    );
    const select = el("select", { onchange: choose, "data-key": "connection" }, options);
    return [
      el("label", {}, "Connection ", select),
      block("capacity", "Capacity", data.capacity, drawCapacity),
      block("token", "Access token", data.token, drawToken),
      block("tasks", "Collection tasks", data.tasks, drawTasks),
      block("days", "The last 30 days", data.days, (value) => drawDays(value, section)),
    ];
  }
}

/** Return a part of what the service tells, with how old it is and what is wrong. */
function block(key, title, { value, read_at, problem }, draw) {
  const age = el("span", { class: "age" }, read_at ? ["as of ", time(read_at)] : "");
  const note = problem ? el("p", { class: "note", role: "status" }, `${problem}. This is the last known.`) : null;
  const waiting = read_at || problem ? null : el("p", {}, "The service is asked …");
  const drawn = read_at ? draw(value) : waiting;
  return el("div", { class: "block", "data-block": key }, el("h3", {}, title, age), note, drawn);
}

function drawCapacity(counts) {
  const entries = Object.entries(COUNTS).map(([name, text]) =>
    el("div", {}, el("dt", {}, text), el("dd", { "data-count": name }, number(counts[name]))),
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
  if (!tasks.length) return el("p", {}, "No asset and no landing of this connection names a collection task.");
  const rows = tasks.map((task) =>
    el(
      "tr",
      { "data-collection-task": task.task },
      cells(task.task, task.status),
      numeric(number(task.rows)),
      numeric(number(task.sub_tasks)),
      numeric(number(task.runs)),
      // as the service tells them: they have no time zone, unless the connection names one
      cells(...[task.started, task.ended, task.next_run].map((text) => text?.replace("T", " ").slice(0, 19) ?? "–")),
    ),
  );
  const heads = ["Collection task", "State", "Rows", "Sub-tasks", "Runs", "Started", "Ended", "Next run"];
  return table("Collection tasks", heads, rows);
}

function drawDays({ days, thresholds }, section) {
  if (!days.length) return el("p", {}, "No run in these days.");
  const charts = DAY_CHARTS.map(({ metric, title, low, high }) => {
    const [least, most] = [thresholds[low], thresholds[high]];
    const values = days.map((day) => day[metric]);
    const isBeyond = (value) => value != null && ((least != null && value < least) || (most != null && value > most));
    const newest = days.at(-1);
    const text = `${format(metric, newest[metric])} on ${newest.day}`;
    const drawing = { values, marked: values.map(isBeyond), limits: [least, most], width: 300, height: 80 };
    const chart = section.chart(`${title}, ${days.length} days, ${text}`, drawing);
    return el("figure", { "data-chart": metric }, el("figcaption", {}, `${title}: ${text}`), chart);
  });
  return el("div", { class: "charts" }, charts);
}

/** Return the last error in the entries of a task's log. */
function errorIn(content) {
  for (const entry of content.toReversed()) {
    const raised = entry.error_detail?.at(-1);
    if (raised) return `${raised.exc_type}: ${raised.exc_value}`;
    if (["error", "critical"].includes(entry.level)) return entry.event;
  }
  return "The log has no error";
}

customElements.define("webcollect-page", WebCollectPage);
globalThis["Web collection"] = () => globalThis.React.createElement("webcollect-page");
