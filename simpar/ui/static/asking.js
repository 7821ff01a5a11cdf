// Requests of the page: answers as lines of JSON, and files that are downloaded.

// Calls hear(part) for every line as it comes; what the server refuses whole is one line, too.
export const lines = async (address, body, signal, hear) => {
  const response = await fetch(address, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const parts = (rest + (value ?? "")).split("\n");
    rest = done ? "" : parts.pop();
    for (const part of parts) if (part) hear(JSON.parse(part));
    if (done) return;
  }
};

// All parts of an answer in one.
export const whole = async (address, body) => {
  const found = {};
  await lines(address, body, undefined, (part) => Object.assign(found, part));
  return found;
};

export const download = ({ name, text, base64 }) => {
  const content = base64 === undefined ? text : Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const address = URL.createObjectURL(new Blob([content]));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
};

export const make = (tag, properties = {}, ...children) => {
  const found = Object.assign(document.createElement(tag), properties);
  found.append(...children);
  return found;
};

// Changes a part of the page; the control in it that had the focus, or the one in its place, has it afterwards.
export const keepFocus = (part, change) => {
  const controls = () => [...part.querySelectorAll("a[href], button, input, select, summary, [tabindex]")].filter((each) => each.checkVisibility());
  const at = controls().indexOf(document.activeElement);
  change();
  if (at >= 0 && !part.contains(document.activeElement)) (controls().slice(0, at + 1).at(-1) ?? document.getElementById("figures")).focus({ preventScroll: true });
};

const three = (value) => Number(value.toPrecision(3)).toLocaleString("en");
export const seconds = (s) => (s >= 1 ? `${three(s)} s` : s >= 0.001 ? `${three(s * 1e3)} ms` : `${three(s * 1e6)} us`);
export const gib = (bytes) => `${three(bytes / 2 ** 30)} GiB`;
export const percent = (share) => `${(100 * share).toFixed(1)}%`;
export const surely = (p) => (p === null || p === undefined ? "" : p > 0.99 ? "over 99 %" : p < 0.01 ? "below 1 %" : `${Math.round(100 * p)} %`);
export const joules = (j) => { const [size, name] = [[1e9, "GJ"], [1e6, "MJ"], [1e3, "kJ"]].find(([size]) => j >= size) ?? [1, "J"]; return `${three(j / size)} ${name}`; };
export { three };
