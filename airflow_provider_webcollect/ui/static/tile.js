/**
 * The tile of the page on Airflow's dashboard: one line, with a link. It sends its requests once, after the rest of the
 * dashboard, and they read only Airflow's database. It is hidden from users who may not read this data, and while there
 * is nothing to count.
 */
import { topLine } from "./logic.js";

const ROUTES = new URL("../", import.meta.url);
const PAGE = new URL("../../plugin/webcollect", import.meta.url);
/** How long responses are kept, so that a return to the dashboard sends no new requests. */
const KEPT_MS = 60_000;
/** The delay after which the dashboard has had time to request its own data. */
const LATER_MS = 1_000;

let kept = { at: -Infinity, groups: null };

async function read(name) {
  const answer = await fetch(new URL(name, ROUTES), { credentials: "same-origin" });
  return answer.ok ? answer.json() : null;
}

async function readGroups() {
  if (performance.now() - kept.at > KEPT_MS) {
    const both = Promise.all([read("landings"), read("activity")]);
    kept = { at: performance.now(), groups: both.then((data) => topLine(...data)).catch(() => []) };
  }
  return kept.groups;
}

class WebCollectTile extends HTMLElement {
  connectedCallback() {
    this.hidden = true;
    // below the third part of the dashboard, which shows the states of the DAGs
    this.style.order = 4;
    this.later = setTimeout(() => this.show(), LATER_MS);
  }

  disconnectedCallback() {
    clearTimeout(this.later);
  }

  async show() {
    const groups = await readGroups();
    const link = Object.assign(document.createElement("a"), { href: PAGE.href, textContent: "Web collection" });
    link.style.textDecoration = "underline";
    const line = groups.map((group) => group.map(({ text }) => text).join(" · ")).join(" | ");
    this.replaceChildren(link, `: ${line}`);
    this.hidden = !groups.some((group) => group.some(({ text }) => !text.startsWith("0 ")));
  }
}

if (!customElements.get("webcollect-tile")) customElements.define("webcollect-tile", WebCollectTile);
globalThis["Web collection tile"] = () => globalThis.React.createElement("webcollect-tile");
