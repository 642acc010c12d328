/** The elements in the page's sections: landings and their details, items needing attention, waits, the service. */
import { dayChart, runStrip, shareStrip } from "./charts.js";
import {
  airflowAddress,
  airflowLink,
  button,
  cell,
  copyable,
  copyButton,
  el,
  elapsed,
  exactTime,
  numeric,
  outerLink,
  runLink,
  stateMark,
  Table,
  taskLink,
  time,
  told,
} from "./dom.js";
import {
  activityName,
  bytes,
  capacitySentence,
  clock,
  collectionName,
  columnsSentence,
  columnTexts,
  commitsLoaded,
  counted,
  DECISIONS,
  decidingLines,
  duration,
  exact,
  hasAssetName,
  hasZone,
  isPrintable,
  landingName,
  number,
  progress,
  quarantineSentence,
  readingLines,
  reasonOf,
  shortId,
  skippedText,
  stateOf,
  taskKey,
  UNKNOWN,
  wordOf,
} from "./logic.js";

const DAY_CHARTS = [
  { metric: "rows", title: "Rows per day", low: "rows_low", high: "rows_high" },
  { metric: "succeeded", title: "Share of successful runs", low: "succeeded_low" },
  { metric: "cost", title: "Cost per day", high: "cost_high" },
];
/** The number of Airflow tasks or runs of one item that are listed before it is unfolded. */
const LISTED = 5;
/** The maximum number of characters of a reason that are shown. */
const LONGEST = 300;
/** The number of columns of a landing that are shown before they are unfolded. */
const COLUMNS = 8;
/** The counts of keys that have changed since the whole run before, and the heads of their columns. */
const CHANGES = [
  ["new", "#New"],
  ["changed", "#Changed"],
  ["gone", "#Gone"],
];

// ---- Landings

export const LANDING_HEADS = [
  "State",
  "*Collection task",
  "DAG · task",
  "Latest runs",
  "#New rows",
  "#All rows",
  "Landed",
  "Next expected",
];

/** Return the row of a series; `toggle` shows or hides its details. */
export function landingRow(table, key, series, names, now, isOpen, toggle) {
  const newest = series.runs.at(-1) ?? {};
  const state = stateOf(series);
  const others = series.marks.filter((mark) => mark !== state);
  const ids = series.sources.map((source) => source.collection_task_id);
  const known = names[series.webcollect_conn_id];
  const unfold = button(landingName(series, names), toggle, {
    class: "unfold",
    "aria-expanded": String(isOpen),
    title: ids.map((id) => [known?.[id], id].filter(Boolean).join(", ")).join("\n") || null,
  });
  const usually = el(
    "small",
    {},
    newest.rows == null || newest.usual_rows == null ? "" : ` usually ${number(newest.usual_rows, 0)}`,
  );
  const task = { ...series, run_id: newest.run_id };
  return table.row(
    { "data-series": key, "data-marks": series.marks.join(" ") },
    stateMark(
      series.marks.length ? state : "landed",
      [state, ...others].map((mark) => wordOf(mark, series)).join(", "),
      series.retired ?? series.marks.map((mark) => reasonOf(series, mark, now)).join("; "),
    ),
    unfold,
    newest.run_id ? taskLink(task) : taskLink(series),
    runStrip(stripLabel(series), series.runs, runTitle),
    cell({ "data-rows": newest.rows, "data-bytes": newest.bytes }, number(newest.rows), usually),
    // a failed run does not change the rows that have landed
    numeric(series.runs.findLast((run) => run.state !== "failed")?.total_rows),
    time(series.landed_at),
    series.retired ? `no more: ${series.retired}` : series.is_paused ? "paused" : time(series.expected_at),
  );
}

function stripLabel({ runs }) {
  const counts = Map.groupBy(runs, (run) => run.state);
  const rest = ["failed", "quarantined", "empty"].filter((state) => counts.has(state));
  const said = rest.map((state) => `${number(counts.get(state).length)} ${state}`);
  const odd = runs.filter((run) => run.is_odd).length;
  return [`New rows of the latest ${counted(runs.length, "run")}`, ...said, odd ? `${odd} odd` : []].flat().join(", ");
}

