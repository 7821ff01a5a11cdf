// Filters, order and a chart of the table of choices; without scripts the table stands alone.
(() => {
  const table = document.getElementById('choices');
  const rows = [...table.tBodies[0].rows];
  const keys = [...table.tHead.rows[0].cells].slice(0, Number(table.dataset.keys)).map((cell) => cell.textContent);
  const facts = rows.map((row, at) => ({
    row, at, values: keys.map((_, column) => row.cells[column].textContent),
    step: row.cells[keys.length].textContent, rate: Number(row.dataset.rate), memory: Number(row.dataset.memory),
    fits: row.dataset.fits === 'true',
  }));
  const tools = document.getElementById('choose');
  const unit = document.getElementById('tradeoff').dataset.rate;
  const by = unit === 'tokens/s' ? '' : ` (most ${unit})`;
  const made = (tag, parent, fields) => Object.assign(parent.appendChild(document.createElement(tag)), fields);

  function select(name, options) {
    const label = made('label', tools, { textContent: `${name} ` });
    const box = made('select', label, { onchange: show });
    for (const [value, text] of options) made('option', box, { value, textContent: text });
    return box;
  }

  const filters = keys.map((key, column) => {
    const values = [...new Set(facts.map((fact) => fact.values[column]))];
    return values.length > 1 ? select(key, [['', 'all'], ...values.map((value) => [value, value])]) : null;
  });
  const fitting = made('input', made('label', tools, { textContent: 'only what fits ' }), { type: 'checkbox', onchange: show });
  const order = select('order', [['at', 'as listed'], ['rate', 'fastest first'], ['memory', 'least memory first']]);
  const KEYS = {
    at: (fact) => fact.at,
    rate: (fact) => -fact.rate,
    memory: (fact) => fact.memory || Infinity,
  };

  function show() {
    const shown = facts.filter((fact) => (fact.fits || !fitting.checked)
      && filters.every((filter, column) => !filter || !filter.value || fact.values[column] === filter.value));
    shown.sort((a, b) => KEYS[order.value](a) - KEYS[order.value](b) || a.at - b.at);
    table.tBodies[0].replaceChildren(...shown.map((fact) => fact.row));
    const best = shown.filter((fact) => fact.fits && fact.rate).sort((a, b) => b.rate - a.rate)[0];
    const words = best ? `fastest that fits${by}: ${keys.map((key, column) => `${key} ${best.values[column]}`).join(', ')}: ${best.step}` : 'none fits';
    document.getElementById('chosen').textContent = `${shown.length} of ${facts.length} choices; ${words}`;
    draw(shown.filter((fact) => fact.rate && fact.memory), best);
  }

  const NS = 'http://www.w3.org/2000/svg';
  const HEIGHT = 260, LEFT = 64, BELOW = 34;
  const figure = document.getElementById('tradeoff');
  let drawn = [];
  function draw(points, best) {
    drawn = [points, best];
    figure.hidden = !points.length;
    const width = Math.max(240, figure.clientWidth);  // one unit is one pixel, or texts would shrink on narrow screens
    const most = { memory: 1.05 * Math.max(...points.map((p) => p.memory)), rate: 1.08 * Math.max(...points.map((p) => p.rate)) };
    const x = (memory) => LEFT + memory / most.memory * (width - LEFT - 10);
    const y = (rate) => HEIGHT - BELOW - rate / most.rate * (HEIGHT - BELOW - 8);
    const svg = figure.querySelector('svg');
    svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren();
    const put = (tag, attributes, text) => {
      const node = svg.appendChild(document.createElementNS(NS, tag));
      for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
      if (text !== undefined) node.textContent = text;
      return node;
    };
    put('path', { d: `M${LEFT} 8V${HEIGHT - BELOW}H${width - 10}`, class: 'axis' });
    for (const memory of ticks(most.memory)) put('text', { x: x(memory), y: HEIGHT - BELOW + 15, 'text-anchor': 'middle' }, memory);
    for (const rate of ticks(most.rate)) put('text', { x: LEFT - 6, y: y(rate) + 4, 'text-anchor': 'end' }, short(rate));
    put('text', { x: width - 10, y: HEIGHT - 4, 'text-anchor': 'end' }, 'GiB on the fullest device');
    put('text', { x: LEFT + 6, y: 18 }, figure.dataset.rate);
    for (const point of points) {
      const kind = point === best ? 'best' : point.fits ? 'fits' : 'misfit';
      const mark = put(point.fits ? 'circle' : 'path', point.fits
        ? { cx: x(point.memory), cy: y(point.rate), r: point === best ? 6 : 4, class: kind }
        : { d: `M${x(point.memory) - 3} ${y(point.rate) - 3}l6 6m0 -6l-6 6`, class: kind });
      const title = mark.appendChild(document.createElementNS(NS, 'title'));
      title.textContent = `${keys.map((key, column) => `${key} ${point.values[column]}`).join(', ')}: ${point.step}`;
    }
  }

  function ticks(most) {  // three to seven round numbers
    const power = 10 ** Math.floor(Math.log10(most / 3)), step = power * [5, 2, 1].find((each) => 3 * each * power <= most);
    return Array.from({ length: Math.floor(most / step) }, (_, at) => Number(((at + 1) * step).toPrecision(6)));
  }

  function short(value) {
    const power = Math.max(0, Math.floor(Math.log10(value) / 3));
    return `${Number((value / 1000 ** power).toPrecision(2))}${['', ' K', ' M', ' G'][power]}`;
  }

  tools.hidden = false;
  show();
  addEventListener('resize', () => draw(...drawn));
})();
