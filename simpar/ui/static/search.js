// The search of the page: what to look for, how far it is, and what it found, each to be taken over.
import { gib, lines, make, percent, seconds, surely, three } from "./asking.js";

const $ = (id) => document.getElementById(id);

// Objectives in words where their names are those of the house.
const MEANT = { regret: "best step, ties weighed", time: "shortest step as predicted", devices: "fewest nodes" };

export class Search {
  constructor(names, stateNow, take) {
    this.stateNow = stateNow; this.take = take;
    this.objectives = names.objectives; this.ofPools = names.pool_objectives;
    this.showFor({});
    $("hold").append(...names.hold.map((name) => make("label", {}, make("input", { type: "checkbox", value: name }), ` ${name.replace("_", "-")}`)));
    $("start").addEventListener("click", () => this.start());
    $("stop").addEventListener("click", () => { this.stopping = true; this.said("stopping"); fetch("api/stop", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" }); });
  }

  // What may be asked for: of a step of reinforcement learning other objectives and a staleness, of an update a probability.
  showFor(state) {
    const isRl = Boolean(state.post_training), names = isRl ? this.ofPools : this.objectives;
    $("sure").parentElement.hidden = isRl; $("off").parentElement.hidden = !isRl;
    if ($("objective").dataset.names === String(names)) return;
    $("objective").dataset.names = names;
    $("objective").replaceChildren(...names.map((name) => make("option", { value: name, textContent: MEANT[name] ?? name })));
  }

  async start() {
    if (![$("sure"), $("off")].every((input) => input.reportValidity())) return;
    const body = {
      state: this.stateNow(), objective: $("objective").value, fit_probability: Number($("sure").value), staleness: Number($("off").value),
      hold: [...$("hold").querySelectorAll("input:checked")].map((box) => box.value),
    };
    $("found").replaceChildren();
    $("start").disabled = true; $("stop").hidden = false; $("stop").focus();
    this.stopping = false;
    this.said("searching");
    const began = performance.now(), clock = setInterval(() => { $("elapsed").textContent = `, ${Math.round((performance.now() - began) / 1e3)} s`; }, 500);
    try {
      await lines("api/search", body, undefined, (part) => this.hear(part));
    } catch (error) {
      this.said(`no answer (${error.message})`);
    }
    clearInterval(clock);
    $("elapsed").textContent = "";
    $("start").disabled = false; $("stop").hidden = true;
    if (document.activeElement === document.body) $("start").focus();
  }

  said(words) { $("progress").textContent = words; }

  hear({ waiting, progress, error, found }) {
    if (found) this.show(found);
    else if (error) this.said(error);
    else if (!this.stopping) this.said(progress ?? waiting);
  }

  show(found) {
    const open = found.gap < 1 ? `another may be up to ${percent(found.gap)} better` : "how much better another may be is not known";
    const sure = found.certified ? "certified: no layout of the space is better" : `${found.stopped ? "stopped" : "not certified"}: ${open}`;
    this.said(`${sure}; ${found.space_size ? `${found.space_size.toLocaleString("en")} layouts, ` : ""}${found.simulated} simulated, ${seconds(found.seconds)}`);
    const isRl = found.candidates[0]?.mfu === null;
    const head = ["layout", "step time", isRl ? "responses/s" : "MFU", "reserved", "probability of fitting", ""].map((name) => make("th", { scope: "col", textContent: name }));
    const rows = found.candidates.map((one, at) => {
      const button = make("button", { type: "button", textContent: "Take", ariaLabel: `Take layout ${at + 1}` });
      button.addEventListener("click", () => this.take(one.state));
      const cells = [seconds(one.step_time_s), isRl ? three(one.samples_per_s) : percent(one.mfu), gib(one.peak_reserved_bytes), surely(one.fit_probability)];
      return make("tr", {}, make("th", { scope: "row", textContent: one.layout + (one.tied ? " (not told apart)" : "") }), ...cells.map((text) => make("td", { textContent: text })), make("td", {}, button));
    });
    $("found").replaceChildren(make("div", { className: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
  }
}
