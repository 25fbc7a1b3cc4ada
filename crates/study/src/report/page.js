// What a chart of the page can do beside being looked at. Without it everything is there but the controls.
document.documentElement.classList.add('live');
// `ablate watch` marks its page, and tells when there is something new.
const watch = document.querySelector('meta[name=watch]');
if (watch) new EventSource('events?' + watch.content).onmessage = () => location.reload();
const numbers = text => text.trim().split(/[ ,]+/).filter(part => part).map(Number);
for (const figure of document.querySelectorAll('figure.chart')) {
  const control = name => figure.querySelector(`[name=${name}]`);
  const output = figure.querySelector('output');
  const shown = () => figure.querySelector(figure.classList.contains('log') ? 'svg.log' : 'svg.linear');
  for (const name of ['seeds', 'log']) {
    control(name)?.addEventListener('change', event => figure.classList.toggle(name, event.target.checked));
  }
  const lines = [...figure.querySelectorAll('polyline')];
  const originals = lines.map(line => numbers(line.getAttribute('points')));
  control('smooth')?.addEventListener('input', event => {
    const weight = Number(event.target.value);
    lines.forEach((line, i) => {
      let last = originals[i][1];
      const points = originals[i].map((value, j) => j % 2 ? (last = weight * last + (1 - weight) * value) : value);
      line.setAttribute('points', points.map((value, j) => value.toFixed(2) + (j % 2 ? ' ' : ',')).join(''));
    });
  });
  // From the place in the drawing to the number on the axis.
  const value = (at, axis) => {
    const [low, high, from, to, scale] = axis.split(' ');
    const number = +low + (at - from) / (to - from) * (high - low);
    return scale === 'log' ? Math.exp(number) : number;
  };
  const look = (svg, x) => {
    let cursor = svg.querySelector('.cursor');
    if (!cursor) {
      cursor = document.createElementNS(svg.namespaceURI, 'line');
      cursor.setAttribute('class', 'cursor');
      svg.append(cursor);
    }
    const values = [];
    let nearest;
    for (const line of svg.querySelectorAll('.mean')) {
      const points = numbers(line.getAttribute('points'));
      let best = 0;
      for (let i = 0; i + 1 < points.length; i += 2) {
        if (Math.abs(points[i] - x) < Math.abs(points[best] - x)) best = i;
      }
      if (points.length < 2) continue;
      if (nearest === undefined || Math.abs(points[best] - x) < Math.abs(nearest - x)) nearest = points[best];
      values.push(`${line.textContent} ${value(points[best + 1], svg.dataset.y).toPrecision(4)}`);
    }
    if (nearest === undefined) return;
    const [, , bottom, top] = svg.dataset.y.split(' ');
    const place = { x1: nearest, x2: nearest, y1: top, y2: bottom };
    for (const [name, number] of Object.entries(place)) cursor.setAttribute(name, number);
    svg.dataset.at = nearest;
    output.textContent = `${svg.dataset.name} ${Number(value(nearest, svg.dataset.x).toPrecision(4))}: ${values.join(', ')}`;
  };
  for (const svg of figure.querySelectorAll('svg')) {
    svg.addEventListener('pointermove', event => {
      look(svg, new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x);
    });
    svg.addEventListener('keydown', event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const xs = line => numbers(line.getAttribute('points')).filter((_, i) => i % 2 === 0);
      const places = [...new Set([...svg.querySelectorAll('.mean')].flatMap(xs))].sort((a, b) => a - b);
      const at = places.indexOf(Number(svg.dataset.at));
      look(svg, places[at < 0 ? 0 : Math.min(Math.max(at + step, 0), places.length - 1)]);
    });
  }
  control('save').addEventListener('click', () => {
    const copy = shown().cloneNode(true);
    copy.querySelector('.cursor')?.remove();
    copy.classList.add(...figure.classList);
    const style = document.createElementNS(copy.namespaceURI, 'style');
    style.textContent = document.querySelector('style').textContent;
    copy.prepend(style);
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: 'image/svg+xml' }));
    link.download = shown().getAttribute('aria-label') + '.svg';
    link.click();
  });
}