function runTitle(run, isCapped) {
  const when = exact(run.ended_at, told.zone);
  if (run.state === "failed") return `${when}: failed`;
  const usual = run.usual_rows == null ? "" : `, usually ${number(run.usual_rows, 0)}`;
  const apart = run.quarantined_rows ? `, ${number(run.quarantined_rows)} quarantined` : "";
  return `${when}: ${counted(run.rows, "row")}${apart}${usual}${isCapped ? " (the bar is cut)" : ""}`;
}

/**
 * Return the row below a series' row, with all details of the series.
 *
 * :param details: `{ data, problem }` of its columns, rows and loads; `act` opens the columns that are not shown yet.
 */
export function landingDetails(series, names, links, details, now, act) {
  const known = names[series.webcollect_conn_id];
  const fact = (name, ...content) => [el("dt", {}, name), el("dd", {}, content)];
  const stored = links.map(([name, address]) => outerLink(name, address ?? "")).filter((link) => link.href);
  const isOne = series.sources.length < 2;
  const [source] = series.sources;
  // with several sources, each has a folder of its own, even if there is only one
  const manifest = isOne ? series.manifests[0] : null;
  const landing = manifest?.replace(/\/_manifest\.json$/, "") ?? series.destination;
  const lines = isOne && landing ? readingLines(landing, series.object_storage_conn_id) : null;
  const facts = el(
    "dl",
    {},
    landing && fact("Destination", copyable(landing, "the destination", outerLink(landing, landing))),
    isOne && series.manifests.map((path) => fact("Manifest", copyable(path, "the manifest", outerLink(path, path)))),
    isOne &&
      source &&
      fact("Collection task", known?.[source.collection_task_id], " ", copyable(source.collection_task_id, "the id")),
    hasAssetName(series)
      ? fact("Asset", airflowLink(series.asset.name, "assets", series.asset_id))
      : fact("Asset", copyable(series.asset.uri, "the asset's URI")),
    fact("Connection", series.webcollect_conn_id),
    lines && fact("Read in Python", copyable(lines.python, "the line of Python")),
    lines?.shell && fact("Read in a shell", copyable(lines.shell, "the shell command")),
    stored.length ? fact("Links", el("span", { class: "links" }, stored)) : null,
    fact("DAG", airflowLink(series.dag_id, "dags", series.dag_id), ", to trigger it"),
  );
  const inputs = series.sources.filter((each) => each.missing_inputs).map((each) => inputsBlock(each, isOne, known));
  const sources = isOne ? null : sourcesTable(series, known);
  const content = [
    facts,
    inputs,
    columnsBlock(series, known, details.columns, now, act),
    rowsBlock(series, known, details.rows),
    loadsBlock(series, details.loads),
    sources,
    runsTable(series),
  ];
  return el("tr", { class: "details" }, cell({ colspan: LANDING_HEADS.length }, content));
}

/** Return the list of a collection task's inputs, such as words or URLs, that have no row. */
function inputsBlock({ collection_task_id: id, missing_inputs: { inputs, left_out } }, isOne, known) {
  const of = isOne ? "" : ` of ${collectionName([id], known)}`;
  const items = inputs.map((item) => el("li", {}, el("code", {}, item)));
  const title = `${counted(inputs.length + left_out, "input")}${of} without a row in the newest run:`;
  const left = el("p", { class: "left" }, leftOut(left_out, "input"));
  return el("div", { "data-inputs": id }, el("p", {}, title), el("ul", {}, items), left);
}

function columnsBlock(series, known, { data, problem, isOpen }, now, act) {
  const note = problem && el("p", { role: "status" }, `Its columns cannot be read. ${problem}`);
  if (!data?.columns.length) return note;
  const { column: worst, text } = columnsSentence(data, told.zone, now);
  // several collection tasks may have columns of the same name
  const nameOf = ({ collection_task_id: id, name }) =>
    series.sources.length > 1 ? `${name} of ${collectionName([id], known)}` : name;
  const sentence = el("p", { "data-sentence": "columns" }, worst && [el("code", {}, nameOf(worst)), " "], text);
  const table = new Table("Columns", ["*Column", "Filled in the latest runs", "Newest run, or the one pointed at"]);
  const draw = (column) => {
    const line = el("span", { class: "told" });
    const texts = columnTexts(column, data.runs, told.zone, now);
    const strip = shareStrip({ ...column, name: nameOf(column) }, texts, line);
    return table.row({ "data-column": column.name }, el("code", {}, nameOf(column)), strip, line);
  };
  const shown = isOpen ? data.columns : data.columns.slice(0, COLUMNS);
  table.show(shown.map((column, index) => ({ key: index, facts: 0, draw: () => draw(column) })));
  const more = data.columns.length - shown.length;
  const unfold = more ? button(counted(more, "more column"), act.openColumns, { class: "quiet" }) : null;
  const left = el("p", { class: "left" }, leftOut(data.left_out, "column"));
  return el("div", { class: "columns" }, note, sentence, table.element, unfold, left);
}

