// The state of the page, a scenario as data, and the link that holds it: dotted keys, as `--set` takes them.

const plain = (value) => {
  if (typeof value !== "string") return JSON.stringify(value);
  try { JSON.parse(value); return JSON.stringify(value); } catch { return value; }
};
const meant = (text) => { try { return JSON.parse(text); } catch { return text; } };
const isSection = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const SECTIONS = ["cluster", "training", "plan", "post_training"];

const flattened = (state) => Object.entries(state).flatMap(([key, value]) =>
  SECTIONS.includes(key) && isSection(value) ? Object.entries(value).map(([name, each]) => [`${key}.${name}`, plain(each)]) : [[key, plain(value)]]);

// The part of an address behind the #: the state and the pinned states.
export const toLink = (state, pins) => new URLSearchParams([
  ...flattened(state), ...pins.map((pin) => ["pin", new URLSearchParams(flattened(pin)).toString()]),
]).toString();

const unflattened = (pairs) => {
  const state = {};
  for (const [key, text] of pairs) {
    const [section, ...rest] = key.split(".");
    if (rest.length && SECTIONS.includes(section)) state[section] = { ...state[section], [rest.join(".")]: meant(text) };
    else state[key] = meant(text);
  }
  return state;
};

// The same read back; null where a link holds no state.
export const fromLink = (text) => {
  const pairs = [...new URLSearchParams(text)];
  if (!pairs.some(([key]) => key === "model")) return null;
  return {
    state: unflattened(pairs.filter(([key]) => key !== "pin")),
    pins: pairs.filter(([key]) => key === "pin").map(([, pin]) => unflattened([...new URLSearchParams(pin)])),
  };
};
