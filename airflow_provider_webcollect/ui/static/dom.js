/** Functions that make, replace and link the page's elements. Texts become text nodes, never HTML. */
import { duration, exact, hasZone, isMapped, isPrintable, number, relative, taskName, UNKNOWN } from "./logic.js";

const AIRFLOW = new URL("../../", import.meta.url);
const SVG = "http://www.w3.org/2000/svg";
const COPIED_MS = 2_000;

/** How moments are shown: `zone` is the user's time zone; `ahead` is how far the server's clock is ahead, in ms. */
export const told = { zone: "UTC", ahead: 0 };

export function now() {
  return Date.now() + told.ahead;
}

/** Make an element; attributes that are null or false are left out, and an attribute `on…` adds a listener. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

function focusables(node) {
  return [...node.querySelectorAll("a, button, select, [tabindex]")];
}

/**
 * Give `parent` one child for each entry `{ key, facts, draw }` of `wanted`.
 *
 * A child whose facts have not changed stays, so that nothing flickers and selected text stays selected.
 */
export function place(parent, wanted) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const before = new Map([...parent.children].map((child) => [child.placed.key, child]));
  const holder = focused && [...before.values()].find((child) => child.contains(focused));
  const position = holder ? [holder, ...focusables(holder)].indexOf(focused) : -1;
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
    const found = same ? [same, ...focusables(same)] : [];
    (found[position] ?? found.at(-1))?.focus({ preventScroll: true });
  }
}

/** Return a moment relative to now, which is updated, with the exact time as title; one without a zone stays text. */
export function time(moment, attributes = {}) {
  if (!moment) return UNKNOWN;
  if (!hasZone(moment)) return exact(moment);
  const title = `${exact(moment, told.zone)} ${told.zone}`;
  return tellAge(el("time", { datetime: moment, title, "data-told": "relative", ...attributes }));
}

/** Return the time since a moment as a duration, which is updated. */
export function elapsed(moment) {
  return time(moment, { "data-told": "elapsed" });
}

/** Return the age of data that was read at a moment, which is updated; it is never negative. */
export function age(moment) {
  return time(moment, { "data-told": "age" });
}

function tellAge(each) {
  const since = duration(Math.max(0, (now() - Date.parse(each.dateTime)) / 1000));
  const text = { elapsed: since, age: `${since} ago` }[each.dataset.told] ?? relative(each.dateTime, now());
  if (each.textContent !== text) each.textContent = text;
  return each;
}

/** Return the exact moment; the title is how long ago it was. */
export function exactTime(moment) {
  if (!moment) return UNKNOWN;
  return el("time", { datetime: moment, title: relative(moment, now()) }, exact(moment, told.zone));
}

export function updateAges(root) {
  root.querySelectorAll("time[data-told]").forEach(tellAge);
}

// ---- Links

/** Return an address in Airflow; `parts` are the segments of its path. */
export function airflowAddress(...parts) {
  return new URL(parts.map(encodeURIComponent).join("/"), AIRFLOW);
}

export function airflowLink(text, ...parts) {
  return el("a", { href: airflowAddress(...parts).href }, breakable(text));
}

/** Return a text of names, which may be wrapped after `_` and `.`. */
function breakable(text) {
  return text.split(/(?<=[_.])/).flatMap((word, index) => (index ? [el("wbr"), word] : word));
}

/** Return a link to Airflow's sign-in page, which leads back to this page. */
export function signInLink(text) {
  const url = new URL("api/v2/auth/login", AIRFLOW);
  url.searchParams.set("next", location.pathname + location.search);
  return el("a", { href: url.href }, text);
}

/** Return a link if the address is an HTTP(S) URL, otherwise only the text. */
export function outerLink(text, address) {
  if (!/^https?:\/\//i.test(address)) return text;
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text);
}

export function runLink(each, text) {
  return airflowLink(text, "dags", each.dag_id, "runs", each.run_id);
}

