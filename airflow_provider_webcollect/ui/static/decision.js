/** The dialog that asks before a decision on quarantined rows, and shows its outcome. */
import { button, el } from "./dom.js";
import { decisionTexts } from "./logic.js";

const TITLE = "webcollect-decision";

export class DecisionDialog {
  /**
   * :param ask: returns which rows wait, `{ rows, commit }`; `send` sends a decision, and returns `{ rows }`;
   *     `complaint` puts the errors of both into words; `closed` is called when the dialog is closed.
   */
  constructor({ ask, send, complaint, closed }) {
    Object.assign(this, { ask, send, complaint });
    this.title = el("h2", { id: TITLE });
    this.text = el("div", { role: "status" });
    this.confirm = button("");
    this.cancel = button("Cancel", () => this.element.close());
    const buttons = el("div", { class: "controls" }, this.confirm, this.cancel);
    this.element = el("dialog", { "aria-labelledby": TITLE, onclose: closed }, this.title, this.text, buttons);
  }

  /**
   * Ask whether to accept or to discard rows.
   *
   * :param decision: `accept` or `discard`; `which` are the rows, `{ run_id, collection_task_id }`, and `name` what
   *     they land in; `elsewhere` shows how to decide if this fails.
   */
  async open(decision, which, name, elsewhere) {
    const texts = (rows) => decisionTexts(decision, rows, which.run_id, name);
    const asked = (this.asked = {});
    // a response to an earlier question is no longer shown
    const tell = (...what) => this.asked === asked && this.tell(...what);
    const attempt = (act, failed) =>
      act().catch((error) => tell(failed, [el("p", {}, this.complaint(error)), ...elsewhere]));

    const decide = async (commit) => {
      tell(`${texts(0).verb}: writing the commit …`);
      const { rows } = await this.send({ ...which, decision, commit });
      tell(texts(rows).done);
    };
    tell(`${texts(0).verb}: reading which rows wait …`);
    this.element.showModal();
    await attempt(async () => {
      const { rows, commit } = await this.ask(which);
      const { verb, text } = texts(rows);
      const failed = "The decision has failed; open it again to see whether the rows still wait";
      tell(`${verb} them?`, [el("p", {}, text)], verb, () => attempt(() => decide(commit), failed));
    }, "Nothing to decide on here");
  }

  tell(title, content = [], verb = null, act = null) {
    this.title.textContent = title;
    this.text.replaceChildren(...content);
    this.confirm.hidden = !verb;
    this.confirm.textContent = verb ?? "";
    this.confirm.onclick = act;
    this.cancel.textContent = verb ? "Cancel" : "Close";
    this.cancel.focus();
  }
}