/** Return the first rows that the newest run with rows has landed. */
function rowsBlock(series, known, { data, problem }) {
  if (problem) return el("p", { role: "status" }, `Its rows cannot be read: ${problem}`);
  if (!data) return null;
  const of = series.sources.length > 1 ? ` of ${collectionName([data.collection_task_id], known)}` : "";
  return rowsTable(`The first rows${of} that the newest run with rows has landed`, data);
}

/** Return rows as a table, with the rules that each row broke, if they are known. */
export function rowsTable(title, data) {
  const isBroken = data.broke.some(Boolean);
  const columns = isBroken ? ["Broken rules", ...data.columns] : data.columns;
  const heads = columns.map((name) => el("th", { scope: "col" }, name));
  const cellOf = (value, index) => el("td", { "data-head": columns[index] }, value ?? UNKNOWN);
  const draw = (row, index) => el("tr", {}, (isBroken ? [data.broke[index], ...row] : row).map(cellOf));
  const table = el(
    "table",
    { "aria-label": title, "data-sample": data.rows.length },
    el("thead", {}, el("tr", {}, heads)),
    el("tbody", {}, data.rows.map(draw)),
  );
  const left = el("p", { class: "left" }, leftOut(data.left_out, "column"));
  // a scrolling region needs a tabindex, so that the keyboard reaches it
  const region = { class: "scroll sample", tabindex: 0, role: "region", "aria-label": title };
  return el("div", {}, el("p", {}, `${title}:`), el("div", region, table), left);
}

/** Return the tables that the rows were loaded into, as far as Airflow knows them. */
function loadsBlock(series, { data, problem }) {
  if (problem) return el("p", { role: "status" }, `Its loads cannot be read: ${problem}`);
  if (!data?.loads.length) return null;
  const heads = ["*Table", "Connection", "DAG · task", "#Rows", "Loaded", "Up to commit", "Left out"];
  const table = new Table("Where its rows were loaded to, by the last load of rows", heads);
  const draw = (load) =>
    table.row(
      { "data-load": load.table },
      load.table,
      load.warehouse_conn_id ?? UNKNOWN,
      taskLink(load),
      numeric(load.rows),
      time(load.ended_at),
      commitsLoaded(load, series),
      skippedText(load),
    );
  table.show(data.loads.map((load, index) => ({ key: index, facts: 0, draw: () => draw(load) })));
  return table.element;
}

function sourcesTable(series, known) {
  const table = new Table("Collection tasks of the newest landing", [
    "State",
    "*Collection task",
    "Id",
    "#Rows",
    "#Usually",
    "#Commit",
    "Manifest",
    "Copy",
  ]);
  const draw = ({ collection_task_id: id, rows, usual_rows, commit, mark, checks }, index) => {
    const isBad = checks.length > 0;
    const word = isBad ? wordOf("checks", { sources: [{ checks }] }) : (mark ?? (rows === 0 ? "empty" : "landed"));
    const path = series.manifests[index] ?? "";
    // most manifests are below the destination, which need not be repeated
    const code = el("code", { title: path }, path.replace(`${series.destination}/`, ""));
    const lines = readingLines(path, series.object_storage_conn_id);
    const copies = [
      isPrintable(path) && copyButton(path, `the manifest of ${id}`, code, "Manifest"),
      copyButton(lines.python, `the line of Python that reads ${id}`, code, "Python"),
      lines.shell && copyButton(lines.shell, `the shell command that reads ${id}`, code, "Shell"),
    ];
    return table.row(
      { "data-source": id },
      stateMark(isBad ? "checks" : (mark ?? "landed"), word, checks.map(({ text }) => text).join("; ") || null),
      collectionName([id], known),
      copyable(id, "the id"),
      numeric(rows),
      numeric(usual_rows),
      numeric(commit),
      code,
      el("span", { class: "copies" }, path && copies),
    );
  };
  table.show(
    series.sources.map((each, index) => ({
      key: each.collection_task_id,
      facts: 0,
      draw: () => draw(each, index),
    })),
  );
  return table.element;
}

