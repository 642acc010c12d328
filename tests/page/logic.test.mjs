/** What the page says, without a browser: `make test` runs it with node's own test runner. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { describe, test } from "node:test";

import * as logic from "../../airflow_provider_webcollect/ui/static/logic.js";

const NOW = Date.parse("2026-11-25T12:00:00Z");
const ID = "5a9d0b0e-0000-4000-8000-000000000001";
const RUN = { run_id: "r", ended_at: "2026-11-25T10:00:00Z", state: "landed", rows: 20, usual_rows: 105 };
const NAMES = { webcollect_default: { [ID]: "Garden shops" } };

function ago(seconds) {
  return new Date(NOW - seconds * 1000).toISOString();
}

function series(changes = {}) {
  return {
    dag_id: "shops",
    task_id: "land",
    map_index: -1,
    webcollect_conn_id: "webcollect_default",
    lotno: null,
    asset: { name: "shop prices", uri: "s3://bucket/shops" },
    destination: "s3://bucket/shops",
    sources: [{ collection_task_id: ID, rows: 20, checks: [], checks_left_out: 0 }],
    manifests: [],
    marks: [],
    quarantines: [],
    usual_seconds: 86_400,
    landed_at: ago(7_200),
    expected_at: ago(-79_200),
    runs: [RUN],
    ...changes,
  };
}

function failure(changes = {}) {
  return {
    dag_id: "shops",
    run_id: "r",
    task_id: "land",
    map_index: -1,
    state: "failed",
    try_number: 1,
    webcollect_conn_id: "webcollect_default",
    collection_task_ids: [ID],
    ended_at: ago(60),
    will_retry: false,
    recovered_at: null,
    ...changes,
  };
}

function activity(failures = [], running = []) {
  return { read_at: ago(0), failures, running, failures_left_out: 0, running_left_out: 0 };
}

describe("a landing is called", () => {
  const batch = { lotno: "7" };
  const several = { sources: Array.from({ length: 12 }, (_, each) => ({ collection_task_id: `${each}` })) };
  const unnamed = { asset: { name: "s3://bucket/shops", uri: "s3://bucket/shops" } };
  const ofService = { asset: { name: `webcollect://c/${ID}`, uri: `webcollect://c/${ID}` } };
  for (const [how, changes, names, expected] of [
    ["as the service calls its collection task", {}, NAMES, "Garden shops"],
    ["as its asset, if the service's name may not be read", {}, {}, "shop prices"],
    ["as its asset's URI, if it has no other name", unnamed, {}, "s3://bucket/shops"],
    ["by a short id, if nothing has a name", ofService, {}, "5a9d0b0e…"],
    ["by the names of its own connection only", {}, { another: NAMES.webcollect_default }, "shop prices"],
    ["with its batch", batch, NAMES, "Garden shops, batch 7"],
    ["by the number of its sources, and the asset", several, NAMES, "shop prices · 12 collection tasks"],
    ["by the number of its sources alone", { ...several, ...unnamed }, NAMES, "12 collection tasks"],
    ["as its asset, without sources", { sources: [] }, {}, "shop prices"],
  ]) {
    test(how, () => assert.equal(logic.landingName(series(changes), names), expected));
  }
});

test("a wait has the name of the asset that its collection task lands in, if the service tells none", () => {
  const several = series({
    asset: { name: "all", uri: "s3://all" },
    sources: [ID, "other"].map((id) => ({ collection_task_id: id })),
  });
  const wait = (names) => logic.activityName(failure(), logic.withAssets(names, [several, series()]));
  assert.equal(wait({}), "shop prices");
  assert.equal(wait(NAMES), "Garden shops");
});

test("collection tasks that are not known are said to be so, and are not none", () => {
  assert.equal(logic.activityName({ ...failure(), collection_task_ids: null }, {}), "collection tasks not known here");
  assert.equal(logic.activityName({ ...failure(), collection_task_ids: [] }, {}), "—");
});

test("a name that somebody has given stands before the URI of another asset", () => {
  const unnamed = series({ asset: { name: "s3://bucket/a", uri: "s3://bucket/a" } });
  assert.deepEqual(logic.withAssets({}, [unnamed, series()]), { webcollect_default: { [ID]: "shop prices" } });
});

describe("loads", () => {
  test("tell up to which commit of the landing the table has the rows", () => {
    const one = series({ sources: [{ ...series().sources[0], commit: 30 }] });
    const said = [30, 28, null].map((commit) => logic.commitsLoaded({ commit }, one));
    assert.deepEqual(said, ["30, all of them", "28 of 30", "—"]);
    assert.equal(logic.commitsLoaded({ commit: 28 }, series({ sources: [] })), "28");
  });

  test("tell the rows that were left out, and where they are", () => {
    const text = (skipped) => logic.skippedText({ skipped_rows: 2, skipped });
    assert.equal(logic.skippedText({ skipped_rows: 0, skipped: {} }), "none");
    assert.equal(text({ a: 1, b: 1 }), "2 rows without a key: 1 in a, 1 in b");
    assert.equal(text({}), "2 rows without a key");
    const many = Object.fromEntries(["a", "b", "c", "d", "e"].map((name) => [name, 1]));
    assert.match(text(many), /1 in c, others in 2 more parts$/);
  });
});

describe("states", () => {
  test("the gravest mark is a landing's state, which no mark makes a good one", () => {
    assert.equal(logic.stateOf(series({ marks: ["late", "odd"] })), "late");
    assert.equal(logic.stateOf(series({ marks: ["failed", "late"] })), "failed");
    assert.equal(logic.stateOf(series()), "landed");
    assert.equal(logic.stateOf(series({ runs: [{ ...RUN, state: "empty", rows: 0 }] })), "empty", "a quiet day");
  });

  test("each mark has its reason", () => {
    const checks = [{ state: "failed", text: "columns.price.filled: filled in 0 % of 20 rows; expected: in all" }];
    const sources = [{ collection_task_id: ID, rows: 20, checks, checks_left_out: 0 }];
    const late = series({ expected_at: ago(100_800), landed_at: ago(187_200), sources });
    const reasons = logic.STATES.map((mark) => logic.reasonOf(late, mark, NOW));
    assert.deepEqual(reasons, [
      "the newest run has failed 2 h ago",
      "columns.price.filled: filled in 0 % of 20 rows; expected: in all",
      "expected 28 h ago, usually every 24 h; the last landing was 2 d ago",
      "20 rows, usually 105",
      "20 rows, usually 105",
    ]);
  });

  test("failed checks and warnings are told in their own words", () => {
    const checks = [
      { state: "failed", text: "rows.min: 20 rows" },
      { state: "warning", text: "new_columns: colour" },
    ];
    const one = series({ marks: ["checks"], sources: [{ ...series().sources[0], checks, checks_left_out: 3 }] });
    assert.equal(logic.reasonOf(one, "checks", NOW), "rows.min: 20 rows; warning of new_columns: colour; and 3 more");
    assert.equal(logic.wordOf("checks", one), "failed checks");
    const warned = { ...one.sources[0], checks: checks.slice(1), checks_left_out: 0 };
    assert.equal(logic.wordOf("checks", series({ sources: [warned] })), "warning");
    const many = series({ sources: [series().sources[0], warned, warned] });
    assert.equal(
      logic.reasonOf(many, "checks", NOW),
      "2 of 3 collection tasks: warning of new_columns: colour, …",
    );
  });

  test("a mark of some of many collection tasks is told as theirs", () => {
    const sources = [
      { rows: 0, usual_rows: 380, mark: "empty" },
      { rows: 400, usual_rows: 380, mark: null },
      { rows: 0, usual_rows: 12, mark: "empty" },
      { rows: 900, usual_rows: 380, mark: "odd" },
    ].map((each, index) => ({ collection_task_id: `${index}`, checks: [], ...each }));
    const many = series({ sources });
    assert.equal(logic.reasonOf(many, "empty", NOW), "2 of 4 collection tasks: 0 rows, usually 380, …");
    assert.equal(logic.reasonOf(many, "odd", NOW), "1 of 4 collection tasks: 900 rows, usually 380");
    const all = series({ sources: sources.map((each) => ({ ...each, mark: null })) });
    assert.equal(logic.reasonOf(all, "odd", NOW), "20 rows, usually 105");
  });

  test("marked landings come first, the others stay in the server's order", () => {
    const marks = [[], ["odd"], [], ["failed"], ["late"], ["late", "odd"]];
    const sorted = logic.inOrder(marks.map((each, index) => series({ dag_id: `${index}`, marks: each })));
    assert.equal(sorted.map((each) => each.dag_id).join(""), "345102");
    const retired = series({ dag_id: "9", marks: [], retired: "the DAG no longer has the task" });
    assert.equal(logic.inOrder([retired, ...sorted]).at(-1), retired);
    assert.equal(logic.stateOf(retired), "retired");
    assert.ok(logic.matches("no longer", logic.seriesTexts(retired, {}, NOW)));
  });
});

describe("attention", () => {
  const messageOf = () => "NotFound: no such task";

  test("equal reasons are one item; what has recovered is none", () => {
    const failures = [0, 1, 2].map((map_index) => failure({ map_index }));
    const recovered = failure({ dag_id: "reviews", recovered_at: ago(5) });
    const items = logic.attention([], activity([...failures, recovered]), messageOf);
    assert.equal(items.length, 1);
    assert.deepEqual(items[0].failures, failures);
  });

  test("reasons that are not known yet are not taken for equal", () => {
    const failures = [0, 1].map((map_index) => failure({ map_index }));
    assert.equal(logic.attention([], activity(failures), () => null).length, 2);
  });

  test("the gravest comes first", () => {
    const all = ["empty", "odd", "late", "checks"].map((mark) => series({ dag_id: mark, marks: [mark] }));
    all.push(series({ quarantines: [{ rows: 5 }] }));
    const waits = { ...failure(), is_near_timeout: true };
    const items = logic.attention(all, activity([failure()], [waits]), messageOf);
    assert.deepEqual(
      items.map((item) => item.kind),
      ["failure", "checks", "quarantined", "late", "timeout", "odd", "empty"],
    );
  });

  test("a failed landing whose failure is listed is not told twice", () => {
    const failed = series({ marks: ["failed"] });
    const kinds = (failures) => logic.attention([failed], activity(failures), messageOf).map((item) => item.kind);
    assert.deepEqual(kinds([failure()]), ["failure"]);
    assert.deepEqual(kinds([failure({ run_id: "an older run" })]), ["failure", "failed"]);
  });

  test("a failed landing is shown with the failure that tells its reason, and no other", () => {
    const failures = [failure(), failure({ task_id: "other" })];
    const items = logic.attention([series({ marks: ["failed"] })], activity(failures), (each) => each.task_id);
    for (const filter of ["failed", "landings"])
      assert.deepEqual(
        items.map((item) => logic.isShown(filter, "attention", item)),
        [true, false],
      );
  });

  test("a log without an error gives no reason but says where to look", () => {
    const raised = { error_detail: [{ exc_type: "NotFound", exc_value: "no such task" }, { exc_type: "Cause" }] };
    assert.equal(logic.errorIn([{ level: "error", event: "first" }, raised]), "NotFound: no such task");
    assert.equal(
      logic.errorIn([
        { level: "info", event: "fine" },
        { level: "ERROR", event: "bad" },
      ]),
      "bad",
    );
    assert.equal(logic.errorIn([{ level: "info", event: "fine" }]), "failed without an error in its log; open the log");
    assert.equal(logic.errorIn("an old log"), logic.NO_ERROR);
  });
});

describe("the top line", () => {
  const marks = { failed: 0, checks: 0, late: 1, odd: 2, empty: 0 };
  const landings = { counts: { landings: 7, ...marks }, left_out: 0, series: [] };
  const service = { text: "service answering, token 23 h", isTrouble: false };
  const said = (...data) => {
    return logic
      .topLine(...data)
      .map((group) => group.map(({ text }) => text).join(" · "))
      .join(" | ");
  };

  test("tells all in one line", () => {
    const some = activity([failure(), failure({ recovered_at: ago(5) })], [{}, {}]);
    const expected = "7 landings · 1 late · 2 odd | 2 running | 1 open failure | service answering, token 23 h";
    assert.equal(said(landings, some, service), expected);
  });

  test("counts what is left out, and has nothing of what may not be read", () => {
    assert.equal(said({ ...landings, left_out: 1_200 }, null), "1,207 landings · 1 late · 2 odd");
    assert.equal(said(null, { ...activity(), failures_left_out: 3 }), "0 running | 3 open failures");
  });

  test("says which landings have failed their checks", () => {
    const counts = { ...landings.counts, checks: 2 };
    assert.equal(said({ ...landings, counts }, null), "7 landings · 2 failed checks · 1 late · 2 odd");
  });

  test("says how the service is", () => {
    const known = { value: { expires_at: ago(-82_800) }, read_at: ago(5), problem: null, unanswered_since: null };
    const state = (changes) => logic.serviceState({ token: { ...known, ...changes } }, "UTC", NOW);
    assert.deepEqual(state({}), service);
    assert.deepEqual(state({ unanswered_since: ago(8) }), {
      text: "service not answering since 11:59:52",
      isTrouble: true,
    });
    assert.equal(state({ unanswered_since: ago(1) }).text, service.text, "it may take a moment");
    assert.deepEqual(state({ problem: "503" }), { text: "service in trouble", isTrouble: true });
    assert.deepEqual(state({ value: { expires_at: ago(5) } }), {
      text: "service answering, token expired",
      isTrouble: true,
    });
    assert.equal(state({ value: null }).text, "service answering");
    assert.equal(state({ read_at: null }).text, "service being asked …");
  });

  test("each part shows its own sections", () => {
    const sections = ["attention", "landings", "running", "service"];
    const shown = (filter, kind) => sections.filter((section) => logic.isShown(filter, section, { kind })).join(" ");
    assert.equal(shown(null, "odd"), sections.join(" "));
    assert.equal(shown("late", "late"), "attention landings");
    assert.equal(shown("late", "odd"), "landings");
    assert.equal(shown("checks", "quarantined"), "attention landings");
    assert.equal(shown("landings", "quarantined"), "attention landings");
    assert.equal(shown("failures", "failure"), "attention");
    assert.equal(shown("failed", "failure"), "landings");
    assert.equal(shown("running", "timeout"), "attention running");
    assert.equal(shown("service", "failure"), "service");
  });
});

describe("searching", () => {
  test("all words are found in what is shown, names included", () => {
    const found = (search) => logic.searched([series()], search, null, NAMES, NOW).length;
    for (const search of ["GARDEN shops", ID, "shops · land", "bucket", "landed"])
      assert.equal(found(search), 1, search);
    assert.equal(found("garden nothing"), 0);
  });

  test("the reasons of marks are found", () => {
    const empty = series({ marks: ["late"], expected_at: "2026-11-25T10:00:00Z", usual_seconds: 3_600 });
    const found = (search) => logic.searched([empty], search, null, NAMES, NOW).length;
    assert.equal(found("expected 2 h ago, usually every 60 min"), 1);
    assert.equal(found("expected seldom"), 0);
  });

  test("what the server has found is added, not doubled", () => {
    const other = series({ dag_id: "others" });
    const both = logic.searched([series(), other], "garden", [other, series({ dag_id: "left out" })], NAMES, NOW);
    assert.deepEqual(
      both.map((each) => each.dag_id),
      ["shops", "others", "left out"],
    );
  });
});

describe("what was read", () => {
  const known = (seconds, changes) => ({
    value: seconds,
    read_at: ago(seconds),
    problem: null,
    unanswered_since: null,
    ...changes,
  });
  const unread = { value: null, read_at: null, problem: null, unanswered_since: null };

  test("an older response is not shown: each process has its own cache", () => {
    assert.equal(logic.newestKnown(known(5), known(20)).value, 5);
    assert.equal(logic.newestKnown(known(20), known(5)).value, 5);
    assert.equal(logic.newestKnown(known(5), unread).value, 5);
    assert.equal(logic.newestKnown(undefined, unread).value, null);
    assert.ok(logic.isStale({ read_at: ago(20) }, { read_at: ago(5) }));
    assert.ok(!logic.isStale({ read_at: ago(5) }, null));
  });

  test("a problem that was told before the value was read is over", () => {
    assert.equal(logic.newestKnown(known(5), known(20, { problem: "503" })).problem, null);
    assert.equal(logic.newestKnown(known(20), known(20, { problem: "503" })).problem, "503");
  });

  test("a silence is known from any process, until something is read after it, or a problem ends it", () => {
    const silent = logic.newestKnown(known(20), known(40, { unanswered_since: ago(8) }));
    assert.deepEqual([silent.value, silent.unanswered_since], [20, ago(8)]);
    assert.equal(logic.newestKnown(silent, known(20)).unanswered_since, ago(8));
    assert.equal(logic.newestKnown(silent, known(1)).unanswered_since, null);
    assert.equal(logic.newestKnown(silent, known(20, { problem: "503" })).unanswered_since, null);
    assert.equal(logic.newestKnown(known(5), known(40, { unanswered_since: ago(8) })).unanswered_since, null);
  });

  test("the page is as old as the oldest part, but those that are far older, which say so themselves", () => {
    assert.equal(logic.pageAge([ago(3), ago(40), null, ago(1_500)]), ago(40));
    assert.equal(logic.pageAge([null]), null);
    assert.ok(logic.isMuchOlder(ago(1_500), ago(3)));
  });

  test("equal problems of the service are told once", () => {
    const parts = { capacity: known(20, { problem: "503" }), tasks: known(20, { problem: "503" }), days: known(5) };
    assert.deepEqual(logic.serviceTrouble(parts, NOW).problems, [
      { problem: "503", names: ["capacity", "tasks"], lastKnown: ago(20) },
    ]);
    const silent = { capacity: known(38, { unanswered_since: ago(8) }), days: known(60, { unanswered_since: ago(7) }) };
    assert.deepEqual(logic.serviceTrouble(silent, NOW), { since: ago(8), lastKnown: ago(38), problems: [] });
  });
});

describe("running", () => {
  test("several collection tasks are one line, what is not known stays so", () => {
    const tasks = [
      { task: "a", status: "Extracting", rows: 100, sub_tasks: 4, sub_tasks_done: 1 },
      { task: "b", status: "Finished", rows: 50, sub_tasks: 2, sub_tasks_done: 2 },
      { task: "other", status: "Extracting", rows: 9, sub_tasks: 9, sub_tasks_done: 9 },
    ];
    const of = (...ids) => logic.progress({ collection_task_ids: ids }, tasks);
    assert.deepEqual(of("a", "b"), { state: "1 Extracting, 1 Finished", done: 3, of: 6, rows: 150 });
    assert.deepEqual(of("a"), { state: "Extracting", done: 1, of: 4, rows: 100 });
    assert.deepEqual(of(), { state: null, done: null, of: null, rows: null });
  });

  test("capacity is a sentence of what is known", () => {
    const counts = { extracting_count: 2, waiting_count: 1, executing_sub_task_count: 5, finished_count: null };
    assert.equal(logic.capacitySentence(counts), "Tasks: 2 extracting, 1 waiting; sub-tasks: 5 extracting");
    assert.equal(logic.capacitySentence(null), null);
  });

  test("finished collection tasks are folded, and counted; stopped ones are not", () => {
    const rest = ["Finished", "unknown to the service", "Finished", null].map((status) => ({ status }));
    assert.equal(logic.foldedTasks(rest), "2 finished, 1 unknown to the service, 1 without a state");
    const shown = ["Extracting", "Waiting", "Stopped", "Finished", "Unexecuted"].filter((status) =>
      logic.isActive({ status }),
    );
    assert.deepEqual(shown, ["Extracting", "Waiting", "Stopped"]);
  });
});

describe("bars", () => {
  test("a first full load does not flatten the rest", () => {
    const axis = logic.cappedAxis([61_000, 105, null, 0, 100, 110]);
    assert.equal(axis.top, 315);
    assert.deepEqual(axis.capped, [true, false, false, false, false, false]);
  });

  test("values that are near each other, or few, are not cut", () => {
    assert.deepEqual(logic.cappedAxis([90, 100, 120]), { top: 120, capped: [false, false, false] });
    assert.deepEqual(logic.cappedAxis([1, 900]).capped, [false, false]);
    assert.deepEqual(logic.cappedAxis([]), { top: 0, capped: [] });
  });
});

describe("what the rows held", () => {
  const shares = (...groups) => groups.flatMap(([count, share]) => Array(count).fill(share));
  const runs = (count, hours = 24) =>
    Array.from({ length: count }, (_, index) => ({
      ended_at: ago((count - 1 - index) * hours * 3_600),
      state: "landed",
    }));
  const column = (name, values, changes = {}) => ({
    name,
    collection_task_id: ID,
    rows: values.map(() => 1_200),
    shares: values,
    checks: {},
    ...changes,
  });
  const sentence = (columns, hours) => {
    const told = logic.columnsSentence({ runs: runs(columns[0].shares.length, hours), columns }, "UTC", NOW);
    return [told.column?.name, told.text].filter(Boolean).join(" ");
  };
  const none = "No column of what has landed is filled less than before.";

  test("the worst change is a sentence", () => {
    const columns = [
      column("rating", shares([20, 0.8], [10, 0.7])),
      column("price", shares([8, 0.98], [22, 0])),
      column("stock", shares([29, 1], [1, 0.5])),
      column("title", shares([15, 0.1], [15, 1])),
    ];
    const others = "; 2 other columns are filled less than before, too.";
    const expected = "price was filled in 98 % of the rows until 3 November, in 0 % since";
    assert.equal(sentence(columns), expected + others);
    assert.equal(sentence(columns.slice(1, 2)), `${expected}.`);
    assert.match(sentence(columns.slice(1, 3)), /; 1 other column is filled less than before, too\.$/);
  });

  test("some runs of one day have their times", () => {
    assert.equal(
      sentence([column("price", shares([6, 0.978], [2, 0.004]))], 1),
      "price was filled in 97.8 % of the rows until 25 November at 10:00, in 0.4 % since.",
    );
  });

  for (const [why, values] of [
    ["nothing changes", shares([30, 0.5])],
    ["it is filled more", shares([10, 0.5], [20, 1])],
    ["the change is as small as others", [0.98, 0.96, 0.97, 0.99, 0.95, 0.96]],
    ["the newest is as before", shares([20, 1], [8, 0], [2, 1])],
    ["one run is known", [null, 1, null]],
    ["none is known", [null, null]],
  ])
    test(`no fall is told if ${why}`, () => assert.equal(sentence([column("price", values)]), none));

  for (const [what, values, fall] of [
    ["with the newest run alone", shares([29, 1], [1, 0]), { before: 1, since: 0, last: 28 }],
    ["after first runs that were as bad", shares([3, 0], [26, 1], [1, 0]), { before: 1, since: 0, last: 28 }],
    ["over runs that are not known", [1, 1, null, 0, null], { before: 1, since: 0, last: 1 }],
    ["in spite of a bad run before", [1, 1, 0, 1, 1, 1, 0.2, 0.2, 0.2, 0.2], { before: 1, since: 0.2, last: 5 }],
  ])
    test(`a fall is found ${what}`, () => assert.deepEqual(logic.fallOf(values), fall));

  test("each run is told, with the checks that it has not passed", () => {
    const some = runs(4);
    some[1].state = "failed";
    some[2].state = "quarantined";
    const price = column("price", [0.98, null, null, 0], {
      rows: [1_200, null, 0, 1],
      checks: { 2: "columns.price.filled: none", 3: "columns.price.filled: filled in 0 %" },
    });
    assert.deepEqual(logic.columnTexts(price, some, "UTC", NOW), [
      "price was filled in 98 % of 1,200 rows on 22 November",
      "23 November: the run has failed",
      "24 November: quarantined; columns.price.filled: none",
      "price was filled in 0 % of 1 row on 25 November; columns.price.filled: filled in 0 %",
    ]);
    const [unknown] = logic.columnTexts(column("price", [null]), runs(1), "UTC", NOW);
    assert.equal(unknown, "25 November: not counted");
  });

  test("all rows alone are 100 %", () => {
    const texts = [1, 0.9999, 0.9996].map((share) => logic.columnTexts(column("a", [share]), runs(1), "UTC", NOW)[0]);
    assert.deepEqual(
      texts.map((text) => text.match(/in (.*) of/)[1]),
      ["100 %", "99.9 %", "99.9 %"],
    );
  });
});

describe("rows that have failed their checks", () => {
  const quarantine = (rows, days) => ({ rows, ended_at: ago(days * 86_400), run_id: `run ${days}`, waiting: [] });
  const said = (...quarantines) => logic.quarantineSentence({ quarantines }, "UTC", NOW);
  const open = ". A decision that was made elsewhere since the newest run is not shown here.";

  test("are told with when they were quarantined, and not that they still are", () => {
    assert.equal(said(quarantine(1_200, 22)), `1,200 rows were quarantined on 3 November${open}`);
    assert.equal(said(quarantine(1, 0)), `1 row was quarantined on 25 November${open}`);
    assert.equal(
      said(quarantine(1_000, 0), quarantine(200, 1)),
      `1,200 rows of 2 runs were quarantined, the latest on 25 November${open}`,
    );
  });

  const text = (decision, facts) =>
    logic.decisionText(decision, { rows: 30, run_id: "run 1", is_whole: true, replaces: false, ...facts }, "Shops");

  test("are decided on by who knows what happens then", () => {
    const why = "30 rows of run 1 are quarantined: the run failed its checks. ";
    assert.equal(
      text("accept"),
      `${why}Accepted rows are added to Shops as they are, in one commit. What loads its new rows loads them, too.`,
    );
    assert.equal(
      text("discard"),
      `${why}Discarded rows are deleted. Shops skips them, and counts them as discarded.`,
    );
  });

  test("that would replace all others are told as such", () => {
    assert.match(text("accept", { replaces: true }), / Accepted rows replace all rows that have landed in Shops\.$/);
    assert.match(text("discard", { replaces: true }), / Shops stays as it is, and the next run reads the source again/);
  });

  test("of a run whose other rows have landed are told as single ones", () => {
    assert.match(
      text("accept", { rows: 1, is_whole: false }),
      /^1 row of run 1 is quarantined: each broke a rule about values\. The rows that broke no rule have landed\. /,
    );
  });
});

describe("moments", () => {
  test("are told in the zone that was chosen in Airflow", () => {
    const moment = "2026-07-01T10:15:30+00:00";
    assert.equal(logic.exact(moment, "Europe/Berlin"), "2026-07-01 12:15:30");
    assert.equal(logic.exact("2026-07-01T10:15:30", "Europe/Berlin"), "2026-07-01 10:15:30", "the service's own");
    assert.equal(logic.clock(ago(8), "Asia/Tokyo", NOW), "20:59:52");
    assert.equal(logic.clock(ago(86_400), "Asia/Tokyo", NOW), "2026-11-24 21:00:00");
    assert.equal(logic.day("2026-11-03T23:30:00Z", "Asia/Tokyo", NOW), "4 November");
    assert.equal(logic.day("2025-11-03T23:30:00Z", "UTC", NOW, true), "3 November 2025 at 23:30");
    assert.equal(logic.offset("Asia/Kolkata", NOW), "+05:30");
    assert.equal(logic.offset("UTC", NOW), "+00:00");
  });

  test("the zone is Airflow's, as it stores it, else the browser's", () => {
    const browser = new Intl.DateTimeFormat().resolvedOptions().timeZone;
    for (const name of ["Europe/Berlin", "Asia/Kolkata"])
      assert.equal(logic.chosenZone(JSON.stringify(name)), name);
    for (const stored of [null, '"local"', "not JSON", '"Not/AZone"']) assert.equal(logic.chosenZone(stored), browser);
  });

  test("ages have one unit", () => {
    const ages = [5, 89, 91, 6_000, 200_000].map((seconds) => logic.relative(ago(seconds), NOW));
    assert.deepEqual(ages, ["5 s ago", "89 s ago", "2 min ago", "2 h ago", "2 d ago"]);
    assert.equal(logic.relative(ago(-300), NOW), "in 5 min");
  });
});

describe("lines to copy", () => {
  // quotes, spaces and what a shell or Python would replace
  const PATH = `s3://bu'ck"et/$HOME/\`id\`/\\n é/{x}`;

  test("a shell takes the path as it is", () => {
    const { shell } = logic.readingLines(PATH);
    const words = execFileSync("sh", ["-c", shell.replace("webcollect", "printf '%s\\n'")]).toString();
    assert.deepEqual(words.trimEnd().split("\n"), ["landing", "sql", PATH, "select count(*) from landing"]);
  });

  test("a shell takes the folder and the commit that somebody decides on as they are", () => {
    const { shows, accepts, discards } = logic.decidingLines(PATH, "a b", 7);
    const wordsOf = (line) => {
      const words = execFileSync("sh", ["-c", line.replace("webcollect", "printf '%s\\n'")]).toString();
      return words.trimEnd().split("\n");
    };
    const connection = ["--object-storage-conn-id", "a b"];
    assert.deepEqual(wordsOf(shows), ["landing", "cat", PATH, "--quarantined", "7", "--reasons", ...connection]);
    assert.deepEqual(wordsOf(accepts), ["landing", "accept", PATH, "--commit", "7", ...connection]);
    assert.deepEqual(wordsOf(discards), ["landing", "discard", PATH, "--commit", "7", ...connection]);
  });

  // the end of a bracketed paste, a line that runs, an interrupt, a turned line, a line end of Unicode, half a character
  const ACTING = ["\u001b[201~", "\n touch owned\n", "\u0003", "\u009b2J", "\u202e", "\u2028", "\ud800"];

  test("a shell gets no line with characters that act on a terminal, or hide what the line does", () => {
    for (const text of ACTING.map((each) => `s3://a/${each}`)) {
      const lines = [logic.decidingLines(text, null, 7), logic.decidingLines("/d", text, 7)];
      lines.push({ sql: logic.readingLines(text).shell });
      assert.deepEqual(new Set(lines.flatMap(Object.values)), new Set([null]), JSON.stringify(text));
    }
  });

  test("a shell gets no line in which a name would be an option", () => {
    const none = { shows: null, accepts: null, discards: null };
    assert.deepEqual(logic.decidingLines("/d", "--yes", 7), none);
    assert.deepEqual(logic.decidingLines("--yes", null, 7), none);
  });

  test("Python takes the path as it is, by a line that is printable", () => {
    for (const path of [PATH, "\u{e0001}/\u{1f389}", ...ACTING.slice(0, -1)]) {
      const { python } = logic.readingLines(path);
      assert.ok(logic.isPrintable(python), python);
      const code = `import sys; read_landing = lambda path: sys.stdout.buffer.write(path.encode())\n${python}`;
      assert.equal(execFileSync("python3", ["-c", code]).toString(), path);
    }
  });

  test("the connection of the storage is named, if the landing's address has none", () => {
    const { shell, python } = logic.readingLines("lake.shop.prices", "glue");
    assert.match(shell, /^webcollect landing sql 'lake.shop.prices' 'select .*' --object-storage-conn-id 'glue'$/);
    assert.equal(python, 'read_landing("lake.shop.prices", object_storage_conn_id="glue")');
  });
  test("an address with a connection of its own is taken as it is", () => {
    const own = logic.readingLines("s3://archive@bucket/books", "aws_default");
    assert.equal(own.python, 'read_landing("s3://archive@bucket/books")');
    assert.ok(!own.shell.includes("aws_default"));
    assert.ok(!logic.decidingLines("s3://archive@bucket/books", "aws_default", 3).accepts.includes("aws_default"));
    for (const address of ["s3://bucket/a@b", "abfss://box@account.dfs.core.windows.net/books"])
      assert.match(logic.readingLines(address, "conn").python, /object_storage_conn_id="conn"/);
  });
});

test("two assets with one URI have landings of their own", () => {
  const series = { dag_id: "d", task_id: "land", asset: { uri: "s3://bucket/prices" } };
  assert.notEqual(logic.seriesKey({ ...series, asset_id: 1 }), logic.seriesKey({ ...series, asset_id: 2 }));
});

test("numbers are readable, unknown ones are no zeros", () => {
  assert.deepEqual(
    [1234.5678, 0, null].map((value) => logic.number(value)),
    ["1,234.57", "0", "—"],
  );
  assert.deepEqual([999, 1_000, 2.5e6, null].map(logic.bytes), ["999 B", "1 kB", "2.5 MB", "—"]);
  assert.deepEqual([0.915, null].map(logic.share), ["92 %", "—"]);
});
