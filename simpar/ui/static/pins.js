// Pinned plans beside the one of now: a column each, with what each takes more or less than this one.
import { gib, joules, keepFocus, make, percent, seconds, surely, three, whole } from "./asking.js";

const ROWS = [
  ["step time", (v) => seconds(v.step_time_s) + (v.step_time_interval_s ? ` (${v.step_time_interval_s.map(seconds).join(" to ")})` : "")],
  ["against this plan", (v, now) => (now && now !== v ? `${v.step_time_s >= now.step_time_s ? "+" : ""}${percent(v.step_time_s / now.step_time_s - 1)}` : "")],
  ["MFU", (v) => (v.mfu === null ? "" : percent(v.mfu))],
  ["responses/s", (v) => (v.samples_per_s === undefined ? "" : three(v.samples_per_s))],
  ["training waits", (v) => (v.training_waits === undefined ? "" : percent(v.training_waits))],
  ["a replica waits", (v) => (v.generation_waits === undefined ? "" : percent(v.generation_waits))],
  ["staleness, updates", (v) => (v.staleness === undefined ? "" : three(v.staleness))],
  ["tokens/s", (v) => three(v.tokens_per_s)],
  ["memory", (v) => `${gib(v.peak_reserved_bytes)} of ${gib(v.capacity_bytes)}`],
  ["memory of generation", (v) => (v.generation_bytes === undefined ? "" : gib(v.generation_bytes))],
  ["probability of fitting", (v) => surely(v.fit_probability)],
  ["cost per step", (v) => (v.cost_usd_per_step === null ? "" : `${three(v.cost_usd_per_step)} USD`)],
  ["energy per step", (v) => (v.energy_j_per_step === null ? "" : joules(v.energy_j_per_step))],
  ["days of the whole run", (v) => (v.whole_run ? three(v.whole_run.days.value) + (v.whole_run.failures ? "" : " without failures") : "")],
  ["dollars of it", (v) => (v.whole_run?.cost_usd ? three(v.whole_run.cost_usd.value) : "")],
];

export class Pins {
  constructor(take, changed) { this.all = []; this.now = null; this.take = take; this.changed = changed; }

  get states() { return this.all.map((pin) => pin.state); }

  add(numbers) { this.all.push(numbers); this.show(); this.changed(); }

  // Pins of a link: simulated again, so that their figures are those of this version.
  async restore(states) {
    const found = await Promise.all(states.map((state) => whole("api/answer", { state, brief: true })));
    this.all = found.map((part) => part.numbers).filter(Boolean);
    this.show();
    return found.map((part) => part.error).filter(Boolean);
  }

  showNow(numbers) { this.now = numbers; this.show(); }

  show() { keepFocus(document.getElementById("pins"), () => this.draw()); }

  draw() {
    const table = document.querySelector("#pins table"), columns = this.all.map((pin, at) => [`pin ${at + 1}`, pin]);
    document.getElementById("pins").hidden = !columns.length;
    if (this.now) columns.push(["this plan", this.now]);
    const head = make("tr", {}, make("th", { scope: "col" }));
    columns.forEach(([name, pin], at) => {
      const cell = make("th", { scope: "col" }, make("div", { textContent: name }));
      if (at < this.all.length) {
        const back = make("button", { type: "button", textContent: "Back to it", ariaLabel: `Back to ${name}` });
        const drop = make("button", { type: "button", textContent: "Remove", ariaLabel: `Remove ${name}` });
        back.addEventListener("click", () => this.take(pin.state));
        drop.addEventListener("click", () => { this.all.splice(at, 1); this.show(); this.changed(); });
        cell.append(back, drop);
      }
      head.append(cell);
    });
    const told = ROWS.filter(([, words]) => columns.some(([, pin]) => words(pin.values, this.now?.values)));
    const rows = [["job", (_, __, pin) => pin.title.split(":")[0]], ["layout", (_, __, pin) => pin.layout], ...told];
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...rows.map(([name, words]) => make("tr", {}, make("th", { scope: "row", textContent: name }),
      ...columns.map(([, pin]) => make("td", { textContent: words(pin.values, this.now?.values, pin) })))));
  }
}
