/** The texts and decisions of the page and the tile that need no DOM: names, formats, states, filters. */

export const UNKNOWN = "—";
const DAY = 86_400;

// ---- Numbers and texts

/** Formatters by their arguments, kept because making one takes far longer than using it, and runs are thousands. */
const formatters = new Map();

function formatter(kind, ...facts) {
  const key = JSON.stringify([kind.name, facts]);
  if (!formatters.has(key)) formatters.set(key, new kind(...facts));
  return formatters.get(key);
}

export function number(value, digits = 2) {
  if (value == null) return UNKNOWN;
  return formatter(Intl.NumberFormat, "en", { maximumFractionDigits: digits }).format(value);
}

export function bytes(value) {
  if (value == null) return UNKNOWN;
  const power = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${number(value / 1000 ** power, 1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export function share(value) {
  return value == null ? UNKNOWN : `${number(value * 100, 0)} %`;
}

/** Return a limit rounded to three digits, for reading. */
export function rounded(value) {
  return Number(value.toPrecision(3));
}

export function counted(count, one, several = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : several}`;
}

/** Return a number of seconds in the largest fitting unit. */
export function duration(seconds, digits = 0) {
  if (seconds == null) return UNKNOWN;
  const units = [
    ["d", DAY],
    ["h", 3_600],
    ["min", 60],
  ];
  const [unit, size] = units.find(([, length]) => seconds >= 1.5 * length) ?? ["s", 1];
  return `${number(seconds / size, digits)} ${unit}`;
}

/** Characters that Python's `isprintable` rejects: control characters, lone surrogates, separators except the space. */
const UNPRINTABLE = /(?! )[\p{C}\p{Z}]/gu;

/** Return whether a text is safe to paste: unprintable characters control a terminal, or hide what a command does. */
export function isPrintable(text) {
  return text.search(UNPRINTABLE) < 0;
}

/** Return a text as a printable Python literal; Python understands JSON's escapes. */
function pythonString(text) {
  const escaped = (character) => `\\U${character.codePointAt(0).toString(16).padStart(8, "0")}`;
  return JSON.stringify(text).replaceAll(UNPRINTABLE, escaped);
}

/** Return a text as one word of a POSIX shell. */
function shellWord(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// ---- Moments

export function hasZone(moment) {
  return /(Z|[+-]\d\d:?\d\d)$/i.test(moment ?? "") && !Number.isNaN(Date.parse(moment));
}

/** Return the time zone that the user has chosen in Airflow, which stores it as JSON; by default the browser's zone. */
export function chosenZone(stored) {
  const browser = new Intl.DateTimeFormat().resolvedOptions().timeZone;
  try {
    const name = JSON.parse(stored);
    if (typeof name !== "string" || name === "local") return browser;
    // not the resolved name, which may be an older one, such as Asia/Calcutta
    return new Intl.DateTimeFormat("en", { timeZone: name }) && name;
  } catch {
    return browser;
  }
}

/** Return a zone's offset from UTC at a moment, such as `+02:00`. */
export function offset(zone, now) {
  const parts = new Intl.DateTimeFormat("en", { timeZone: zone, timeZoneName: "longOffset" }).formatToParts(now);
  return parts.find((part) => part.type === "timeZoneName").value.replace("GMT", "") || "+00:00";
}

/** Return a moment as date and time in a zone; the service sends moments without a zone, which are not converted. */
export function exact(moment, zone) {
  if (!moment) return UNKNOWN;
  if (!hasZone(moment)) return String(moment).replace("T", " ").slice(0, 19);
  const look = { timeZone: zone, dateStyle: "short", timeStyle: "medium" };
  return formatter(Intl.DateTimeFormat, "sv", look).format(new Date(moment));
}

/** Return a moment as `exact` does, without the date if it is today. */
export function clock(moment, zone, now) {
  const [date, time] = exact(moment, zone).split(" ");
  return date === exact(new Date(now).toISOString(), zone).split(" ")[0] ? time : `${date} ${time}`;
}

/** Return a moment's day in a zone, `3 November`, with the year if it is not this one, and with the time if wanted. */
export function day(moment, zone, now, isTimed = false) {
  const year = (instant) => formatter(Intl.DateTimeFormat, "en", { timeZone: zone, year: "numeric" }).format(instant);
  const look = { timeZone: zone, day: "numeric", month: "long" };
  if (year(new Date(moment)) !== year(new Date(now))) look.year = "numeric";
  if (isTimed) Object.assign(look, { hour: "2-digit", minute: "2-digit" });
  return formatter(Intl.DateTimeFormat, "en-GB", look).format(new Date(moment));
}

export function relative(moment, now) {
  const seconds = (Date.parse(moment) - now) / 1000;
  return seconds > 1 ? `in ${duration(seconds)}` : `${duration(Math.max(0, -seconds))} ago`;
}

// ---- The data and its age

function isBefore(one, other) {
  return (Date.parse(one ?? "") || 0) < (Date.parse(other ?? "") || 0);
}

/** Return whether a response is older than the data shown: each API server process has its own cache. */
export function isStale(came, shown) {
  return isBefore(came?.read_at, shown?.read_at);
}

/**
 * Return the newest data about a part of the service, from the data shown and the data that has come.
 *
 * The service counts as not answering until data was read later, or until there is another problem.
 */
export function newestKnown(shown, came) {
  const isOlder = isStale(came, shown);
  const known = { ...(isOlder ? shown : came) };
  const isOver = !isOlder && came.problem && !came.unanswered_since;
  const waits = isOver ? [] : [shown, came].filter((each) => each?.unanswered_since);
  const last = waits.find((each) => !isBefore(each.unanswered_since, known.read_at));
  return { ...known, unanswered_since: last?.unanswered_since ?? null };
}

/** Return the moment that the page is as old as: the oldest of the moments within a minute of the newest. */
export function pageAge(moments) {
  const known = moments.filter(Boolean).sort((one, other) => Date.parse(one) - Date.parse(other));
  return known.find((moment) => !isMuchOlder(moment, known.at(-1))) ?? null;
}

export function isMuchOlder(moment, newest) {
  return Date.parse(newest) - Date.parse(moment) > 60_000;
}

// ---- Names

/** Return a key that identifies an Airflow task, or its landings of an asset. */
export function identity(...parts) {
  return parts.map((part) => part ?? "").join("/");
}

export function taskKey(each) {
  return identity(each.dag_id, each.run_id, each.task_id, each.map_index ?? -1);
}

export function seriesKey(each) {
  // two assets may have the same URI, so the id comes first
  return identity(each.dag_id, each.task_id, each.map_index ?? -1, each.asset_id ?? each.asset?.uri);
}

export function isMapped(each) {
  return each.map_index != null && each.map_index >= 0;
}

export function taskName(each) {
  return `${each.dag_id} · ${each.task_id}${isMapped(each) ? `[${each.map_index}]` : ""}`;
}

export function shortId(id) {
  return /^[0-9a-f]{8}-[0-9a-f-]{27}$/i.test(id) ? `${id.slice(0, 8)}…` : id;
}

/** Return the name of collection tasks, from their file or the service; without one, `another` or a short id. */
export function collectionName(ids, names, another = null) {
  if (ids.length > 1) return [another, counted(ids.length, "collection task")].filter(Boolean).join(" · ");
  return names?.[ids[0]] ?? another ?? (ids.length ? shortId(ids[0]) : UNKNOWN);
}

function sourceIds(series) {
  return series.sources.map((source) => source.collection_task_id);
}

/** Return whether a series' asset has a name that is not its URI. */
export function hasAssetName({ asset }) {
  return asset.name !== asset.uri;
}

/** Return the name of a series' asset; null if it says no more than the ids of the series' sources. */
function assetName(series) {
  const { name = "", uri = "" } = series.asset ?? {};
  const ids = sourceIds(series);
  // an asset's name is its URI unless the DAG's author has set another name, which says more than several ids
  const isUsable = name && !name.startsWith("webcollect://") && (ids.length < 2 || name !== uri);
  return isUsable ? name : null;
}

export function landingName(series, names) {
  const batch = series.lotno ? `, batch ${series.lotno}` : "";
  return collectionName(sourceIds(series), names?.[series.webcollect_conn_id], assetName(series)) + batch;
}

/** Return the names of the file and the service; without one, a collection task has the name of an asset of its own. */
export function withAssets(names, series) {
  const all = {};
  const isUri = (each) => Number(!hasAssetName(each));
  for (const each of series.toSorted((one, other) => isUri(one) - isUri(other))) {
    const [id, ...others] = sourceIds(each);
    const name = assetName(each);
    if (id && name && !others.length) (all[each.webcollect_conn_id] ??= {})[id] ??= name;
  }
  for (const [connection, known] of Object.entries(names)) all[connection] = { ...all[connection], ...known };
  return all;
}

/** Return the name of an Airflow task's collection tasks, whose ids are null if they are not known. */
export function activityName({ collection_task_ids: ids, webcollect_conn_id }, names) {
  return ids === null ? "collection tasks not known here" : collectionName(ids ?? [], names?.[webcollect_conn_id]);
}

// ---- Landings

/** The marks that the server sets, the most serious first. */
export const STATES = ["failed", "checks", "late", "odd", "empty"];

/** Return the word for a mark of a series. */
export function wordOf(mark, series) {
  if (mark !== "checks") return mark;
  const outcomes = series.sources.flatMap((source) => source.checks);
  return outcomes.some(({ state }) => state === "failed") ? "failed checks" : "warning";
}

/** Return `retired`, or the most serious mark of a series; without a mark, the state of its newest run. */
export function stateOf(series) {
  return series.retired ? "retired" : (series.marks[0] ?? series.runs.at(-1)?.state ?? "landed");
}

/** Return the reason why a series has a mark. */
export function reasonOf(series, mark, now) {
  const newest = series.runs.at(-1) ?? {};
  if (mark === "late") {
    const last = series.landed_at ? `; the last landing was ${relative(series.landed_at, now)}` : "";
    const expected = series.expected_at ? `expected ${relative(series.expected_at, now)}` : "nothing has landed";
    return `${expected}, usually every ${duration(series.usual_seconds)}${last}`;
  }
  if (mark === "failed") return `the newest run has failed ${relative(newest.ended_at, now)}`;
  const isChecks = mark === "checks";
  const reason = isChecks ? checksOf : rowsOf;
  const some = series.sources.filter((source) => (isChecks ? source.checks.length : source.mark === mark));
  if (series.sources.length < 2 || !some.length) return reason(isChecks ? some[0] : newest);
  const others = some.length > 1 ? ", …" : "";
  return `${number(some.length)} of ${counted(series.sources.length, "collection task")}: ${reason(some[0])}${others}`;
}

/** Return the checks that a source's rows have not passed. */
function checksOf({ checks, checks_left_out }) {
  const said = checks.map(({ state, text }) => (state === "warning" ? `warning of ${text}` : text));
  return [...said, checks_left_out ? `and ${number(checks_left_out)} more` : []].flat().join("; ");
}

function rowsOf({ rows, usual_rows }) {
  return `${counted(rows, "row")}${usual_rows == null ? "" : `, usually ${number(usual_rows, 0)}`}`;
}

/** Return the series by their most serious mark, then the others, then retired ones, each in the server's order. */
export function inOrder(series) {
  const rank = (each) => (each.marks.length ? STATES.indexOf(stateOf(each)) : STATES.length + Number(!!each.retired));
  return series.toSorted((one, other) => rank(one) - rank(other));
}

/**
 * Return the highest value of a chart's axis, and which values exceed it.
 *
 * The first full load has far more rows than all others, whose bars would be flat if the axis had room for it.
 */
export function cappedAxis(values, times = 3) {
  const known = values.filter((value) => value > 0).sort((one, other) => one - other);
  const highest = known.at(-1) ?? 0;
  const limit = known.length > 2 ? times * known[Math.floor((known.length - 1) / 2)] : Infinity;
  const top = Math.min(highest, limit);
  return { top, capped: values.map((value) => value > top) };
}

/** Return a sentence about quarantined rows; decisions made outside the page are not known. */
export function quarantineSentence({ quarantines }, zone, now) {
  const rows = sum(quarantines, "rows");
  const runs = quarantines.length > 1 ? ` of ${counted(quarantines.length, "run")}` : "";
  const when = `${runs && "the latest "}on ${day(quarantines[0].ended_at, zone, now)}`;
  const were = `${counted(rows, "row")}${runs} ${rows === 1 ? "was" : "were"} quarantined${runs && ","} ${when}`;
  return `${were}. A decision that was made elsewhere since the newest run is not shown here.`;
}

/** The decisions on quarantined rows, and the texts of their buttons. */
export const DECISIONS = { accept: "Accept", discard: "Discard" };

/** Return the text that says why rows are quarantined and what a decision on them does. */
export function decisionText(decision, { rows, run_id, is_whole, replaces, is_earlier }, name) {
  const these = `${counted(rows, "row")} of ${run_id} ${rows === 1 ? "is" : "are"} quarantined`;
  const why = is_whole
    ? `${these}: the run failed its checks.`
    : `${these}: each broke a rule about values. The rows that broke no rule have landed.`;
  const after = {
    accept: replaces
      ? `Accepted rows replace all rows that have landed in ${name}.`
      : `Accepted rows are added to ${name} as they are, in one commit. What loads its new rows loads them, too.`,
    discard: replaces
      ? `Discarded rows are deleted. ${name} stays as it is, and the next run reads the source again.`
      : `Discarded rows are deleted. ${name} skips them, and counts them as discarded.`,
  };
  const since = is_earlier ? " The landing has begun again since, and may have the same rows already." : "";
  return `${why} ${after[decision]}${since}`;
}

/**
 * Return a shell command for a landing; null if a word could be taken for an option, or control the terminal.
 *
 * :param connection: the connection of the landing's storage; null if its address has one, or needs none.
 * :param rest: the arguments after the landing.
 */
function landingLine(command, landing, connection, rest) {
  if ([landing, connection ?? ""].some((word) => word.startsWith("-") || !isPrintable(word))) return null;
  const option = connection ? ` --object-storage-conn-id ${shellWord(connection)}` : "";
  return `webcollect landing ${command} ${shellWord(landing)} ${rest}${option}`;
}

/** Return the connection of all sources; null if the address of the landing names its own connection. */
function connectionOf(landing, connection) {
  const [, scheme, bucket] = landing.match(/^([a-z][\w+.-]*):\/\/[^/@]*@([^/@]+)/i) ?? [];
  // in Azure's own addresses, the container precedes the @: abfss://container@account.dfs.core.windows.net/folder
  const isAzures = /^(abfss?|adl|az)$/i.test(scheme ?? "") && bucket.includes(".");
  return scheme && !isAzures ? null : connection;
}

/** Return the shell commands that show quarantined rows and decide on them; each may be null. */
export function decidingLines(landing, connection, commit) {
  const line = (command, rest) => landingLine(command, landing, connectionOf(landing, connection), rest);
  return {
    shows: line("cat", `--quarantined ${commit} --reasons`),
    accepts: line("accept", `--commit ${commit}`),
    discards: line("discard", `--commit ${commit}`),
  };
}

/** Return the lines that read a landing in Python and in a shell; the shell command may be null. */
export function readingLines(landing, connectionOfAll) {
  const connection = connectionOf(landing, connectionOfAll);
  const argument = connection ? `, object_storage_conn_id=${pythonString(connection)}` : "";
  return {
    python: `read_landing(${pythonString(landing)}${argument})`,
    shell: landingLine("sql", landing, connection, shellWord("select count(*) from landing")),
  };
}

// ---- Where the rows of a landing were loaded to

/** Return the commit up to which a table has the rows and, if it is known, the landing's last commit. */
export function commitsLoaded({ commit }, { sources }) {
  const last = sources.length === 1 ? sources[0].commit : null;
  if (commit == null || last == null) return number(commit);
  return commit < last ? `${number(commit)} of ${number(last)}` : `${number(commit)}, all of them`;
}

/** Maximum number of named parts that have rows that a load has left out. */
const PARTS = 3;

/** Return the text about the rows that a load has left out: how many, and in which parts. */
export function skippedText({ skipped_rows: rows, skipped }) {
  if (!rows) return "none";
  const parts = Object.entries(skipped ?? {});
  const named = parts.slice(0, PARTS).map(([part, count]) => `${number(count)} in ${part}`);
  if (parts.length > PARTS) named.push(`others in ${counted(parts.length - PARTS, "more part")}`);
  return `${counted(rows, "row")} without a key${named.length ? `: ${named.join(", ")}` : ""}`;
}

// ---- The columns of a landing

/** The smallest fall in the share of filled rows that is reported, as a share of 1. */
const TOLD_FALL = 0.05;

function median(values) {
  const sorted = values.toSorted((one, other) => one - other);
  const middle = sorted.length >> 1;
  return (sorted[middle] + sorted[sorted.length - 1 - middle]) / 2;
}

function mean(values) {
  return values.reduce((one, other) => one + other, 0) / values.length;
}

/**
 * Return the fall in a column's shares of filled rows, `{ before, since, last }`: the median share before and since the
 * fall, and the index of the last run before it. Null if there is no fall, or if the newest share is as before.
 *
 * :param shares: the share of each run, the oldest first; null where it is not known.
 */
export function fallOf(shares) {
  const known = shares.map((share, index) => ({ share, index })).filter(({ share }) => share != null);
  const values = known.map(({ share }) => share);
  let best = { weight: 0, at: 0 };
  for (let at = 1; at < values.length; at += 1) {
    const fall = mean(values.slice(0, at)) - mean(values.slice(at));
    // the best step leaves the least variance among the runs before it and among the runs after it
    const weight = fall > 0 ? at * (values.length - at) * fall ** 2 : 0;
    if (weight > best.weight) best = { weight, at };
  }
  if (!best.weight) return null;
  const [before, since] = [median(values.slice(0, best.at)), median(values.slice(best.at))];
  const isOver = values.at(-1) >= (before + since) / 2;
  return before - since < TOLD_FALL - 1e-9 || isOver ? null : { before, since, last: known[best.at - 1].index };
}

/** Return a share as the messages of checks do: rounded down, so that 100 % means all rows. */
function exactShare(value) {
  return `${number(Math.floor(Number((value * 1000).toFixed(6))) / 10, 1)} %`;
}

/** Return a function that shows the moment of a run: the day, with the time if several runs are of one day. */
function momentsOf(runs, zone, now) {
  const days = runs.map((run) => day(run.ended_at, zone, now));
  const isTimed = new Set(days).size < days.length;
  return (run) => day(run.ended_at, zone, now, isTimed);
}

/** Return a sentence about the column that has fallen most, `{ column, text }`; `column` is null if none has fallen. */
export function columnsSentence({ runs, columns }, zone, now) {
  const fallen = columns
    .map((column) => ({ column, fall: fallOf(column.shares) }))
    .filter(({ fall }) => fall)
    .sort((one, other) => other.fall.before - other.fall.since - (one.fall.before - one.fall.since));
  if (!fallen.length) return { column: null, text: "No column of what has landed is filled less than before." };
  const [{ column, fall }] = fallen;
  const { before, since, last } = fall;
  const others = fallen.length - 1;
  const more = `; ${counted(others, "other column")} ${others === 1 ? "is" : "are"} filled less than before, too`;
  const until = momentsOf(runs, zone, now)(runs[last]);
  const said = `was filled in ${exactShare(before)} of the rows until ${until}, in ${exactShare(since)} since`;
  return { column, text: `${said}${others ? more : ""}.` };
}

/** Return a text for each run: the share of filled rows in a column, and the checks that the column did not pass. */
export function columnTexts({ name, rows, shares, checks }, runs, zone, now) {
  const when = momentsOf(runs, zone, now);
  return runs.map((run, index) => {
    const part = `${exactShare(shares[index] ?? 0)} of ${counted(rows[index], "row")}`;
    const share = shares[index] == null ? null : `${name} was filled in ${part} on ${when(run)}`;
    const none = rows[index] ? "not counted" : { failed: "the run has failed", quarantined: "quarantined" }[run.state];
    return [share ?? `${when(run)}: ${none ?? "no rows"}`, checks[index]].filter(Boolean).join("; ");
  });
}

// ---- What needs attention

export const NO_ERROR = "failed without an error in its log; open the log";

/** Return the last error in the entries of a task's log: the exception that ended the task, not its cause. */
export function errorIn(content) {
  const entries = (Array.isArray(content) ? content : []).filter((entry) => entry && typeof entry === "object");
  const raised = entries.findLast((entry) => entry.error_detail?.length)?.error_detail[0];
  if (raised) return `${raised.exc_type}: ${raised.exc_value}`;
  const logged = entries.findLast((entry) => /^(error|critical)$/i.test(entry.level));
  return logged?.event ?? NO_ERROR;
}

/**
 * Return the items that need attention, the most serious first:
 * `{ key, kind, failures | series | task, message, isLanding }`.
 *
 * :param messageOf: returns the reason of a failure, null if it is not known yet; failures with the same reason
 *     are one item.
 */
export function attention(series, activity, messageOf) {
  const open = (activity?.failures ?? []).filter((failure) => !failure.recovered_at);
  const groups = new Map();
  for (const failure of open) {
    const message = messageOf(failure);
    const key = message ?? taskKey(failure);
    if (!groups.has(key))
      groups.set(key, { key: `failure ${taskKey(failure)}`, kind: "failure", message, failures: [] });
    groups.get(key).failures.push(failure);
  }
  const told = new Set(open.map(taskKey));
  const newestKey = (each) => taskKey({ ...each, run_id: each.runs.at(-1)?.run_id });
  const failed = new Set(series.filter((each) => each.marks.includes("failed")).map(newestKey));
  for (const group of groups.values()) group.isLanding = group.failures.some((each) => failed.has(taskKey(each)));
  const marked = (mark) =>
    series
      .filter((each) => each.marks.includes(mark))
      .filter((each) => mark !== "failed" || !told.has(newestKey(each)))
      .map((each) => ({ key: `${mark} ${seriesKey(each)}`, kind: mark, series: each }));
  const near = (activity?.running ?? [])
    .filter((task) => task.is_near_timeout)
    .map((task) => ({ key: `timeout ${taskKey(task)}`, kind: "timeout", task }));
  const quarantined = series
    .filter((each) => each.quarantines.length)
    .map((each) => ({ key: `quarantined ${seriesKey(each)}`, kind: "quarantined", series: each }));
  return [
    ...groups.values(),
    ...marked("failed"),
    ...marked("checks"),
    ...quarantined,
    ...marked("late"),
    ...near,
    ...marked("odd"),
    ...marked("empty"),
  ];
}

// ---- Running

/** Return the sum of the known values of a count; null if none is known. */
function sum(entries, name) {
  const known = entries.map((entry) => entry[name]).filter((value) => value != null);
  return known.length ? known.reduce((one, other) => one + other, 0) : null;
}

/** Return the progress of an Airflow task's collection tasks, from the service's tasks of its connection. */
export function progress(task, serviceTasks) {
  const ids = task.collection_task_ids ?? [];
  const found = serviceTasks.filter((each) => ids.includes(each.task));
  return {
    state: found.length > 1 ? byState(found, (each) => each.status ?? UNKNOWN) : (found[0]?.status ?? null),
    done: sum(found, "sub_tasks_done"),
    of: sum(found, "sub_tasks"),
    rows: sum(found, "rows"),
  };
}

/** Return whether a collection task is shown without unfolding: it runs, waits, or was stopped. */
export function isActive(task) {
  return ["Extracting", "Waiting", "Stopped"].includes(task.status);
}

/** Return the number of things in each state, as text. */
function byState(things, wordOf) {
  return [...Map.groupBy(things, wordOf)].map(([word, each]) => `${number(each.length)} ${word}`).join(", ");
}

export function foldedTasks(tasks) {
  return byState(tasks, (task) => (task.status ?? "without a state").toLowerCase());
}

// ---- The service in sentences

export function capacitySentence(counts) {
  const said = (count, word) => (count == null ? null : `${number(count)} ${word}`);
  const list = (...parts) => parts.filter(Boolean).join(", ");
  const { extracting_count, waiting_count, finished_count, executing_sub_task_count, waiting_sub_task_count } =
    counts ?? {};
  const tasks = list(
    said(extracting_count, "extracting"),
    said(waiting_count, "waiting"),
    said(finished_count, "finished"),
  );
  const parts = list(said(executing_sub_task_count, "extracting"), said(waiting_sub_task_count, "waiting"));
  return [tasks && `Tasks: ${tasks}`, parts && `sub-tasks: ${parts}`].filter(Boolean).join("; ") || null;
}

/** Milliseconds for which the service may not answer before the page says so. */
const PATIENCE_MS = 2_000;

/** Return since when the service has not answered, when data was last read, and the other problems, each once. */
export function serviceTrouble(parts, now) {
  const known = Object.entries(parts).filter(([, part]) => part);
  const first = (moments) => moments.filter(Boolean).sort((one, other) => Date.parse(one) - Date.parse(other));
  const isSilent = (part) => now - Date.parse(part.unanswered_since ?? "") >= PATIENCE_MS;
  const silent = known.map(([, part]) => part).filter(isSilent);
  const problems = Map.groupBy(
    known.filter(([, part]) => part.problem),
    ([, part]) => part.problem,
  );
  return {
    since: first(silent.map((part) => part.unanswered_since))[0] ?? null,
    lastKnown: first(silent.map((part) => part.read_at)).at(-1) ?? null,
    problems: [...problems].map(([problem, each]) => ({
      problem,
      names: each.length < known.length ? each.map(([name]) => name) : [],
      lastKnown: first(each.map(([, part]) => part.read_at)).at(-1) ?? null,
    })),
  };
}

export function serviceState(known, zone, now) {
  const { since, problems } = serviceTrouble(known, now);
  const silence = since && `service not answering since ${clock(since, zone, now)}`;
  if (since || problems.length) return { text: silence ?? "service in trouble", isTrouble: true };
  if (!Object.values(known).some((part) => part?.read_at)) return { text: "service being asked …", isTrouble: false };
  const ends = known.token?.value?.expires_at;
  const left = ends ? (Date.parse(ends) - now) / 1000 : null;
  const token = left == null ? "" : `, token ${left > 0 ? duration(left) : "expired"}`;
  return { text: `service answering${token}`, isTrouble: left != null && left <= 0 };
}

// ---- The top line, filters and search

/**
 * Return the parts of the top line, in groups: `{ filter, text, isTrouble }`.
 *
 * :param service: the result of `serviceState`; null if the user may not read any connection, or if there is none.
 */
export function topLine(landings, activity, service = null) {
  const groups = [];
  if (landings) {
    const { counts, left_out } = landings;
    const marks = STATES.filter((state) => counts[state]);
    groups.push([
      { filter: "landings", text: counted(counts.landings + left_out, "landing"), isTrouble: false },
      ...marks.map((state) => {
        const word = state === "checks" ? "failed checks" : state;
        return { filter: state, text: `${number(counts[state])} ${word}`, isTrouble: true };
      }),
    ]);
  }
  if (activity) {
    const open = activity.failures.filter((failure) => !failure.recovered_at).length + activity.failures_left_out;
    const running = activity.running.length + activity.running_left_out;
    groups.push([{ filter: "running", text: `${number(running)} running`, isTrouble: false }]);
    groups.push([{ filter: "failures", text: counted(open, "open failure"), isTrouble: open > 0 }]);
  }
  if (service) groups.push([{ filter: "service", ...service }]);
  return groups;
}

/** Return whether the filter shows an item of a section; `kind` and `isLanding` are fields of `attention`'s items. */
export function isShown(filter, section, { kind, isLanding = false } = {}) {
  if (!filter) return true;
  if (section !== "attention") return section === (STATES.includes(filter) ? "landings" : filter);
  const ofLandings = { landings: [...STATES, "quarantined"], checks: ["checks", "quarantined"] };
  const kinds = { failures: ["failure"], ...ofLandings, running: ["timeout"], service: [] };
  // a failed landing is shown as its failure, which has the reason
  return (kinds[filter] ?? [filter]).includes(kind) || (isLanding && ["failed", "landings"].includes(filter));
}

/** Return whether each word of a search is in one of the texts. */
export function matches(search, texts) {
  const text = texts
    .flat(Infinity)
    .filter((each) => each != null)
    .join("\n")
    .toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

/** Return the texts that the page shows of a series, with the reasons for its marks. */
export function seriesTexts(series, names, now) {
  const ids = sourceIds(series);
  const known = ids.map((id) => names?.[series.webcollect_conn_id]?.[id]);
  return [
    landingName(series, names),
    taskName(series),
    ids,
    known,
    series.asset?.name,
    series.asset?.uri,
    series.destination,
    stateOf(series),
    series.retired,
    series.marks.map((mark) => [wordOf(mark, series), reasonOf(series, mark, now)]),
  ];
}

export function activityTexts(each, names) {
  const ids = each.collection_task_ids ?? [];
  const known = ids.map((id) => names?.[each.webcollect_conn_id]?.[id]);
  return [activityName(each, names), taskName(each), ids, known, each.operator, each.state, each.way];
}

/** Return the series that match a search, and the other series that the server has found for it. */
export function searched(series, search, found, names, now) {
  const matching = series.filter((each) => matches(search, seriesTexts(each, names, now)));
  const known = new Set(matching.map(seriesKey));
  return [...matching, ...(found ?? []).filter((each) => !known.has(seriesKey(each)))];
}