/** Return a link to the page of a task instance, which shows its log and has the button that clears it. */
export function taskLink(each, text = taskName(each), tryNumber = null) {
  const mapped = isMapped(each) ? ["mapped", each.map_index] : [];
  const url = airflowAddress("dags", each.dag_id, "runs", each.run_id, "tasks", each.task_id, ...mapped);
  if (tryNumber != null) url.searchParams.set("try_number", tryNumber);
  return el("a", { href: url.href }, breakable(text));
}

/** Return the address of a task instance in Airflow's own API. */
export function taskApi(each, ...rest) {
  const parts = ["dags", each.dag_id, "dagRuns", each.run_id, "taskInstances", each.task_id, ...rest];
  const url = new URL(`api/v2/${parts.map(encodeURIComponent).join("/")}`, AIRFLOW);
  url.searchParams.set("map_index", each.map_index ?? -1);
  return url;
}

// ---- Elements of several sections

const SHAPES = {
  landed: "M2 7.5 5 10.5 12 3.5",
  failed: "M3 3 11 11M11 3 3 11",
  checks: "M2 2.5H12V11.5H2ZM7 4.5V7.5M7 9V9.6",
  quarantined: "M7 1.5 12.5 7 7 12.5 1.5 7ZM4.8 7H9.2",
  late: "M7 1.5a5.5 5.5 0 1 0 .01 0M7 4V7.5L9.5 9",
  odd: "M7 2 12.5 12H1.5ZM7 5.5V8.5M7 10V10.6",
  empty: "M7 2a5 5 0 1 0 .01 0M3.5 10.5 10.5 3.5",
};
SHAPES.failure = SHAPES.failed;
SHAPES.timeout = SHAPES.late;

/** Return a state as a shape and a word; the colour only repeats them. */
export function stateMark(kind, word = kind, title = null) {
  const shape = svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("path", { d: SHAPES[kind] }));
  return el("span", { class: "state", "data-state": kind, title }, shape, word);
}

/** Return a button that copies a text; if the page may not use the clipboard, the element `shown` is selected. */
export function copyButton(text, name, shown, label = "Copy") {
  const copy = async ({ currentTarget }) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // only secure contexts, such as HTTPS pages, have a clipboard
      getSelection().selectAllChildren(shown);
      document.execCommand("copy");
    }
    currentTarget.textContent = "Copied";
    setTimeout(() => (currentTarget.textContent = label), COPIED_MS);
  };
  return button(label, copy, { "aria-label": `Copy ${name}`, class: "quiet" });
}

/** Return `content`, by default the text, as code, with a button that copies the text if it is safe to paste. */
export function copyable(text, name, content = text) {
  const code = el("code", {}, content);
  return el("span", { class: "copyable" }, code, isPrintable(text) && copyButton(text, name, code));
}

/** A table of which only changed rows are replaced; on a narrow page, rows are cards. */
export class Table {
  /** :param heads: texts of the column heads; `*` marks the column that names a row, `#` marks columns of numbers. */
  constructor(label, heads) {
    const classes = { "*": "name", "#": "number" };
    this.heads = heads.map((head) => ({ text: head.replace(/^[*#]/, ""), class: classes[head[0]] }));
    const columns = this.heads.map((head) => el("th", { scope: "col", class: head.class }, head.text));
    this.body = el("tbody");
    this.element = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, columns)), this.body);
  }

  show(wanted) {
    place(this.body, wanted);
    this.element.hidden = !wanted.length;
  }

  /** Return a row; contents that are not cells become cells. */
  row(attributes, ...contents) {
    const cells = contents.map((content, index) => {
      const known = { "data-head": this.heads[index].text, class: this.heads[index].class };
      if (!(content instanceof HTMLTableCellElement)) return el("td", known, content);
      return fill(content, known, []);
    });
    return el("tr", attributes, cells);
  }
}

export function cell(attributes, ...contents) {
  return el("td", attributes, contents);
}

export function numeric(value) {
  return el("td", {}, number(value));
}