function runsTable(series) {
  const hasManifests = series.runs.some((run) => run.manifests);
  const changes = series.runs.some((run) => run.changes) ? CHANGES : [];
  const counts = ["#Rows", ...changes.map(([, head]) => head), "#Rows in all", "#Commit", "#Bytes", "#Duration"];
  const heads = ["State", "*DAG run", "Logical date", "Ended", ...counts, ...(hasManifests ? ["Manifest"] : [])];
  const table = new Table("Runs, the newest first", heads);
  const draw = (run) => {
    const state = run.is_odd ? "odd" : run.state;
    const usual = run.usual_rows == null ? null : `usually ${number(run.usual_rows, 0)}`;
    const apart = run.quarantined_rows ? `${counted(run.quarantined_rows, "row")} quarantined` : null;
    const cells = [
      stateMark(state, state, apart ?? usual),
      runLink({ ...series, ...run }, run.run_id),
      exactTime(run.logical_date),
      exactTime(run.ended_at),
      cell({ title: usual }, number(run.rows)),
      ...changes.map(([change]) => numeric(run.changes?.[change])),
      numeric(run.total_rows),
      numeric(run.commit),
      bytes(run.bytes),
      duration(run.duration, 1),
    ];
    if (hasManifests) cells.push((run.manifests ?? []).map((path) => copyable(path, "the manifest")));
    return table.row({ "data-run": run.run_id, "data-rows": run.rows }, ...cells);
  };
  table.show(series.runs.map((run) => ({ key: run.run_id, facts: 0, draw: () => draw(run) })).reverse());
  return el("div", { class: "scroll" }, table.element);
}

// ---- What needs attention

/** Return the element for an item of `attention`; `act` has the actions of its buttons. */
export function attentionItem(item, names, now, act) {
  const { kind, failures, series, task } = item;
  if (failures) return failureItem(item, names, act);
  if (kind === "quarantined") return quarantineItem(item, names, now, act);
  if (task) {
    const until = ["works or waits for ", elapsed(task.since), ", times out ", time(task.timeout_at)];
    return listItem(kind, "near timeout", [activityName(task, names)], until, [taskLink(task)]);
  }
  const show = button(landingName(series, names), () => act.reveal(series), { class: "text" });
  const links = [taskLink({ ...series, run_id: series.runs.at(-1)?.run_id })];
  if (kind === "late") links.push(airflowLink("DAG, to trigger it", "dags", series.dag_id));
  return listItem(kind, wordOf(kind, series), [show], [reasonOf(series, kind, now)], links);
}

function quarantineItem({ kind, key, series }, names, now, act) {
  const { quarantines } = series;
  const listed = act.isOpen(key) ? quarantines : quarantines.slice(0, LISTED);
  const more = quarantines.length - listed.length;
  const lines = listed.map((each) => {
    const facts = [`, ${counted(each.rows, "row")}, `, time(each.ended_at)];
    const decisions = each.waiting.map((waiting) => decisionButtons(series, each, waiting, names, act));
    const run = each.is_known ? runLink({ ...series, ...each }, each.run_id) : each.run_id;
    return el("li", {}, run, facts, decisions);
  });
  const body = el(
    "div",
    {},
    el("strong", {}, button(landingName(series, names), () => act.reveal(series), { class: "text" })),
    " ",
    el("span", { class: "reason" }, quarantineSentence(series, told.zone, now)),
    el("ul", {}, lines),
    more ? button(`${number(more)} more`, () => act.open(key), { class: "quiet" }) : null,
  );
  return el("li", { "data-attention": kind }, stateMark(kind), body);
}

/** Return the buttons that decide on quarantined rows; users who may not decide get shell commands instead. */
function decisionButtons(series, { object_storage_conn_id }, { collection_task_id, landing, commit }, names, act) {
  const lines = decisionLines(landing, object_storage_conn_id, commit);
  if (!series.may_decide) return lines;
  const isOne = series.sources.length < 2;
  const known = names[series.webcollect_conn_id];
  const name = isOne ? landingName(series, names) : collectionName([collection_task_id], known);
  const draw = ([decision, verb]) => {
    const open = () => act.decide(decision, { series, landing, commit }, name, [lines]);
    return button(`${verb} …`, open, { "aria-label": `${verb} … the rows of commit ${commit} in ${name}` });
  };
  const which = `${isOne ? "" : `${name}, `}commit ${commit}`;
  return el("div", { class: "decision" }, which, Object.entries(DECISIONS).map(draw));
}

