// The search of the page: what to look for, how far it is, and what it found, each to be taken over.
import { gib, lines, make, percent, seconds, surely, three } from "./asking.js";

const $ = (id) => document.getElementById(id);

export class Search {
  constructor(names, stateNow, take) {
    this.stateNow = stateNow; this.take = take;
    $("objective").append(...names.objectives.map((name) => make("option", { value: name, textContent: name })));
    $("hold").append(...names.hold.map((name) => make("label", {}, make("input", { type: "checkbox", value: name }), ` ${name.replace("_", "-")}`)));
    $("start").addEventListener("click", () => this.start());
    $("stop").addEventListener("click", () => { $("progress").textContent = "stopping ..."; fetch("api/stop", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" }); });
  }

  async start() {
    if (!$("sure").reportValidity()) return;
    const body = {
      state: this.stateNow(), objective: $("objective").value, fit_probability: Number($("sure").value),
      hold: [...$("hold").querySelectorAll("input:checked")].map((box) => box.value),
    };
    $("found").replaceChildren();
    $("start").disabled = true; $("stop").hidden = false; $("stop").focus();
    $("progress").textContent = "searching ...";
    try {
      await lines("api/search", body, undefined, (part) => this.hear(part));
    } catch (error) {
      $("progress").textContent = `no answer (${error.message})`;
    }
    $("start").disabled = false; $("stop").hidden = true;
    if (document.activeElement === document.body) $("start").focus();
  }

  hear({ waiting, progress, error, found }) {
    if (waiting) $("progress").textContent = waiting;
    if (error) $("progress").textContent = error;
    if (progress) {
      const best = progress.best === null ? "" : `, best ${three(progress.best)}`;
      $("progress").textContent = `${progress.phase}: ${progress.bounded.toLocaleString("en")} bounded, ${progress.simulated} simulated${best}`;
    }
    if (found) this.show(found);
  }

  show(found) {
    const sure = found.certified ? "certified: no layout of the space is better" : `stopped: another may be up to ${percent(found.gap)} better`;
    $("progress").textContent = `${sure}; ${found.space_size ? `${found.space_size.toLocaleString("en")} layouts, ` : ""}${found.simulated} simulated, ${seconds(found.seconds)}`;
    const head = ["layout", "step time", "MFU", "reserved", "probability of fitting", ""].map((name) => make("th", { scope: "col", textContent: name }));
    const rows = found.candidates.map((one, at) => {
      const button = make("button", { type: "button", textContent: "Take", ariaLabel: `Take layout ${at + 1}` });
      button.addEventListener("click", () => this.take(one.state));
      const cells = [seconds(one.step_time_s), percent(one.mfu), gib(one.peak_reserved_bytes), surely(one.fit_probability)];
      return make("tr", {}, make("th", { scope: "row", textContent: one.layout + (one.tied ? " (not told apart)" : "") }), ...cells.map((text) => make("td", { textContent: text })), make("td", {}, button));
    });
    $("found").replaceChildren(make("div", { className: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
  }
}
