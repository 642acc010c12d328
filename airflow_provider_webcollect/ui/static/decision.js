/** The dialog that asks before a decision on quarantined rows, and shows its outcome. */
import { button, el } from "./dom.js";
import { counted, DECISIONS, decisionText } from "./logic.js";
import { leftOut, rowsTable } from "./sections.js";

const TITLE = "webcollect-decision";

export class DecisionDialog {
  /**
   * :param ask: returns the facts about the rows; `sample` returns the first rows; `send` sends a decision and
   *     returns `{ rows }`; `complaint` returns the text for an error of these three; `closed` is called when the
   *     dialog is closed.
   */
  constructor({ ask, sample, send, complaint, closed }) {
    Object.assign(this, { ask, sample, send, complaint });
    this.title = el("h2", { id: TITLE });
    this.text = el("div", { role: "status" });
    this.evidence = el("div");
    this.confirm = button("");
    this.cancel = button("Cancel", () => this.element.close());
    const buttons = el("div", { class: "controls" }, this.confirm, this.cancel);
    const content = [this.title, this.text, this.evidence, buttons];
    this.element = el("dialog", { "aria-labelledby": TITLE, onclose: closed }, content);
  }

  /**
   * Ask whether to accept or to discard rows.
   *
   * :param decision: `accept` or `discard`; `which` identifies the rows, `{ series, landing, commit }`; `name` is the
   *     name of their landing; `elsewhere` are elements that show how to decide if the dialog fails.
   */
  async open(decision, which, name, elsewhere) {
    const verb = DECISIONS[decision];
    const asked = (this.asked = {});
    // a response to an earlier question must not be shown
    const tell = (...what) => this.asked === asked && this.tell(...what);
    const attempt = (act, failed) =>
      act().catch((error) => tell(failed, [el("p", {}, this.complaint(error)), ...elsewhere]));

    const decide = async () => {
      tell(`${verb}: writing the commit …`);
      const { rows } = await this.send({ ...which, decision });
      tell(`${counted(rows, "row")} ${decision}ed.`);
    };
    tell(`${verb}: reading the quarantined rows …`);
    this.element.showModal();
    await attempt(async () => {
      const sampled = this.sample(which).then(
        (data) => rowsTable("The first of these rows", data),
        (error) => el("p", {}, `The rows cannot be shown: ${this.complaint(error)}`),
      );
      const waiting = await this.ask(which);
      const evidence = [checksList(waiting), await sampled];
      const failed = "The decision failed; open this dialog again to see if the rows are still quarantined";
      const text = el("p", {}, decisionText(decision, waiting, name));
      tell(`${verb} them?`, [text], evidence, verb, () => attempt(decide, failed));
    }, "No decision is possible now");
  }

  tell(title, content = [], evidence = [], verb = null, act = null) {
    this.title.textContent = title;
    this.text.replaceChildren(...content);
    this.evidence.replaceChildren(...evidence);
    this.confirm.hidden = !verb;
    this.confirm.textContent = verb ?? "";
    this.confirm.onclick = act;
    this.cancel.textContent = verb ? "Cancel" : "Close";
    // without scrolling, so that a long question is read from the beginning
    this.cancel.focus({ preventScroll: true });
  }
}

/** Return the checks that rows did not pass; a rule about values has the number of rows that broke it. */
function checksList({ checks, checks_left_out }) {
  const items = checks.map(({ text, rows }) => el("li", {}, rows && el("b", {}, counted(rows, "row"), ": "), text));
  return el("div", { "data-checks": checks.length }, el("ul", {}, items), leftOut(checks_left_out, "check"));
}