/** Return the shell commands that show quarantined rows and decide on them, with buttons that copy them. */
function decisionLines(landing, connection, commit) {
  const rows = `the rows of commit ${commit} at ${landing}`;
  const draw = ([does, line]) => line && copyable(line, `the line that ${does} ${rows}`);
  const lines = decidingLines(landing, connection, commit);
  return el("div", { class: "decision" }, Object.entries(lines).map(draw));
}

function listItem(kind, word, head, text, links) {
  const body = el("div", {}, el("strong", {}, head), " ", el("span", { class: "reason" }, text));
  return el("li", { "data-attention": kind }, stateMark(kind, word), body, el("div", { class: "links" }, links));
}

function failureItem({ key, failures, message }, names, act) {
  const [failure] = failures;
  const willRetry = failures.every((each) => each.will_retry);
  const isOne = failures.length === 1;
  const head = isOne ? taskLink(failure) : `${number(failures.length)} tasks:`;
  const reason = message ? shortened(message) : button("Show the reason", () => act.readMessage(failure));
  const isOpen = act.isOpen(key);
  const listed = isOpen ? failures : failures.slice(0, LISTED);
  const more = failures.length - listed.length;
  const list = isOne
    ? null
    : el(
        "ul",
        {},
        listed.map((each) => el("li", {}, taskLink(each), " ", failureFacts(each, names))),
      );
  const unfold = more ? button(`${number(more)} more`, () => act.open(key), { class: "quiet" }) : null;
  const canRetry = act.canRetry(failure) ? button("Read the log again", () => act.readMessage(failure)) : null;
  const body = el(
    "div",
    {},
    el("strong", {}, head),
    " ",
    el("span", { class: "reason message" }, reason),
    " ",
    canRetry,
    isOne ? el("div", { class: "facts" }, failureFacts(failure, names)) : null,
    list,
    unfold,
  );
  const attributes = { "data-attention": "failure", "data-failure": failures.map(taskKey).join(" ") };
  return el("li", attributes, stateMark("failure", willRetry ? "up for retry" : "failed"), body);
}

function failureFacts(each, names) {
  const name = each.collection_task_ids?.length === 0 ? [] : [activityName(each, names), ", "];
  const retry = each.will_retry ? ", Airflow will try it again" : "";
  return el(
    "span",
    { class: "facts" },
    name,
    each.try_number > 1 ? `try ${number(each.try_number)}, ` : null,
    time(each.ended_at),
    retry,
    " ",
    el(
      "span",
      { class: "links" },
      taskLink(each, "Open the log", each.try_number),
      taskLink(each, "Clear it in Airflow"),
    ),
  );
}

function shortened(text) {
  const isLong = text.length > LONGEST;
  return el("span", { title: isLong && text }, isLong ? `${text.slice(0, LONGEST)} …` : text);
}

/** Return the item for a failure after which a later run has succeeded. */
export function recoveredItem(each) {
  const links = [taskLink(each, "Open the log", each.try_number)];
  const when = ["failed ", time(each.ended_at), ", succeeded ", time(each.recovered_at)];
  return listItem("landed", "recovered", [taskLink(each)], when, links);
}

// ---- Running

export const RUNNING_HEADS = [
  "*Collection task",
  "State",
  "#Sub-tasks",
  "#Rows",
  "Since",
  "Timeout",
  "Airflow task",
  "Where",
];

export function runningRow(table, key, each, names, serviceTasks) {
  const { state, done, of, rows } = progress(each, serviceTasks);
  const ids = each.collection_task_ids;
  const share = of == null ? UNKNOWN : done == null ? number(of) : `${number(done)} of ${number(of)}`;
  const near = each.is_near_timeout ? [" ", stateMark("timeout", "near")] : null;
  return table.row(
    { "data-task": key },
    el(
      "span",
      { title: ids?.join("\n") || null },
      ids?.length === 0 ? (each.operator ?? UNKNOWN) : activityName(each, names),
    ),
    state ?? each.state?.replaceAll("_", " ") ?? UNKNOWN,
    share,
    numeric(rows),
    elapsed(each.since),
    el("span", {}, time(each.timeout_at), near),
    taskLink(each),
    each.way,
  );
}

// ---- The service

