/**
 * The page "Web collection" in Airflow's web interface: the custom element <webcollect-page>.
 *
 * All addresses are relative to this module's address, since Airflow may be served below a path. The page reads from
 * the provider's own routes and from Airflow's API, and writes a user's decisions on quarantined rows.
 */
import { DecisionDialog } from "./decision.js";
import { age, button, el, now, place, signInLink, Table, taskApi, told, updateAges } from "./dom.js";
import {
  activityTexts,
  attention,
  chosenZone,
  counted,
  errorIn,
  foldedTasks,
  inOrder,
  isActive,
  isMuchOlder,
  isShown,
  isStale,
  landingName,
  matches,
  newestKnown,
  number,
  offset,
  pageAge,
  reasonOf,
  searched,
  seriesKey,
  seriesTexts,
  serviceState,
  serviceTrouble,
  STATES,
  taskKey,
  topLine,
  withAssets,
} from "./logic.js";
import {
  attentionItem,
  dayCharts,
  firstSteps,
  LANDING_HEADS,
  landingDetails,
  landingRow,
  leftOut,
  recoveredItem,
  RUNNING_HEADS,
  runningRow,
  serviceSentences,
  tasksTable,
  troubleNote,
} from "./sections.js";

/** The connection that is shown first, if the user may read it. */
const DEFAULT_CONNECTION = "webcollect_default";
const ROUTES = new URL("../", import.meta.url);
const REFRESH_MS = 30_000;
const AGES_MS = 1_000;
/** The delay before the next request for the service's data while it is not known or the service does not answer. */
const SOON_MS = 2_000;
const SEARCH_MS = 300;
const PATIENCE_MS = 60_000;
/** The difference of clocks up to which ages are not corrected: the server gives its time in whole seconds. */
const CLOCKS_MS = 2_000;
/** The HTTP statuses for problems of a landing: no rows wait for a decision, or its storage cannot be read. */
const OF_LANDING = [409, 502];
/** The routes that are read for a landing whose details are open. */
const DETAILS = ["columns", "rows", "loads"];
/** The number of failures whose reasons are read at once; each other failure has a button that reads its reason. */
const MESSAGES = 10;
/** The number of items needing attention that are shown before they are unfolded. */
const ITEMS = 20;
/** The parts of the service's data, and their titles. */
const KNOWN = { capacity: "Capacity", token: "Access token", tasks: "Collection tasks", days: "The last days" };

/** Read or send JSON with the user's own rights; the error of a failed response has its `status`. */
async function read(url, signal, body = null) {
  const sent = body && { method: "POST", body: JSON.stringify(body) };
  const answer = await fetch(url, {
    credentials: "same-origin",
    headers: { Accept: "application/json", ...(sent && { "Content-Type": "application/json" }) },
    signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]),
    ...sent,
  });
  // it does not matter which clock is right, but ages must agree with the server's moments
  const ahead = Date.parse(answer.headers.get("Date")) - Date.now();
  told.ahead = Math.abs(ahead) > CLOCKS_MS ? ahead : 0;
  if (answer.ok) return answer.json();
  const { detail } = await answer.json().catch(() => ({}));
  const { status } = answer;
  const text = typeof detail === "string" ? `${detail} (${status})` : `status ${status}`;
  throw Object.assign(new Error(text), { status, ofLanding: OF_LANDING.includes(status) ? detail : null });
}

/** Return the connections of landings or of Airflow tasks, each once. */
function connectionsOf(series) {
  return new Set(series.map((each) => each.webcollect_conn_id));
}

/** Return the text to show instead of data that could not be read. */
function complaint(error) {
  if (error.ofLanding) return error.ofLanding;
  if (error.status === 403) return `You may not do this: ${error.message}`;
  return `Airflow does not answer: ${error.message}`;
}

/** A part of the page with its own heading, its problem, and its age if it is older than the other parts. */
class Part {
  constructor(name, title, content = []) {
    this.age = el("span", { class: "age" });
    this.note = el("div", { class: "note", role: "status" });
    this.body = el("div", { hidden: true }, content);
    this.element = el(
      "section",
      { "data-section": name, "aria-label": title },
      el("h2", {}, title, this.age),
      this.note,
      this.body,
    );
    this.readAt = null;
    this.problem = null;
  }

