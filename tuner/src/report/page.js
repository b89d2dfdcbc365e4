'use strict';
// Theme: the reader's system decides until the button is used; then the button does, on this page and the next.
const root = document.documentElement, theme = document.getElementById('theme');
const stored = key => { try { return localStorage.getItem(key); } catch { return null; } };
const system = matchMedia('(prefers-color-scheme: dark)');
function show(dark) {
  root.dataset.theme = dark ? 'dark' : 'light';
  theme.setAttribute('aria-pressed', dark);
}
const follow = () => show(stored('nvkv-theme') ? stored('nvkv-theme') === 'dark' : system.matches);
follow();
system.addEventListener('change', follow);
theme.addEventListener('click', () => {
  const dark = root.dataset.theme !== 'dark';
  try { localStorage.setItem('nvkv-theme', dark ? 'dark' : 'light'); } catch { /* not kept */ }
  show(dark);
});
// Paper is white.
addEventListener('beforeprint', () => show(false));
addEventListener('afterprint', follow);

// A header sorts its table: ascending, then descending. Cells without a value come last either way.
function sort(header) {
  const table = header.closest('table'), body = table.tBodies[0], column = header.cellIndex;
  const numeric = header.classList.contains('n');
  const falling = header.getAttribute('aria-sort') === 'ascending';
  for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
  header.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
  const key = row => {
    const cell = row.cells[column];
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    return numeric ? NaN : cell.textContent;
  };
  const order = (a, b) => typeof a === 'number' ? a - b : a.localeCompare(b, 'en', { numeric: true });
  const missing = value => Number.isNaN(value);
  const rows = Array.from(body.rows, row => [key(row), row]);
  rows.sort(([a], [b]) => missing(a) - missing(b) || (missing(a) ? 0 : falling ? order(b, a) : order(a, b)));
  body.append(...rows.map(([, row]) => row));
}
for (const button of document.querySelectorAll('.sortable thead button'))
  button.addEventListener('click', () => sort(button.closest('th')));

// Rows that contain every word.
for (const input of document.querySelectorAll('input[data-table]')) {
  const rows = Array.from(document.getElementById(input.dataset.table).tBodies[0].rows);
  const texts = new Map(rows.map(row => [row, row.textContent.toLowerCase()]));
  input.addEventListener('input', () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of rows) {
      row.hidden = !words.every(word => texts.get(row).includes(word));
      left += !row.hidden;
    }
    input.closest('.controls').querySelector('output').textContent =
      words.length ? `${left} of ${rows.length} rows` : `${rows.length} rows`;
  });
}

// A series of a plot is shown or not.
for (const button of document.querySelectorAll('.legend button'))
  button.addEventListener('click', () => {
    const shown = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', shown);
    for (const dot of document.querySelectorAll(`#${button.dataset.plot} [data-series="${button.dataset.series}"]`))
      dot.toggleAttribute('hidden', !shown);
  });

// A dot leads to its row, whatever the filter hides.
for (const dot of document.querySelectorAll('.plot a'))
  dot.addEventListener('click', event => {
    event.preventDefault();
    const row = document.getElementById(dot.getAttribute('href').slice(1));
    for (const found of document.querySelectorAll('tr.found')) found.classList.remove('found');
    row.hidden = false;
    row.classList.add('found');
    row.scrollIntoView({ block: 'center' });
  });

const tip = document.getElementById('tip');
document.addEventListener('pointerover', event => {
  const at = event.target.closest('[data-tip]');
  tip.hidden = !at;
  if (!at) return;
  tip.textContent = at.dataset.tip;
  const box = at.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 8);
  const above = box.top - size.height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
});