export function serviceSentences({ capacity, token }) {
  const counts = capacity?.read_at ? capacitySentence(capacity.value) : null;
  const said = [];
  if (counts) said.push(el("p", { "data-sentence": "capacity" }, `${counts}.`));
  if (token?.read_at) said.push(el("p", { "data-sentence": "token" }, tokenSentence(token.value)));
  return el("div", {}, said);
}

function tokenSentence(token) {
  if (!token) return "Access token: none is stored, since no process has needed a new one.";
  const by = token.stored_by ? ` by ${token.stored_by}` : "";
  const end = token.expires_at ? [", ends ", time(token.expires_at)] : [];
  return ["Access token: stored ", time(token.stored_at), by, end, "."];
}

const TASK_HEADS = ["*Collection task", "State", "#Rows", "#Sub-tasks", "#Runs"];
const TASK_TIMES = { started: "Started", ended: "Ended", next_run: "Next run" };

export function tasksTable(label, tasks, names) {
  const isLocal = (name) => tasks.some((task) => task[name] && !hasZone(task[name]));
  const times = Object.entries(TASK_TIMES).map(([name, head]) => (isLocal(name) ? `${head} (service's time)` : head));
  const table = new Table(label, [...TASK_HEADS, ...times]);
  const draw = (task) =>
    table.row(
      { "data-collection-task": task.task },
      el("span", { title: task.task }, names?.[task.task] ?? shortId(task.task)),
      task.status ?? UNKNOWN,
      numeric(task.rows),
      task.sub_tasks_done == null
        ? number(task.sub_tasks)
        : `${number(task.sub_tasks_done)} of ${number(task.sub_tasks)}`,
      numeric(task.runs),
      ...Object.keys(TASK_TIMES).map((name) => time(task[name])),
    );
  table.show(tasks.map((task) => ({ key: task.task, facts: task, draw: () => draw(task) })));
  return table.element;
}

export function dayCharts(value) {
  const { days = [], thresholds = {} } = value ?? {};
  if (!days.length) return el("p", {}, "The service shows no run in the last 30 days.");
  return el(
    "div",
    { class: "charts" },
    DAY_CHARTS.map((chart) => dayChart(chart, days, thresholds)),
  );
}

/** Return the note about a service that does not answer or has other problems. */
export function troubleNote({ since, lastKnown, problems }, now, titles) {
  const last = (moment) => (moment ? `last known ${clock(moment, told.zone, now)}` : "nothing of it is known yet");
  const silence =
    since &&
    el(
      "div",
      {},
      `The service has not answered since ${clock(since, told.zone, now)} (`,
      // screen readers announce that the service does not answer, but not each second that passes
      el("span", { "aria-live": "off" }, elapsed(since)),
      `); ${last(lastKnown)}.`,
    );
  const said = problems.map(({ problem, names, lastKnown: moment }) => {
    const about = names.length ? `${names.map((name) => titles[name]).join(", ")}: ` : "";
    const known = since ? "" : `; ${last(moment)}`;
    return el("div", {}, `${about}${problem.replace(/\.$/, "")}${known}.`);
  });
  return el("div", {}, silence, said);
}

// ---- Nothing yet

const LINES = `from airflow_provider_webcollect import WebCollectToObjectStorageOperator

WebCollectToObjectStorageOperator(
    task_id="land",
    collection_task_id="the collection task's id",
    destination="s3://aws_default@my-bucket/prices",
)`;

/** Return the first steps, shown until rows have landed; `connections` is null if they are not known. */
export function firstSteps(connections) {
  const isConnected = Boolean(connections?.length);
  const link = el("a", { href: airflowAddress("connections").href }, "Airflow's connections");
  const done = isConnected ? stateMark("landed", "done") : null;
  // `copyable` would offer no button, since the text has line ends
  const code = el("code", {}, LINES);
  return el(
    "ol",
    { class: "steps" },
    el("li", {}, el("strong", {}, "Add a connection"), " of the type Web Data Collection in ", link, ". ", done),
    el(
      "li",
      {},
      el("strong", {}, "Land rows"),
      " by a DAG with this operator, and run it. Its landing appears here.",
      el("pre", {}, el("span", { class: "copyable" }, code, copyButton(LINES, "the lines", code))),
      airflowLink("DAGs", "dags"),
    ),
  );
}

export function leftOut(count, what) {
  return count ? `${counted(count, `more ${what}`)} ${count === 1 ? "is" : "are"} not shown` : "";
}