  /** Set when the part's data was read, null for no change, and its problem, which is then shown. */
  tell(readAt, problem = null) {
    this.readAt = readAt ?? this.readAt;
    if (this.problem !== problem) this.note.replaceChildren(problem ?? "");
    this.problem = problem;
  }

  tellAge(newest) {
    const isTold = this.readAt && (this.problem || isMuchOlder(this.readAt, newest));
    const facts = isTold ? this.readAt : this.body.hidden && !this.problem;
    const draw = () => el("span", {}, isTold ? ["as of ", age(this.readAt)] : "reading …");
    place(this.age, facts ? [{ key: 0, facts, draw }] : []);
  }
}

class WebCollectPage extends HTMLElement {
  // the user's choices, and data that does not change, are kept while the user visits another page
  filter = null;
  search = "";
  open = new Set();
  links = new Map();
  details = new Map();
  messages = new Map();
  names = {};
  isUnused = false;

  connectedCallback() {
    this.abort = new AbortController();
    this.busy = new Set();
    Object.assign(this, { landingsData: null, found: null, activityData: null, connections: null, known: {} });
    told.zone = chosenZone(localStorage.getItem("timezone"));
    this.makeParts();
    const style = new URL("page.css", import.meta.url).href;
    this.replaceChildren(
      el("link", { rel: "stylesheet", href: style }),
      this.makeHead(),
      this.banner,
      this.top,
      ...this.parts.map((part) => part.element),
      this.dialog.element,
    );
    const { signal } = this.abort;
    this.isPressed = false;
    this.addEventListener("pointerdown", () => (this.isPressed = true), { signal });
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => this.release(), { signal });
    document.addEventListener("visibilitychange", () => this.refresh(), { signal });
    // Users rarely change the zone, so a change draws everything again. The browser's event `storage` reaches only
    // other windows; Airflow sends `local-storage` to its own.
    for (const name of ["storage", "local-storage"])
      addEventListener(name, (event) => this.changeZone(event), { signal });
    this.timers = [setInterval(() => this.refresh(), REFRESH_MS), setInterval(() => updateAges(this), AGES_MS)];
    this.refresh();
  }

  disconnectedCallback() {
    this.abort.abort();
    this.timers.forEach(clearInterval);
    clearTimeout(this.soon);
    clearTimeout(this.typing);
    this.replaceChildren();
  }

  /** Draw data that has come while an element was pressed, after the click. */
  release() {
    this.isPressed = false;
    if (this.isDrawDue) setTimeout(() => this.abort.signal.aborted || this.draw());
  }

  changeZone({ key }) {
    if (key !== "timezone" || chosenZone(localStorage.getItem(key)) === told.zone) return;
    this.disconnectedCallback();
    this.connectedCallback();
  }

  makeHead() {
    const type = (event) => {
      this.search = event.target.value.trim();
      this.found = null;
      this.draw();
      clearTimeout(this.typing);
      if (this.landingsData?.left_out) this.typing = setTimeout(() => this.readFound(), SEARCH_MS);
    };
    const choose = (event) => {
      this.connection = event.target.value;
      this.draw();
      this.readService();
    };
    const search = el("input", {
      type: "search",
      "aria-label": "Search the page",
      placeholder: "Search",
      value: this.search,
      oninput: type,
    });
    this.connectionSelect = el("select", { onchange: choose });
    this.connectionLabel = el("label", { hidden: true }, "Connection ", this.connectionSelect);
    this.age = el("span", { "data-age": "page" });
    const zone = `times in ${told.zone} (${offset(told.zone, new Date())})`;
    return el(
      "header",
      {},
      el("h1", {}, "Web collection"),
      el("span", { class: "age" }, this.age, " · ", zone),
      el(
        "div",
        { class: "controls" },
        this.connectionLabel,
        search,
        button("Refresh", () => this.refresh()),
      ),
    );
  }

  makeParts() {
    this.banner = el("div", { class: "note", role: "alert", "data-banner": "session" });
    this.top = el("div", { class: "top", role: "group", "aria-label": "Summary: each part filters the page" });
    this.well = el("p", { "data-well": true });
    this.items = el("ul", { class: "items" });
    this.moreItems = el("div");
    this.recovered = el("ul", { class: "items" });
    this.recoveredButton = el("div");
    this.attention = new Part("attention", "Needs attention", [
      this.well,
      this.items,
      this.moreItems,
      this.recoveredButton,
      this.recovered,
    ]);
    this.landingTable = new Table("Landings", LANDING_HEADS);
    this.landingsLeft = el("p", { class: "left" });
    this.noLandings = el("div");
    this.landings = new Part("landings", "Landings", [this.noLandings, this.landingTable.element, this.landingsLeft]);
    this.runningTable = new Table("Running", RUNNING_HEADS);
    this.runningLeft = el("p", { class: "left" });
    this.running = new Part("running", "Running", [this.runningTable.element, this.runningLeft]);
    this.blocks = el("div");
    this.service = new Part("service", "Service", [this.blocks]);
    this.parts = [this.attention, this.landings, this.running, this.service];
    this.dialog = new DecisionDialog({
      ask: ({ series, ...which }) => read(routeOf(series, "waiting", which), this.abort.signal),
      sample: ({ series, ...which }) => read(routeOf(series, "rows", which), this.abort.signal),
      send: ({ series, ...body }) => read(routeOf(series, "decision"), this.abort.signal, body),
      complaint,
      closed: () => this.refresh(),
    });
  }

  // ---- Reading

  /** Read everything, if the page is visible. */
  refresh() {
    if (document.visibilityState !== "visible") return;
    // a load makes no new run of the landing, so loads are read again each time
    for (const [key, known] of this.details)
      if (known.problem || key.startsWith("loads ")) known.version = null;
    this.readInto("landings", [this.landings], async (signal) => {
      const data = await read(new URL("landings", ROUTES), signal);
      if (!isStale(data, this.landingsData)) this.landingsData = data;
      this.learn(data.names, connectionsOf(data.series));
      return this.landingsData.read_at;
    });
    this.readInto("activity", [this.running], async (signal) => {
      const data = await read(new URL("activity", ROUTES), signal);
      if (!isStale(data, this.activityData)) this.activityData = data;
      this.learn(data.names, connectionsOf([...data.running, ...data.failures]));
      return this.activityData.read_at;
    });
    this.readService();
    if (this.landingsData?.left_out && this.search) this.readFound();
  }

  /** Call `readAndTell`, unless a call is pending; give the parts the time of its data, or its error, and draw. */
  async readInto(name, parts, readAndTell) {
    const { busy, abort } = this;
    if (busy.has(name)) return;
    busy.add(name);
    try {
      const readAt = await readAndTell(abort.signal);
      for (const part of parts) part.tell(readAt);
      this.banner.replaceChildren();
    } catch (error) {
      if (abort.signal.aborted) return;
      if (error.status === 401) this.banner.replaceChildren("Your session has ended. ", signInLink("Sign in again"));
      else for (const part of parts) part.tell(null, complaint(error));
    } finally {
      busy.delete(name);
    }
    this.draw();
  }

  /** Request the landings that match the search from the server, which has more landings than the page shows. */
  readFound() {
    const { search } = this;
    const url = new URL("landings", ROUTES);
    url.searchParams.set("search", search);
    // only a problem is shown: a successful search says nothing about the age of the other landings
    const trouble = { tell: (_, problem) => problem && this.landings.tell(null, problem) };
    this.readInto(`search ${search}`, [trouble], async (signal) => {
      const { series, names } = await read(url, signal);
      this.learn(names, connectionsOf(series));
      if (search === this.search) this.found = series;
    });
  }

  async readService() {
    clearTimeout(this.soon);
    if (document.visibilityState !== "visible") return;
    await this.readInto("service", [this.service], async (signal) => {
      this.connections = await readConnections(signal);
      if (!this.connections?.includes(this.connection))
        this.connection = this.connections?.find((each) => each === DEFAULT_CONNECTION) ?? this.connections?.[0];
      for (let shown = null; this.connection && shown !== this.connection;) {
        // the user may choose another connection meanwhile
        shown = this.connection;
        const data = await read(new URL(`connections/${encodeURIComponent(shown)}`, ROUTES), signal);
        this.know(shown, data);
      }
    });
    const known = Object.values(this.known[this.connection]?.parts ?? {});
    const isPending = known.some((part) => part.unanswered_since || !(part.read_at || part.problem));
    if (isPending && this.isConnected) this.soon = setTimeout(() => this.readService(), SOON_MS);
  }

  know(connection, data) {
    const shown = this.known[connection]?.parts ?? {};
    const parts = Object.fromEntries(Object.keys(KNOWN).map((name) => [name, newestKnown(shown[name], data[name])]));
    this.known[connection] = { parts, seesAll: data.sees_all };
    this.learn(data.names, [connection]);
  }

  /** Add names to the known names of the connections' collection tasks. */
  learn(names, connections) {
    for (const connection of connections) this.names[connection] = { ...this.names[connection], ...names };
  }

  /** Return the links that a task has stored, to the service's page and to the rows; read them if necessary. */
  linksOf(task) {
    const url = taskApi(task, "links");
    const found = this.links.get(url.href);
    if (found) return found;
    this.links.set(url.href, []);
    read(url, this.abort.signal)
      .then(({ extra_links }) => this.links.set(url.href, Object.entries(extra_links)))
      .then(() => this.draw())
      // a user who may not read the task gets no links; after another error, they are requested again
      .catch((error) => error.status === 403 || this.links.delete(url.href));
    return [];
  }

  /** Return the known details of a landing, `{ data, problem }`; they are read again after a newer run. */
  detailOf(series, what) {
    const key = `${what} of ${seriesKey(series)}`;
    const version = JSON.stringify(series.runs.at(-1));
    const known = this.details.get(key);
    if (known?.version === version) return known;
    const kept = { ...known, version };
    this.details.set(key, kept);
    const { signal } = this.abort;
    read(routeOf(series, what), signal)
      .then((data) => ({ data, version }))
      // a user who may see landings may not see all of their rows
      .catch((error) => (error.status === 403 ? { version } : { ...kept, problem: complaint(error) }))
      .then((found) => {
        if (signal.aborted) return this.details.delete(key);
        this.details.set(key, found);
        return this.draw();
      });
    return kept;
  }

  logAddress(failure) {
    const url = taskApi(failure, "logs", failure.try_number);
    url.searchParams.set("full_content", "true");
    return url.href;
  }

  /** Read why a task has failed, which only its log says; Airflow checks whether the user may read the log. */
  readMessage(failure) {
    const address = this.logAddress(failure);
    this.messages.set(address, { text: null });
    const { signal } = this.abort;
    read(address, signal)
      .then(({ content }) => ({ text: errorIn(content) }))
      .catch((error) => {
        if (error.status === 403) return { text: "failed; you may not read its log" };
        return { text: `failed; its log cannot be read: ${error.message}`, canRetry: true };
      })
      .then((message) => {
        if (signal.aborted) return this.messages.delete(address);
        this.messages.set(address, message);
        return this.draw();
      });
  }

  // ---- Drawing

  draw() {
    // an element that is replaced while it is pressed gets no click
    this.isDrawDue = this.isPressed;
    if (this.isPressed) return;
    this.newest = [this.landingsData, this.activityData, ...this.serviceParts()]
      .map((each) => each?.read_at)
      .filter(Boolean)
      .reduce((one, other) => (one && Date.parse(one) > Date.parse(other) ? one : other), null);
    this.allNames = withAssets(this.names, this.landingsData?.series ?? []);
    this.drawTop();
    this.drawAttention();
    this.drawLandings();
    this.drawRunning();
    this.drawService();
    for (const part of this.parts) part.tellAge(this.newest);
  }

  serviceParts() {
    return Object.values(this.known[this.connection]?.parts ?? {});
  }

  stateOfService() {
    const parts = this.known[this.connection]?.parts;
    return parts ? serviceState(parts, told.zone, now()) : null;
  }

  isFound(texts) {
    return !this.search || matches(this.search, texts);
  }

  drawTop() {
    const moments = [this.landingsData, this.activityData, ...this.serviceParts()].map((each) => each?.read_at);
    const oldest = pageAge(moments);
    if (oldest) place(this.age, [{ key: oldest, facts: oldest, draw: () => el("span", {}, "as of ", age(oldest)) }]);
    const press = (filter) => {
      this.filter = this.filter === filter ? null : filter;
      this.draw();
    };
    const draw = ({ filter, text, isTrouble }) => {
      const attributes = {
        "data-filter": filter,
        "data-trouble": isTrouble,
        "aria-pressed": String(this.filter === filter),
      };
      return button(text, () => press(filter), attributes);
    };
    const groups = topLine(this.landingsData, this.activityData, this.stateOfService());
    const chosen = groups.flat().some(({ filter }) => filter === this.filter);
    // if the filter's last item is gone, it keeps a button, so that the user can still turn the filter off
    if (this.filter && !chosen) groups.push([{ filter: this.filter, text: `0 ${this.filter}` }]);
    place(
      this.top,
      groups.map((group) => {
        const key = group[0].filter;
        return {
          key,
          facts: [group, group.some(({ filter }) => filter === this.filter) && this.filter],
          draw: () => el("span", {}, group.map(draw)),
        };
      }),
    );
    const options = this.connections ?? [];
    place(
      this.connectionSelect,
      options.map((name) => ({ key: name, facts: name, draw: () => el("option", { value: name }, name) })),
    );
    this.connectionSelect.value = this.connection ?? "";
    this.connectionLabel.hidden = options.length < 2;
  }

  drawAttention() {
    const { landingsData, activityData } = this;
    this.attention.body.hidden = !landingsData && !activityData;
    (activityData?.failures ?? [])
      .filter((each) => !each.recovered_at)
      .slice(0, MESSAGES)
      .forEach((failure) => {
        if (!this.messages.has(this.logAddress(failure))) this.readMessage(failure);
      });
    const messageOf = (failure) => {
      const message = this.messages.get(this.logAddress(failure));
      return message ? (message.text ?? "Reading the log …") : null;
    };
    const all = attention(landingsData?.series ?? [], activityData, messageOf);
    const items = all.filter(
      (item) => isShown(this.filter, "attention", item) && this.isFound(this.textsOf(item)),
    );
    const act = {
      reveal: (series) => this.reveal(series),
      readMessage: (failure) => {
        this.readMessage(failure);
        this.draw();
      },
      canRetry: (failure) => this.messages.get(this.logAddress(failure))?.canRetry,
      isOpen: (key) => this.open.has(key),
      open: (key) => {
        this.open.add(key);
        this.draw();
      },
      decide: (decision, which, name, elsewhere) => this.dialog.open(decision, which, name, elsewhere),
    };
    const shown = this.open.has("attention") ? items : items.slice(0, ITEMS);
    place(
      this.items,
      shown.map((item) => {
        const isMark = item.series && item.kind !== "quarantined";
        const reason = isMark ? reasonOf(item.series, item.kind, now()) : act.canRetry(item.failures?.[0] ?? {});
        const facts = [item, reason, this.namesOf(item), act.isOpen(item.key)];
        return {
          key: item.key,
          facts,
          draw: () => attentionItem(item, item.series ? this.names : this.allNames, now(), act),
        };
      }),
    );
    this.fold(this.moreItems, "attention", items.length - ITEMS, (count) => `${number(count)} more`);
    this.drawRecovered();
    this.drawWell(all);
    this.attention.element.hidden = this.isUnused || Boolean((this.filter || this.search) && !items.length);
  }

  drawRecovered() {
    const recovered = (this.activityData?.failures ?? []).filter((each) => each.recovered_at);
    const shown = !this.filter && !this.search ? recovered : [];
    this.fold(
      this.recoveredButton,
      "recovered",
      shown.length,
      (count) => `Recovered in the last day: ${counted(count, "failure")}`,
      true,
    );
    place(
      this.recovered,
      (this.open.has("recovered") ? shown : []).map((each) => ({
        key: taskKey(each),
        facts: each,
        draw: () => recoveredItem(each),
      })),
    );
  }

  /** Say that all is well, if everything could be checked, and list the checks. */
  drawWell(items) {
    const checked = [];
    if (this.activityData && !this.running.problem)
      checked.push("no failure of the last seven days is open", "no wait is near its timeout");
    if (this.landingsData && !this.landings.problem) {
      const none = this.landingsData.left_out ? "none of the landings shown" : "no landing";
      checked.splice(1, 0, `${none} is late, odd or empty, or has failed its checks`);
    }
    const isWhole = checked.length === 3 && !this.landingsData.left_out;
    const isUnused = !this.landingsData?.series.length && !this.activityData?.running.length;
    const isWell = isWhole && !this.service.problem && !this.stateOfService()?.isTrouble;
    this.well.hidden = items.length > 0 || isUnused || !checked.length;
    this.well.textContent = `${isWell ? "All is well" : "As far as this page can tell"}: ${checked.join(", ")}.`;
    this.isUnused = isUnused && !items.length && isWhole;
  }

  textsOf({ failures, series, task, kind, message }) {
    if (series) return [kind, seriesTexts(series, this.names, now())];
    return [kind, message, ...(failures ?? [task]).map((each) => activityTexts(each, this.allNames))];
  }

  /** Return the names that are drawn in an item. */
  namesOf({ failures, series, task }) {
    if (series) return landingName(series, this.names);
    return (failures ?? [task]).map((each) => activityTexts(each, this.allNames)[0]);
  }

  /** Put a button into `holder` that shows or hides the content of a key. */
  fold(holder, key, count, textOf, isTwoWay = false) {
    const isOpen = this.open.has(key);
    const attributes = { class: isTwoWay ? "unfold" : "quiet", "aria-expanded": isTwoWay && String(isOpen) };
    const draw = () =>
      el(
        "span",
        { "data-fold": key },
        button(textOf(count), () => this.toggle(key), attributes),
      );
    const isShown = count > 0 && (isTwoWay || !isOpen);
    place(holder, isShown ? [{ key, facts: [textOf(count), isOpen], draw }] : []);
  }

  toggle(key) {
    if (!this.open.delete(key)) this.open.add(key);
    this.draw();
  }

  /** Open a landing's details, and scroll to them. */
  reveal(series) {
    const key = seriesKey(series);
    this.open.add(key);
    if (!isShown(this.filter, "landings")) this.filter = null;
    this.draw();
    const row = [...this.landingTable.body.children].find((each) => each.dataset.series === key);
    row?.querySelector("button").focus();
    row?.scrollIntoView({ block: "start" });
  }

  drawLandings() {
    this.landings.element.hidden = !isShown(this.filter, "landings");
    this.landings.body.hidden = !this.landingsData;
    if (!this.landingsData) return;
    const { series, left_out } = this.landingsData;
    let shown = this.search ? searched(series, this.search, this.found, this.names, now()) : series;
    if (STATES.includes(this.filter)) shown = shown.filter((each) => each.marks.includes(this.filter));
    const wanted = inOrder(shown).flatMap((each) => {
      const key = seriesKey(each);
      const isOpen = this.open.has(key);
      const names = each.sources.map((source) => this.names[each.webcollect_conn_id]?.[source.collection_task_id]);
      const reasons = each.marks.map((mark) => reasonOf(each, mark, now()));
      const draw = () => landingRow(this.landingTable, key, each, this.names, now(), isOpen, () => this.toggle(key));
      const row = { key, facts: [each, names, reasons, isOpen], draw };
      if (!isOpen) return [row];
      const newest = each.runs.at(-1);
      const links = newest ? this.linksOf({ ...each, run_id: newest.run_id }) : [];
      const openColumns = `columns of ${key}`;
      const known = Object.fromEntries(DETAILS.map((what) => [what, this.detailOf(each, what)]));
      known.columns = { ...known.columns, isOpen: this.open.has(openColumns) };
      const act = { openColumns: () => this.toggle(openColumns) };
      return [
        row,
        {
          key: `details of ${key}`,
          facts: [each, names, links, known],
          draw: () => landingDetails(each, this.names, links, known, now(), act),
        },
      ];
    });
    this.landingTable.show(wanted);
    const more = leftOut(left_out, "landing");
    this.landingsLeft.textContent = more && !this.found ? `${more}: a search finds them.` : "";
    const steps = { key: "steps", facts: this.connections, draw: () => firstSteps(this.connections) };
    const nothing = { key: "nothing", facts: 0, draw: () => el("p", {}, "No landing is found.") };
    place(this.noLandings, this.isUnused ? [steps] : wanted.length ? [] : [nothing]);
  }

  drawRunning() {
    this.running.element.hidden = !isShown(this.filter, "running") || this.isUnused;
    this.running.body.hidden = !this.activityData;
    if (!this.activityData) return;
    const { running, running_left_out } = this.activityData;
    const wanted = running
      .filter((each) => this.isFound(activityTexts(each, this.allNames)))
      .map((each) => {
        const key = taskKey(each);
        const tasks = this.known[each.webcollect_conn_id]?.parts.tasks.value?.tasks ?? [];
        const own = tasks.filter(({ task }) => each.collection_task_ids?.includes(task));
        const draw = () => runningRow(this.runningTable, key, each, this.allNames, own);
        return { key, facts: [each, own, activityTexts(each, this.allNames)[0]], draw };
      });
    this.runningTable.show(wanted);
    const none = running.length ? "No match." : "No Airflow task of this provider is at work.";
    this.runningLeft.textContent = wanted.length ? leftOut(running_left_out, "task") : none;
  }

  drawService() {
    this.service.element.hidden = !isShown(this.filter, "service");
    if (!this.connections?.length) {
      const reason =
        "The service is not shown: you may not read connections, or none has the type Web Data Collection.";
      this.service.body.hidden = !this.connections;
      place(this.blocks, [{ key: "none", facts: 0, draw: () => el("p", {}, reason) }]);
      this.service.element.hidden ||= this.isUnused;
      return;
    }
    const { parts, seesAll } = this.known[this.connection] ?? { parts: {}, seesAll: true };
    this.service.body.hidden = false;
    if (!this.service.problem) {
      const trouble = serviceTrouble(parts, now());
      const draw = () => troubleNote(trouble, now(), KNOWN);
      place(this.service.note, trouble.since || trouble.problems.length ? [{ key: 0, facts: trouble, draw }] : []);
    }
    const limited = "Only collection tasks of the DAGs that you may read are shown.";
    const { capacity, token, tasks, days } = parts;
    const blocks = [
      { key: "sentences", facts: [capacity?.value, token?.value], draw: () => serviceSentences(parts) },
      !seesAll && { key: "limited", facts: 0, draw: () => el("p", {}, limited) },
      ...(tasks?.read_at ? this.taskBlocks(tasks) : []),
      days?.read_at && !this.search && this.blockHead("days", "The last 30 days", days),
      days?.read_at && !this.search && { key: "charts", facts: days.value, draw: () => dayCharts(days.value) },
    ];
    place(this.blocks, blocks.filter(Boolean));
  }

  blockHead(key, title, part) {
    const isTold = isMuchOlder(part.read_at, this.newest);
    const asOf = isTold ? el("span", { class: "age" }, "as of ", age(part.read_at)) : null;
    return { key: `head of ${key}`, facts: isTold && part.read_at, draw: () => el("h3", {}, title, asOf) };
  }

  taskBlocks(part) {
    const { tasks = [], left_out } = part.value ?? {};
    const names = this.allNames[this.connection] ?? {};
    const shown = tasks.filter((task) => this.isFound([task.task, names[task.task], task.status]));
    const active = shown.filter(isActive);
    const rest = shown.filter((task) => !isActive(task));
    const facts = (some) => [some, some.map(({ task }) => names[task])];
    const holder = el("div");
    // search results are not folded
    if (!this.search) this.fold(holder, "tasks", rest.length, () => foldedTasks(rest), true);
    const unfolded = this.search || this.open.has("tasks") ? rest : [];
    const none = tasks.length
      ? "No collection task is running, waiting or stopped."
      : "No asset and no landing of this connection names a collection task.";
    const line = [
      active.length ? "" : this.search && !shown.length ? "No match." : none,
      leftOut(left_out, "collection task"),
    ].filter(Boolean);
    return [
      this.blockHead("tasks", "Collection tasks", part),
      active.length && {
        key: "active",
        facts: facts(active),
        draw: () => tasksTable("Running, waiting and stopped collection tasks", active, names),
      },
      line.length && { key: "line", facts: line, draw: () => el("p", {}, line.join(" ")) },
      holder.children.length && { key: "fold", facts: [foldedTasks(rest), this.open.has("tasks")], draw: () => holder },
      unfolded.length && {
        key: "rest",
        facts: facts(unfolded),
        draw: () => tasksTable("Other collection tasks", unfolded, names),
      },
    ];
  }
}

/** Return the address of a landing's route. */
function routeOf(series, what, which = {}) {
  const url = new URL(`landings/${series.asset_id}/${what}`, ROUTES);
  const { dag_id, task_id, map_index } = series;
  url.search = new URLSearchParams({ dag_id, task_id, map_index, ...which });
  return url;
}

/** Return the connections that the user may read; none if the user may not list them. */
async function readConnections(signal) {
  try {
    return (await read(new URL("connections", ROUTES), signal)).connections;
  } catch (error) {
    if (error.status !== 403) throw error;
    return [];
  }
}

if (!customElements.get("webcollect-page")) customElements.define("webcollect-page", WebCollectPage);
globalThis["Web collection"] = () => globalThis.React.createElement("webcollect-page");
